"""Models that earlier versions saved still load, and decide as they did then."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from torchsdm import SDMClassifier, SDMEnsemble
from torchsdm.storage import Entry, LogWriter

FIXTURES = Path(__file__).parents[2] / "fixtures"
VERSIONS = [1, 2]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "kind"), [("classifier", SDMClassifier), ("ensemble", SDMEnsemble)])
def test_a_model_of_an_earlier_format_decides_as_it_did(version, name, kind, tmp_path):
    folder = FIXTURES / f"model-format-{version}"
    shutil.copytree(folder / name, tmp_path / name)
    model = kind.load(tmp_path / name, verify=True)
    expected = np.load(folder / "expected.npz", allow_pickle=False)
    decisions = model.decide(expected["X"])
    columns = {key.removeprefix(f"{name}_"): expected[key] for key in expected.files if key.startswith(name)}
    assert len(columns) == 6 and np.ptp(columns["confidence"]) > 0  # so that something is compared
    for column, values in columns.items():
        np.testing.assert_array_equal(getattr(decisions, column), values, err_msg=column)


def test_a_certificate_of_format_2_still_holds(tmp_path):
    folder = FIXTURES / "model-format-2"
    shutil.copytree(folder / "classifier", tmp_path / "model")
    model = SDMClassifier.load(tmp_path / "model", verify=True)
    assert model.certificate_.found and model.certificate_.n_certification == len(model.certification_rows_) == 50
    expected = np.load(folder / "expected.npz", allow_pickle=False)
    decisions = model.decide(expected["X"])
    assert decisions.lane.tolist() == expected["lane"].tolist()
    assert decisions.reason.tolist() == expected["reason"].tolist()
    assert model.warnings() == []


def test_a_model_of_format_1_has_lanes_without_a_certificate(tmp_path):
    shutil.copytree(FIXTURES / "model-format-1" / "classifier", tmp_path / "model")
    model = SDMClassifier.load(tmp_path / "model")
    assert model.certificate_ is None and model.certification_size is None
    decisions = model.decide(np.load(FIXTURES / "model-format-1" / "expected.npz")["X"])
    assert (decisions.admitted == decisions.admitted_at.any(axis=1)).all()
    assert ((decisions.lane == "trusted") == decisions.admitted).all()


def test_examples_of_an_earlier_format_are_there(tmp_path):
    shutil.copytree(FIXTURES / "model-format-1" / "classifier", tmp_path / "model")
    model = SDMClassifier.load(tmp_path / "model")
    ids, texts = model.model_.examples.all()
    assert dict(zip(ids, texts, strict=True)) | {"new-0": "n0", "new-1": "n1"} == dict(zip(ids, texts, strict=True))
    assert model._codes.decode(model.support_.labels)[ids.index("new-0")] == "moth"  # a label outside the classes


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "kind"), [("classifier", SDMClassifier), ("ensemble", SDMEnsemble)])
@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_model_of_an_earlier_format_can_be_changed_and_the_change_taken_back(version, name, kind, tmp_path):
    folder, model = FIXTURES / f"model-format-{version}", tmp_path / name
    shutil.copytree(folder / name, model)
    X, start = np.load(folder / "expected.npz", allow_pickle=False)["X"], kind.load(model)
    gone = start.models_[0].examples.ids()[0]
    for change in (
        lambda writer: writer.append([Entry("remove", 1, ids=[gone])], who="me", why=""),
        lambda writer: writer.append([Entry("undo", 0, {"version": 1})], who="me", why=""),
    ):
        writer = LogWriter(model, "me")
        writer.lock()
        change(writer)
        writer.close()
        loaded = kind.load(model, verify=True)
        assert (gone in loaded.models_[0].known_ids()) == (loaded.version_ == 2)
    assert loaded.decide(X).to_dicts() == start.decide(X).to_dicts()
