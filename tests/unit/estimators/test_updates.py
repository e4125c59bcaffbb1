"""Labelled points come back: added, removed and relabelled in the three sets of a fitted model, which stay apart."""

from __future__ import annotations

import copy
import dataclasses
import threading
import time
import warnings
from functools import partial

import numpy as np
import pytest
import torch

from small import quietly, small_settings, two_groups
from torchsdm import DriftGuard, LabelledStates, SDMClassifier, SDMEnsemble
from torchsdm.core import Encoded
from torchsdm.errors import CertificateWarning, DataWarning, InvalidInputError, InvalidTypeError
from torchsdm.estimators._data import keep_apart
from torchsdm.model import Calibration, EncodedPoints, Examples

NAMES = np.array(["ant", "bee"])
draw = partial(two_groups, names=NAMES, wrong=0.02)
SETTINGS = small_settings(n_filters=16, n_rounds=2, random_state=3)
NEW = [f"new-{i}" for i in range(60)]


DATA, MORE, FRESH = draw(1200, 0), draw(60, 1), draw(300, 2)[0]


@pytest.fixture(scope="module")
def _fitted():
    ids = [f"x{i}" for i in range(1200)]
    return quietly(lambda: SDMClassifier(alpha=0.85, **SETTINGS).fit(*DATA, ids=ids))


@pytest.fixture
def clf(_fitted):
    return copy.copy(_fitted)


@pytest.fixture(scope="module")
def _ensemble():
    return quietly(lambda: SDMEnsemble(alpha=0.9, **SETTINGS).fit(*DATA))


@pytest.fixture
def ensemble(_ensemble):
    return copy.copy(_ensemble)


def names_of(clf, name, model=0):
    return clf.models_[model].sets()[name][1].ids()


def sizes(clf, model=0):
    return [len(exemplars) for exemplars, _ in clf.models_[model].sets().values()]


def rows(clf):
    return clf.decide(FRESH).to_dicts()


# --- The calibration set ---------------------------------------------------------------------------------------------


def test_added_calibration_points_are_used_by_recalibrate_alone(clf):
    admitted_at, before = clf.decide(FRESH).admitted_at, clf.model_.calibration
    clf.add_calibration(*MORE, ids=NEW)
    assert clf.model_.calibration is before and (clf.decide(FRESH).admitted_at == admitted_at).all()
    assert not clf.decide(FRESH).certified.any()  # suspended
    assert sizes(clf) == [450, 510, 300] and names_of(clf, "calibration")[-60:] == NEW
    quietly(clf.recalibrate)
    known = clf.model_.calibration
    added = Encoded.of(*clf.model_.adaptor.encode_exactly(torch.from_numpy(MORE[0])), n_classes=2)
    numbers = torch.from_numpy(np.searchsorted(NAMES, MORE[1]))
    expected = Calibration.of(
        before.known.with_added(EncodedPoints(added, numbers, Examples.of(NEW))), clf.support_, [0.85], 0
    )
    for name in ("labels", "nearest_distance", "rescaled_similarity"):
        assert torch.equal(getattr(known, name), getattr(expected, name)), name
    assert known.regions[0].min_rescaled_similarity == expected.regions[0].min_rescaled_similarity
    assert clf.decide(FRESH).certified.any() and clf.certificate_.looks == 2
    assert clf.model_.calibration.known.examples.ids()[-60:] == NEW and not clf.model_.outdated


def test_a_calibration_point_added_and_removed_leaves_the_same_answers(clf):
    before = rows(clf)
    clf.add_calibration(*MORE, ids=NEW).remove(NEW)
    quietly(clf.recalibrate)
    assert rows(clf) == before and clf.certificate_.looks == 1  # the same question as before


def test_a_calibration_label_must_be_a_class(clf):
    before = rows(clf)
    with pytest.raises(InvalidInputError, match=r"add_calibration: 'wasp' .* is not a class of the model"):
        clf.add_calibration(MORE[0][:2], ["ant", "wasp"])
    for name in ("calibration", "certification"):
        one = names_of(clf, name)[0]
        with pytest.raises(InvalidInputError, match=f"must be a class for a point of the {name} set. Got 'wasp'"):
            clf.relabel([names_of(clf, "support")[0], one], ["wasp", "wasp"], allow_new_labels=True)
    assert rows(clf) == before and "wasp" not in clf._codes.outside and not clf.model_.outdated


