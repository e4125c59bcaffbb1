"""Abstention by Learn then Test: thresholds by hand, the promise in a simulation, what is refused."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.base import clone

from conftest import make_blobs
from torchsdm.baselines.certified import CANDIDATES, RiskControlledAbstention
from torchsdm.baselines.cross_entropy import CrossEntropyClassifier
from torchsdm.errors import InvalidInputError, InvalidTypeError, MissingExtraError, NotFittedError, RegionWarning

pytest.importorskip("mapie")


def draw(n, n_classes=2, seed=0, sharpness=1.0, overconfidence=1.0):
    """Logits with labels drawn from their softmax; overconfidence scales what is shown, not what is true."""
    rng = np.random.default_rng(seed)
    z = sharpness * 2 * rng.standard_normal((n, n_classes))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    y = (rng.random(n)[:, None] > p.cumsum(axis=1)).sum(axis=1).clip(max=n_classes - 1)
    return overconfidence * z, y


def slow_threshold(logits, y, alpha, confidence_level):
    """p-values as Angelopoulos et al. give them for binary losses, Holm's correction, then the most right answers."""
    z = logits - logits.max(axis=1, keepdims=True)
    confidence = (np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)).max(axis=1)
    right = logits.argmax(axis=1) == y
    p_values = []
    for t in CANDIDATES:
        n, n_right = int((confidence >= t).sum()), int(right[confidence >= t].sum())
        if n == 0:
            p_values.append(1.0)
            continue
        wrong = np.ceil(n * (1 - n_right / n))  # as MAPIE counts, which rounding may raise by one
        risk, limit = min(1 - n_right / n, 1 - alpha), 1 - alpha
        divergence = (1 - risk) * np.log((1 - risk) / (1 - limit)) + (risk * np.log(risk / limit) if risk else 0)
        p_values.append(min(np.exp(-n * divergence), binom.cdf(wrong, n, limit)))
    passed = set()
    for step, index in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[index] > (1 - confidence_level) / (len(CANDIDATES) - step):
            break
        passed.add(int(index))
    return min((CANDIDATES[index] for index in passed), default=np.inf), confidence


@pytest.mark.parametrize("n_classes", [2, 3, 5])
@pytest.mark.parametrize(("alpha", "confidence_level"), [(0.7, 0.9), (0.8, 0.5), (0.9, 0.9), (0.95, 0.8)])
def test_the_threshold_is_that_of_the_loops(n_classes, alpha, confidence_level):
    logits, y = draw(3000, n_classes, seed=n_classes, sharpness=2)
    estimator = RiskControlledAbstention(alpha, confidence_level=confidence_level).fit(logits, y)
    expected, confidence = slow_threshold(logits, y, alpha, confidence_level)
    assert np.isfinite(expected)
    assert estimator.thresholds_.tolist() == [expected]
    admitted = estimator.decide(logits).admitted
    np.testing.assert_array_equal(admitted, confidence >= estimator.thresholds_[0])
    assert (logits.argmax(axis=1) == y)[admitted].mean() >= alpha


@pytest.mark.filterwarnings("ignore::torchsdm.errors.RegionWarning")
def test_the_promise_holds_over_calibration_sets():
    """The true accuracy among admitted points falls short of alpha in at most a tenth of the calibration sets."""
    alpha, shortfalls, admitting = 0.85, 0, 0
    logits, y = draw(200_000, 3, seed=99, overconfidence=2.0)
    right = logits.argmax(axis=1) == y
    for seed in range(60):
        rule = RiskControlledAbstention(alpha).fit(*draw(600, 3, seed=seed, overconfidence=2.0))
        admitted = rule.decide(logits).admitted
        admitting += bool(admitted.any())
        shortfalls += bool(admitted.any()) and right[admitted].mean() < alpha
    assert admitting > 50 and shortfalls <= 6


def test_overconfidence_raises_the_threshold():
    plain, loud = (
        RiskControlledAbstention(0.9).fit(*draw(4000, 3, overconfidence=scale)).thresholds_[0] for scale in (1, 4)
    )
    assert loud > 0.99 > plain > 0.6


def test_thresholds_that_admit_nothing_do_not_stop_the_test():
    """MAPIE's p-value of an empty threshold is NaN; no confidence here reaches 0.9, yet a lower threshold is found."""
    rng = np.random.default_rng(0)
    logits = np.column_stack([np.zeros(2000), rng.uniform(-2, 2, 2000)])
    y = (rng.random(2000) < 0.97) == (logits[:, 1] > 0)
    estimator = RiskControlledAbstention(0.9).fit(logits, y.astype(int))
    assert estimator.thresholds_[0] < 0.88 and estimator.decide(logits).admitted.mean() > 0.5


