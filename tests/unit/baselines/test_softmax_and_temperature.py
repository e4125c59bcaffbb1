"""The plain softmax and the scaled one: closed forms, slow loops, the optimum and where there is none."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from sklearn.base import clone

import torchsdm.baselines.softmax as temperature_module
from torchsdm.baselines.softmax import (
    NoReject,
    SoftmaxThreshold,
    TemperatureScaling,
    fit_temperature,
    fit_temperature_lbfgs,
    softmax,
)
from torchsdm.errors import InvalidInputError, InvalidTypeError, NotFittedError, SDMWarning

ALL = [NoReject, SoftmaxThreshold, TemperatureScaling]


class FakeModel:
    """The first columns of X are the logits; half of the data is set aside."""

    def __init__(self, n_classes):
        self.n_classes, self.fits = n_classes, 0

    def fit(self, X, y):
        self.classes_, numbers = np.unique(y, return_inverse=True)
        self.held_out = self.logits(X)[::2], numbers[::2]
        self.fits += 1
        return self

    def logits(self, X):
        return np.asarray(X)[:, : self.n_classes]

    def calibration_logits(self):
        return self.held_out


def draw(seed, n=400, n_classes=3, temperature=1.0, spread=3.0):
    """Logits, and labels whose probabilities are softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, n_classes)) * spread
    logits[:n_classes] = np.eye(n_classes)  # every class is there, twice
    logits[n_classes : 2 * n_classes] = np.eye(n_classes)
    labels = (softmax(logits / temperature).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    labels[: 2 * n_classes] = np.tile(np.arange(n_classes), 2)
    return logits, labels


def slow_softmax(row, temperature=1.0):
    """One row by exact sums in floating point, without any shift but the largest logit."""
    largest = max(row)
    terms = [math.exp((value - largest) / temperature) for value in row]
    return [term / math.fsum(terms) for term in terms]


def slow_nll(logits, labels, temperature):
    losses = []
    for row, y in zip(logits.tolist(), labels.tolist(), strict=True):
        d = [(value - row[y]) / temperature for value in row]
        losses.append(max(d) + math.log(math.fsum(math.exp(value - max(d)) for value in d)))
    return math.fsum(losses) / len(losses)


def slow_slope(logits, labels, temperature):
    """d NLL / d(1/T) = mean of E[z] - z_y."""
    terms = []
    for row, y in zip(logits.tolist(), labels.tolist(), strict=True):
        terms.append(math.fsum(p * (z - row[y]) for p, z in zip(slow_softmax(row, temperature), row, strict=True)))
    return math.fsum(terms) / len(terms)


# --- Softmax ---------------------------------------------------------------------------------------------------------


def test_softmax_of_two_classes_is_the_logistic_function():
    gaps = np.array([-800.0, -30.0, -1.0, 0.0, 0.5, math.log(3.0), 40.0])
    p = softmax(np.stack([gaps, np.zeros_like(gaps)], axis=1))
    expected = [math.exp(g) / (1 + math.exp(g)) if g < 0 else 1 / (1 + math.exp(-g)) for g in gaps.tolist()]
    np.testing.assert_allclose(p[:, 0], expected, rtol=1e-14)
    np.testing.assert_allclose(p[5], [0.75, 0.25], rtol=1e-14)


@pytest.mark.parametrize("n_classes", [2, 5, 30])
def test_softmax_equals_the_slow_one(n_classes):
    logits = np.random.default_rng(0).normal(size=(50, n_classes)) * 20
    np.testing.assert_allclose(softmax(logits), [slow_softmax(row) for row in logits.tolist()], rtol=1e-13)


def test_softmax_of_extreme_logits():
    p = softmax(np.array([[1e4, -1e4, 0.0], [1e4, 1e4, -1e4], [-1e4, -1e4, -1e4], [1e300, -1e300, 0.0]]))
    np.testing.assert_allclose(p, [[1, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3, [1, 0, 0]], rtol=1e-15)
    shifted = softmax(np.array([[1e4, 1e4 + math.log(3.0)]]))
    np.testing.assert_allclose(shifted, [[0.25, 0.75]], rtol=1e-11)


def test_softmax_of_a_row_does_not_depend_on_the_batch():
    logits = np.random.default_rng(1).normal(size=(37, 300))
    p = softmax(logits)
    assert np.array_equal(softmax(np.asfortranarray(logits)), p)
    assert np.array_equal(np.concatenate([softmax(row[None]) for row in logits]), p)
    assert np.array_equal(softmax(logits[::-1])[::-1], p)


def test_no_reject_admits_everything_at_every_alpha():
    logits, labels = draw(0)
    decisions = NoReject(alpha=[0.99, 0.6]).fit(logits, labels).decide(logits)
    assert decisions.admitted_at.shape == (400, 2) and decisions.admitted_at.all()
    assert decisions.admitted.all() and (decisions.admitted_alpha == 0.99).all()
    np.testing.assert_array_equal(decisions.predictions, logits.argmax(axis=1))
    np.testing.assert_array_equal(decisions.probabilities, softmax(logits))


def test_softmax_threshold_by_hand():
    logits = np.log([[0.95, 0.05], [0.94, 0.06], [0.2, 0.8], [0.01, 0.99], [0.5, 0.5]])
    rule = SoftmaxThreshold(alpha=[0.9, 0.75]).fit(logits, ["a", "a", "b", "b", "a"])
    decisions = rule.decide(logits)
    assert decisions.alphas.tolist() == [0.75, 0.9]
    assert decisions.admitted_at.tolist() == [
        [True, True],
        [True, True],
        [True, False],
        [True, True],
        [False, False],
    ]
    assert decisions.predictions.tolist() == ["a", "a", "b", "b", "a"]  # of a tie the first
    np.testing.assert_allclose(decisions.confidence, [0.95, 0.94, 0.8, 0.99, 0.5], rtol=1e-14)
    np.testing.assert_array_equal(decisions.admitted_alpha, [0.9, 0.9, 0.75, 0.9, np.nan])


def test_the_threshold_itself_is_admitted():
    logits = np.array([[math.log(3.0), 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    p = float(softmax(logits)[0, 0])
    labels = [0, 0, 1, 1]
    assert SoftmaxThreshold(alpha=p).fit(logits, labels).decide(logits).admitted[0]
    assert not SoftmaxThreshold(alpha=np.nextafter(p, 1)).fit(logits, labels).decide(logits).admitted[0]


def test_alpha_of_one_admits_only_what_rounds_to_one():
    logits = np.array([[40.0, 0.0], [30.0, 0.0], [0.0, 1e4], [0.0, 1.0]])
    assert SoftmaxThreshold(alpha=1.0).fit(logits, [0, 0, 1, 1]).decide(logits).admitted.tolist() == [1, 0, 1, 0]


# --- The optimum -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_the_likelihood_and_its_optimum(seed):
    n_classes = [2, 3, 7][seed % 3]
    logits, labels = draw(seed, n=200, n_classes=n_classes, temperature=[0.3, 1.0, 4.0, 8.0][seed % 4])
    found = fit_temperature(logits, labels)
    lowest = slow_nll(logits, labels, found)
    assert abs(slow_slope(logits, labels, found)) < 1e-12
    for other in found * np.geomspace(1e-2, 1e2, 81):
        assert lowest <= slow_nll(logits, labels, other) + 1e-14


@pytest.mark.parametrize("seed", range(12))
def test_the_optimum_is_found_in_few_steps(seed, monkeypatch):
    calls = []
    slope_and_curvature = temperature_module._slope_and_curvature
    monkeypatch.setattr(
        temperature_module, "_slope_and_curvature", lambda d, b: calls.append(b) or slope_and_curvature(d, b)
    )
    fit_temperature(*draw(seed, n=200, n_classes=[2, 3, 7][seed % 3], temperature=[0.3, 1.0, 4.0, 8.0][seed % 4]))
    assert len(calls) < 20  # doublings and all; bisection alone would take forty or more


@pytest.mark.parametrize("correct", [3, 8, 99])
def test_closed_form_of_two_classes_with_one_gap(correct):
    """Gap 5, right n of n + 2 times: sigmoid(5 / T) must be n / (n + 2)."""
    logits = np.tile([5.0, 0.0], (correct + 2, 1))
    labels = np.array([1, 1] + [0] * correct)
    assert fit_temperature(logits, labels) == pytest.approx(5 / math.log(correct / 2), rel=1e-12)


@pytest.mark.parametrize("factor", [1e-12, 1e-3, 7.0, 1e4, 1e12])
def test_the_temperature_scales_with_the_logits(factor):
    logits, labels = draw(3, temperature=2.0)
    expected = factor * fit_temperature(logits, labels)
    assert fit_temperature(factor * logits, labels) == pytest.approx(expected, rel=1e-9)


def test_a_shift_of_each_row_changes_nothing():
    logits, labels = draw(4)
    shift = np.random.default_rng(0).normal(size=(len(logits), 1)) * 100
    assert fit_temperature(logits + shift, labels) == pytest.approx(fit_temperature(logits, labels), rel=1e-9)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0, 30.0])
def test_a_known_temperature_is_recovered(temperature):
    logits, labels = draw(5, n=20000, n_classes=4, temperature=temperature, spread=2 * temperature)
    found = fit_temperature(logits, labels)
    p = softmax(logits / temperature)
    variance = (p * logits**2).sum(axis=1) - (p * logits).sum(axis=1) ** 2
    error_of_inverse = 1 / math.sqrt(variance.sum())  # Fisher information of 1 / T
    assert abs(1 / found - 1 / temperature) < 4 * error_of_inverse
    assert 4 * error_of_inverse * temperature < 0.1  # else it would say little


def test_extreme_logits_have_a_finite_optimum():
    rng = np.random.default_rng(6)
    logits = rng.choice([-1e4, 0.0, 1e4], size=(200, 3))
    labels = np.where(rng.random(200) < 0.8, logits.argmax(axis=1), rng.integers(0, 3, 200))
    found = fit_temperature(logits, labels)
    assert 1e3 < found < 1e6
    assert abs(slow_slope(logits, labels, found)) < 1e-12 * 1e4


def test_one_huge_gap_does_not_spoil_the_rest():
    logits, labels = draw(7, n=2000)
    logits[10], labels[10] = [1e6, 0.0, 0.0], 0
    assert fit_temperature(logits, labels) == pytest.approx(fit_temperature(logits[11:], labels[11:]), rel=0.05)


def test_one_wrong_point_of_a_tiny_gap_is_enough():
    logits = np.array([[1.0, 0.0]] * 50 + [[0.0, 1e-6]])
    found = fit_temperature(logits, np.zeros(51, dtype=int))
    assert 0 < found < 0.1 and abs(slow_slope(logits, np.zeros(51, dtype=int), found)) < 1e-12


# --- Where there is no optimum ---------------------------------------------------------------------------------------


def test_separable_calibration_is_bounded_with_a_warning():
    logits = np.array([[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 4.0]])
    labels = np.array([0, 0, 1, 1])
    with pytest.warns(SDMWarning, match="No class leads the true one in any of 4 calibration points"):
        rule = TemperatureScaling(alpha=0.99).fit(logits, labels)
    assert rule.temperature_ == pytest.approx(1e-3 * 10 / 8)  # mean |lead| is 10 / 8
    decisions = rule.decide(logits)
    assert decisions.admitted.all() and np.isfinite(decisions.probabilities).all()
    ties = np.array([[2.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
    with pytest.warns(SDMWarning, match="any of 2"):
        assert 0 < fit_temperature(ties, np.array([0, 1])) < 0.01


@pytest.mark.parametrize("n_classes", [2, 5])
def test_logits_that_are_all_wrong_are_clipped_with_a_warning(n_classes):
    logits, _ = draw(8, n_classes=n_classes)
    wrong = logits.argmin(axis=1)
    with pytest.warns(SDMWarning, match="the logits are no better than guessing"):
        rule = TemperatureScaling(alpha=0.6).fit(logits, wrong)
    assert rule.temperature_ > 1e5
    decisions = rule.decide(logits)
    assert not decisions.admitted.any()
    np.testing.assert_allclose(decisions.probabilities, 1 / n_classes, atol=1e-4)
    np.testing.assert_array_equal(decisions.predictions, logits.argmax(axis=1))


def test_logits_that_say_nothing_leave_the_temperature_at_one():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_temperature(np.full((4, 3), 7.0), np.array([0, 1, 2, 0])) == 1.0


def test_an_ordinary_fit_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TemperatureScaling().fit(*draw(9))


def test_no_calibration_points_are_refused():
    with pytest.raises(InvalidInputError, match=r"must have calibration points\. Got none"):
        fit_temperature(np.zeros((0, 2)), np.zeros(0, dtype=int))


# --- As Guo et al. ---------------------------------------------------------------------------------------------------


def test_lbfgs_starts_at_one_and_a_half_and_goes_towards_the_optimum():
    for seed, temperature in [(0, 0.5), (1, 1.2), (2, 2.0), (3, 4.0)]:
        logits, labels = draw(seed, n=1000, temperature=temperature)
        best, found = fit_temperature(logits, labels), fit_temperature_lbfgs(logits, labels)
        assert min(1.5, best) <= found <= max(1.5, best)
        assert 0.05 < abs(found - 1.5) < abs(best - 1.5)
        assert slow_nll(logits, labels, found) < slow_nll(logits, labels, 1.5)


def test_lbfgs_that_starts_at_the_optimum_stays():
    logits, labels = draw(10, n=1000)
    logits = logits * 1.5 / fit_temperature(logits, labels)
    assert fit_temperature_lbfgs(logits, labels) == pytest.approx(1.5, abs=1e-6)
    assert TemperatureScaling(method="lbfgs").fit(logits, labels).temperature_ == pytest.approx(1.5, abs=1e-6)


def test_lbfgs_that_fails_is_replaced_with_a_warning(monkeypatch):
    logits, labels = draw(11)

    def lose_the_way(optimizer, closure):
        optimizer.param_groups[0]["params"][0].data.fill_(-2.0)

    monkeypatch.setattr("torch.optim.LBFGS.step", lose_the_way)
    with pytest.warns(SDMWarning, match="L-BFGS gave the temperature -2"):
        assert fit_temperature_lbfgs(logits, labels) == fit_temperature(logits, labels)


# --- Estimators ------------------------------------------------------------------------------------------------------


def test_scaling_keeps_the_predictions_and_admits_by_the_scaled_probability():
    logits, labels = draw(12, temperature=3.0)
    alphas = [0.6, 0.8, 0.95]
    rule = TemperatureScaling(alpha=alphas).fit(logits, labels)
    decisions, plain = rule.decide(logits), SoftmaxThreshold(alpha=alphas).fit(logits, labels).decide(logits)
    np.testing.assert_array_equal(decisions.predictions, plain.predictions)
    expected = np.array([slow_softmax(row, rule.temperature_) for row in logits.tolist()])
    np.testing.assert_allclose(decisions.probabilities, expected, rtol=1e-12)
    for a, alpha in enumerate(alphas):
        np.testing.assert_array_equal(decisions.admitted_at[:, a], expected.max(axis=1) >= alpha)
    assert rule.temperature_ > 2 and decisions.admitted.sum() < plain.admitted.sum()  # it was overconfident
    np.testing.assert_array_equal(rule.predict(logits), decisions.predictions)
    np.testing.assert_array_equal(rule.predict_proba(logits), decisions.probabilities)


def test_permuted_classes_give_the_same_temperature_and_admission():
    logits, labels = draw(13, n_classes=5)
    new_place = np.random.default_rng(0).permutation(5)
    shuffled = np.empty_like(logits)
    shuffled[:, new_place] = logits
    rule, other = TemperatureScaling(alpha=0.8), TemperatureScaling(alpha=0.8)
    first, second = rule.fit(logits, labels), other.fit(shuffled, new_place[labels])
    assert first.temperature_ == pytest.approx(second.temperature_, rel=1e-12)
    np.testing.assert_array_equal(first.decide(logits).admitted, second.decide(shuffled).admitted)


@pytest.mark.parametrize("rule", ALL)
def test_a_decision_does_not_depend_on_the_batch(rule):
    logits, labels = draw(14, n_classes=20, n=600)
    fitted = rule(alpha=[0.6, 0.9]).fit(logits, labels)
    whole = fitted.decide(logits)
    for rows in (slice(3, 4), slice(17, 90), slice(None, None, -1)):
        part = fitted.decide(logits[rows])
        np.testing.assert_array_equal(part.probabilities, whole.probabilities[rows])
        np.testing.assert_array_equal(part.admitted_at, whole.admitted_at[rows])


@pytest.mark.parametrize("rule", ALL)
def test_life_of_an_estimator(rule):
    logits, labels = draw(15)
    estimator = rule(alpha=0.7)
    with pytest.raises(NotFittedError, match=f"This {rule.__name__} is not fitted yet"):
        estimator.decide(logits)
    copy = clone(estimator)
    assert copy.get_params() == estimator.get_params() and copy.get_params()["alpha"] == 0.7
    assert estimator.set_params(alpha=0.8).fit(logits, labels) is estimator
    assert estimator.decide(logits).alphas.tolist() == [0.8]
    assert not hasattr(clone(estimator), "is_fitted_")


@pytest.mark.parametrize("rule", ALL)
def test_a_model_is_fitted_if_need_be_and_gives_the_logits(rule):
    logits, labels = draw(16, n_classes=3, n=500)
    X, y = np.column_stack([logits, np.zeros(500)]), np.array(["ant", "bee", "cat"])[labels]
    model = FakeModel(3)
    through_model = rule(model=model).fit(X, y)
    assert model.fits == 0 and through_model.fitted_model_.fits == 1  # a copy was fitted
    again = rule(model=through_model.fitted_model_).fit()
    direct = rule().fit(logits[::2], y[::2])
    assert (
        again.fitted_model_ is through_model.fitted_model_ and again.fitted_model_.fits == 1
    )  # a fitted one is used as it is
    for fitted in (through_model, again):
        got, expected = fitted.decide(X), direct.decide(logits)
        assert got.predictions.tolist() == expected.predictions.tolist()
        np.testing.assert_array_equal(got.admitted_at, expected.admitted_at)
        np.testing.assert_array_equal(got.probabilities, expected.probabilities)
        assert got.set_sizes is None and got.score is None


@pytest.mark.parametrize("rule", ALL)
@pytest.mark.parametrize(
    ("alpha", "error"),
    [(0.05, InvalidInputError), (1.01, InvalidInputError), ([], InvalidInputError), ("high", InvalidTypeError)],
)
def test_a_bad_alpha_is_refused(rule, alpha, error):
    with pytest.raises(error, match=f"'alpha' of {rule.__name__}.fit must"):
        rule(alpha=alpha).fit(*draw(0))


def test_bad_settings_and_logits_are_refused():
    logits, labels = draw(0)
    with pytest.raises(InvalidInputError, match="'method' of TemperatureScaling must be one of 'newton', 'lbfgs'"):
        TemperatureScaling(method="adam").fit(logits, labels)
    fitted = SoftmaxThreshold().fit(logits, labels)
    with pytest.raises(InvalidInputError, match=r"'X' of SoftmaxThreshold.decide must have shape \(any, 3\)"):
        fitted.decide(logits[:, :2])
    with pytest.raises(InvalidInputError, match=r"must be finite\. Got NaN, first in row 1"):
        fitted.decide([[0.0, 1.0, 2.0], [0.0, math.nan, 1.0]])
