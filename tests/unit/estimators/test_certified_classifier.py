"""The certificate inside ``SDMClassifier``: what is held out, certified, kept and lost."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from small import quiet, small_settings, two_groups
from torchsdm import DriftGuard, SDMClassifier, SDMEnsemble
from torchsdm.errors import CertificateWarning, InvalidInputError
from torchsdm.trust import Reliability, ScoredSample, certify
from torchsdm.trust.lanes import evidence_of

NAMES = np.array(["ant", "bee"])
draw = partial(two_groups, names=NAMES, wrong=0.02)
SETTINGS = small_settings(n_filters=16, n_rounds=2, random_state=3)
SETTINGS |= {"standardization": "scalar", "patience": None}


@pytest.fixture(scope="module")
def data():
    return draw(1200, 0)


@pytest.fixture(scope="module")
def _fitted(data):
    with quiet():
        return SDMClassifier(alpha=0.9, **SETTINGS).fit(*data)


@pytest.fixture
def clf(_fitted):
    return copy.copy(_fitted)


def test_the_parts_are_disjoint_and_the_whole(clf, data):
    parts = (clf.training_rows_, clf.calibration_rows_, clf.certification_rows_)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(data[0])))
    assert len(clf.certification_rows_) == 300
    known = clf.model_
    ids = [known.examples.ids(), known.calibration.known.examples.ids(), known.certification.examples.ids()]
    assert [set(one) for one in ids] == [set(rows.tolist()) for rows in parts]


def test_the_held_out_part_is_a_plain_random_sample():
    """Not stratified: how many points of a class are held out varies as in a draw without replacement."""
    from torchsdm.training import certification_split

    labels = np.repeat([0, 1], [150, 450])
    counts = [int((labels[certification_split(labels, 0.25, seed)[0]] == 0).sum()) for seed in range(400)]
    assert abs(np.mean(counts) - 37.5) < 1  # hypergeometric: mean 37.5, standard deviation 4.6
    assert 3.9 < np.std(counts) < 5.3
    assert all(len(certification_split(labels, 0.25, seed)[0]) == 150 for seed in range(5))


def test_a_rare_class_keeps_its_points():
    from torchsdm.training import certification_split

    labels = np.array([0] * 200 + [1] * 2)
    for seed in range(30):
        rows, n_given_back = certification_split(labels, 0.5, seed)
        assert (labels[np.setdiff1d(np.arange(202), rows)] == 1).sum() == 2
        assert len(rows) + n_given_back == 101


def test_points_that_a_rare_class_takes_back_count_as_errors(tmp_path):
    """Else the held out part would lack the classes that are hard to predict, and the promise would be too good."""
    X, y = draw(600, 0)
    rare = np.arange(60)
    y = y.astype("<U8")
    y[rare] = [f"rare{number // 2}" for number in rare]  # thirty classes of two points, which look like the others
    with quiet():
        clf = SDMClassifier(alpha=0.8, control="all", **SETTINGS).fit(X, y)
        n_given_back = 150 - len(clf.certification_rows_)
        clf.save(tmp_path / "model")
        loaded = SDMClassifier.load(tmp_path / "model").recertify(alpha=0.6)
    assert n_given_back > 5 and clf.certificate_.n_certification == 150 - n_given_back
    assert loaded.certificate_.found
    (together,) = loaded.certificate_.groups
    held = loaded.certification_
    wrong = held.predictions != y[loaded.certification_rows_]
    assert together.n_admitted == held.certified.sum() + n_given_back
    assert together.n_errors == (wrong & held.certified).sum() + n_given_back


def test_training_never_sees_the_held_out_rows(clf, data):
    """Other states and labels in the held out rows give the same weights, support, calibration and region."""
    X, y = data[0].copy(), data[1].copy()
    X[clf.certification_rows_] = np.random.default_rng(0).normal(7.5, size=(len(clf.certification_rows_), 4))
    y[clf.certification_rows_] = NAMES[0]
    with quiet():
        other = SDMClassifier(alpha=0.9, **SETTINGS).fit(X, y, seed=clf.random_seed_)
    assert np.array_equal(other.certification_rows_, clf.certification_rows_)
    assert (other.support_.exemplars == clf.support_.exemplars).all()
    assert (other.model_.calibration.logits == clf.model_.calibration.logits).all()
    assert other.region_.min_rescaled_similarity == clf.region_.min_rescaled_similarity
    assert other.reliability_.to_json() == clf.reliability_.to_json()


def test_the_certificate_is_certify_over_plain_arrays(clf, data):
    """Recomputed from public decisions on the held out rows, and the calibration set of the model."""
    known = clf.model_.calibration
    q, logits, labels = known.similarity.numpy(), known.logits.numpy(), known.labels.numpy()
    evidence = evidence_of(logits, q, known.distance_quantile.numpy())
    familiar = known.sample().familiarity >= 0.05
    fitted = Reliability.fit(evidence[familiar], (logits.argmax(axis=1) == labels)[familiar])
    calibration = ScoredSample(labels, logits.argmax(axis=1), fitted.of(evidence), familiar)
    held = clf.decide(data[0][clf.certification_rows_])
    numbers = np.searchsorted(NAMES, data[1][clf.certification_rows_])
    certification = ScoredSample(
        numbers,
        held.logits.argmax(axis=1),
        fitted.of(evidence_of(held.logits, held.similarity, held.distance_quantile)),
        held.familiarity >= 0.05,
    )
    asked = {"alpha": 0.9, "delta": 0.1, "control": "groups", "u": clf.model_.certification.u}
    expected = certify(calibration, certification, 2, **asked)
    assert expected.found
    assert clf.certificate_.identity == expected.identity
    assert clf.certificate_.n_certification == 300


def test_admitted_is_what_the_certified_rule_admits(clf):
    X, y = draw(4000, 1)
    decisions = clf.decide(X)
    reached = decisions.score >= clf.certificate_.thresholds[np.searchsorted(NAMES, decisions.predictions)]
    expected = (decisions.familiarity >= 0.05) & reached
    assert (decisions.admitted == expected).all() and (decisions.certified == expected).all()
    assert expected.mean() > 0.5
    for values in (y, decisions.predictions):
        for name in NAMES:
            group = decisions.admitted & (values == name)
            assert (decisions.predictions == y)[group].mean() > 0.88  # alpha, less the error of 1,500 points
    assert clf.certificate_.windows
    lowest = clf.certificate_.window_thresholds[np.searchsorted(NAMES, decisions.predictions)]
    trusted = decisions.certified & (decisions.score >= lowest)
    assert (trusted == (decisions.lane == "trusted")).all()
    assert set(decisions.certificate.tolist()) == {clf.certificate_.identity}


def test_certification_decides_as_new_points_are(clf, data):
    assert clf.certification_.to_dicts() == clf.decide(data[0][clf.certification_rows_]).to_dicts()


def test_the_papers_protocol_is_one_argument_away(data):
    with quiet():
        papers = SDMClassifier(alpha=0.9, certification_size=None, **SETTINGS).fit(*data)
    assert papers.certificate_ is None and papers.certification_ is None and len(papers.certification_rows_) == 0
    assert len(papers.training_rows_) + len(papers.calibration_rows_) == len(data[0])
    decisions = papers.decide(draw(300, 5)[0])
    assert (decisions.admitted == decisions.admitted_at[:, 0]).all()
    assert not decisions.certified.any() and set(decisions.lane) <= {"trusted", "review", "unfamiliar"}
    assert decisions.score is None and "score" not in decisions.to_dicts()[0]


def test_too_few_points_are_not_held_out():
    X, y = draw(120, 0)  # 30 certification points in all, where 22 of each class are needed
    with pytest.warns(
        CertificateWarning, match=r"no labelled points were held out, and it takes at least 22 of each class"
    ):
        clf = SDMClassifier(alpha=0.9, **SETTINGS).fit(X, y)
    assert not clf.certificate_.found and len(clf.certification_rows_) == 0
    assert len(clf.training_rows_) + len(clf.calibration_rows_) == 120
    with quiet():
        together = SDMClassifier(alpha=0.9, control="all", **SETTINGS).fit(X, y)
    assert len(together.certification_rows_) == 30
    with pytest.warns(CertificateWarning, match="no sample can show that nothing is ever wrong"):
        SDMClassifier(alpha=1.0, **SETTINGS).fit(X, y)


def test_an_own_certification_set(clf, data):
    X, y = draw(400, 7)
    with quiet():
        own = SDMClassifier(alpha=0.9, certification_size=None, **SETTINGS).fit(*data, certification=(X, y))
    assert own.certificate_.n_certification == 400 and len(own.certification_rows_) == 0
    assert len(own.training_rows_) + len(own.calibration_rows_) == len(data[0])
    with pytest.raises(InvalidInputError, match=r"SDMClassifier.fit \(certification\)"):
        SDMClassifier(**SETTINGS).fit(*data, certification=(X, np.full(400, "wasp")))


def test_recertify_with_new_data_has_the_whole_promise_again(clf):
    with pytest.warns(CertificateWarning, match="certificate 2 on the same certification sample"):
        clf.recertify(alpha=0.85)
    assert (clf.certificate_.alpha, clf.certificate_.looks, clf.certificate_.delta_spent) == (0.85, 2, 0.2)
    assert clf.region_.alpha == 0.9
    with warnings.catch_warnings():
        warnings.simplefilter("error", CertificateWarning)
        clf.recertify(*draw(500, 9))
    assert (clf.certificate_.looks, clf.certificate_.n_certification, clf.certificate_.alpha) == (1, 500, 0.85)
    assert len(clf.certification_rows_) == 0


def test_training_points_are_no_certification_sample(clf, data):
    rows = np.concatenate([clf.training_rows_, clf.calibration_rows_])
    before = clf.certificate_
    with pytest.raises(InvalidInputError, match=r"in the support set: 450 of the 900 points .*recertify got"):
        clf.recertify(data[0][rows], data[1][rows])
    with pytest.raises(InvalidInputError, match=r"in the calibration set: 450 of the 450 points .*row 0 equals point"):
        clf.recertify(data[0][clf.calibration_rows_], data[1][clf.calibration_rows_])
    assert clf.certificate_ is before


def test_a_part_or_mixture_of_a_sample_is_no_new_one(clf, data):
    rows, before = clf.certification_rows_, clf.certificate_
    right = rows[clf.predict(data[0][rows]) == data[1][rows]]
    for chosen in (right, rows[::-1], np.concatenate([rows[1:], rows[:1]])):
        with pytest.raises(InvalidInputError, match=r"Already in the certification set: \d+ of the \d+ points"):
            clf.recertify(data[0][chosen], data[1][chosen])
    assert clf.certificate_ is before


def test_what_is_known_of_a_sample_holds_when_it_is_given_again(clf, data):
    rows = clf.certification_rows_
    labels = clf.predict(data[0][rows])
    sample = replace(clf.model_.certification, n_given_back=2, n_corrected=1)
    clf.models_ = (replace(clf.model_, certification=sample),)
    with pytest.warns(CertificateWarning, match="relabelled or removed"):
        clf.recertify(data[0][rows], labels)
    known = clf.model_.certification
    assert known.n_given_back == 2
    assert known.n_corrected == clf.certificate_.n_corrected == 1 + int((labels != data[1][rows]).sum()) > 1


def test_recertify_needs_data_if_none_were_held_out(data):
    with quiet():
        papers = SDMClassifier(alpha=0.9, certification_size=None, **SETTINGS).fit(*data)
    with pytest.raises(InvalidInputError, match="fitted without a certification set"):
        papers.recertify()
    assert papers.recertify(*draw(500, 9)).certificate_.found
    assert papers.decide(draw(50, 2)[0]).certified.any()


def test_a_changed_support_suspends_the_certificate(clf):
    X = draw(200, 3)[0]
    assert clf.decide(X).certified.any()
    clf.add_exemplars(*draw(20, 4))
    after = clf.decide(X)
    assert not after.certified.any() and set(after.certificate.tolist()) == {None}
    assert (after.admitted == after.admitted_at[:, 0]).all()
    assert any("changed after it was certified" in str(one) for one in clf.warnings())
    with pytest.warns(CertificateWarning, match="certificate 2"):
        clf.recalibrate()
    assert clf.decide(X).certified.any() and clf.certificate_.looks == 2


def test_an_update_keeps_the_alpha_that_was_certified(clf):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CertificateWarning)
        clf.recertify(alpha=0.8).add_exemplars(*draw(20, 4)).recalibrate()
        assert clf.certificate_.found
        assert (clf.certificate_.alpha, clf.region_.alpha, clf.certificate_.looks) == (0.8, 0.9, 3)
        assert clf.recalibrate(alpha=0.9).certificate_.alpha == 0.9


def test_recalibrating_to_the_same_rule_is_no_second_look(clf):
    before = clf.certificate_
    clf.recalibrate()
    assert clf.certificate_ is before
    with pytest.warns(CertificateWarning, match="certificate 2"):
        clf.recalibrate(alpha=0.85)
    assert clf.certificate_.alpha == 0.85


def test_alpha_1_is_never_certified(clf):
    with pytest.warns(CertificateWarning, match="no sample can show"):
        clf.recalibrate(alpha=1.0)
    assert not clf.certificate_.found and not clf.decide(draw(50, 3)[0]).certified.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CertificateWarning)
        clf.recalibrate(alpha=0.9)  # as it was: nothing new was asked
    assert clf.certificate_.found and clf.certificate_.looks == 1


def refitted(clf, data):
    return clf.set_params(alpha=0.85).fit(*data)


def recertified_with_the_same_rows(clf, data):
    rows = clf.certification_rows_
    return clf.recertify(data[0][rows], data[1][rows], alpha=0.85)


def recertified_with_others_in_between(clf, data):
    rows = clf.certification_rows_
    return clf.recertify(*draw(500, 9)).recertify(data[0][rows], data[1][rows], alpha=0.85)


def there_and_back(clf, data):
    return clf.recalibrate(alpha=0.85).recalibrate(alpha=0.9)


def with_another_support(clf, data):
    return clf.add_exemplars(*draw(20, 4)).recalibrate()


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize(
    "again",
    [
        refitted,
        recertified_with_the_same_rows,
        recertified_with_others_in_between,
        there_and_back,
        with_another_support,
    ],
)
def test_a_second_look_at_a_sample_is_never_forgotten(clf, data, again, is_loaded, tmp_path):
    if is_loaded:
        clf.save(tmp_path / "model")
        clf = SDMClassifier.load(tmp_path / "model")
    with quiet():
        again(clf, data)
    assert (clf.certificate_.looks, clf.certificate_.delta_spent) == (2, 0.2)


def test_the_same_fit_again_is_no_second_look(clf, data):
    with quiet():
        again = copy.copy(clf).fit(*data)
    assert again.certificate_.looks == 1 and again.certificate_.identity == clf.certificate_.identity


def test_the_certified_rule_does_not_follow_parameters(clf, tmp_path):
    """A certificate is for the rule with the familiarity that it was made with, also after saving."""
    X = draw(400, 3)[0]
    before = clf.decide(X).to_dicts()
    clf.set_params(familiarity=0.5, delta=0.3, control="all", alpha=0.6)
    assert clf.decide(X).to_dicts() == before
    clf.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    assert loaded.decide(X).to_dicts() == before
    with quiet():
        loaded.recertify()
    decisions = loaded.decide(X)
    assert decisions.familiarity[decisions.certified].min() >= 0.5


def test_a_policy_that_there_is_not_is_refused(clf):
    with pytest.raises(InvalidInputError, match="'policy' of SDMClassifier"):
        clf.set_params(policy="all").decide(draw(5, 3)[0])


def test_a_saved_model_keeps_its_promise(clf, tmp_path):
    X = draw(200, 3)[0]
    clf.set_params(policy="trusted").save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    assert loaded.policy == "trusted"
    assert loaded.certificate_.identity == clf.certificate_.identity
    assert loaded.certificate_.holds_for() == clf.certificate_.holds_for()
    assert loaded.decide(X).to_dicts() == clf.decide(X).to_dicts()
    assert np.array_equal(loaded.certification_rows_, clf.certification_rows_)
    assert DriftGuard.from_classifier(loaded).fingerprint == DriftGuard.from_classifier(clf).fingerprint
    assert [str(one) for one in loaded.warnings()] == [str(one) for one in clf.warnings()]


def test_a_failed_fit_leaves_the_old_promise(clf, data):
    before = dict(vars(clf))
    with pytest.raises(InvalidInputError):
        clf.fit(data[0], np.array(["ant"] * len(data[0])))
    assert vars(clf) == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"certification_size": 1.0}, "'certification_size'"),
        ({"delta": 0}, "'delta'"),
        ({"control": "class"}, "'control'"),
        ({"policy": "all"}, "'policy'"),
        ({"familiarity": 1.0}, "'familiarity'"),
        ({"familiarity": -0.1}, "'familiarity'"),
    ],
)
def test_settings_are_checked(settings, words, data):
    with pytest.raises(InvalidInputError, match=words):
        SDMClassifier(**{**SETTINGS, **settings}).fit(*data)


# --- The guard -------------------------------------------------------------------------------------------------------


def test_a_guard_watches_decisions_in_their_order(clf):
    calm, shifted = draw(60, 20)[0], draw(60, 21)[0] + 4.0
    guard = DriftGuard.from_classifier(clf, seed=0)
    stream = np.concatenate([calm, shifted])
    plain, watched = clf.decide(stream), clf.decide(stream, guard=guard)
    assert guard.raised_at is not None and guard.raised_at > 60 and guard.n_seen == 120
    is_calm = np.arange(1, 121) < guard.raised_at
    assert (watched.admitted[is_calm] == plain.admitted[is_calm]).all()
    assert not (watched.lane[~is_calm] == "certified").any()
    assert (watched.admitted == plain.admitted & (is_calm | (plain.lane == "trusted"))).all()
    again = DriftGuard.from_classifier(clf, seed=0)
    blocks = [clf.decide(part, guard=again) for part in np.array_split(stream, 7)]
    assert watched.concatenate(blocks).to_dicts() == watched.to_dicts()
    third = DriftGuard.from_classifier(clf, seed=0)
    assert [one.decision for one in clf.explain(stream, k=1, guard=third)] == watched.to_dicts()


# --- Ensembles -------------------------------------------------------------------------------------------------------


def test_an_ensemble_has_lanes_without_a_certificate(data):
    with quiet():
        ensemble = SDMEnsemble(alpha=0.9, **SETTINGS).fit(*data)
    assert ensemble.certificate_ is None
    decisions = ensemble.decide(draw(200, 3)[0])
    assert ((decisions.lane == "trusted") == decisions.admitted).all()
    assert (decisions.admitted == decisions.admitted_at[:, 0]).all()
    assert set(decisions.lane) <= {"trusted", "review", "unfamiliar"}


def test_an_ensemble_of_a_certified_classifier_has_no_certification_points(data):
    with quiet():
        clf = SDMClassifier(alpha=0.9, **SETTINGS).fit(*data, keep_rounds=True)
    ensemble = SDMEnsemble.from_classifier(clf)
    assert all(model.certification is None for model in ensemble.models_)
    assert "| certification points | none |" in ensemble.model_card()
    assert len(clf.certification_) == 300


def test_a_missing_region_beside_a_certificate_does_not_say_that_all_is_rejected(clf, data):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        clf.recalibrate(min_class_count=10_000)
    (said,) = [one.message.what for one in told]
    assert clf.certificate_.found and clf.decide(data[0]).admitted.any() and not clf.region_.found
    assert "No high-reliability region at alpha=0.9; no answer is trusted, but the certificate admits." in said


# --- The u of the randomised test, and the control that is chosen -----------------------------------------------------


def test_u_is_drawn_from_the_hidden_states_whatever_their_order(clf):
    X, y = draw(400, 50)
    order = np.random.default_rng(0).permutation(400)
    swapped = np.where(y == "ant", "bee", "ant")
    us = []
    for states, labels in ((X, y), (X[order], y[order]), (X, swapped), (X + 1e-3, y)):
        other = copy.deepcopy(clf)
        with quiet():
            other.recertify(states, labels)
        us.append(other.certificate_.u)
        assert other.certificate_.u == other.model_.certification.u
    assert us[0] == us[1] == us[2] != us[3] and 0 < us[0] < 1
    assert clf.certificate_.u == clf.model_.certification.u not in us


def test_u_is_kept_with_the_model_and_when_points_are_removed(clf, tmp_path):
    u = clf.certificate_.u
    clf.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    assert loaded.certificate_.u == loaded.model_.certification.u == u
    names = loaded.model_.certification.examples.ids()
    with quiet():
        loaded.remove(names[:2])
        loaded.recalibrate()
    assert loaded.certificate_.u == u and loaded.certificate_.n_corrected == 2


def test_a_sample_that_was_tested_without_u_stays_so(clf):
    """As in a model that was saved before there was a u."""
    X, y = draw(400, 50)
    with quiet():
        clf.recertify(X, y)
        clf.models_ = (replace(clf.model_, certification=replace(clf.model_.certification, u=1.0)),)
        clf.recertify(X, y)
    assert clf.certificate_.u == 1.0


def test_auto_chooses_by_calibration_and_says_so(data, tmp_path):
    clf = SDMClassifier(alpha=0.9, **SETTINGS, control="auto")
    with quiet():
        clf.fit(*data)
    certificate = clf.certificate_
    assert clf.get_params()["control"] == "auto" and next(iter(certificate.chances)) == "groups"
    likely = [control for control, chance in certificate.chances.items() if chance >= 0.8]
    assert certificate.control == likely[0]
    clf.save(tmp_path / "model")
    loaded = SDMClassifier.load(tmp_path / "model")
    assert loaded.control == "auto" and loaded.certificate_.chances == certificate.chances
    assert loaded.choose_alpha(cost_error=10, cost_review=1).curve.points  # with the control that was chosen
    loaded.set_params(control=certificate.control).recertify()  # the same question by its name
    assert loaded.certificate_.looks == 1 and loaded.certificate_.chances == {}


def test_auto_with_a_target_for_each_class(data):
    clf = SDMClassifier(alpha={"ant": 0.9, "bee": 0.8}, **SETTINGS, control="auto")
    with quiet():
        clf.fit(*data)
    assert list(clf.certificate_.chances) == ["groups", "predictions"]


def test_auto_without_points_to_hold_out_is_no_certificate():
    clf = SDMClassifier(alpha=0.9, **SETTINGS, control="auto")
    with quiet():
        clf.fit(*draw(60, 0))  # a quarter is 15, and it takes 22
    assert not clf.certificate_.found and clf.certificate_.control == "all" and clf.certificate_.chances == {}
