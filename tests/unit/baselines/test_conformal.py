"""APS and RAPS: a worked example, slow loops, ties and extremes, batches, seeds, and the choice of the penalty."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.base import clone

from torchsdm.baselines.conformal import (
    APS,
    LAM_GRID,
    RAPS,
    choose_k_reg,
    conformal_quantile,
    conformity_scores,
    prediction_sets,
    size_stratified_violation,
    uniforms_of,
)
from torchsdm.baselines.softmax import TemperatureScaling, fit_temperature, softmax
from torchsdm.errors import InvalidInputError, InvalidTypeError, NotFittedError, SDMWarning

BOTH = [APS, RAPS]
MODES = [
    {},
    {"allow_empty_sets": True},
    {"randomized": False},
    {"randomized": False, "allow_empty_sets": True},
    {"reference": True},
]


class FakeModel:
    """X is the logits; half of the data is set aside."""

    def fit(self, X, y):
        self.classes_, numbers = np.unique(y, return_inverse=True)
        self.held_out = np.asarray(X)[::2], numbers[::2]
        return self

    def logits(self, X):
        return np.asarray(X)

    def calibration_logits(self):
        return self.held_out


def draw(seed, n=300, n_classes=4, temperature=1.0):
    """Logits, and labels of probabilities softmax(logits / temperature); every class is there."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, n_classes)) * 2
    labels = (softmax(logits / temperature).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    labels[: 2 * n_classes] = np.tile(np.arange(n_classes), 2)
    return logits, labels


def slow_scores(row, u, lam, k_reg):
    """Scores of one row, one class after the other."""
    exponentials = [math.exp(value - max(row)) for value in row]
    p = [e / math.fsum(exponentials) for e in exponentials]
    scores = []
    for c in range(len(row)):
        ahead = [j for j in range(len(row)) if row[j] > row[c] or (row[j] == row[c] and j < c)]
        rank = len(ahead) + 1
        scores.append(math.fsum(p[j] for j in ahead) + (1 - u) * p[c] + lam * max(0, rank - k_reg))
    return scores


def published_set_size(p, tau, u, lam, k_reg, allow_empty_sets):
    """The size of a randomised set as the RAPS paper builds it: one label too many, and the last thrown out by lot."""
    p = np.sort(p)[::-1]
    penalty = lam * np.maximum(0, np.arange(1, len(p) + 1) - k_reg)
    size = min(int((p.cumsum() + penalty <= tau).sum()) + 1, len(p))
    room = (tau - p[: size - 1].sum() - penalty[size - 1]) / p[size - 1]
    size -= int(1 - u > room)  # their U is our 1 - u
    return size if allow_empty_sets else max(size, 1)


# --- Scores ----------------------------------------------------------------------------------------------------------


def test_scores_of_three_classes_by_hand():
    logits = np.log([[0.2, 0.5, 0.3]])  # ranks 3, 1, 2
    np.testing.assert_allclose(conformity_scores(logits), [[1.0, 0.5, 0.8]], rtol=1e-14)
    np.testing.assert_allclose(conformity_scores(logits, np.array([0.5])), [[0.9, 0.25, 0.65]], rtol=1e-14)
    np.testing.assert_allclose(
        conformity_scores(logits, np.array([0.5]), lam=0.1, k_reg=1), [[1.1, 0.25, 0.75]], rtol=1e-14
    )
    np.testing.assert_allclose(conformity_scores(logits, lam=0.1, k_reg=2), [[1.1, 0.5, 0.8]], rtol=1e-14)


def test_scores_of_two_classes_are_the_larger_probability_and_one():
    gaps = np.array([-3.0, -0.1, 0.1, 3.0])
    scores = conformity_scores(np.stack([gaps, 0 * gaps], axis=1))
    larger = 1 / (1 + np.exp(-np.abs(gaps)))
    np.testing.assert_allclose(np.sort(scores, axis=1), np.stack([larger, np.ones(4)], axis=1), rtol=1e-14)
    assert (scores.argmin(axis=1) == [1, 1, 0, 0]).all()


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize(("lam", "k_reg"), [(0.0, 0), (0.01, 2), (0.3, 1)])
def test_scores_equal_the_slow_ones(n_classes, lam, k_reg):
    rng = np.random.default_rng(n_classes)
    logits = np.round(rng.normal(size=(200, n_classes)) * 3, 1)  # with ties
    u = rng.random(200)
    expected = [slow_scores(row, x, lam, k_reg) for row, x in zip(logits.tolist(), u.tolist(), strict=True)]
    np.testing.assert_allclose(conformity_scores(logits, u, lam, k_reg), expected, rtol=1e-12, atol=1e-14)
    warm = conformity_scores(logits, u, lam, k_reg, temperature=2.5)
    np.testing.assert_allclose(warm, conformity_scores(logits / 2.5, u, lam, k_reg), rtol=1e-12)


def test_extreme_logits_and_ties():
    logits = np.array([[1e4, -1e4, 0.0], [1e4, 1e4, -1e4], [3.0, 3.0, 3.0], [-1e4, -1e4 + 1e-3, 1e4]])
    scores = conformity_scores(logits)
    np.testing.assert_allclose(scores, [[1, 1, 1], [0.5, 1, 1], [1 / 3, 2 / 3, 1], [1, 1, 1]], rtol=1e-14)
    for u in (0.0, 0.3, 1 - 2**-53):
        s = conformity_scores(logits, np.full(4, u), lam=1e-3, k_reg=1)
        assert np.isfinite(s).all() and (s.argmin(axis=1) == logits.argmax(axis=1)).all()


@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0, 1e4])
def test_a_set_is_a_run_of_the_most_probable_labels(spread):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(500, 8)) * spread
    scores = conformity_scores(logits, rng.random(500), 1e-3, 2)
    order = np.argsort(-logits, axis=1, kind="stable")
    assert (np.diff(np.take_along_axis(scores, order, axis=1), axis=1) >= 0).all()
    for threshold in np.quantile(scores, [0.05, 0.3, 0.6, 0.95]):
        sets = prediction_sets(scores, threshold)
        single = sets.sum(axis=1) == 1
        np.testing.assert_array_equal(sets[single].argmax(axis=1), logits[single].argmax(axis=1))


