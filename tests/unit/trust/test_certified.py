"""``CertifiedClassifier``: parts, promise, and what it refuses."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from conftest import make_blobs
from torchsdm import CertifiedClassifier
from torchsdm.errors import CertificateWarning, InvalidInputError, NotFittedError

BLOBS = make_blobs(seed=0, n=4000, distance=3.0)
FRESH = make_blobs(seed=1, n=4000, distance=3.0)
NAMES = np.array(["no", "yes"])


def certified(**settings):
    return CertifiedClassifier(LogisticRegression(), **{"alpha": 0.95, "random_state": 0, **settings})


def test_admitted_answers_are_right_as_promised():
    classifier = certified().fit(BLOBS.X, NAMES[BLOBS.y])
    assert classifier.certificate_.found and classifier.classes_.tolist() == ["no", "yes"]
    decisions = classifier.decide(FRESH.X)
    admitted, right = decisions.admitted, decisions.predictions == NAMES[FRESH.y]
    assert 0.3 < admitted.mean() < 1
    for group in (FRESH.y == 0, FRESH.y == 1, decisions.predictions == "no", decisions.predictions == "yes"):
        assert right[admitted & group].mean() >= 0.95
    thresholds = classifier.certificate_.thresholds[(decisions.predictions == "yes").astype(int)]
    np.testing.assert_array_equal(admitted, decisions.confidence >= thresholds)


def test_decisions_say_their_lane_the_reason_and_the_certificate():
    far = {"eligibility": lambda _, X: X[:, 0] > -2}
    classifier = certified(**far).fit(BLOBS.X, NAMES[BLOBS.y])
    decisions = classifier.decide(FRESH.X)
    assert (decisions.certified == decisions.admitted).all()
    lowest = classifier.certificate_.window_thresholds[(decisions.predictions == "yes").astype(int)]
    trusted = (decisions.score >= lowest) & (FRESH.X[:, 0] > -2)
    lanes = np.select([trusted, decisions.certified], ["trusted", "certified"], "review")
    assert (decisions.lane == lanes).all() and len(set(lanes)) == 3
    assert set(decisions.certificate.tolist()) == {classifier.certificate_.identity}
    row = int(np.flatnonzero(decisions.lane == "certified")[0])
    label = decisions.predictions[row].item()
    threshold = classifier.certificate_.thresholds[int(label == "yes")]
    expected = f"score {decisions.score[row]:.4f} reaches {threshold:.4f}, the certified threshold of {label!r}"
    assert decisions.reason[row] == expected
    assert (decisions.reason[FRESH.X[:, 0] <= -2] == "not eligible").all()
    assert any("is below" in reason for reason in decisions.reason)


def test_the_three_parts_do_not_overlap_and_make_up_the_whole():
    parts = []

    class Spy(LogisticRegression):
        def fit(self, X, y):
            parts.append(X)
            return super().fit(X, y)

    def everyone(_, X):
        parts.append(X)
        return np.ones(len(X), dtype=bool)

    CertifiedClassifier(Spy(), alpha=0.9, eligibility=everyone, random_state=0).fit(BLOBS.X, BLOBS.y)
    assert [len(part) for part in parts] == [2000, 1000, 1000]  # trained on, calibrated on, certified on
    rows = [row.tobytes() for part in parts for row in part]
    assert sorted(rows) == sorted(row.tobytes() for row in BLOBS.X)


def test_a_fitted_classifier_is_used_as_it_is():
    model = LogisticRegression().fit(BLOBS.X, BLOBS.y)
    classifier = CertifiedClassifier(model, alpha=0.9, prefit=True, random_state=0).fit(FRESH.X, FRESH.y)
    assert classifier.estimator_ is model and classifier.certificate_.n_certification == 2000


def test_own_scores_and_eligibility():
    classifier = certified(
        alpha=0.9,
        score_function=lambda model, X: np.abs(model.decision_function(X)),
        eligibility=lambda _, X: X[:, 1] < 0,
    ).fit(BLOBS.X, BLOBS.y)
    decisions = classifier.decide(FRESH.X)
    assert decisions.admitted.any() and not decisions.admitted[FRESH.X[:, 1] >= 0].any()
    np.testing.assert_array_equal(decisions.score, np.abs(classifier.estimator_.decision_function(FRESH.X)))


def test_another_look_at_the_same_sample_is_counted_and_new_data_start_afresh():
    classifier = certified().fit(BLOBS.X, BLOBS.y)
    with pytest.warns(CertificateWarning, match="certificate 2 on the same .* at least 0.8, not 0.9"):
        classifier.recertify(alpha=0.9)
    assert classifier.certificate_.looks == 2 and classifier.certificate_.alpha == 0.9
    assert classifier.get_params()["alpha"] == 0.95 and classifier.decide(FRESH.X[:5]).alphas.tolist() == [0.9]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier.recertify(FRESH.X, FRESH.y)
    assert classifier.certificate_.looks == 1 and classifier.certificate_.n_certification == 4000


def test_where_nothing_holds_everything_is_rejected_with_a_warning():
    noise = np.random.default_rng(99).integers(0, 2, len(BLOBS.y))
    with pytest.warns(CertificateWarning, match="Not certified at alpha"):
        classifier = certified().fit(BLOBS.X, noise)
    assert not classifier.decide(FRESH.X).admitted.any()


def test_it_is_an_estimator_like_any_other():
    pipeline = CertifiedClassifier(make_pipeline(StandardScaler(), LogisticRegression()), alpha=0.9, random_state=3)
    first, second = (clone(pipeline).fit(BLOBS.X, BLOBS.y) for _ in range(2))
    assert first.certificate_.identity == second.certificate_.identity
    np.testing.assert_array_equal(first.predict(FRESH.X), first.decide(FRESH.X).predictions)
    assert first.predict_proba(FRESH.X).shape == (4000, 2) and first.score(FRESH.X, FRESH.y) > 0.9


def test_what_cannot_be_used_is_refused():
    with pytest.raises(NotFittedError, match="call fit before decide"):
        certified().decide(BLOBS.X)
    with pytest.raises(InvalidInputError, match="leave something to train on"):
        certified(calibration_size=0.5, certification_size=0.5).fit(BLOBS.X, BLOBS.y)
    with pytest.raises(InvalidInputError, match=r"'control' of CertifiedClassifier\.fit"):
        certified(control="none").fit(BLOBS.X, BLOBS.y)
    classifier = certified().fit(BLOBS.X, BLOBS.y)
    with pytest.raises(InvalidInputError, match="Got 7"):
        classifier.recertify(FRESH.X[:2], [7, 0])


def test_a_class_that_the_estimator_does_not_know_counts_as_wrong_where_classes_are_not_controlled():
    labels = np.where(np.arange(len(FRESH.y)) % 5 == 0, 7, FRESH.y)  # a fifth of the new data is of a new class
    classifier = certified(alpha=0.9, control="all").fit(BLOBS.X, BLOBS.y)
    assert classifier.certificate_.found
    with pytest.warns(CertificateWarning, match="Not certified at alpha"):
        classifier.recertify(FRESH.X, labels)


def test_a_fit_that_fails_changes_nothing():
    classifier = certified(alpha=0.9).fit(BLOBS.X, BLOBS.y)
    before, decisions = classifier.certificate_, classifier.decide(FRESH.X)
    flipped = 1 - BLOBS.y
    flipped[0] = 9  # with this seed the only one falls into a part that is held out
    with pytest.raises(InvalidInputError, match="Got 9"):
        classifier.set_params(random_state=3).fit(BLOBS.X, flipped)
    assert classifier.certificate_ is before
    np.testing.assert_array_equal(classifier.decide(FRESH.X).predictions, decisions.predictions)


def test_the_same_sample_is_recognised_however_it_comes_again():
    classifier = certified(alpha=0.9).fit(BLOBS.X, BLOBS.y)
    classifier.recertify(FRESH.X, FRESH.y)
    for n_looks, alpha in ((2, 0.95), (2, 0.95), (3, 0.85)):  # the same question again is no look
        with pytest.warns(CertificateWarning, match=f"certificate {n_looks} on the same"):
            classifier.recertify(FRESH.X, FRESH.y, alpha=alpha)
    assert classifier.certificate_.delta_spent == pytest.approx(0.3)
    assert "probability at least 0.7 for all 3 certificates" in classifier.certificate_.holds_for()
    with pytest.warns(CertificateWarning, match="certificate 2 on the same"):
        clone(classifier).set_params(alpha=0.85).fit(BLOBS.X, BLOBS.y)  # the same rows as before certify it


def test_auto_is_the_strongest_control_that_will_probably_hold():
    classifier = certified(alpha=0.9, control="auto").fit(BLOBS.X, BLOBS.y)
    certificate = classifier.certificate_
    assert classifier.control == "auto" and certificate.control == "groups" and certificate.chances["groups"] >= 0.8
    assert certificate.identity == certified(alpha=0.9).fit(BLOBS.X, BLOBS.y).certificate_.identity
    few = certified(alpha=0.9, control="auto").fit(BLOBS.X[:300], BLOBS.y[:300]).certificate_
    assert few.control == "all" and few.found and few.chances["all"] >= 0.8 > few.chances["groups"]
