"""The model card, and sharing without a network."""

from __future__ import annotations

import re

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard, hub_mixin

import tiny_models
import torchsdm
from small import quiet, small_settings
from torchsdm import SDMClassifier, SDMEnsemble, SDMTextClassifier
from torchsdm.errors import ModelFileError, NotFittedError, RegionWarning
from torchsdm.hidden_states import Backbone
from torchsdm.model import hub
from torchsdm.wording import UNPROMISED


def tables(card):
    return re.findall(r"^\| (\w+) \| ([0-9.]+) \| (\d+) \|$", card, flags=re.MULTILINE)


# --- The card --------------------------------------------------------------------------------------------------------


def test_the_header_is_what_the_hub_reads(fitted):
    _, header, body = fitted.model_card().split("---\n", 2)
    data = yaml.safe_load(header)
    assert data["library_name"] == "torchsdm" and "selective-classification" in data["tags"]
    assert body.lstrip().startswith("# torchsdm SDMClassifier for 3 classes")
    assert ModelCard(fitted.model_card()).data.library_name == "torchsdm"


def test_the_card_says_what_the_model_is(fitted):
    card = fitted.model_card()
    assert f"torchsdm {torchsdm.__version__}" in card
    for line in (
        "| classes | ant, bee, cat |",
        "| input | hidden states of width 4 |",
        "| trained on | 240 labelled examples |",
        "| support (training) points | 120 |",
        "| calibration points | 120 |",
        f"| training data fingerprint (SHA-256) | `{fitted.data_fingerprint_}` |",
        "from torchsdm import SDMClassifier",
    ):
        assert line in card


def test_the_card_gives_the_numbers_of_every_region(fitted):
    card = fitted.model_card()
    expected = []
    for region in fitted.regions_:
        assert (
            f"**alpha = {region.alpha:g}**: rescaled similarity at least {region.min_rescaled_similarity:.4g}" in card
        )
        expected += [
            (name, f"{threshold:.4f}", str(count))
            for name, threshold, count in zip(
                fitted.classes_, region.thresholds.tolist(), region.class_counts.tolist(), strict=True
            )
        ]
    assert tables(card) == expected


def test_the_card_does_not_hide_a_missing_region(fitted):
    with pytest.warns(RegionWarning):
        fitted.recalibrate(0.9, min_class_count=500)
    card = fitted.model_card()
    assert "**alpha = 0.9**: none. No high-reliability region" in card and tables(card) == []


def test_the_card_of_an_ensemble_has_a_part_per_round(fitted):
    card = SDMEnsemble.from_classifier(fitted).model_card()
    assert "### Round 0" in card and "### Round 1" in card and "from torchsdm import SDMEnsemble" in card
    assert "| support (training) points | 120, 120 |" in card


def test_the_card_counts_the_examples_of_each_class(fitted, insects):
    counts = {name: [int((insects.y == name).sum())] for name in fitted.classes_}
    for rows in (fitted.training_rows_, fitted.calibration_rows_):
        for name in counts:
            counts[name].append(int((insects.y[rows] == name).sum()))
    lines = [
        f"| {name} | {all_} | {training} | {calibration} |" for name, (all_, training, calibration) in counts.items()
    ]
    table = "\n".join(["| class | examples | training | calibration |", "|---|---|---|---|", *lines, ""])
    assert table in fitted.model_card()
    assert "The parts are those of round 0" in SDMEnsemble.from_classifier(fitted).model_card()
    fitted.relabel_exemplars(fitted.support_.ids[:2], ["moth", "moth"], allow_new_labels=True)
    assert "\n| no class | 2 | 2 | 0 |\n" in fitted.model_card()


def test_many_classes_are_not_all_listed():
    y = np.repeat(np.arange(60), 4)
    X = np.eye(60)[y] + np.random.default_rng(0).normal(0, 0.1, (240, 60))
    with quiet():
        card = (
            SDMClassifier(0.6, n_filters=4, n_rounds=1, training="sdm", max_epochs=1, random_state=0)
            .fit(X, y)
            .model_card()
        )
    assert "\n| 49 | 4 |" in card and "\n| 50 | 4 |" not in card and "... and 10 more classes." in card


