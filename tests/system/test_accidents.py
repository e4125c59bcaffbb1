"""Everyday accidents around ``sdm train``: what a person would expect happens, and nothing is lost."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from sdm_command import call, good, refused
from torchsdm import SDMClassifier

QUICK = ("--rounds", 1, "--epochs", 3, "--filters", 8, "--learning-rate", 0.01, "--seed", 0, "--alpha", 0.8)


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """Labelled states of two classes, in a file."""
    path = tmp_path_factory.mktemp("states") / "train.npz"
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    np.savez(path, hidden_states=(rng.normal(size=(200, 6)) + 3.0 * labels[:, None]).astype("float32"), labels=labels)
    return path


@pytest.fixture(scope="module")
def trained(states, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model"
    good("train", states, "-o", path, *QUICK)
    return path


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# --- where a model is written ----------------------------------------------------------------------------------------


def test_a_model_is_replaced_only_if_asked_to_and_that_is_said_before_anything_is_read(trained, states, tmp_path):
    model = shutil.copytree(trained, tmp_path / "model")
    before = contents(model)
    refused(call("train", tmp_path / "nowhere.npz", "-o", model, *QUICK), f"{model} already has a model: replace it")
    assert contents(model) == before
    good("train", states, "-o", model, "--overwrite", *QUICK, "--filters", 9)
    assert SDMClassifier.load(model).n_filters == 9


def test_a_folder_of_something_else_is_never_written_to(trained, states, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "holiday.jpg").write_bytes(b"sun")
    (folder / ".writing-diary").write_bytes(b"half a page")
    before = contents(folder)
    for arguments in (
        ("train", states, *QUICK),
        ("train", states, "--overwrite", *QUICK),
        ("recalibrate", trained, "--overwrite"),
    ):
        refused(call(*arguments, "-o", folder), "something other than a model, such as 'holiday.jpg'; left untouched")
    assert contents(folder) == before


def test_an_empty_folder_is_fine_and_one_that_an_interrupted_save_left(states, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "adaptor-0123456789ab.safetensors").write_bytes(b"half")
    (tmp_path / "model" / ".DS_Store").write_bytes(b"")
    good("train", states, "-o", tmp_path / "model", *QUICK)
    assert SDMClassifier.load(tmp_path / "model").classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    "change", [("update", "--remove"), ("recalibrate", "--alpha", 0.7), ("certify", "--alpha", 0.7)]
)
def test_a_changed_model_replaces_itself_but_no_other(change, trained, tmp_path):
    model, other = (shutil.copytree(trained, tmp_path / name) for name in ("model", "other"))
    verb, *options = change
    removed = [SDMClassifier.load(model).model_.examples.ids()[0]] if verb == "update" else []
    before = contents(other)
    refused(call(verb, model, *options, *removed, "-o", other), f"{other} already has a model")
    assert contents(other) == before
    good(verb, model, *options, *removed, "-o", other, "--overwrite")
    assert contents(other) != before
    good(verb, model, *options, *removed, "-o", os.path.relpath(model))  # itself, by another name
    assert contents(model) != before
    good("recalibrate", model, "--alpha", 0.75)


def test_what_is_not_of_a_checkpoint_stays_in_its_folder(states, tmp_path):
    own = tmp_path / "model.training"
    own.mkdir()
    (own / "notes.txt").write_text("mine")
    good("train", states, "-o", tmp_path / "model", *QUICK)
    assert contents(own) == {"notes.txt": b"mine"}