def test_every_round_of_an_ensemble_gets_the_calibration_points(ensemble):
    n = [len(model.calibration.labels) for model in ensemble.models_]
    quietly(lambda: ensemble.add_calibration(*MORE).recalibrate())
    assert [len(model.calibration.labels) for model in ensemble.models_] == [size + 60 for size in n]
    assert names_of(ensemble, "calibration")[-1] == names_of(ensemble, "calibration", 1)[-1] == 1259


# --- Removing and relabelling in any set -----------------------------------------------------------------------------


def test_points_are_found_in_whichever_set_has_them(clf):
    chosen = [names_of(clf, name)[0] for name in ("support", "calibration", "certification")]
    clf.remove(chosen)
    assert sizes(clf) == [449, 449, 299]
    for name in ("support", "calibration", "certification"):
        assert not set(chosen) & set(names_of(clf, name))
    quietly(clf.recalibrate)
    assert len(clf.model_.calibration.labels) == 449 and clf.certificate_.n_certification == 299
    with pytest.raises(InvalidInputError, match=r"'ids' of SDMClassifier.remove must name points of the model. Got 'x"):
        clf.remove(chosen[:1])


@pytest.mark.parametrize("name", [None, True, 1.5, {}, 2**63])
def test_what_cannot_be_an_id_names_no_point(clf, name):
    for call in (lambda: clf.remove(["x0", name]), lambda: clf.relabel([name], ["ant"])):
        with pytest.raises(InvalidTypeError, match="must be strings or 64-bit integers"):
            call()
    assert "x0" in clf.models_[0].known_ids()


def test_labels_change_in_whichever_set_has_the_point(clf):
    chosen = [names_of(clf, name)[0] for name in ("support", "calibration", "certification")]
    truth = dict(zip([f"x{i}" for i in range(1200)], DATA[1], strict=True))
    clf.relabel(chosen, ["ant" if truth[name] == "bee" else "bee" for name in chosen])
    held = clf.model_.held_out()
    changed = [clf.support_.labels, held["calibration"].labels, held["certification"].labels]
    for labels, name in zip(changed, chosen, strict=True):
        assert NAMES[int(labels[0])] != truth[name]
    quietly(clf.recalibrate)
    assert NAMES[int(clf.model_.calibration.labels[0])] != truth[chosen[1]]


def test_a_training_point_leaves_every_round_of_an_ensemble(ensemble):
    ensemble.remove([0, 1, 2])
    for model in ensemble.models_:
        assert not {0, 1, 2} & set(model.known_ids()) and len(model.known_ids()) == 1197


def test_the_older_methods_are_for_the_support(clf):
    for name in ("calibration", "certification"):
        with pytest.raises(InvalidInputError, match="must name points of the support"):
            clf.remove_exemplars([names_of(clf, name)[0]])
        with pytest.raises(InvalidInputError, match="must name points of the support"):
            clf.relabel_exemplars([names_of(clf, name)[0]], ["ant"])


@pytest.mark.parametrize("name", ["support", "calibration", "certification"])
def test_a_set_is_never_emptied(clf, name):
    before = rows(clf)
    with pytest.raises(InvalidInputError, match=r"[Aa]t least one point"):
        clf.remove(names_of(clf, name))
    assert rows(clf) == before and sizes(clf) == [450, 450, 300]


def test_a_failed_call_changes_nothing(clf):
    before, model = rows(clf), clf.model_
    support, calibration, certification = (names_of(clf, name)[0] for name in model.sets())
    for call in (
        lambda: clf.remove([support, calibration, "unknown"]),
        lambda: clf.relabel([support, calibration, "unknown"], ["ant"] * 3),
        lambda: clf.relabel([support], ["ant", "bee"]),
        lambda: clf.relabel([support, support], ["ant", "bee"]),
        lambda: clf.relabel([certification, calibration], ["ant", None]),
        lambda: clf.add_calibration(MORE[0][:2], MORE[1][:2], ids=["new", certification]),
        lambda: clf.add_calibration(MORE[0][:2], MORE[1][:1]),
        lambda: clf.add_calibration(MORE[0][:2], MORE[1][:2], repeated="drop"),
    ):
        with pytest.raises(InvalidInputError):
            call()
    assert clf.model_ is model and rows(clf) == before