def test_the_last_score_is_exactly_one():
    logits = np.random.default_rng(2).normal(size=(2000, 7))
    scores = conformity_scores(logits)
    assert (scores.max(axis=1) == 1.0).all()  # sums of rounded shares would miss it on either side
    assert prediction_sets(scores, 1.0).all()
    steep = conformity_scores(np.random.default_rng(2).normal(size=(2000, 60)) * 10)
    assert (steep.max(axis=1) == 1.0).all()


# --- Random numbers --------------------------------------------------------------------------------------------------


def test_uniforms_are_a_function_of_seed_and_logits():
    logits = np.random.default_rng(3).normal(size=(100, 5))
    u = uniforms_of(logits, 7)
    assert ((u >= 0) & (u < 1)).all() and len(np.unique(u)) == 100
    np.testing.assert_array_equal(np.concatenate([uniforms_of(row[None], 7) for row in logits]), u)
    np.testing.assert_array_equal(uniforms_of(np.asfortranarray(logits[:, ::-1]), 7), u)
    assert (uniforms_of(logits, 8) != u).all()
    assert (uniforms_of(np.nextafter(logits, 9), 7) != u).all()
    assert uniforms_of(np.array([[0.0, 1.0]]), 0) == uniforms_of(np.array([[1.0, -0.0]]), 0)
    assert uniforms_of(np.zeros((0, 3)), 0).shape == (0,)


def test_uniforms_are_uniform_and_independent_of_the_logits():
    logits = np.random.default_rng(4).normal(size=(20000, 3))
    u = uniforms_of(logits, 0)
    furthest = np.abs(np.sort(u) - (np.arange(20000) + 0.5) / 20000).max()
    assert furthest < 1.95 / math.sqrt(20000)  # Kolmogorov-Smirnov at 0.1 %
    for value in (logits.max(axis=1), logits[:, 0], uniforms_of(logits, 1)):
        assert abs(np.corrcoef(u, value)[0, 1]) < 4 / math.sqrt(20000)


def test_uniforms_do_not_change_from_release_to_release():
    u = uniforms_of(np.array([[0.5, -1.0], [2.0, 2.0]]), 42)
    assert u.tolist() == [0.6145792347553185, 0.09116482694588735]


