"""``LiveModel``: what is changed while it is in use, replayed when it is loaded, and taken back."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import warnings
from dataclasses import fields

import numpy as np
import pytest
import torch

from small import quiet
from torchsdm import SDMClassifier, SDMEnsemble
from torchsdm.application import LiveModel, standing
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError, InvalidTypeError, ModelFileError, ModelInUseError
from torchsdm.estimators import Add, Recalibrate, Relabel, Remove, load_classifier
from torchsdm.model import directory as model_directory
from torchsdm.model import read_config
from torchsdm.trust import GuardReset

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

NAMES = np.array(["World", "Sports"])
SETTINGS = {"alpha": 0.8, "n_filters": 8, "training": "sdm", "max_epochs": 3, "learning_rate": 1e-2, "random_state": 3}
ME = {"who": "me", "why": "a test"}
KINDS = ("certified", "paper", "ensemble", "background", "background exemplars", "positions")


def draw(n, seed, positions=0):
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 2, n)
    X = rng.standard_normal((n, max(positions, 1), 4)) + 2.4 * (numbers[:, None, None] - 0.5) * np.array([1, 1, 0, 0])
    return (X if positions else X[:, 0]).astype(np.float32), NAMES[numbers]


def points(n, seed, name, positions=0, labels=None):
    X, y = draw(n, seed, positions)
    ids = [f"{name}-{i}" for i in range(n)]
    return LabelledStates(X, y if labels is None else labels, ids, [f"text {one}" for one in ids])


def make(kind):
    X, y = draw(400, 0, 3 if kind == "positions" else 0)
    known = {"ids": [f"x{i}" for i in range(400)], "texts": [f"text {i}" for i in range(400)]}
    if kind == "ensemble":
        return SDMEnsemble(n_rounds=2, **SETTINGS).fit(X, y, **known)
    settings = {**SETTINGS, "n_rounds": 1, "certification_size": None if kind == "paper" else 0.25}
    if kind.startswith("background"):
        settings["background_as"] = "exemplars" if kind.endswith("exemplars") else "class"
        return SDMClassifier(**settings).fit(X, y, **known, background=draw(40, 8)[0] + 9)
    return SDMClassifier(**settings).fit(X, y, **known)


@pytest.fixture(scope="module")
def made_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    with quiet():
        for kind in KINDS:
            make(kind).save(folder / kind)
    return folder


@pytest.fixture
def model(made_models, tmp_path):
    """The directory of a certified classifier."""
    shutil.copytree(made_models / "certified", tmp_path / "model")
    return tmp_path / "model"


def assert_same(a, b, X):
    """All fields of all decisions, and the explanations, are the same to the bit."""
    decided, expected = a.decide(X), b.decide(X)
    for field in fields(type(decided)):
        left, right = getattr(decided, field.name), getattr(expected, field.name)
        assert (left is None) == (right is None), field.name
        if left is not None:
            assert left.dtype == right.dtype, field.name
            np.testing.assert_array_equal(left, right, err_msg=field.name)
    assert [one.to_dict() for one in a.explain(X[:10])] == [one.to_dict() for one in b.explain(X[:10])]
    for mine, other in zip(a.models_, b.models_, strict=True):
        assert mine.known_ids() == other.known_ids() and mine.outdated == other.outdated
        assert torch.equal(mine.support.labels, other.support.labels)
        assert torch.equal(mine.support.predictions, other.support.predictions)
        for name, held in mine.held_out().items():  # what the next calibration will see
            theirs = other.held_out()[name]
            assert torch.equal(held.labels, theirs.labels), name
            for column in ("exemplars", "logits", "is_background"):
                assert torch.equal(getattr(held.points, column), getattr(theirs.points, column)), (name, column)
            for fact in ("n_corrected", "n_given_back", "fingerprint", "u"):
                assert getattr(held, fact, None) == getattr(theirs, fact, None), fact
    assert a.deltas_spent_ == b.deltas_spent_


def current(live):
    return live.snapshot.saved.classifier


# --- Replay ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_the_same_in_memory_after_loading_and_after_saving(kind, made_models, tmp_path):
    path, places = tmp_path / "model", 3 if kind == "positions" else 0
    shutil.copytree(made_models / kind, path)
    expected, fresh = load_classifier(path), draw(60, 9, places)[0]
    fresh[-20:] += 9  # where the background is
    new, far = points(30, 1, "new", places), points(5, 2, "far", places, ["spam", 7, True, 1.5, "World"])
    held, later = points(30, 3, "held", places), points(10, 4, "later", places)
    far.hidden_states[:] += 9
    held.hidden_states[-5:] += 9
    with LiveModel.open(path) as live:
        live.add(new, **ME)
        live.add(far, **ME, allow_new_labels=True)
        live.add(held, to="calibration", **ME)
        live.relabel(["new-1", "held-2", "x7"], ["Sports", "World", "Sports"], **ME)
        live.remove(["new-3", "held-4", "x9"], **ME)
        live.recalibrate([0.75, 0.9], **ME)
        live.add(later, **ME)
        for data in (new, far):
            known = {"ids": data.ids, "texts": data.texts}
            expected.add_exemplars(data.hidden_states, data.labels, **known, allow_new_labels=True)
        expected.add_calibration(held.hidden_states, held.labels, ids=held.ids, texts=held.texts)
        expected.relabel(["new-1", "held-2", "x7"], ["Sports", "World", "Sports"])
        expected.remove(["new-3", "held-4", "x9"])
        expected.recalibrate([0.75, 0.9])
        expected.add_exemplars(later.hidden_states, later.labels, ids=later.ids, texts=later.texts)
        assert_same(current(live), expected, fresh)
        assert_same(load_classifier(path), expected, fresh)
        assert load_classifier(path).version_ == live.snapshot.version == 7
        live.recalibrate(**ME)
        expected.recalibrate()
        assert_same(load_classifier(path), expected, fresh)
        assert live.compact(**ME).what == "save"
        assert_same(current(live), expected, fresh)
        live.add(points(4, 5, "last", places), **ME)  # the log goes on over the new files
        last = points(4, 5, "last", places)
        expected.add_exemplars(last.hidden_states, last.labels, ids=last.ids, texts=last.texts)
    loaded = load_classifier(path)
    assert_same(loaded, expected, fresh)
    assert loaded.version_ == 10
    loaded.save(path)
    again = load_classifier(path)
    assert_same(again, expected, fresh)
    assert (again.version_, loaded.version_) == (11, 11)
    assert [one.what for one in LiveModel.open(path, writable=False).changes(after=8)] == ["save", "add", "save"]
    labels = [
        again._codes.decode(again.models_[0].support.labels)[i] for i in again.models_[0].examples.positions(far.ids)
    ]
    assert [(type(one), one) for one in labels] == [(type(one), one) for one in far.labels]


def test_a_certificate_is_replayed_with_its_sample(model):
    expected, fresh = SDMClassifier.load(model), draw(60, 9)[0]
    with LiveModel.open(model) as live:
        live.certify(points(300, 21, "c"), alpha=0.7, delta=0.2, control="all", **ME)
        live.relabel(["c-5"], ["World"], **ME)
        live.recalibrate(policy="trusted", **ME)
        live.certify(points(300, 21, "c"), alpha=0.65, **ME)  # the same sample, which knows that it was corrected
        expected.set_params(delta=0.2, control="all")
        expected.recertify(points(300, 21, "c"), alpha=0.7)
        expected.relabel(["c-5"], ["World"])
        expected.set_params(policy="trusted").recalibrate()
        expected.recertify(points(300, 21, "c"), alpha=0.65)
        assert expected.certificate_.n_corrected > 0
        for one in (current(live), SDMClassifier.load(model)):
            assert_same(one, expected, fresh)
            assert one.certificate_.to_json() == expected.certificate_.to_json()
            assert (one.policy, one.delta, one.control) == ("trusted", 0.2, "all")
        live.compact(**ME)
        assert SDMClassifier.load(model).certificate_.to_json() == expected.certificate_.to_json()


def test_opening_computes_no_calibration_again(model, monkeypatch):
    with LiveModel.open(model) as live:
        for seed in range(3):
            live.add(points(5, seed, f"n{seed}"), **ME)
            live.recalibrate(**ME)
        expected, fresh = current(live), draw(60, 9)[0]
    monkeypatch.setattr(SDMClassifier, "recalibrate", lambda *_, **__: pytest.fail("it was calibrated again"))
    assert_same(SDMClassifier.load(model), expected, fresh)


def test_many_additions_are_replayed_as_one(model, monkeypatch):
    with LiveModel.open(model) as live:
        for seed in range(12):
            live.add(points(2, seed, f"n{seed}"), to="calibration" if seed % 3 == 2 else "support", **ME)
        expected = current(live)
    calls = []
    add = type(expected.model_).add
    monkeypatch.setattr(type(expected.model_), "add", lambda self, *a, **k: (calls.append(k["to"]), add(self, *a, **k)))
    assert_same(SDMClassifier.load(model), expected, draw(60, 9)[0])
    assert sorted(calls) == ["calibration", "support"]


# --- Who, when, why; and taking back ---------------------------------------------------------------------------------


def test_neither_taking_in_additions_nor_undoing_joins_the_parts_of_the_support(model, monkeypatch):
    from torchsdm.matching import SupportSet

    with LiveModel.open(model) as live:
        reader = LiveModel.open(model, writable=False)
        monkeypatch.setattr(SupportSet, "exemplars", property(lambda self: pytest.fail("the exemplars were copied")))
        live.add(points(10, 1, "n"), **ME)
        live.remove(["n-1"], **ME)
        live.undo(2, **ME)
        live.add(points(4, 2, "m"), **ME)
        assert reader.refresh() and len(current(reader).model_.support.parts) > 1


def test_every_change_says_who_when_why_and_what(model):
    with LiveModel.open(model) as live:
        change = live.add(points(5, 1, "n"), who="ada", why="checked by hand", key="k-1")
        assert (change.version, change.who, change.why, change.what, change.n) == (
            1,
            "ada",
            "checked by hand",
            "add",
            5,
        )
        assert change.at.endswith("Z") and change.key == "k-1" and change.undone_by is None
        live.guard_reset(GuardReset("new product names", 700, 650), who="bob")
        assert live.snapshot.version == 2
    (first, second) = LiveModel.open(model, writable=False).changes()
    assert first == change
    assert (second.what, second.who, second.why) == ("guard_reset", "bob", "new product names")
    assert second.details == {"reason": "new product names", "n_seen": 700, "raised_at": 650}
    for who in ("", " ", None, 3):
        with pytest.raises(InvalidInputError, match="'who' of a change"), LiveModel.open(model) as live:
            live.remove(["n-0"], who=who, why="")


def test_a_retry_is_no_second_change_and_a_key_is_for_one_request(model):
    with LiveModel.open(model) as live:
        first = live.add(points(5, 1, "n"), **ME, key="k")
        assert live.add(points(5, 1, "n"), who="me again", why="a retry", key="k") == first
        assert live.made_with("k") == first and live.made_with("other") is None
        with pytest.raises(
            InvalidInputError, match=r"The key 'k' was used for change 1 of .*, which was a different one"
        ):
            live.add(points(5, 2, "m"), **ME, key="k")
        with pytest.raises(InvalidInputError, match="The key 'k'"):
            live.remove(["n-0"], **ME, key="k")
    with LiveModel.open(model) as live:  # a restarted server knows it, too
        assert live.add(points(5, 1, "n"), **ME, key="k") == first
        assert live.snapshot.version == len(live.changes()) == 1
        both = live.make([Remove(["n-0"]), Recalibrate()], **ME, key="two")
        assert live.make([Remove(["n-0"]), Recalibrate()], **ME, key="two") == both
        assert [one.together_with for one in both] == [2, 2]
        undo = live.undo(3, **ME, key="u")
        assert live.undo(3, **ME, key="u") == undo
        with pytest.raises(InvalidInputError, match="The key 'u'"):
            live.undo(2, **ME, key="u")
        live.compact(**ME)
        assert live.add(points(5, 1, "n"), **ME, key="k").version == 1


def test_states_tell_requests_apart_where_there_are_no_texts(model):
    X, y = draw(5, 1)
    with LiveModel.open(model) as live:
        live.add(LabelledStates(X, y), **ME, key="k")
        with pytest.raises(InvalidInputError, match="The key 'k'"):
            live.add(LabelledStates(X + 1, y), **ME, key="k")


def test_undo_takes_back_and_undo_of_undo_makes_again(model):
    start, fresh = SDMClassifier.load(model), draw(60, 9)[0]
    with LiveModel.open(model) as live:
        live.add(points(20, 1, "n"), **ME)
        with_one = current(live)
        live.relabel(["x1"], ["Sports"], **ME)
        with_both = current(live)
        for version, expected, undone_by in (
            (2, with_one, [None, 3, None]),
            (3, with_both, [None, None, 4, None]),
            (4, with_one, [None, 3, None, 5, None]),
            (1, start, [6, 3, None, 5, None, None]),
            (6, with_one, [None, 3, None, 5, None, 7, None]),
            (5, with_both, [None, None, 4, None, 8, 7, None, None]),
        ):
            live.undo(version, **ME)
            assert [one.undone_by for one in live.changes()] == undone_by
            assert_same(current(live), expected, fresh)
            assert_same(SDMClassifier.load(model), expected, fresh)
        live.undo_all([1, 2], **ME)
        assert_same(current(live), start, fresh)
        assert_same(SDMClassifier.load(model), start, fresh)


def test_only_the_last_changes_are_undone(model):
    with LiveModel.open(model) as live:
        live.add(points(3, 1, "n"), **ME)
        live.relabel(["n-1"], ["World"], **ME)
        live.recalibrate(0.75, **ME)
        before = live.snapshot
        for version, said in (
            (2, "3 came after 2. Undo 3, 2 together"),
            (1, "2, 3 came after 1. Undo 3, 2, 1 together"),
        ):
            with pytest.raises(InvalidInputError, match=f"Only the last changes can be undone, and {said}"):
                live.undo(version, **ME)
        assert live.snapshot is before and len(live.changes()) == 3
        live.guard_reset(GuardReset("why", 1, None), who="me")  # changes no decision, so it is in nobody's way
        live.undo_all([3, 2], **ME)
        assert [one.undone_by for one in live.changes()] == [None, 6, 5, None, None, None]
        live.remove(["n-2"], **ME)
        with pytest.raises(InvalidInputError, match=r"and 7 came after 5. Undo 7, 6, 5 together"):
            live.undo(6, **ME)  # it would be made again after something else
        live.undo(7, **ME)
        live.undo(1, **ME)
        with pytest.raises(InvalidInputError, match=r"and 9 came after 5. Undo 9, 6, 5 together"):
            live.undo(6, **ME)  # what it relabels is gone
        live.undo_all([9, 6], **ME)
        assert_same(current(live), before.saved.classifier, draw(60, 9)[0])


def test_an_outcome_that_is_no_longer_kept_is_computed_again_once(model, monkeypatch):
    fresh, known = draw(60, 9)[0], []
    with LiveModel.open(model) as live:
        for alpha in (0.75, 0.7, 0.65, 0.75, 0.7, 0.65):
            live.recalibrate(alpha, **ME)
            known.append(current(live))
        live.undo_all([6, 5, 4, 3, 2], **ME)
        expected = current(live)
        np.testing.assert_array_equal(expected.decide(fresh).confidence, known[0].decide(fresh).confidence)
        assert expected.deltas_spent_ == known[-1].deltas_spent_
    monkeypatch.setattr(SDMClassifier, "recalibrate", lambda *_, **__: pytest.fail("it was calibrated again"))
    assert_same(SDMClassifier.load(model), expected, fresh)


def test_an_undone_certificate_stays_a_look_at_its_sample(model):
    """Otherwise a sample could be asked again and again, and only the answer that pleases be kept."""
    with LiveModel.open(model) as live:
        start = current(live)
        assert start.certificate_.looks == 1
        live.certify(alpha=0.75, **ME)
        assert current(live).certificate_.looks == 2
        live.undo(1, **ME)
        for one in (current(live), SDMClassifier.load(model)):
            assert one.certificate_.target == start.certificate_.target
            assert one.certificate_.looks == 2
            assert one.certificate_.delta_spent == pytest.approx(2 * start.delta)
        live.certify(alpha=0.7, **ME)
        for one in (current(live), SDMClassifier.load(model)):
            assert one.certificate_.looks == 3
        live.undo(3, **ME)  # and what was asked is not counted twice
        live.undo(2, **ME)
        assert (current(live).certificate_.looks, SDMClassifier.load(model).certificate_.looks) == (3, 3)


def test_a_question_stays_asked_if_what_led_to_it_is_undone(model):
    """Otherwise points could be removed, the certificate looked at, and the removal undone."""
    with LiveModel.open(model) as live:
        first, second = current(live).model_.calibration_points.examples.ids()[:2]
        live.remove([first], **ME)
        live.remove([second], **ME)
        live.recalibrate(**ME)
        assert current(live).certificate_.looks == 2
        live.undo_all([3, 2], **ME)
        for looks in (2, 3):
            for one in (current(live), SDMClassifier.load(model)):
                assert one.certificate_.looks == looks
                assert one.certificate_.delta_spent == pytest.approx(looks * one.delta)
            if looks == 2:
                live.recalibrate(**ME)  # another question: what was removed is another set
        live.compact(**ME)
        assert SDMClassifier.load(model).certificate_.looks == 3


def test_what_cannot_be_undone_says_why(model):
    with LiveModel.open(model) as live:
        live.add(points(3, 1, "n"), **ME)
        live.guard_reset(GuardReset("why", 1, None), who="me")
        live.undo(1, **ME)
        for version, said in ((0, "no change 0; the last one is 3"), (4, "no change 4"), (2, "guard's stream"),
                              (1, "undone already, by change 3. To make it again, undo that one")):  # fmt: skip
            with pytest.raises(InvalidInputError, match=said):
                live.undo(version, **ME)
        live.compact(**ME)
        with pytest.raises(InvalidInputError, match=r"Change 1 can no longer be undone: .* as version 4"):
            live.undo(1, **ME)
        with pytest.raises(InvalidInputError, match="at least one change"):
            live.undo_all([], **ME)
        with pytest.raises(InvalidInputError, match="at least one change"):
            live.make([], **ME)


def test_a_change_to_undo_is_named_by_a_number(model):
    with LiveModel.open(model) as live:
        live.add(points(3, 1, "n"), **ME)
        for wrong in ("1", True, 1.0):
            with pytest.raises(InvalidTypeError, match=r"'version' of LiveModel\.undo must be an integer"):
                live.undo(wrong, **ME)
        assert live.undo(np.int64(1), **ME).details == {"version": 1}


def test_a_failed_change_changes_nothing(model):
    with LiveModel.open(model) as live:
        live.add(points(3, 1, "n"), **ME)
        before = live.snapshot
        for request in (Add(points(3, 1, "n")), Remove(["nobody"]), Relabel(["x1"], [float("nan")]), Recalibrate(2.0)):
            with pytest.raises(InvalidInputError):
                live.make([Remove(["x5"]), request], **ME)
            assert live.snapshot is before and len(live.changes()) == 1
        assert "x5" in current(live).model_.known_ids()
        assert SDMClassifier.load(model).version_ == 1


def test_a_preview_writes_nothing_and_a_draft_is_for_one_version(model):
    with LiveModel.open(model) as live:
        files = sorted(path.name for path in model.rglob("*"))
        before, after = live.preview([Add(points(3, 1, "n")), Recalibrate()])
        assert before == standing(current(live)) and after["n_support"] == before["n_support"] + 3
        assert sorted(path.name for path in model.rglob("*")) == files
        draft = live.draft([Remove(["x5"])])
        live.remove(["x6"], **ME)
        with pytest.raises(InvalidInputError, match=r"was changed meanwhile: it is at version 1, .* for version 0"):
            live.commit(draft, **ME)


def test_a_snapshot_stays_as_it_is(model):
    fresh = draw(60, 9)[0]
    with LiveModel.open(model) as live:
        old, expected = live.snapshot, SDMClassifier.load(model)
        live.add(points(30, 1, "n"), **ME)
        live.recalibrate(0.7, **ME)
        live.remove(["x1"], **ME)
        live.compact(**ME)
        live.remove(["x2"], **ME)
        assert old.version == 0 and live.snapshot.version == 5
        assert_same(old.saved.classifier, expected, fresh)


# --- Several at once -------------------------------------------------------------------------------------------------


def test_a_second_writer_is_told_who_holds_the_lock(model):
    with LiveModel.open(model, who="sdm serve") as live:
        with pytest.raises(
            ModelInUseError, match=rf"is being changed by sdm serve \(process {os.getpid()}, since 20.*Z\)"
        ):
            LiveModel.open(model)
        live.add(points(3, 1, "n"), **ME)
        other = SDMClassifier.load(model)
        with pytest.raises(ModelInUseError, match="sdm serve"):
            other.save(model)
        with pytest.raises(InvalidInputError, match="opened for reading"):
            LiveModel.open(model, writable=False).remove(["x1"], **ME)
    other.save(model)
    assert SDMClassifier.load(model).version_ == 2


def test_writers_in_turn_see_each_other_s_changes(model):
    fresh = draw(60, 9)[0]
    first, second = (LiveModel.open(model, exclusive=False) for _ in range(2))
    first.add(points(3, 1, "a"), **ME)
    second.add(points(3, 2, "b"), **ME)
    with pytest.raises(InvalidInputError, match="'ids'"):
        first.add(points(3, 5, "b"), **ME)
    first.recalibrate(**ME)
    second.undo(3, **ME)
    assert (first.snapshot.version, second.snapshot.version) == (3, 4)
    assert first.refresh() and not first.refresh() and not second.refresh()
    assert_same(current(first), current(second), fresh)
    assert first.changes() == second.changes()
    second.compact(**ME)
    first.add(points(3, 6, "c"), **ME)
    assert second.refresh()
    assert_same(current(first), current(second), fresh)
    assert first.snapshot.version == second.snapshot.version == 6
    assert first.changes() == second.changes()


def test_a_reader_takes_in_what_others_wrote(model):
    fresh = draw(60, 9)[0]
    reader = LiveModel.open(model, writable=False)
    assert not reader.refresh()
    with LiveModel.open(model) as live:
        for call, given in (
            *((live.add, [points(9, 1, "n")]), (live.recalibrate, []), (live.undo, [2]), (live.compact, [])),
            (live.remove, [["x1"]]),
        ):
            call(*given, **ME)
            assert reader.refresh() and reader.snapshot.version == live.snapshot.version
            assert_same(current(reader), current(live), fresh)
            assert reader.changes() == live.changes()
            assert not reader.refresh()
    make("paper").save(model)  # another model altogether
    assert reader.refresh()
    assert current(reader).certificate_ is None and reader.snapshot.version == 6
    assert reader.changes()[-1].what == "save"


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_change_goes_to_the_model_that_a_link_points_to_now(model, made_models, tmp_path, exclusive):
    link, other = tmp_path / "current", tmp_path / "other"
    shutil.copytree(made_models / "certified", other)
    link.symlink_to(model)
    with LiveModel.open(link, exclusive=exclusive) as live:
        link.unlink()
        link.symlink_to(other)
        live.add(points(5, 1, "n"), **ME)
    assert [SDMClassifier.load(one).version_ for one in (model, other)] == [0, 1]


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("n_later", [0, 1], ids=["same version", "earlier version"])
def test_a_change_goes_to_the_directory_that_was_put_in_place(model, tmp_path, exclusive, n_later):
    with LiveModel.open(model) as live:
        live.add(points(5, 1, "n"), **ME)
    with LiveModel.open(model, exclusive=exclusive) as live:
        shutil.copytree(model, tmp_path / "copy")
        for number in range(n_later):
            live.add(points(5, 2 + number, f"later-{number}"), **ME)
        model.rename(tmp_path / "old")
        (tmp_path / "copy").rename(model)
        assert live.remove(["n-1"], **ME).version == 2
        with pytest.raises(ModelInUseError) if exclusive else warnings.catch_warnings():
            LiveModel.open(model).close()
    loaded = SDMClassifier.load(model)
    assert loaded.version_ == 2 and "n-1" not in loaded.model_.known_ids()
    assert SDMClassifier.load(tmp_path / "old").version_ == 1 + n_later


def test_a_change_whose_acknowledgement_was_interrupted_is_found(model, monkeypatch):
    from torchsdm.model import log_writer

    @contextlib.contextmanager
    def interrupted(connection, transaction=log_writer.transaction):
        with transaction(connection):
            yield
        raise KeyboardInterrupt

    with LiveModel.open(model) as live:
        live.add(points(5, 1, "n"), **ME)
        monkeypatch.setattr(log_writer, "transaction", interrupted)
        with pytest.raises(KeyboardInterrupt):
            live.add(points(5, 2, "m"), **ME)
        monkeypatch.undo()
        live.remove(["m-1"], **ME)
        assert [one.what for one in live.changes()] == ["add", "add", "remove"]
        assert_same(load_classifier(model), current(live), draw(60, 9)[0])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_reader_takes_in_changes_while_another_process_compacts(model, monkeypatch, when):
    from torchsdm.application import live_model

    live, reader = LiveModel.open(model), LiveModel.open(model, writable=False)
    live.add(points(5, 1, "n"), **ME)
    reader.refresh()
    live.add(points(5, 2, "m"), **ME)

    def read_config_meanwhile(directory):
        monkeypatch.setattr(live_model, "read_config", read_config)
        config = read_config(directory) if when == "after" else None
        live.compact(**ME)
        live.add(points(5, 3, "k"), **ME)
        return read_config(directory) if config is None else config

    monkeypatch.setattr(live_model, "read_config", read_config_meanwhile)
    assert reader.refresh() and reader.snapshot.version == 4
    assert_same(current(reader), current(live), draw(60, 9)[0])
    live.close()


def test_a_model_is_not_saved_over_while_another_makes_the_first_change(model, monkeypatch):
    loaded, settle = SDMClassifier.load(model), model_directory._settle

    def settle_meanwhile(*given):
        with pytest.raises(ModelInUseError, match=f"process {os.getpid()}"):
            LiveModel.open(model)
        return settle(*given)

    monkeypatch.setattr(model_directory, "_settle", settle_meanwhile)
    loaded.save(model)
    LiveModel.open(model).close()


def test_a_model_that_was_changed_since_it_was_loaded_is_not_overwritten(model):
    stale = SDMClassifier.load(model)
    with LiveModel.open(model) as live:
        live.remove(["x1"], **ME)
    with pytest.raises(ModelFileError, match=r"it is at version 1, this model at 0. Load it again"):
        stale.save(model)
    assert "x1" not in SDMClassifier.load(model).model_.known_ids()
    stale.fit(*draw(400, 0)).save(model)  # a new model takes its place on purpose
    assert SDMClassifier.load(model).version_ == 2


# --- The directory ---------------------------------------------------------------------------------------------------


def test_all_files_have_the_mode_of_the_umask(tmp_path):
    for umask in (0o022, 0o027, 0o007):
        before, path = os.umask(umask), tmp_path / f"{umask:o}"
        try:
            make("certified").save(path)
            with LiveModel.open(path) as live:
                live.add(points(3, 1, "n"), **ME)
                files = [one for one in path.rglob("*") if one.is_file()]
                modes = {one.name: oct(stat.S_IMODE(one.stat().st_mode)) for one in files}
        finally:
            os.umask(before)
        assert len(modes) == 18 and set(modes.values()) == {oct(0o666 & ~umask)}, modes


def test_an_earlier_version_refuses_a_model_with_a_log(model, monkeypatch):
    assert read_config(model)["format_version"] == 3
    with LiveModel.open(model) as live:
        assert read_config(model)["format_version"] == 3
        live.remove(["x1"], **ME)
    assert read_config(model)["format_version"] == 4
    monkeypatch.setattr(model_directory, "WITH_LOG", 3)
    with pytest.raises(ModelFileError, match="has format version 4; this torchsdm reads up to 3"):
        SDMClassifier.load(model)


def test_a_model_that_an_earlier_version_saved_over_has_no_log(model, tmp_path):
    """It writes its own config, which does not name the log: nothing of that is replayed over another model."""
    shutil.copytree(model, tmp_path / "plain")
    with LiveModel.open(model) as live:
        live.remove(["x1"], **ME)
        shutil.copy(tmp_path / "plain" / "config.json", model / "config.json")
        assert SDMClassifier.load(model).version_ == 0 and "x1" in SDMClassifier.load(model).model_.known_ids()
        live.remove(["x2"], **ME)  # the writer notices, and begins a new log
    loaded = SDMClassifier.load(model)
    assert loaded.version_ == 1 and {"x1", "x2"} & set(loaded.model_.known_ids()) == {"x1"}


def test_a_directory_can_be_copied_and_moved(model, tmp_path):
    fresh = draw(60, 9)[0]
    with LiveModel.open(model) as live:
        live.add(points(30, 1, "n"), **ME)
        live.recalibrate(**ME)
        shutil.copytree(model, tmp_path / "copy")  # while it is in use
        expected = current(live)
    model.rename(tmp_path / "moved")
    for name in ("copy", "moved"):
        assert_same(SDMClassifier.load(tmp_path / name), expected, fresh)
        with LiveModel.open(tmp_path / name) as live:
            live.undo(2, **ME)
            assert SDMClassifier.load(tmp_path / name).version_ == 3


def test_compaction_drops_points_and_texts(model):
    secret = LabelledStates(*draw(2, 1), ["s1", "s2"], ["a secret word", "another"])
    with LiveModel.open(model) as live:
        live.add(secret, **ME)
        live.remove(["s1", "s2"], **ME)
        holding = [one.name for one in model.rglob("*") if one.is_file() and b"a secret word" in one.read_bytes()]
        assert holding
        live.compact(**ME)
        assert live.compact(**ME) is None  # nothing to do
        assert not [one.name for one in model.rglob("*") if one.is_file() and b"a secret word" in one.read_bytes()]
        assert [one.what for one in live.changes()] == ["add", "remove", "save"]


def test_a_crash_between_saving_and_noting_it_is_repaired(model, monkeypatch):
    from torchsdm.model import LogWriter

    live = LiveModel.open(model)
    live.add(points(5, 1, "n"), **ME)
    monkeypatch.setattr(LogWriter, "synchronise", lambda self: pytest.fail("killed"))
    with pytest.raises(BaseException, match="killed"):
        live.compact(who="ada", why="tidy")
    live.close()
    monkeypatch.undo()
    assert SDMClassifier.load(model).version_ == 2
    assert "n-1" in SDMClassifier.load(model).model_.known_ids()
    with LiveModel.open(model) as live:
        assert live.changes()[-1].what in ("add", "save")
        live.remove(["n-1"], **ME)
    history = LiveModel.open(model, writable=False).changes()
    assert [(one.version, one.what, one.who) for one in history] == [
        (1, "add", "me"),
        (2, "save", "ada"),
        (3, "remove", "me"),
    ]
    assert "n-1" not in SDMClassifier.load(model).model_.known_ids()


def test_a_link_that_is_switched_is_followed(made_models, tmp_path):
    old, new = (shutil.copytree(made_models / "certified", tmp_path / name) for name in ("old", "new"))
    link = tmp_path / "link"
    link.symlink_to(old)
    with LiveModel.open(link) as live:
        link.unlink()
        link.symlink_to(new)
        assert live.add(points(1, 5, "new"), **ME).version == 1
        with pytest.raises(ModelInUseError):
            LiveModel.open(new)
        LiveModel.open(old).close()  # its lock is free
    assert [LiveModel.open(path, writable=False).snapshot.version for path in (old, new)] == [0, 1]