def test_an_id_that_two_sets_of_an_earlier_model_share_is_refused(clf):
    model = copy.copy(clf.model_)
    known = model.calibration.known
    known = dataclasses.replace(known, examples=known.examples.with_added(model.examples.take([0])))
    model.calibration = dataclasses.replace(model.calibration, known=known)
    clf.models_ = (model,)
    with pytest.raises(InvalidInputError, match="names a point of the support set and one of the calibration set"):
        clf.remove([names_of(clf, "support")[0]])


# --- The certificate -------------------------------------------------------------------------------------------------


def test_a_corrected_sample_is_another_question_and_says_so(clf, tmp_path):
    numbers = clf.model_.certification.labels.numpy()
    rejected = np.flatnonzero(~clf.certification_.admitted)[:5]
    names = [names_of(clf, "certification")[row] for row in rejected]
    clf.relabel(names[:3], NAMES[1 - numbers[rejected[:3]]].tolist()).remove(names[3:])
    assert not clf.decide(FRESH).certified.any() and clf.model_.outdated
    with pytest.warns(
        CertificateWarning, match=r"certificate 2 on.*5 certification points relabelled or removed: the promise"
    ):
        clf.recalibrate()
    certificate = clf.certificate_
    assert (certificate.looks, certificate.n_corrected, certificate.n_certification) == (2, 5, 298)
    assert certificate.delta_spent == 0.2
    assert "if its corrections (5) were made without regard to the decisions." in certificate.holds_for()
    clf.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    assert loaded.certificate_.n_corrected == loaded.model_.certification.n_corrected == 5
    quietly(lambda: loaded.recertify(*draw(500, 9)))
    assert (loaded.certificate_.looks, loaded.certificate_.n_corrected) == (1, 0)  # a new sample


def test_corrections_count_in_the_test_of_the_certificate(clf):
    """Labels made wrong on purpose must show up as errors."""
    sample = clf.certification_
    wrong = np.flatnonzero(sample.admitted & (sample.predictions == NAMES[clf.model_.certification.labels.numpy()]))[:2]
    before = {(group.kind, group.class_number): group.n_errors for group in clf.certificate_.groups}
    names = [names_of(clf, "certification")[row] for row in wrong]
    others = ["ant" if label == "bee" else "bee" for label in sample.predictions[wrong]]
    quietly(lambda: clf.relabel(names, others).recalibrate())
    after = {(group.kind, group.class_number): group.n_errors for group in clf.certificate_.groups}
    assert sum(after.values()) > sum(before.values())


def test_a_label_that_is_there_already_is_no_correction(clf):
    names, numbers = names_of(clf, "certification"), clf.model_.certification.labels
    clf.relabel(names, NAMES[numbers.numpy()].tolist())
    assert not clf.model_.outdated and clf.model_.certification.n_corrected == 0


def test_a_guard_is_named_by_the_calibration_points_in_force():
    papers = quietly(lambda: SDMClassifier(alpha=0.9, certification_size=None, **SETTINGS).fit(*DATA))
    before = DriftGuard.from_classifier(papers).fingerprint
    papers.add_calibration(*MORE)
    assert DriftGuard.from_classifier(papers).fingerprint == before
    quietly(papers.recalibrate)
    assert DriftGuard.from_classifier(papers).fingerprint != before


# --- Saved models ----------------------------------------------------------------------------------------------------


def test_a_saved_model_keeps_what_is_not_calibrated_yet(clf, tmp_path):
    clf.add_exemplars(*draw(20, 4)).add_calibration(*MORE, ids=NEW).relabel(["new-0"], ["ant"])
    clf.remove(names_of(clf, "calibration")[:5])
    clf.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model", verify=True)
    assert sizes(loaded) == sizes(clf) == [470, 505, 300] and rows(loaded) == rows(clf)
    assert loaded.model_.outdated and names_of(loaded, "calibration") == names_of(clf, "calibration")
    for one in (clf, loaded):
        quietly(one.recalibrate)
    assert rows(loaded) == rows(clf) and len(loaded.model_.calibration.labels) == 505
    loaded.save(tmp_path / "model")
    again = SDMClassifier.load(tmp_path / "model", verify=True)
    assert rows(again) == rows(clf) and not again.model_.outdated and again.model_.next_calibration is None