# --- Quantile, sets, choice of the penalty ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "alpha", "k"),
    [(9, 0.9, 9), (9, 0.91, None), (19, 0.95, 19), (18, 0.95, None), (99, 0.55, 55), (100, 0.9, 91), (5, 1.0, None)],
)
def test_quantile_at_the_boundary(n, alpha, k):
    scores = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
    assert conformal_quantile(scores, alpha) == (math.inf if k is None else k)


@pytest.mark.parametrize("n", [1, 7, 50, 1000])
def test_quantile_is_the_smallest_score_with_enough_below(n):
    scores = np.round(np.random.default_rng(n).random(n), 2)  # with ties
    for alpha in (0.51, 0.75, 0.9, 0.99):
        enough = [s for s in sorted(scores) if sum(x <= s for x in scores) >= (n + 1) * alpha - 1e-9]
        assert conformal_quantile(scores, alpha) == (enough[0] if enough else math.inf)
    assert conformal_quantile(np.array([]), 0.9) == math.inf


@pytest.mark.parametrize("allow_empty_sets", [False, True])
@pytest.mark.parametrize(("lam", "k_reg"), [(0.0, 0), (0.02, 2)])
def test_sizes_equal_those_of_the_published_procedure(allow_empty_sets, lam, k_reg):
    rule = RAPS(alpha=[0.6, 0.85], k_reg=k_reg, lam=lam, allow_empty_sets=allow_empty_sets, random_state=1)
    rule.fit(*draw(5, n=400, n_classes=6))
    logits, _ = draw(50, n=400, n_classes=6)  # fresh ones: of a calibration point the score may be the threshold
    decisions = rule.decide(logits)
    u, p = uniforms_of(logits, rule.random_seed_), softmax(logits)
    for a, tau in enumerate(rule.thresholds_.tolist()):
        sizes = [published_set_size(p[i], tau, u[i], lam, k_reg, allow_empty_sets) for i in range(400)]
        np.testing.assert_array_equal(decisions.admitted_at[:, a], np.array(sizes) == 1)
        if a == 0:
            rejected = ~decisions.admitted
            np.testing.assert_array_equal(decisions.set_sizes[rejected], np.array(sizes)[rejected])
            assert (0 in sizes) == allow_empty_sets
    assert (decisions.set_sizes[decisions.admitted] == 1).all()


def test_thresholds_are_the_quantile_of_the_scores_of_the_labels():
    logits, labels = draw(6)
    rule = RAPS(alpha=[0.7, 0.9], k_reg=1, lam=0.05, random_state=3).fit(logits, labels)
    u = uniforms_of(logits, rule.random_seed_)
    scores = [slow_scores(logits[i].tolist(), u[i], 0.05, 1)[labels[i]] for i in range(300)]
    np.testing.assert_allclose(rule.thresholds_, [sorted(scores)[210], sorted(scores)[270]], rtol=1e-12)


def test_violation_by_hand():
    sets = np.zeros((6, 5), dtype=bool)
    for row, size in enumerate([0, 1, 1, 2, 3, 4]):
        sets[row, :size] = True
    labels = np.array([0, 0, 0, 4, 2, 0])  # 0 or 1 label: 2 of 3 covered; 2 or 3: 1 of 2; 4: 1 of 1
    assert size_stratified_violation(sets, labels, 0.9) == pytest.approx(0.4)
    assert size_stratified_violation(sets[:3], labels[:3], 0.9) == pytest.approx(0.9 - 2 / 3)
    assert size_stratified_violation(sets[5:], labels[5:], 0.9) == pytest.approx(0.1)
    assert size_stratified_violation(sets[:0], labels[:0], 0.9) == 0.0


def test_k_reg_by_hand():
    logits = np.tile([3.0, 2.0, 1.0], (9, 1))
    labels = np.array([0] * 6 + [1] * 2 + [2])
    assert [choose_k_reg(logits, labels, alpha) for alpha in (0.6, 0.7, 0.8, 0.9)] == [1, 2, 2, 3]
    assert choose_k_reg(logits, labels, 0.99) == 3  # infinite, so the number of classes


