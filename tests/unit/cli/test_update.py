"""``sdm update``: labelled examples come back into a saved model, and what that does is said before it is written."""

from __future__ import annotations

import json
import shutil
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner

from small import contents, quietly, small_settings, two_groups
from torchsdm import SDMClassifier
from torchsdm.application import LiveModel
from torchsdm.cli.command import sdm
from torchsdm.errors import DataWarning, InvalidInputError

draw = partial(two_groups, names=["World", "Sports"])
SETTINGS = small_settings(n_filters=16, random_state=3)


def run(*words):
    return quietly(lambda: CliRunner().invoke(sdm, [*map(str, words)], catch_exceptions=False)).stdout


@pytest.fixture(scope="module")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("update")
    X, y = draw(1200, 0)
    clf = quietly(lambda: SDMClassifier(alpha=0.85, **SETTINGS).fit(X, y, ids=[f"x{i}" for i in range(1200)]))
    clf.save(folder / "model")
    for number in (1, 2):
        more, labels = draw(60, number)
        np.savez(folder / f"more-{number}.npz", hidden_states=more, labels=labels)
    rows = clf.calibration_rows_
    np.savez(folder / "calibration.npz", hidden_states=X[rows], labels=y[rows])
    return folder


@pytest.fixture
def folder(_folder, tmp_path):
    shutil.copytree(_folder, tmp_path / "here")
    return tmp_path / "here"


def names_of(path, name):
    return SDMClassifier.load(path).model_.sets()[name][1].ids()


def test_both_sets_grow_in_one_update_which_is_the_library_s(folder):
    model = folder / "model"
    expected = SDMClassifier.load(model)
    files = ("--add", folder / "more-1.npz", "--add-calibration", folder / "more-2.npz")
    result = json.loads(run("update", model, *files, "--json"))
    assert (result["added"], result["added_calibration"], result["written"]) == (60, 60, True)
    assert (result["before"]["n_support"], result["after"]["n_support"]) == (450, 510)
    assert (result["before"]["n_calibration"], result["after"]["n_calibration"]) == (450, 510)
    assert result["certificate"]["looks"] == 2  # one recalibration for both
    for name, add in (("more-1", expected.add_exemplars), ("more-2", expected.add_calibration)):
        data = np.load(folder / f"{name}.npz")
        add(data["hidden_states"], data["labels"])
    quietly(expected.recalibrate)
    fresh = draw(200, 9)[0]
    assert SDMClassifier.load(model).decide(fresh).to_dicts() == expected.decide(fresh).to_dicts()
    assert result["after"]["admitted_share"] == expected.certification_.admitted.mean() > 0.3


def test_points_of_every_set_are_removed_and_relabelled(folder):
    model = folder / "model"
    first, second = ([names_of(model, name)[i] for name in ("support", "calibration", "certification")] for i in (0, 1))
    words = [word for name in first for word in ("--remove", name)]
    words += [word for name in second for word in ("--relabel", f"{name}=Sports")]
    result = json.loads(run("update", model, *words, "--json"))
    assert [result["after"][f"n_{name}"] for name in ("support", "calibration", "certification")] == [449, 449, 299]
    loaded = SDMClassifier.load(model)
    labels = [loaded.support_.labels, *(part.labels for part in loaded.model_.held_out().values())]
    assert [loaded.classes_[int(one[0])] for one in labels] == ["Sports"] * 3
    assert "if its corrections (2) were made without regard" in result["certificate"]["holds_for"]


def test_what_is_admitted_is_told_before_anything_is_written(folder, monkeypatch):
    model = folder / "model"
    before = contents(model)

    def refuse(self, draft, **signature):
        raise InvalidInputError("not now")

    monkeypatch.setattr(LiveModel, "commit", refuse)
    runner = CliRunner()
    result = quietly(lambda: runner.invoke(sdm, ["update", str(model), "--add", str(folder / "more-1.npz")]))
    assert isinstance(result.exception, InvalidInputError)
    lines = result.stdout.splitlines()
    assert lines[0] == f"{model}: 60 added to the support."
    assert lines[1] == "support 450 -> 510, calibration 450 -> 450, certification 300 -> 300 points"
    loaded = SDMClassifier.load(model)
    share = loaded.certification_.admitted.mean()
    assert lines[2].startswith(f"admits {share:.1%} -> ") and lines[2].endswith("% of the certification sample")
    assert lines[3].startswith("the region admits ") and lines[3].endswith("of the calibration set")
    assert contents(model) == before