def test_the_card_names_the_data_where_it_is_known(fitted, insects, tmp_path):
    fitted.data_source_ = "reviews|1.jsonl"
    assert r"| trained on | 240 labelled examples of `reviews\|1.jsonl` |" in fitted.model_card()
    fitted.save(tmp_path / "model")
    assert SDMClassifier.load(tmp_path / "model").model_card() == fitted.model_card()
    assert SDMEnsemble.from_classifier(fitted).data_source_ == "reviews|1.jsonl"
    with quiet():
        assert fitted.fit(insects.X[::2], insects.y[::2]).data_source_ is None  # other data


CERTIFIED = small_settings()


@pytest.mark.parametrize(
    ("control", "alone"), [("groups", None), ("predictions", "for a class on"), ("all", "for a class or prediction on")]
)
def test_the_card_says_what_is_promised_and_what_is_not(control, alone):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 150)
    classifier = SDMClassifier(0.8, delta=0.2, control=control, **CERTIFIED)
    classifier.fit(rng.normal(size=(300, 3)) + 4 * y[:, None], y)
    promises, limits = (part(classifier.model_card(), title) for title in ("promises", "does not promise"))
    assert promises.startswith(classifier.certificate_.holds_for(["0", "1"]))
    for window in classifier.certificate_.windows:
        assert f"| {window.name(['0', '1'])} | {window.n_admitted} | {window.n_errors} |" in promises
    assert "; to be trusted: 0 " in promises
    assert "- Certainty: with probability up to 0.2 it fails." in limits
    assert "data unlike the certification points" in limits
    assert (f"- Anything {alone} its own" in limits) if alone else ("on its own" not in limits)
    classifier.remove_exemplars(classifier.support_.ids[:1])
    assert part(classifier.model_card(), "promises").startswith(UNPROMISED["changed"])


def part(card, title):
    """A part of a card, without its title."""
    (found,) = re.findall(rf"^## What it {title}\n\n(.*?)\n\n## ", card, flags=re.MULTILINE | re.DOTALL)
    return found


def test_a_card_without_a_certificate_promises_nothing(fitted):
    assert "nothing is certified. The paper's region below is an estimate" in part(
        fitted.model_card(), "does not promise"
    )