def test_the_penalty_is_chosen_on_one_part_and_the_threshold_on_the_other():
    logits, labels = draw(1, n=1000, n_classes=200, temperature=4.0)
    rule = RAPS(alpha=[0.8, 0.9], random_state=11).fit(logits, labels)
    order = np.random.default_rng(rule.random_seed_).permutation(1000)
    tune, rest, u = order[:300], order[300:], uniforms_of(logits, rule.random_seed_)
    assert rule.penalties_[0][0] > 0 and rule.penalties_[1][0] == 0  # there is something to choose
    for alpha, (lam, k_reg), threshold in zip([0.8, 0.9], rule.penalties_, rule.thresholds_, strict=True):
        assert k_reg == choose_k_reg(logits[tune], labels[tune], alpha)
        violations = []
        for candidate in LAM_GRID:
            s = conformity_scores(logits[tune], u[tune], candidate, k_reg)
            t = conformal_quantile(s[np.arange(300), labels[tune]], alpha)
            sets = prediction_sets(s, t, logits[tune].argmax(axis=1))
            violations.append(size_stratified_violation(sets, labels[tune], alpha))
        assert lam == LAM_GRID[int(np.argmin(violations))]
        s = conformity_scores(logits[rest], u[rest], lam, k_reg)[np.arange(700), labels[rest]]
        assert threshold == conformal_quantile(s, alpha)
    half_given = RAPS(alpha=0.8, random_state=11, lam=0.25).fit(logits, labels)
    assert half_given.penalties_ == [(0.25, rule.penalties_[0][1])]


def test_a_given_penalty_leaves_the_whole_calibration_set_for_the_threshold():
    logits, labels = draw(8)
    without = RAPS(alpha=0.8, k_reg=2, lam=0.0, random_state=0).fit(logits, labels)
    assert without.thresholds_ == APS(alpha=0.8, random_state=0).fit(logits, labels).thresholds_
    assert without.penalties_ == [(0.0, 2)]


# --- Estimators ------------------------------------------------------------------------------------------------------


def test_admission_of_three_classes_by_hand():
    """Nine calibration points whose labels have scores 0.5 (6 times), 0.8 (2 times) and 1: at 0.8 the 8th, 0.8."""
    calibration = np.log(np.tile([0.2, 0.5, 0.3], (9, 1)))
    labels = np.array([1] * 5 + [2] * 2 + [0] * 2)
    inputs = np.log([[0.9, 0.06, 0.04], [0.6, 0.3, 0.1], [0.7, 0.05, 0.25], [0.5, 0.25, 0.25]])
    rule = APS(alpha=[0.5001, 0.7, 0.95], randomized=False).fit(calibration, labels)
    np.testing.assert_allclose(rule.thresholds_, [0.8, 0.8, math.inf], rtol=1e-14)
    decisions = rule.decide(inputs)
    # 0.9 > 0.8 would be empty; 0.6 in, 0.9 out; 0.7 in, 0.95 out; 0.5 and 0.75 in
    assert decisions.admitted_at.tolist() == [[True, True, False]] * 3 + [[False, False, False]]
    assert decisions.set_sizes.tolist() == [1, 1, 1, 2]
    empty = APS(alpha=0.7, randomized=False, allow_empty_sets=True).fit(calibration, labels).decide(inputs)
    assert empty.set_sizes.tolist() == [0, 1, 1, 2] and empty.admitted.tolist() == [False, True, True, False]
    np.testing.assert_array_equal(decisions.probabilities, softmax(inputs))


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("mode", MODES)
def test_what_is_admitted_is_a_set_of_the_predicted_label(rule, mode):
    logits, labels = draw(9, n=600)
    fitted = rule(alpha=[0.6, 0.75, 0.9], random_state=0, **mode).fit(logits[:300], labels[:300])
    decisions = fitted.decide(logits[300:])
    np.testing.assert_array_equal(decisions.predictions, logits[300:].argmax(axis=1))
    np.testing.assert_array_equal(decisions.admitted, decisions.admitted_at.any(axis=1))
    for a, alpha in enumerate([0.6, 0.75, 0.9]):
        lam, k_reg = fitted.penalties_[a]
        u = uniforms_of(logits[300:], fitted.random_seed_) if fitted.randomized else 0.0
        sets = conformity_scores(logits[300:], u, lam, k_reg, fitted.temperature_) <= fitted.thresholds_[a]
        if not fitted.allow_empty_sets:
            sets[np.arange(300), logits[300:].argmax(axis=1)] = True
        np.testing.assert_array_equal(decisions.admitted_at[:, a], sets.sum(axis=1) == 1)
        chosen = decisions.admitted_at[:, a]
        np.testing.assert_array_equal(sets[chosen].argmax(axis=1), decisions.predictions[chosen])
        alone = rule(alpha=alpha, random_state=0, **mode).fit(logits[:300], labels[:300]).decide(logits[300:])
        np.testing.assert_array_equal(alone.admitted, chosen)
        np.testing.assert_array_equal(alone.set_sizes, sets.sum(axis=1))
        assert 0 < chosen.sum() < 300


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("mode", MODES)
def test_a_decision_does_not_depend_on_the_batch(rule, mode):
    logits, labels = draw(10, n=500, n_classes=12)
    fitted = rule(alpha=[0.6, 0.8], random_state=0, **mode).fit(logits, labels)
    whole = fitted.decide(logits)
    for rows in (slice(4, 5), slice(20, 77), slice(None, None, -1)):
        part = fitted.decide(np.asfortranarray(logits[rows]))
        np.testing.assert_array_equal(part.admitted_at, whole.admitted_at[rows])
        np.testing.assert_array_equal(part.set_sizes, whole.set_sizes[rows])
        np.testing.assert_array_equal(part.probabilities, whole.probabilities[rows])