# --- Apart -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["support", "calibration", "certification"])
@pytest.mark.parametrize("method", ["add_exemplars", "add_calibration"])
def test_a_point_of_any_set_is_refused(clf, method, name):
    parts = dict(
        zip(clf.model_.sets(), (clf.training_rows_, clf.calibration_rows_, clf.certification_rows_), strict=True)
    )
    chosen = parts[name][:30]
    before = rows(clf)
    with pytest.raises(InvalidInputError, match=rf"Already in the {name} set: 30 of the 30 points .*{method} got"):
        getattr(clf, method)(DATA[0][chosen], DATA[1][chosen])
    one = np.concatenate([MORE[0][:3], DATA[0][chosen[:1]]]), np.concatenate([MORE[1][:3], DATA[1][chosen[:1]]])
    with pytest.raises(
        InvalidInputError, match=rf"1 of the 4 points.*row 3 equals point 'x{chosen[0]}'.*repeated='keep'"
    ):
        getattr(clf, method)(*one)
    assert rows(clf) == before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CertificateWarning)
        getattr(clf, method)(*one, repeated="keep")
    with pytest.raises(InvalidInputError, match=f"'ids' of .*{method} must be new. Got 'x{chosen[0]}'"):
        getattr(clf, method)(MORE[0][:1], MORE[1][:1], ids=[f"x{chosen[0]}"], repeated="keep")


@pytest.mark.parametrize("method", ["add_exemplars", "add_calibration"])
def test_a_certification_sample_is_never_learned_from(clf, method):
    """A certificate on points that vouch for themselves would be worth nothing."""
    chosen = clf.certification_rows_
    before = rows(clf)
    with pytest.raises(InvalidInputError, match=r"Already in the certification set: 300 of the 300 points") as refused:
        getattr(clf, method)(DATA[0][chosen], DATA[1][chosen], repeated="keep")
    assert "keep" not in str(refused.value) and rows(clf) == before
    with pytest.warns(CertificateWarning, match="Already in the certification set: 1 of the 1 points"):
        getattr(clf, method)(DATA[0][chosen[:1]], DATA[1][chosen[:1]], repeated="keep")


def test_few_natural_duplicates_among_many_pass_with_a_warning(clf):
    X, y = draw(100, 8)
    X[7] = DATA[0][clf.calibration_rows_[0]]
    with pytest.warns(DataWarning, match=r"Already in the calibration set: 1 of the 100 points .*row 7 equals"):
        clf.add_exemplars(X, y)
    assert len(clf.support_) == 550


def test_the_whole_of_a_small_set_is_not_few(clf):
    """Among 9,100 points, the 450 of the calibration set are fewer than 5 %, but they are all there are."""
    X, y = draw(9100, 8)
    X[:450], y[:450] = DATA[0][clf.calibration_rows_], DATA[1][clf.calibration_rows_]
    with pytest.raises(InvalidInputError, match="450 of the 9100 points"):
        clf.add_exemplars(X, y)


def test_a_fit_keeps_its_sets_apart():
    X, y = DATA
    for part in ("calibration", "certification"):
        with pytest.raises(
            InvalidInputError, match=rf"in the training set: 40 of the 200 points .*fit got for the {part} set"
        ):
            SDMClassifier(**SETTINGS).fit(X[:600], y[:600], **{part: (X[560:760], y[560:760])})
    with pytest.raises(
        InvalidInputError, match=r"in the calibration set: 100 of the 400 points .*for the certification set"
    ):
        SDMClassifier(**SETTINGS).fit(
            X[:600], y[:600], calibration=(X[600:900], y[600:900]), certification=(X[800:], y[800:])
        )
    with pytest.warns(DataWarning, match=r"2 of the 302 points .*row 0 equals point 598"):
        fitted = SDMClassifier(**SETTINGS).fit(X[:600], y[:600], calibration=(X[598:900], y[598:900]))
    assert len(fitted.model_.calibration.labels) == 302


def test_rows_of_a_given_set_are_numbered_on_and_given_ids_are_unique():
    X, y = DATA
    parts = {"calibration": (X[600:900], y[600:900]), "certification": (X[900:], y[900:])}
    fitted = quietly(lambda: SDMClassifier(**SETTINGS).fit(X[:600], y[:600], **parts))
    assert sorted(fitted.model_.known_ids()) == list(range(1200))
    named = LabelledStates(X[600:900], y[600:900], ids=[f"x{i}" for i in range(300)])
    with pytest.raises(InvalidInputError, match=r"must be new. Got 'x0', which is in the training set"):
        SDMClassifier(**SETTINGS).fit(X[:600], y[:600], ids=[f"x{i}" for i in range(600)], calibration=named)