def run_card(folder, monkeypatch, capsys):
    """What the lines of a card print, run in the directory that it lies in."""
    (lines,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len([line for line in lines.splitlines() if line]) == 4  # three, and one to see something
    monkeypatch.chdir(folder)
    found: dict = {}
    exec(lines, found)
    assert str(found["decisions"].reason) in capsys.readouterr().out
    return found["decisions"]


def test_the_lines_of_the_card_run(fitted, tmp_path, monkeypatch, capsys):
    for model in (fitted, SDMEnsemble.from_classifier(fitted)):
        folder = tmp_path / type(model).__name__
        model.save(folder)
        decisions = run_card(folder, monkeypatch, capsys)
        assert decisions.to_dicts() == model.decide(np.zeros((1, 4))).to_dicts()


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_the_lines_run_with_several_positions(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 30)
    classifier = SDMClassifier(0.8, **CERTIFIED).fit(rng.normal(size=(60, 2, 3)) + 3 * y[:, None, None], y)
    classifier.save(tmp_path / "model")
    assert run_card(tmp_path / "model", monkeypatch, capsys).to_dicts() == classifier.decide([[[0.0] * 3]]).to_dicts()


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
@pytest.mark.parametrize("prompt", [None, "Is it so? {document} {answer}"])
def test_the_lines_run_with_texts(prompt, tmp_path, monkeypatch, capsys):
    directory = tiny_models.save_model(tmp_path / "bert", *tiny_models.bert())
    texts, labels = [f"the film was {word} {n}" for n in range(20) for word in ("good", "bad")], ["yes", "no"] * 20
    answers = {} if prompt is None else {"answers": ["so it was"] * 40}
    classifier = SDMTextClassifier(str(directory), prompt, SDMClassifier(0.8, **CERTIFIED), cache=False)
    classifier.fit(texts, labels, **answers)
    classifier.save(tmp_path / "model")
    assert len(run_card(tmp_path / "model", monkeypatch, capsys)) == (2 if prompt is None else 1)
    kept = SDMTextClassifier(Backbone(*tiny_models.bert()), classifier=SDMClassifier(0.8, **CERTIFIED), cache=False)
    kept.fit(texts, labels)
    assert 'from_pretrained(".", model="path of the language model")' in kept.model_card()


def test_there_is_no_card_before_fit():
    with pytest.raises(NotFittedError, match="call fit before model_card"):
        SDMClassifier().model_card()


# --- Sharing ---------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refused(*arguments, **options):
        raise OSError("no network in tests")

    monkeypatch.setattr("socket.socket.connect", refused)


def assert_same_decisions(first, second, X):
    a, b = first.decide(X), second.decide(X)
    for name, value in a._columns():
        np.testing.assert_array_equal(value, getattr(b, name), err_msg=name)


def test_a_saved_model_is_loaded_from_its_directory(fitted, insects, tmp_path):
    assert fitted.save_pretrained(tmp_path / "model") is None
    assert_same_decisions(SDMClassifier.from_pretrained(tmp_path / "model"), fitted, insects.fresh)
    assert_same_decisions(SDMClassifier.from_pretrained(str(tmp_path / "model")), fitted, insects.fresh)
    assert (tmp_path / "model" / "README.md").read_text(encoding="utf-8") == fitted.model_card()


def test_an_ensemble_is_shared_alike(fitted, insects, tmp_path):
    ensemble = SDMEnsemble.from_classifier(fitted)
    ensemble.save_pretrained(tmp_path / "model")
    assert_same_decisions(SDMEnsemble.from_pretrained(tmp_path / "model"), ensemble, insects.fresh)
    with pytest.raises(ModelFileError, match=r"config.json describes a 'SDMEnsemble', not a 'SDMClassifier'"):
        SDMClassifier.from_pretrained(tmp_path / "model")


def test_a_name_that_is_not_in_the_cache_is_refused_offline(tmp_path):
    with pytest.raises(ModelFileError, match="someone/unknown is not a directory and cannot be loaded from the hub"):
        SDMClassifier.from_pretrained("someone/unknown", local_files_only=True, cache_dir=tmp_path)
    with pytest.raises(ModelFileError, match="is not a directory and cannot be loaded"):
        SDMClassifier.from_pretrained(tmp_path / "not" / "there" / "at" / "all", local_files_only=True)


def test_a_model_of_the_hub_is_loaded_from_the_cache(fitted, insects, tmp_path, monkeypatch):
    fitted.save(tmp_path / "snapshot")
    asked = {}

    def snapshot_download(name, **options):
        asked.update(options, name=name)
        return str(tmp_path / "snapshot")

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    loaded = SDMClassifier.from_pretrained("someone/model", revision="v2", local_files_only=True, verify=False)
    assert_same_decisions(loaded, fitted, insects.fresh)
    assert (asked["name"], asked["revision"], asked["local_files_only"]) == ("someone/model", "v2", True)


class FakeHub:
    """Takes what would be uploaded."""

    uploads: list

    def __init__(self, token=None):
        pass

    def create_repo(self, repo_id, **options):
        return type("Repo", (), {"repo_id": f"someone/{repo_id}" if "/" not in repo_id else repo_id})

    def upload_folder(self, repo_id, folder_path, **options):
        files = {path.name: path.read_bytes() for path in folder_path.iterdir()}
        self.uploads.append((repo_id, files, options))
        return f"https://hub/{repo_id}/commit/1"


@pytest.fixture
def uploads(monkeypatch):
    FakeHub.uploads = []
    monkeypatch.setattr(hub_mixin, "HfApi", FakeHub)
    return FakeHub.uploads


def test_pushing_uploads_a_whole_model_in_one_commit(fitted, insects, tmp_path, uploads):
    assert fitted.push_to_hub("someone/model") == "https://hub/someone/model/commit/1"
    ((name, files, options),) = uploads
    assert name == "someone/model"
    assert set(options["delete_patterns"]) == {"*.safetensors", "*.sqlite"}  # of an older version
    (tmp_path / "back").mkdir()
    for file, content in files.items():
        (tmp_path / "back" / file).write_bytes(content)
    assert_same_decisions(SDMClassifier.from_pretrained(tmp_path / "back"), fitted, insects.fresh)
    assert files["README.md"].decode() == fitted.model_card()
    assert not [file for file in files if file.startswith(".")]


def test_saving_can_push_too(fitted, tmp_path, uploads):
    url = fitted.save_pretrained(tmp_path / "kept", push_to_hub=True, repo_id="someone/other", private=True)
    assert url == "https://hub/someone/other/commit/1" and uploads[0][0] == "someone/other"
    assert (tmp_path / "kept" / "config.json").is_file()
    fitted.save_pretrained(tmp_path / "named", push_to_hub=True)
    assert uploads[1][0] == "someone/named"


def test_the_card_as_the_hubs_object(fitted):
    assert str(fitted.generate_model_card()).strip() == fitted.model_card().strip()