@pytest.mark.parametrize("rule", BOTH)
def test_the_same_seed_gives_the_same_answer(rule):
    logits, labels = draw(11, n=500)

    def sizes(random_state):
        return rule(alpha=0.7, random_state=random_state).fit(logits, labels).decide(logits).set_sizes

    np.testing.assert_array_equal(sizes(5), sizes(5))
    np.testing.assert_array_equal(sizes(np.random.RandomState(5)), sizes(5))
    np.testing.assert_array_equal(sizes(np.random.default_rng(5)), sizes(np.random.default_rng(5)))
    assert (sizes(5) != sizes(6)).any() and (sizes(None) != sizes(None)).any()


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("mode", MODES)
def test_permuted_classes_give_permuted_answers(rule, mode):
    logits, labels = draw(12, n_classes=6)
    new_place = np.random.default_rng(0).permutation(6)
    shuffled = np.empty_like(logits)
    shuffled[:, new_place] = logits
    first = rule(alpha=[0.6, 0.8], random_state=0, **mode).fit(logits, labels)
    second = rule(alpha=[0.6, 0.8], random_state=0, **mode).fit(shuffled, new_place[labels])
    one, other = first.decide(logits), second.decide(shuffled)
    np.testing.assert_array_equal(new_place[one.predictions], other.predictions)
    np.testing.assert_array_equal(one.set_sizes, other.set_sizes)
    np.testing.assert_array_equal(one.admitted_at, other.admitted_at)


def test_a_larger_alpha_gives_no_smaller_sets():
    logits, labels = draw(13)
    sizes = [
        APS(alpha=alpha, random_state=0, allow_empty_sets=True).fit(logits, labels).decide(logits).set_sizes
        for alpha in (0.55, 0.7, 0.85, 0.95, 1.0)
    ]
    assert (np.diff(sizes, axis=0) >= 0).all()
    assert (sizes[-1] == 4).all()  # at alpha = 1 every set is full


def test_a_small_calibration_set_admits_nothing():
    logits, labels = draw(14, n=18, n_classes=2)
    decisions = APS(alpha=0.95).fit(logits, labels).decide(logits)
    assert not decisions.admitted.any() and (decisions.set_sizes == 2).all()


@pytest.mark.parametrize("rule", BOTH)
def test_reference_scores_are_those_of_the_scaled_logits(rule):
    logits, labels = draw(15, n=800, temperature=4.0)
    reference = rule(alpha=0.7, reference=True, random_state=2).fit(logits, labels)
    assert reference.temperature_ == fit_temperature(logits, labels) > 2
    assert reference.temperature_ == TemperatureScaling().fit(logits, labels).temperature_
    decisions = reference.decide(logits)
    np.testing.assert_array_equal(decisions.probabilities, softmax(logits / reference.temperature_))
    np.testing.assert_array_equal(decisions.predictions, logits.argmax(axis=1))
    assert (decisions.set_sizes >= 1).all()
    np.testing.assert_array_equal(decisions.logits, logits)