def test_recertifying_with_ids_of_the_support_is_refused(clf):
    X, y = draw(400, 9)
    ids = [f"fresh-{i}" for i in range(399)]
    with pytest.raises(InvalidInputError, match=r"'ids' of SDMClassifier.recertify must be new"):
        clf.recertify(X, y, ids=[*ids, names_of(clf, "support")[0]])
    held = DATA[0][clf.certification_rows_], DATA[1][clf.certification_rows_]
    quietly(lambda: clf.recertify(*held, ids=names_of(clf, "certification")))  # the same sample again is no stranger
    assert clf.certificate_.looks == 1


def test_states_of_several_positions_are_compared_whole():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    X = (rng.normal(size=(200, 3, 5)) + y[:, None, None]).astype(np.float32)
    given = X[100:].copy()
    given[:, 0] = X[:100, 0]  # one position in common is not the same point
    fitted = quietly(lambda: SDMClassifier(**SETTINGS).fit(X[:100], y[:100], calibration=(given, y[100:])))
    assert len(fitted.model_.calibration.labels) == 100
    with pytest.raises(InvalidInputError, match="100 of the 100 points"):
        SDMClassifier(**SETTINGS).fit(X[:100], y[:100], calibration=(X[:100], y[:100]))


def test_texts_count_where_states_were_made_from_them():
    """The last bits of such states depend on the batch."""
    one, other = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0000002]])
    known = {"support": (one, Examples.of(["a"], ["the same"]))}
    new = (other, Examples.of(["b"], ["the same"]))
    keep_apart(new, known, "add", to="support", by_text=False)
    with pytest.raises(
        InvalidInputError, match="1 of the 1 points that add got for the support set; row 0 equals point 'a'"
    ):
        keep_apart(new, known, "add", to="support", by_text=True)
    nameless = (other, Examples.of(["b"])), {"support": (one, Examples.of(["a"]))}
    keep_apart(*nameless, "add", to="support", by_text=True)  # no text is no text in common


# --- Many small updates ----------------------------------------------------------------------------------------------


def in_small_steps(clf, n=60, step=7):
    """Add n points of MORE, a few at a time; ids are given by the model."""
    for start in range(0, n, step):
        stop = min(start + step, n)
        clf.add_exemplars(MORE[0][start:stop], MORE[1][start:stop])
    return clf


def columns(decisions):
    return [decisions.similarity, decisions.nearest_distance, decisions.nearest_index, decisions.probabilities]


def assert_equal_decisions(a, b):
    for one, other in zip(columns(a), columns(b), strict=True):
        np.testing.assert_array_equal(one, other)


def test_small_steps_are_one_large_step(clf):
    steps, at_once = in_small_steps(copy.copy(clf)), copy.copy(clf).add_exemplars(*MORE)
    assert len(steps.support_.parts) > 1
    assert_equal_decisions(steps.decide(FRESH), at_once.decide(FRESH))
    for name in ("exemplars", "labels", "predictions", "squared_norms"):
        assert torch.equal(getattr(steps.support_, name), getattr(at_once.support_, name)), name
    assert steps.model_.examples.all() == at_once.model_.examples.all()
    assert steps.support_.ids.tolist() == at_once.support_.ids.tolist() and steps.support_.ids[-1] == 59
    quietly(steps.recalibrate), quietly(at_once.recalibrate)
    assert rows(steps) == rows(at_once)


def test_background_in_a_later_part_is_seen():
    strange = draw(40, 7)[0] + np.float32(9)
    clf = quietly(lambda: SDMClassifier(**SETTINGS).fit(*DATA, background=strange[:20]))
    at_once = copy.copy(clf)
    in_small_steps(clf)
    elsewhere = draw(6, 8)[0] - np.float32(9)
    assert not clf.decide(elsewhere).background.any()
    clf.add_exemplars(elsewhere[:3], ["(background)"] * 3, allow_new_labels=True)
    at_once.add_exemplars(
        np.concatenate([MORE[0], elsewhere[:3]]), [*MORE[1].tolist(), *["(background)"] * 3], allow_new_labels=True
    )
    assert len(clf.support_.parts) > len(at_once.support_.parts)
    for X in (elsewhere, strange, FRESH):
        assert_equal_decisions(clf.decide(X), at_once.decide(X))
        np.testing.assert_array_equal(clf.decide(X).background, at_once.decide(X).background)
    last = len(clf.support_) - 1
    assert clf.decide(elsewhere).nearest_index[:3].tolist() == [last - 2, last - 1, last]
    assert clf.decide(elsewhere).background[:3].all()


