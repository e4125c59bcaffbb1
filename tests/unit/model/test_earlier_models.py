"""Models that earlier versions saved still load, and decide as they did then."""

from __future__ import annotations

import re
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from torchsdm import SDMClassifier, SDMEnsemble
from torchsdm.application import LiveModel
from torchsdm.data import LabelledStates
from torchsdm.errors import ModelFileError
from torchsdm.model import Entry, LogWriter, read_config, read_history

FIXTURES = Path(__file__).parents[2] / "fixtures"
KINDS = {"classifier": SDMClassifier, "ensemble": SDMEnsemble}
EACH_MODEL = pytest.mark.parametrize(
    ("version", "name"),
    [*product([1, 2, 3], KINDS), (4, "classifier")],  # 4: with a log of changes
)


@EACH_MODEL
def test_a_model_of_an_earlier_format_decides_as_it_did(version, name, tmp_path):
    folder = FIXTURES / f"model-format-{version}"
    shutil.copytree(folder / name, tmp_path / name)
    assert read_config(tmp_path / name)["format_version"] == version
    model = KINDS[name].load(tmp_path / name, verify=True)
    expected = np.load(folder / "expected.npz", allow_pickle=False)
    decisions = model.decide(expected["X"])
    columns = {key.removeprefix(f"{name}_"): expected[key] for key in expected.files if key.startswith(name)}
    assert len(columns) == 6 and np.ptp(columns["confidence"]) > 0  # so that something is compared
    for column, values in columns.items():
        if column == "confidence":  # made elsewhere: exp of another processor may round its last bit otherwise
            np.testing.assert_array_max_ulp(decisions.confidence, values, maxulp=2)
        else:
            np.testing.assert_array_equal(getattr(decisions, column), values, err_msg=column)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_certificate_still_holds(version, tmp_path):
    folder = FIXTURES / f"model-format-{version}"
    shutil.copytree(folder / "classifier", tmp_path / "model")
    model = SDMClassifier.load(tmp_path / "model", verify=True)
    assert model.certificate_.found and model.certificate_.n_certification == 50
    expected = np.load(folder / "expected.npz", allow_pickle=False)
    decisions = model.decide(expected["X"])
    assert decisions.lane.tolist() == expected["lane"].tolist()
    assert decisions.reason.tolist() == list(map(_worded_now, expected["reason"].tolist()))
    assert model.warnings() == []


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_sample_from_before_there_was_a_u_is_certified_as_before(version, tmp_path):
    """By the plain exact test, u = 1: its labels have been seen, so that no other u can be chosen now."""
    shutil.copytree(FIXTURES / f"model-format-{version}" / "classifier", tmp_path / "model")
    model = SDMClassifier.load(tmp_path / "model")
    looks = model.certificate_.looks
    model.recertify(alpha=0.75)
    assert model.certificate_.looks == looks + 1 and model.certificate_.u == 1


def _worded_now(reason):
    """A reason as it was worded then, in today's words."""
    told = re.sub(r"^neighbours disagree after 1;", "the nearest example agrees, the next does not;", reason)
    return re.sub(r"^neighbours disagree after (\d+);", r"the \1 nearest examples agree, the next does not;", told)


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


def test_changes_of_format_4_are_made_again(tmp_path):
    shutil.copytree(FIXTURES / "model-format-4" / "classifier", tmp_path / "model")
    changes = read_history(tmp_path / "model")
    steps = ["add", "relabel", "remove", "add", "undo", "recalibrate", "certify"]
    assert [change.what for change in changes] == steps
    assert {change.who for change in changes} == {"maker"} and changes[1].why == "was wrong"

    model = SDMClassifier.load(tmp_path / "model", verify=True)
    assert model.version_ == 7
    ids, texts = model.model_.examples.all()
    label = dict(zip(ids, model._codes.decode(model.support_.labels), strict=True))
    assert label["new-5"] == "moth" and dict(zip(ids, texts, strict=True))["new-5"] == "n5"
    assert label["point-0"] == "ant"  # bee before it was relabelled
    assert {"point-2", "undone-0"}.isdisjoint(model.model_.known_ids())
    assert "point-2" in SDMClassifier.load(FIXTURES / "model-format-3" / "classifier").model_.known_ids()


@pytest.fixture
def in_segments(tmp_path):
    """A model whose log has rows in a file beside it, and undos of changes that were not the last."""
    shutil.copytree(FIXTURES / "log-in-segments" / "classifier", tmp_path / "model")
    return tmp_path / "model"


def assert_in_segments(model, expected):
    decisions = model.decide(expected["X"])
    for column in ("predictions", "admitted", "certified", "lane", "similarity"):
        np.testing.assert_array_equal(getattr(decisions, column), expected[column], err_msg=column)
    for column in ("confidence", "distance_quantile", "rescaled_similarity"):
        np.testing.assert_allclose(getattr(decisions, column), expected[column], rtol=1e-13, err_msg=column)
    assert sorted(model.model_.known_ids()) == expected["ids"].tolist()


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_log_in_segments_is_read_and_goes_on(in_segments):
    expected, folder = np.load(FIXTURES / "log-in-segments" / "expected.npz"), in_segments / "changes"
    assert_in_segments(SDMClassifier.load(in_segments, verify=True), expected)
    with LiveModel.open(in_segments) as live:
        live.add(LabelledStates(expected["X"][:2] + 9, ["ant", "bee"], ["new-0", "new-1"]), who="me", why="")
        live.undo(17, who="me", why="")
        assert_in_segments(SDMClassifier.load(in_segments, verify=True), expected)
        assert [path.name for path in folder.glob("segment-*")] == ["segment-000002.f32"]
        live.compact(who="me", why="")
        assert_in_segments(SDMClassifier.load(in_segments, verify=True), expected)
        assert not list(folder.glob("segment-*"))
        live.add(LabelledStates(expected["X"][:2] + 9, ["ant", "bee"], ["new-0", "new-1"]), who="me", why="")
    assert "new-1" in SDMClassifier.load(in_segments, verify=True).model_.known_ids()


@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
def test_a_damaged_segment_is_named(in_segments, damage):
    path = in_segments / "changes" / "segment-000002.f32"
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "short":
        path.write_bytes(content[:-1])
    else:
        content[100] ^= 1
        path.write_bytes(content)
    named = r"log\.sqlite is damaged" if damage == "flipped" else path.name
    with pytest.raises(ModelFileError, match=rf"{named}.*Restore the directory from a copy"):
        SDMClassifier.load(in_segments)
    assert SDMClassifier.load(in_segments, changes=False).version_ == 2


@EACH_MODEL
@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_model_of_an_earlier_format_can_be_changed_and_the_change_taken_back(version, name, tmp_path):
    folder, model = FIXTURES / f"model-format-{version}", tmp_path / name
    shutil.copytree(folder / name, model)
    X, start = np.load(folder / "expected.npz", allow_pickle=False)["X"], KINDS[name].load(model)
    gone, made = start.models_[0].examples.ids()[0], start.version_ + 1
    for change in (
        lambda writer: writer.append([Entry("remove", 1, ids=[gone])], who="me", why=""),
        lambda writer: writer.append([Entry("undo", 0, {"version": made})], who="me", why=""),
    ):
        writer = LogWriter(model, "me")
        writer.lock()
        change(writer)
        writer.close()
        loaded = KINDS[name].load(model, verify=True)
        assert (gone in loaded.models_[0].known_ids()) == (loaded.version_ == made + 1)
    assert loaded.decide(X).to_dicts() == start.decide(X).to_dicts()