def test_where_nothing_can_be_promised_nothing_is_admitted():
    rng = np.random.default_rng(0)
    logits, y = rng.standard_normal((200, 3)), rng.integers(0, 3, 200)
    with pytest.warns(RegionWarning, match="No threshold of RiskControlledAbstention controls the accuracy at 0.95"):
        estimator = RiskControlledAbstention(0.95).fit(logits, y)
    decisions = estimator.decide(logits)
    assert estimator.thresholds_.tolist() == [np.inf] and not decisions.admitted.any()
    few = draw(20, sharpness=10)  # right, but too few to show it
    with pytest.warns(RegionWarning, match="Add calibration points"):
        assert not RiskControlledAbstention(0.95).fit(*few).decide(few[0]).admitted.any()


def test_several_alphas_each_have_their_threshold():
    logits, y = draw(4000, 3)
    together = RiskControlledAbstention([0.9, 0.7, 0.8]).fit(logits, y)
    alone = [RiskControlledAbstention(alpha).fit(logits, y).thresholds_[0] for alpha in (0.7, 0.8, 0.9)]
    assert together.thresholds_.tolist() == alone and sorted(alone) == alone
    decisions = together.decide(logits)
    assert decisions.admitted_at.shape == (4000, 3)
    np.testing.assert_array_equal(decisions.admitted, decisions.admitted_at[:, 0])
    assert set(decisions.admitted_alpha[decisions.admitted].tolist()) == {0.7, 0.8, 0.9}


def test_it_stands_on_a_model():
    train, test = make_blobs(0, 2000, 4.0), make_blobs(1, 1000, 4.0)
    model = CrossEntropyClassifier(8, 1, 8, learning_rate=2e-2, random_state=0)
    rule = RiskControlledAbstention(0.95, model).fit(train.X, np.array(["no", "yes"])[train.y])
    decisions = rule.decide(test.X)
    assert decisions.admitted.mean() > 0.5
    assert (
        np.mean(decisions.predictions[decisions.admitted] == np.array(["no", "yes"])[test.y][decisions.admitted]) > 0.95
    )
    np.testing.assert_allclose(decisions.probabilities, rule.fitted_model_.predict_proba(test.X))
    assert rule.predict(test.X).tolist() == rule.fitted_model_.predict(test.X).tolist()


def test_rows_do_not_depend_on_the_batch():
    logits, y = draw(1500, 4)
    rule = RiskControlledAbstention(0.8).fit(logits, y)
    whole = rule.decide(logits)
    for start in range(0, 40, 3):
        part = rule.decide(logits[start : start + 3])
        np.testing.assert_array_equal(part.probabilities, whole.probabilities[start : start + 3])
        np.testing.assert_array_equal(part.admitted, whole.admitted[start : start + 3])


def test_clone():
    rule = RiskControlledAbstention([0.8, 0.9], confidence_level=0.7)
    assert clone(rule).get_params() == {"alpha": [0.8, 0.9], "model": None, "confidence_level": 0.7}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 1.0}, "'alpha' of RiskControlledAbstention must be in (0.5, 1). Got 1.0; no finite sample"),
        ({"alpha": [0.9, 1]}, "no finite sample"),
        ({"alpha": 0.1}, "'alpha' of RiskControlledAbstention.fit must be in (0.5, 1]"),
        ({"confidence_level": 1.0}, "'confidence_level' of RiskControlledAbstention must be in (0, 1). Got 1.0"),
        ({"confidence_level": 0}, "'confidence_level'"),
        ({"confidence_level": "high"}, "'confidence_level'"),
    ],
)
def test_bad_parameters_are_named(change, message):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=re.escape(message)):
        RiskControlledAbstention(**change).fit(*draw(100))


def test_an_unfitted_rule_says_so():
    with pytest.raises(NotFittedError, match="call fit before decide"):
        RiskControlledAbstention().decide([[0.0, 1.0]])


def test_without_the_package_the_message_gives_the_pip_line(monkeypatch):
    for name in [name for name in sys.modules if name == "mapie" or name.startswith("mapie.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "mapie", None)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'torchsdm[baselines]'")):
        RiskControlledAbstention().fit(*draw(100))