def test_a_dry_run_writes_nothing(folder):
    model = folder / "model"
    before = contents(model)
    said = run("update", model, "--add", folder / "more-1.npz", "--dry-run", "-o", folder / "other")
    assert "support 450 -> 510" in said and "Nothing was written." in said and "costs one delta" in said
    assert contents(model) == before and not (folder / "other").exists()


def test_an_update_after_which_little_is_admitted_needs_force(folder):
    """The calibration set in the support: each point is its own neighbour, and every other input looks far away."""
    model = folder / "model"
    before = contents(model)
    words = ("update", model, "--add", folder / "calibration.npz")
    with pytest.raises(InvalidInputError, match="in the calibration set: 450 of the 450 points"):
        run(*words)
    with pytest.raises(
        InvalidInputError, match=r"was not written: 0.0% would be admitted instead of \d\d.\d%.*force=True"
    ):
        run(*words, "--keep-repeated")
    assert contents(model) == before
    assert "Writing this change takes --force." in run(*words, "--keep-repeated", "--dry-run")
    result = json.loads(run(*words, "--keep-repeated", "--force", "--json"))
    assert result["after"]["admitted_share"] == 0 and contents(model) != before


def test_without_recalibration_the_certificate_is_suspended_and_nothing_refused(folder):
    model = folder / "model"
    said = run("update", model, "--add-calibration", folder / "more-1.npz", "--no-recalibrate")
    assert "of the certification sample until it is recalibrated" in said
    loaded = SDMClassifier.load(model)
    assert loaded.model_.outdated and not loaded.certification_.certified.any()
    run("recalibrate", model)
    loaded = SDMClassifier.load(model)
    assert loaded.certification_.certified.any() and len(loaded.model_.calibration.labels) == 510


@pytest.mark.parametrize(("label", "hint"), [("Wrold", "; 'World' is"), ("world", "; 'World' is"), ("spam", "")])
def test_a_label_outside_the_classes_is_refused_unless_it_is_allowed(folder, label, hint):
    model = folder / "model"
    X, y = draw(20, 5)
    labels = y.astype(object)
    labels[:2] = label
    np.savez(folder / "new.npz", hidden_states=X, labels=labels.astype(str))
    outside = f"'{label}' \\(2 examples\\) is not a class of the model{hint}."
    with pytest.raises(InvalidInputError, match=f"{outside} To allow it"):
        run("update", model, "--add", folder / "new.npz")
    for words in (("update", model, "--allow-new-labels", "--add-calibration"), ("certify", model)):
        with pytest.raises(InvalidInputError, match=f"{outside}$"):
            run(*words, folder / "new.npz")
    name = names_of(model, "support")[0]
    with pytest.raises(InvalidInputError, match=f"relabel: '{label}' \\(1 example"):
        run("update", model, "--relabel", f"{name}={label}")
    words = ("--add", folder / "new.npz", "--relabel", f"{name}={label}", "--allow-new-labels", "--force", "--json")
    assert json.loads(run("update", model, *words))["added"] == 20


def test_a_few_points_that_the_model_has_pass_with_a_warning(folder):
    (X, y), (more, labels) = draw(1200, 0), draw(60, 1)
    row = int(names_of(folder / "model", "support")[0].removeprefix("x"))
    rows = {"hidden_states": np.concatenate([more, X[[row]]]), "labels": np.concatenate([labels, y[[row]]])}
    np.savez(folder / "repeated.npz", **rows)
    words = ["update", folder / "model", "--add", folder / "repeated.npz", "--dry-run", "--json"]
    with pytest.warns(DataWarning, match="Already in the support set: 1 of the 61 points"):
        CliRunner().invoke(sdm, [*map(str, words)], catch_exceptions=False)


def test_a_control_can_be_chosen_by_calibration(folder):
    X, y = draw(400, 7)
    np.savez(folder / "new.npz", hidden_states=X, labels=y)
    said = run("certify", folder / "model", folder / "new.npz", "--control", "auto")
    certificate = SDMClassifier.load(folder / "model").certificate_
    chances = ", ".join(f"{control} {chance:.2f}" for control, chance in certificate.chances.items())
    assert f"Control: {certificate.control} (estimated chance: {chances})." in said and "groups" in chances
    X, y = draw(800, 8)
    np.savez(folder / "data.npz", hidden_states=X, labels=y)
    small = ("--filters", 16, "--rounds", 1, "--epochs", 5, "--learning-rate", 1e-2, "--seed", 3, "--alpha", 0.85)
    said = run("train", folder / "data.npz", "-o", folder / "other", *small, "--control", "auto")
    trained = SDMClassifier.load(folder / "other")
    assert f"Control: {trained.certificate_.control} (estimated chance: groups" in said and trained.control == "auto"
