"""``evaluate_model`` on texts: the language model's own logits keep the labels of their columns on the whole road."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tiny_models
from small import quietly, small_settings
from torchsdm import HiddenStateExtractor, SDMClassifier, TaskPrompt
from torchsdm.application import SavedModel, evaluate_model
from torchsdm.application.saved_model import Reading
from torchsdm.application.train import read_training
from torchsdm.data import Columns, Documents
from torchsdm.errors import InvalidInputError

pytestmark = pytest.mark.filterwarnings("ignore:On 20 calibration points:torchsdm.errors.SDMWarning")

SMALL = small_settings(alpha=0.7, max_epochs=2)
UNSORTED = TaskPrompt("Is it good? {document} ", {"pos": "Yes", "neg": "No"})  # the classes are neg, pos
WORDS = tiny_models.TEXT.split()


def write(path, texts, labels):
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHSDM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield str(tiny_models.save_model(tmp_path_factory.mktemp("models") / "lm", *tiny_models.phi3()))


def test_label_words_in_any_order_score_their_own_classes(model, tmp_path):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 6)) for _ in range(80)]
    says = HiddenStateExtractor(model, UNSORTED).extract(texts).label_logits.argmax(axis=1)
    answers = np.array(["pos", "neg"])[says]  # what the language model answers is right, but for every fifth text
    labels = [{"pos": "neg", "neg": "pos"}[one] if row % 5 == 0 else one for row, one in enumerate(answers.tolist())]
    assert min(labels.count("pos"), labels.count("neg")) > 10
    training, test = write(tmp_path / "a.jsonl", texts[:40], labels[:40]), write(tmp_path / "b.jsonl", texts, labels)
    states = read_training(training, Columns(), HiddenStateExtractor(model, UNSORTED))
    quietly(lambda: SDMClassifier(**SMALL).fit(states)).save(tmp_path / "model")
    saved = SavedModel.load(tmp_path / "model")
    found = quietly(lambda: evaluate_model(saved, [test], Columns(), None, [], training, "language model"))
    (alone,) = [row for row in found.table.rows if row.model == "lm" and row.estimator == "no reject"]
    assert alone.accuracy.marginal.accuracy == 0.8


def test_training_data_may_be_a_folder_of_states(model, tmp_path):
    rng = np.random.default_rng(2)
    texts = write(tmp_path / "a.jsonl", [" ".join(rng.choice(WORDS, 6)) for _ in range(40)], ["pos", "neg"] * 20)
    HiddenStateExtractor(model, UNSORTED).extract_to(tmp_path / "states", Documents(tmp_path / "a.jsonl"))
    states = read_training(str(tmp_path / "states"), Columns(), None)
    quietly(lambda: SDMClassifier(**SMALL).fit(states)).save(tmp_path / "model")
    saved = SavedModel.load(tmp_path / "model")
    assert saved.text_classifier is not None  # it could read texts, but it need not
    for source in (str(tmp_path / "states"), texts):
        found = quietly(lambda source=source: evaluate_model(saved, [texts], Columns(), None, [], source, "today"))
        assert {entrant.group for entrant in found.entrants} >= {"sdm", "today"}


# --- Places in files --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    rng = np.random.default_rng(1)
    training = write(folder / "a.jsonl", [" ".join(rng.choice(WORDS, 6)) for _ in range(40)], ["pos", "neg"] * 20)
    states = read_training(training, Columns(), HiddenStateExtractor(model, UNSORTED))
    quietly(lambda: SDMClassifier(**SMALL).fit(states)).save(folder / "model")
    return SavedModel.load(folder / "model")


TEXTS = {
    "blank.jsonl": '\n{"text": "a film", "label": "pos"}\n\n{"text": "a plot", "label": "LABEL"}\n',
    "long.csv": 'text,label\n"two\nlines",pos\na plot,LABEL\n',
}


@pytest.fixture
def nothing_embedded(monkeypatch):
    """Whoever embeds a text fails."""
    monkeypatch.setattr(HiddenStateExtractor, "unread_blocks", lambda *_, **__: pytest.fail("a text was embedded"))


@pytest.mark.parametrize("name", TEXTS)
def test_a_missing_label_is_named_by_its_line_before_anything_is_embedded(name, saved, tmp_path, nothing_embedded):
    path, good = tmp_path / name, tmp_path / "good.jsonl"
    write(good, ["a film"], ["pos"])
    path.write_text(TEXTS[name].replace('"LABEL"', "null").replace("LABEL", ""), encoding="utf-8")
    with pytest.raises(InvalidInputError, match="no label: line 4"):
        evaluate_model(saved, [str(good), str(path)], Columns(), None, [], None, "")
    path.write_text('{"text": "a film"}\n' if name.endswith("jsonl") else "text\na film\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"has no labels\. Name their column"):
        evaluate_model(saved, [str(good)], Columns(), None, [], str(path), "today")
    with pytest.raises(InvalidInputError, match="No estimator has 'zz'"):
        evaluate_model(saved, [str(good)], Columns(), None, ["zz"], None, "")


def test_strangers_among_texts_are_said_before_anything_is_embedded(saved, tmp_path, caplog, monkeypatch):
    texts = ["a film", "a plot", "the end", "a hero"]
    mixed = write(tmp_path / "mixed.jsonl", texts, ["pos", "poss", 7, "neg"])
    bare = tmp_path / "bare.csv"
    bare.write_text("text\na film\na plot\n", encoding="utf-8")
    said = []
    embed = HiddenStateExtractor.unread_blocks
    monkeypatch.setattr(
        HiddenStateExtractor, "unread_blocks", lambda *a, **b: said.append(caplog.text) or embed(*a, **b)
    )
    caplog.set_level("INFO", logger="torchsdm.application.evaluate")
    found = evaluate_model(saved, [mixed, str(bare)], Columns(), None, ["no reject"], None, "")
    note = "2 of 4 labels of mixed are not classes of the model ('poss', 7): these rows are strangers, shown without"
    assert note in said[0] and "'poss' (1) may be a typo for 'pos'" in said[0] and "bare has no labels" in said[0]
    assert {name: (len(data), found.kinds[name]) for name, data in found.data_sets.items()} == {
        "mixed": (2, "classes"),
        "mixed, strangers": (2, "outside"),
        "bare": (2, "none"),
    }
    assert found.data_sets["mixed, strangers"].labels.tolist() == ["poss", 7]  # each of its own type
    assert found.data_sets["mixed"].texts == ["a film", "a hero"]


def test_texts_that_the_model_was_made_with_are_counted(saved, tmp_path):
    _, known = saved.classifier.model_.examples.all()
    path = write(tmp_path / "again.jsonl", [known[0], "something new", known[1], known[2]], ["pos", "neg"] * 2)
    (note,) = evaluate_model(saved, [path], Columns(), None, ["no reject"], None, "").notes
    assert note.startswith("Warning: 3 of 4 inputs of again equal points that the model was made with (3 of its train")


def test_rows_of_states_are_named_by_their_line(saved, tmp_path):
    width, path = saved.classifier.n_features_in_, tmp_path / "states.jsonl"

    def refuse(message, needs_labels=True, **changed):
        good = {"hidden_states": [0.5] * width, "label": "pos", "id": "a"}
        path.write_text(f"\n{json.dumps(good)}\n\n{json.dumps({**good, 'id': 'b', **changed})}\n", encoding="utf-8")
        with pytest.raises(InvalidInputError, match=message):
            list(Reading(saved, str(path), Columns(), needs_labels=needs_labels).blocks())
        with pytest.raises(InvalidInputError, match=message):
            read_training(str(path), Columns(), None)

    refuse(r"states\.jsonl, line 4: the states contain NaN", hidden_states=[float("nan")] * width)
    refuse(r"states\.jsonl, line 4: an id must be text or an integer. Got 1\.5", id=1.5)
    refuse(r"states\.jsonl, line 4: no label", label=None)
    path.write_text(path.read_text(encoding="utf-8").replace("null", '"maybe"'), encoding="utf-8")
    found = evaluate_model(saved, [str(path)], Columns(), None, ["no reject"], None, "")
    assert found.kinds == {"states": "classes", "states, strangers": "outside"}


def test_blocks_of_texts_bring_all_along(saved, tmp_path):
    path = tmp_path / "blank.jsonl"
    path.write_text(TEXTS["blank.jsonl"].replace("LABEL", "neg"), encoding="utf-8")
    (block,) = Reading(saved, str(path), Columns(), needs_labels=True).blocks()
    assert block.places == ["line 2", "line 4"] and block.ids == [0, 1] and block.texts == ["a film", "a plot"]
    assert block.labels.tolist() == ["pos", "neg"] and block.logit_labels == ("pos", "neg")
    assert block.origin == saved.classifier.states_origin_


@pytest.fixture(scope="module")
def of_states(tmp_path_factory):
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    X = (rng.standard_normal((80, 3)) + 3 * y[:, None]).astype(np.float32)
    settings = {
        "n_filters": 4,
        "n_rounds": 1,
        "training": "sdm",
        "max_epochs": 2,
        "certification_size": None,
        "random_state": 0,
    }
    path = tmp_path_factory.mktemp("states") / "model"
    quietly(lambda: SDMClassifier(alpha=0.8, **settings).fit(X, y).save(path))
    return SavedModel.load(path)


def write_states(path, labels):
    rows = [{"hidden_states": [float(n), 0.0, 1.0], "label": label} for n, label in enumerate(labels)]
    rows = [{name: value for name, value in row.items() if value is not None} for row in rows]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_a_row_that_cannot_be_read_leaves_the_labels_of_others_alone(of_states, tmp_path):
    path, bad = write_states(tmp_path / "new.jsonl", [0, 1, "moon", 1, 0]), {}
    path.write_text(path.read_text(encoding="utf-8").replace("[4.0", "[NaN"), encoding="utf-8")
    found = quietly(lambda: evaluate_model(of_states, [str(path)], Columns(), None, (), None, "cnn", bad=bad))
    assert list(bad["new"]) == [4]
    assert {name: data.labels.tolist() for name, data in found.data_sets.items()} == {
        "new": [0, 1, 1],
        "new, strangers": ["moon"],
    }
