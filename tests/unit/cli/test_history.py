"""``sdm log``, ``sdm undo`` and ``sdm compact``, and who and why of every change that the command makes in place."""

from __future__ import annotations

import json
import shutil
from functools import partial

import numpy as np
import pytest

from sdm_command import call, good, refused
from small import quiet, small_settings, two_groups
from torchsdm import SDMClassifier
from torchsdm.application import LiveModel
from torchsdm.files import login_name

draw = partial(two_groups, names=["World", "Sports"])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("history")
    X, y = draw(600, 0)
    with quiet():
        classifier = SDMClassifier(0.8, **small_settings(random_state=3))
        classifier.fit(X, y, ids=[f"x{i}" for i in range(600)]).save(folder / "model")
    for name, n in (("more", 30), ("fresh", 200)):
        states, labels = draw(n, n)
        np.savez(folder / f"{name}.npz", hidden_states=states, labels=labels)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made, tmp_path / "here")
    return tmp_path / "here"


def test_a_model_that_nobody_changed_has_no_history(folder):
    said = good("log", folder / "model").stdout
    assert said == f"{folder / 'model'} has no changes since it was saved.\n"
    assert good("compact", folder / "model").stdout == f"{folder / 'model'} has no changes since it was saved.\n"
    refused(call("log", folder / "nothing"), "config.json is missing")


def test_every_verb_that_changes_a_model_in_place_is_in_its_log(folder):
    model = folder / "model"
    words = ("--who", "ada", "--why", "checked by hand")
    (result,) = good("update", model, "--add", folder / "more.npz", "--remove", "x3", *words, "--json", "--force").rows
    assert result["version"] == 3
    good("recalibrate", model, "--alpha", 0.75, "--policy", "trusted")
    good("certify", model, folder / "fresh.npz", "--alpha", 0.7, "--why", "a fresh sample")
    good("choose", model, "--cost-error", 9, "--cost-review", 1)
    (told,) = good("log", model, "--json").rows
    assert [(one["what"], one["who"], one["why"]) for one in told["changes"]][:5] == [
        ("remove", "ada", "checked by hand"),
        ("add", "ada", "checked by hand"),
        ("recalibrate", "ada", "checked by hand"),
        ("recalibrate", login_name(), "sdm recalibrate"),
        ("certify", login_name(), "a fresh sample"),
    ]
    assert [one["together_with"] for one in told["changes"]][:4] == [1, 1, 1, 4]
    lines = good("log", model).stdout.splitlines()
    assert lines[1].split()[0] == "2" and lines[1].endswith("ada  add (30 points): checked by hand")
    assert lines[0].endswith("ada  remove (1 point): checked by hand")


def test_with_output_a_whole_model_is_written_and_the_old_one_stays(folder):
    model = folder / "model"
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    (result,) = good("update", model, "--remove", "x3", "-o", folder / "other", "--json", "--force").rows
    assert result["version"] == 0 and good("log", folder / "other", "--json").rows[0]["changes"] == []
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    assert "x3" not in SDMClassifier.load(folder / "other").model_.known_ids()
    good("recalibrate", model, "--alpha", 0.75, "-o", folder / "other", "--overwrite")
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


def test_changes_are_undone_and_made_again(folder):
    model, fresh = folder / "model", draw(50, 9)[0]
    start = SDMClassifier.load(model).decide(fresh).to_dicts()
    good("update", model, "--add", folder / "more.npz", "--force", "--no-recalibrate")
    changed = SDMClassifier.load(model).decide(fresh).to_dicts()
    assert changed != start
    said = good("undo", model, 1, "--dry-run").stdout
    assert f"{model}: change 1 undone." in said and "points" in said and "Nothing was written." in said
    assert SDMClassifier.load(model).version_ == 1
    said = good("undo", model, 1, "--why", "the wrong week").stdout
    assert f"Written to {model}, as version 2." in said
    assert SDMClassifier.load(model).decide(fresh).to_dicts() == start
    assert good("log", model).stdout.splitlines()[0].endswith("[undone by 2]")
    assert good("log", model).stdout.splitlines()[1].endswith("undo 1: the wrong week")
    (result,) = good("undo", model, 2, "--json").rows
    assert (result["version"], result["undone"], result["written"]) == (3, [2], True)
    assert SDMClassifier.load(model).decide(fresh).to_dicts() == changed


def test_an_addition_and_its_recalibration_are_undone_together(folder):
    model = folder / "model"
    good("update", model, "--add", folder / "more.npz", "--force")
    (result,) = good("undo", model, 1, "--json").rows
    assert (result["version"], result["undone"]) == (4, [2, 1])


def test_an_undo_that_is_refused_names_what_is_in_the_way(folder):
    model = folder / "model"
    good("update", model, "--relabel", "x3=World", "--no-recalibrate", "--force")
    good("update", model, "--remove", "x3", "--no-recalibrate", "--force")
    refused(call("undo", model, 1), "Only the last changes can be undone, and 2 came after 1. Undo 2, 1 together.")
    good("undo", model, 1, 2)
    refused(call("undo", model, 1), "Change 1 is undone already, by change 4")
    refused(call("undo", model, 9), "There is no change 9; the last one is 4.")


def test_a_compacted_model_decides_the_same(folder):
    model, fresh = folder / "model", draw(50, 9)[0]
    good("update", model, "--add", folder / "more.npz", "--force")
    expected = SDMClassifier.load(model).decide(fresh).to_dicts()
    (result,) = good("compact", model, "--why", "tidy", "--json").rows
    assert result == {"model": str(model), "version": 3, "written": True}
    assert SDMClassifier.load(model).decide(fresh).to_dicts() == expected
    assert good("log", model).stdout.splitlines()[-1].endswith("save: tidy")


def test_who_changes_a_model_in_use_is_told_so_before_anything_is_read(folder, monkeypatch):
    monkeypatch.setattr("torchsdm.application.live_model.WAIT", 0.1)
    model = folder / "model"
    with LiveModel.open(model, who="sdm serve"):
        for words in (("update", model, "--add", folder / "nothing.npz"), ("recalibrate", model), ("compact", model)):
            refused(call(*words), "is being changed by sdm serve (process ")
        assert "Nothing was written." in good("update", model, "--remove", "x3", "--dry-run").stdout
    with LiveModel.open(model, who="sdm serve", exclusive=False) as live:  # a server that shares
        good("update", model, "--remove", "x3", "--force")
        assert live.refresh() and live.snapshot.version == 2
        assert json.dumps(live.changes()[0].to_dict())