def test_reference_ranks_logits_that_scaling_makes_equal():
    logits, labels = draw(16, n_classes=2)
    reference = APS(alpha=0.6, reference=True, random_state=0).fit(logits, labels)
    near = np.array([[1.99 + k * 2**-52, 1.99 + (k + 1) * 2**-52] for k in range(200)])
    assert (near[:, 0] / reference.temperature_ == near[:, 1] / reference.temperature_).any()
    scores = conformity_scores(near, uniforms_of(near, reference.random_seed_), temperature=reference.temperature_)
    assert (scores[:, 1] <= scores[:, 0]).all() and (reference.decide(near).predictions == 1).all()


@pytest.mark.parametrize("rule", BOTH)
def test_extreme_and_separable_logits_in_reference_mode(rule):
    logits = np.repeat([[1e4, -1e4], [-1e4, 1e4]], 100, axis=0)
    with pytest.warns(SDMWarning, match="in any of 200"):
        fitted = rule(alpha=0.9, reference=True, random_state=0).fit(logits, np.repeat([0, 1], 100))
    decisions = fitted.decide(logits)
    assert decisions.admitted.all() and np.isfinite(decisions.probabilities).all()


@pytest.mark.parametrize("rule", BOTH)
def test_a_fitted_model_and_none_give_the_same(rule):
    logits, labels = draw(17, n=500)
    names = np.array(["ant", "bee", "cat", "dog"])[labels]
    model = FakeModel().fit(logits, names)
    got = rule(alpha=0.7, model=model, random_state=0).fit(None).decide(logits)
    unfitted = rule(alpha=0.7, model=FakeModel(), random_state=0).fit(logits, names).decide(logits)
    expected = rule(alpha=0.7, random_state=0).fit(logits[::2], names[::2]).decide(logits)
    for decisions in (got, unfitted):
        assert decisions.predictions.tolist() == expected.predictions.tolist()
        np.testing.assert_array_equal(decisions.set_sizes, expected.set_sizes)
    assert set(got.to_dicts()[0]) >= {"set_sizes", "admitted_at"} and got[3:5].set_sizes.shape == (2,)


@pytest.mark.parametrize("rule", BOTH)
def test_life_of_an_estimator(rule):
    logits, labels = draw(18)
    estimator = rule(alpha=0.7, randomized=False, random_state=4)
    with pytest.raises(NotFittedError, match=f"This {rule.__name__} is not fitted yet"):
        estimator.decide(logits)
    assert clone(estimator).get_params() == estimator.get_params()
    expected = {"alpha", "model", "randomized", "allow_empty_sets", "reference", "random_state"}
    assert set(estimator.get_params()) == expected | ({"k_reg", "lam"} if rule is RAPS else set())
    estimator.set_params(randomized=True).fit(logits, labels)
    assert estimator.decide(logits).set_sizes.shape == (300,)
    assert not hasattr(clone(estimator), "thresholds_")


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"alpha": 0.1}, InvalidInputError, r"must be in \(0.5, 1\]. Got 0.1; alpha is target accuracy"),
        ({"alpha": None}, InvalidTypeError, "'alpha' of"),
        ({"reference": True, "randomized": False}, InvalidInputError, "'reference' of .*Got randomized=False"),
        ({"reference": True, "allow_empty_sets": True}, InvalidInputError, "allow_empty_sets=True; leave"),
        ({"random_state": "x"}, InvalidInputError, "cannot be used to seed"),
    ],
)
def test_bad_settings_are_refused(rule, settings, error, message):
    with pytest.raises(error, match=message):
        rule(**settings).fit(*draw(0))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"k_reg": -1}, InvalidInputError, "'k_reg' of RAPS must be at least 0. Got -1"),
        ({"k_reg": 1.5}, InvalidTypeError, "'k_reg' of RAPS must be an integer. Got 1.5"),
        ({"lam": -0.1}, InvalidInputError, "'lam' of RAPS must be at least 0. Got -0.1"),
        ({"lam": "size"}, InvalidTypeError, "'lam' of RAPS must be a number. Got 'size'"),
    ],
)
def test_a_bad_penalty_is_refused(settings, error, message):
    with pytest.raises(error, match=message):
        RAPS(**settings).fit(*draw(0))