def test_an_older_copy_sees_the_older_state(clf):
    in_small_steps(clf, 40)
    old, before, sets, names = copy.copy(clf), rows(clf), sizes(clf), clf.support_.ids.tolist()
    snapshot = clf.model_
    for _ in range(2):  # two futures of one state
        now = copy.copy(clf)
        now.add_exemplars(MORE[0][40:45], ["wasp"] * 5, allow_new_labels=True).add_exemplars(MORE[0][45:], MORE[1][45:])
        now.remove(names[:3]).relabel(names[-3:], ["wasp"] * 3, allow_new_labels=True)
        assert sizes(now)[0] == sets[0] + 17 and "wasp" in now._codes.outside
        for one in (old, clf):
            assert rows(one) == before and sizes(one) == sets and one.support_.ids.tolist() == names
        assert clf.model_ is snapshot
    assert rows(now) != before


def test_a_model_with_added_points_is_saved_and_loaded(clf, tmp_path):
    in_small_steps(clf)
    clf.remove(names_of(clf, "support")[:2])
    clf.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    assert len(clf.support_.parts) > 1 and len(loaded.support_.parts) == 1
    assert rows(loaded) == rows(clf) and loaded.model_.examples.all() == clf.model_.examples.all()
    mapped = loaded.support_.parts[0].points.points.data_ptr()
    more = draw(40, 5)
    for one in (clf, loaded):
        for start in range(0, 40, 6):
            one.add_exemplars(more[0][start : start + 6], more[1][start : start + 6])
    assert loaded.support_.parts[0].points.points.data_ptr() == mapped  # not copied
    assert len(loaded.support_.parts) > 1 and loaded.support_.ids.tolist() == clf.support_.ids.tolist()
    assert rows(loaded) == rows(clf)
    loaded.save(tmp_path / "model")  # over the files that it maps
    assert rows(SDMClassifier.load(tmp_path / "model")) == rows(clf)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_what_was_added_is_known_from_then_on(clf, tmp_path, is_loaded):
    if is_loaded:
        clf.save(tmp_path / "model")
        clf = SDMClassifier.load(tmp_path / "model")
    in_small_steps(clf, 30)
    before = rows(clf)
    with pytest.raises(
        InvalidInputError, match=r"Already in the support set: 1 of the 2 points .* row 1 equals point 9"
    ):
        clf.add_exemplars(MORE[0][[31, 9]], MORE[1][[31, 9]])
    with pytest.raises(InvalidInputError, match=r"must be new. Got 29, which is in the support set"):
        clf.add_exemplars(MORE[0][30:32], MORE[1][30:32], ids=["new", 29])
    with pytest.raises(InvalidInputError, match=r"must be new. Got 'x"):
        clf.add_exemplars(MORE[0][30:32], MORE[1][30:32], ids=["new", names_of(clf, "calibration")[0]])
    assert rows(clf) == before
    clf.remove([9]).add_exemplars(MORE[0][[31, 9]], MORE[1][[31, 9]])  # and what was removed is not
    assert names_of(clf, "support")[-2:] == [30, 31]


def test_a_decision_sees_one_version_while_points_are_added(clf):
    versions = {0: columns(clf.decide(FRESH[:40]))}
    copies = copy.copy(clf)
    for number, start in enumerate(range(0, 60, 4), start=1):
        copies.add_exemplars(MORE[0][start : start + 4], MORE[1][start : start + 4])
        versions[number] = columns(copies.decide(FRESH[:40]))
    seen, done = [], threading.Event()

    def decide():
        while not done.is_set():
            seen.append(columns(clf.decide(FRESH[:40])))

    readers = [threading.Thread(target=decide) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(0, 60, 4):
        n_seen = len(seen)
        clf.add_exemplars(MORE[0][start : start + 4], MORE[1][start : start + 4])
        while len(seen) == n_seen:
            time.sleep(0.001)
    done.set()
    for reader in readers:
        reader.join()
    for found in seen:
        assert any(all(map(np.array_equal, found, version)) for version in versions.values())
    assert len({found[2].tobytes() for found in seen}) > 1  # more than one version was seen
