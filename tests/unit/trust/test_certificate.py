"""The certificate on small samples: tests, path, walk, words."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
from scipy import stats

from torchsdm.core import GroupCounts
from torchsdm.errors import InvalidInputError, TorchSDMError
from torchsdm.trust import Certificate, ScoredSample, can_certify, certify
from torchsdm.trust._path import ThresholdPath, allowed_errors, group_counts, of_prediction
from torchsdm.trust._walk import lower_bounds, p_values
from torchsdm.wording import percent

ALPHA, DELTA = 0.9, 0.1


def draw(n, seed, n_classes=2, low=0.5, high=1.0, eligible=1.0, rounding=None):
    """Points whose predictions are right the more often, the higher their score."""
    rng = np.random.default_rng(seed)
    predictions, score = rng.integers(0, n_classes, n), rng.random(n)
    score = score if rounding is None else np.round(score, rounding)
    right = rng.random(n) < low + (high - low) * score
    labels = np.where(right, predictions, (predictions + 1 + rng.integers(0, n_classes - 1, n)) % n_classes)
    return ScoredSample(labels, predictions, score, rng.random(n) < eligible)


def slow_p_value(wrong, n, alpha, u):
    """max(P(X < k) + u P(X = k), alpha^n) with SciPy's distribution."""
    x = stats.binom(n, 1 - alpha)
    return max(x.cdf(wrong - 1) + u * x.pmf(wrong), alpha**n)


def slow_certificate(path, sample, n_classes, u):
    """The walk as loops over groups, with SciPy's distribution."""
    best = None
    for thresholds in path:
        for kind, c in GroupCounts(np.zeros(2 * n_classes), np.zeros(2 * n_classes)).names:
            of_group = sample.labels == c if kind == "class" else sample.predictions == c
            rows = [
                i
                for i in range(len(sample))
                if of_group[i] and sample.eligible[i] and sample.score[i] >= thresholds[sample.predictions[i]]
            ]
            wrong = sum(sample.labels[i] != sample.predictions[i] for i in rows)
            if slow_p_value(wrong, len(rows), ALPHA, u) > DELTA:
                return best
        best = thresholds
    return best


def test_p_values_and_bounds_are_those_of_scipy():
    counts = GroupCounts(np.array([0, 1, 22, 100, 100, 5000]), np.array([0, 0, 0, 4, 100, 431]))
    expected = [1.0, *(stats.binom.cdf(k, n, 1 - ALPHA) for n, k in zip(counts.n[1:], counts.k[1:], strict=True))]
    np.testing.assert_allclose(p_values(counts, ALPHA), expected, rtol=1e-10)
    bounds = lower_bounds(counts, DELTA)
    for n, k, bound in zip(counts.n, counts.k, bounds, strict=True):
        exact = stats.beta.ppf(DELTA, n - k, k + 1) if n > k else 0.0
        assert bound == pytest.approx(exact, rel=1e-9)
    # The test passes exactly where the bound reaches alpha.
    np.testing.assert_array_equal(p_values(counts, ALPHA) <= DELTA, bounds >= ALPHA)


@pytest.mark.parametrize("u", [0.01, 0.4, 1.0])
def test_randomised_p_values_are_those_of_scipy(u):
    counts = GroupCounts(np.array([0, 1, 22, 30, 100, 100, 5000]), np.array([0, 0, 0, 1, 4, 100, 431]))
    expected = [slow_p_value(k, n, ALPHA, u) for n, k in zip(counts.n, counts.k, strict=True)]
    np.testing.assert_allclose(p_values(counts, ALPHA, u), expected, rtol=1e-10)


def test_a_randomised_p_value_by_hand():
    """Two errors among four points at alpha = 1/2: 5/16 have fewer, 6/16 have two. No error: 1/16, whatever u is."""
    counts = GroupCounts(np.array([4, 4]), np.array([2, 0]))
    for u, p in ((0.5, 8 / 16), (1.0, 11 / 16), (1e-9, 5 / 16)):
        np.testing.assert_allclose(p_values(counts, 0.5, u), [p, 1 / 16], rtol=1e-7)


def test_the_randomised_test_spends_all_of_delta_and_has_more_power():
    k, n, alpha, us = np.arange(101), 100, 0.95, (np.arange(500) + 0.5) / 500
    counts = GroupCounts(np.full(101, n), k)
    passes = np.mean([p_values(counts, alpha, u) <= DELTA for u in us], axis=0)
    plain = p_values(counts, alpha, 1.0) <= DELTA
    at_the_edge, at_half = stats.binom.pmf(k, n, 0.05), stats.binom.pmf(k, n, 0.025)
    assert passes @ at_the_edge == pytest.approx(DELTA, abs=1e-3)  # the plain test spends 0.04
    assert plain @ at_the_edge == pytest.approx(0.037, abs=1e-3)
    assert passes @ at_half == pytest.approx(0.484, abs=5e-3)
    assert plain @ at_half == pytest.approx(0.283, abs=1e-3)
    assert allowed_errors(np.array([n]), np.array([alpha]), DELTA) == pytest.approx(passes.sum() - 1, abs=1e-2)


def test_u_depends_on_inputs_alone_and_not_on_their_order():
    sample = draw(300, 0, eligible=0.9)
    order = np.random.default_rng(0).permutation(300)
    blamed = dataclasses.replace(sample, labels=1 - sample.labels)
    assert 0 < sample.u <= 1 and sample.u == sample[order].u == blamed.u
    others = [
        dataclasses.replace(sample, score=np.where(np.arange(300) == 7, 0.123, sample.score)),
        dataclasses.replace(sample, predictions=1 - sample.predictions),
        dataclasses.replace(sample, eligible=~sample.eligible),
        sample[1:],
    ]
    assert len({sample.u, *(other.u for other in others)}) == 5
    us = [draw(20, seed).u for seed in range(400)]
    assert stats.kstest(us, "uniform").pvalue > 0.01


def test_a_certificate_uses_the_u_of_its_sample_unless_another_is_given():
    calibration, certification = draw(400, 0), draw(400, 1)
    ours, same, plain = (certify(calibration, certification, 2, alpha=0.85, u=u) for u in (None, certification.u, 1.0))
    assert ours.u == certification.u and ours.groups == same.groups and plain.u == 1.0
    assert ours.groups != plain.groups  # p-values, at least
    for group in ours.groups:
        assert group.p_value == pytest.approx(slow_p_value(group.n_errors, group.n_admitted, 0.85, ours.u))
    restored = type(ours).from_json(json.loads(json.dumps(ours.to_json())))
    assert restored.u == ours.u and restored.groups == ours.groups
    before = {name: value for name, value in ours.to_json().items() if name != "u"}
    assert type(ours).from_json(before).u == 1.0
    for wrong in (0.0, 1.5, float("nan")):
        with pytest.raises(InvalidInputError, match="'u' of"):
            certify(calibration, certification, 2, alpha=0.85, u=wrong)
        with pytest.raises(InvalidInputError, match="'u' of"):
            type(ours).from_json({**before, "u": wrong})


@pytest.mark.parametrize("u", [1.0, 0.2])
@pytest.mark.parametrize("seed", range(4))
def test_the_walk_is_that_of_plain_loops(seed, u):
    calibration, certification = draw(400, seed, eligible=0.9), draw(400, 100 + seed, eligible=0.9)
    path = ThresholdPath.of(calibration, 2, len(certification), alpha=ALPHA, delta=DELTA, control="groups")
    expected = slow_certificate(path, certification, 2, u)
    certificate = certify(calibration, certification, 2, alpha=ALPHA, delta=DELTA, u=u)
    assert certificate.found == (expected is not None)
    if expected is not None:
        np.testing.assert_array_equal(certificate.thresholds, expected)
    admitted = certificate.admits(certification.predictions, certification.score, certification.eligible)
    assert int(admitted.sum()) == certificate.n_admitted and not (admitted & ~certification.eligible).any()


@pytest.mark.parametrize("control", ["groups", "all"])
@pytest.mark.parametrize("rounding", [None, 1])
def test_a_path_goes_from_strict_to_lenient(control, rounding):
    sample = draw(1500, 3, n_classes=3, low=0.7, rounding=rounding)
    path = list(ThresholdPath.of(sample, 3, 1500, alpha=ALPHA, delta=DELTA, control=control))
    assert len(path) > 3
    for strict, lenient in itertools.pairwise(path):
        assert (lenient <= strict).all() and (lenient < strict).any()
    np.testing.assert_array_equal(sample.admitted_by(path[-1]), sample.eligible)  # the most lenient admits all it may


def test_the_path_depends_on_calibration_alone():
    calibration = draw(2000, 0)
    one = certify(calibration, draw(2000, 1), 2, alpha=ALPHA, delta=DELTA)
    path = {tuple(t) for t in ThresholdPath.of(calibration, 2, 2000, alpha=ALPHA, delta=DELTA, control="groups")}
    assert one.found and tuple(one.thresholds) in path


def test_a_hopeless_prediction_is_given_up_where_only_predictions_are_controlled():
    rng = np.random.default_rng(0)

    def drawn(n):
        sample = draw(n, int(rng.integers(1 << 30)), n_classes=3, low=0.8)
        wrong = sample.predictions == 2  # always wrong
        return dataclasses.replace(sample, labels=np.where(wrong, 0, sample.labels))

    calibration, certification = drawn(3000), drawn(3000)
    certificate = certify(calibration, certification, 3, alpha=ALPHA, delta=DELTA, control="predictions")
    assert certificate.found and np.isinf(certificate.thresholds[2]) and np.isfinite(certificate.thresholds[:2]).all()
    assert [(group.kind, group.class_number) for group in certificate.groups] == [("prediction", 0), ("prediction", 1)]
    assert all(group.p_value <= DELTA / 2 for group in certificate.groups)  # two are tried, at half of delta each
    assert not certify(calibration, certification, 3, alpha=ALPHA, delta=DELTA, control="groups").found


def test_without_a_certificate_nothing_is_admitted_and_the_reason_is_said():
    hopeless = draw(300, 5, low=0.6, high=0.6)
    certificate = certify(hopeless, draw(300, 6, low=0.6, high=0.6), 2, alpha=0.95, delta=DELTA)
    assert not certificate.found and np.isinf(certificate.thresholds).all() and certificate.n_admitted == 0
    sentence = certificate.holds_for(["cat", "dog"])
    assert "Not certified at alpha 0.95" in sentence and ("'cat'" in sentence or "'dog'" in sentence)
    assert (
        "the strictest rule is wrong on" in sentence and "how many more examples would help cannot be told" in sentence
    )
    assert certificate.largest_alpha is None or certificate.largest_alpha < 0.6


def test_it_says_how_many_examples_would_be_needed():
    certificate = certify(draw(40, 4, low=0.95), draw(40, 5, low=0.95), 2, alpha=ALPHA, delta=DELTA)
    assert not certificate.found and certificate.n_needed is not None and certificate.n_needed > 40
    assert f"about {certificate.n_needed:,} certification points, and as many to calibrate" in certificate.holds_for()
    n = 2 * certificate.n_needed
    assert certify(draw(n, 2, low=0.95), draw(n, 3, low=0.95), 2, alpha=ALPHA, delta=DELTA).found


def test_the_promise_in_words():
    certificate = certify(draw(2000, 0), draw(2000, 1), 2, alpha=ALPHA, delta=DELTA, u=1.0)
    assert certificate.found
    sentence = certificate.holds_for()
    assert "for every true class and every predicted class" in sentence and "at least 90 % of the time" in sentence
    assert "probability at least 0.9" in sentence and f"admits {percent(certificate.n_admitted / 2000)}" in sentence
    spent = dataclasses.replace(certificate, looks=2, delta_spent=0.2)
    assert "probability at least 0.8 for all 2" in spent.holds_for() and spent.identity != certificate.identity
    assert all(group.p_value <= DELTA and group.lower_bound >= ALPHA for group in certificate.groups)
    assert [(g.kind, g.class_number) for g in certificate.groups] == [
        ("class", 0), ("class", 1), ("prediction", 0), ("prediction", 1)
    ]  # fmt: skip


def test_counts_by_group():
    sample = ScoredSample(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), np.arange(4.0), np.ones(4, dtype=bool))
    everyone = np.ones(4, dtype=bool)
    groups = group_counts(sample, everyone, 2, "groups")
    assert groups.n.tolist() == [2, 2, 1, 3] and groups.k.tolist() == [1, 0, 0, 1]
    assert group_counts(sample, everyone, 2, "all").n.tolist() == [4]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": 0.3}, "alpha"),
        ({"alpha": 1.0}, "below 1"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.5}, "delta"),
        ({"control": "both"}, "control"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, words):
    with pytest.raises(TorchSDMError, match=words):
        certify(draw(50, 0), draw(50, 1), 2, **{"alpha": ALPHA, "delta": DELTA, **change})


def test_arrays_that_do_not_fit_are_refused():
    ones = np.ones(3, dtype=int)
    with pytest.raises(InvalidInputError, match="one entry per point"):
        ScoredSample(ones, ones, np.ones(4), np.ones(3, dtype=bool))
    with pytest.raises(InvalidInputError, match="finite"):
        ScoredSample(ones, ones, np.array([1.0, np.nan, 2.0]), np.ones(3, dtype=bool))
    with pytest.raises(TorchSDMError, match="boolean"):
        ScoredSample(ones, ones, np.ones(3), ones)
    nobody = ScoredSample(ones, ones, np.array([1.0, np.nan, 2.0]), np.zeros(3, dtype=bool))
    certificate = certify(nobody, nobody, 2, alpha=ALPHA, delta=DELTA)
    assert not certificate.found and "no calibration point may be admitted" in certificate.holds_for()


def test_an_infinite_score_is_not_admitted_without_a_certificate():
    certificate = certify(draw(60, 0, low=0.5, high=0.5), draw(60, 1, low=0.5, high=0.5), 2, alpha=ALPHA, delta=DELTA)
    assert not certificate.found
    assert not certificate.admits(np.array([0, 1]), np.array([np.inf, 1.0]), np.ones(2, dtype=bool)).any()


# --- A target for each class -----------------------------------------------------------------------------------------


def slow_by_class(path, sample, alphas):
    """The walk as loops over groups, each group at the alpha of its class."""
    best = None
    for thresholds in path:
        admitted = [
            i for i in range(len(sample)) if sample.eligible[i] and sample.score[i] >= thresholds[sample.predictions[i]]
        ]
        for of_group in (sample.labels, sample.predictions):
            for c, alpha in enumerate(alphas):
                rows = [i for i in admitted if of_group[i] == c]
                wrong = sum(sample.labels[i] != sample.predictions[i] for i in rows)
                if not rows or stats.binom.cdf(wrong, len(rows), 1 - alpha) > DELTA:
                    return best
        best = thresholds
    return best


@pytest.mark.parametrize("alphas", [(0.75, 0.9), (0.9, 0.7)])
def test_each_group_is_held_to_the_alpha_of_its_class(alphas):
    n_found = 0
    for seed in range(5):
        calibration, certification = draw(900, seed, low=0.8), draw(900, 100 + seed, low=0.8)
        path = ThresholdPath.of(calibration, 2, len(certification), alpha=alphas, delta=DELTA, control="groups")
        expected = slow_by_class(path, certification, alphas)
        certificate = certify(calibration, certification, 2, alpha=alphas, delta=DELTA, u=1.0)
        assert certificate.found == (expected is not None), seed
        if not certificate.found:
            continue
        n_found += 1
        assert certificate.thresholds.tolist() == expected.tolist(), seed
        for group in certificate.groups:
            own = alphas[group.class_number]
            assert group.p_value == pytest.approx(stats.binom.cdf(group.n_errors, group.n_admitted, 1 - own))
            assert group.p_value <= DELTA and group.lower_bound >= own
    assert n_found >= 4


def test_predictions_are_walked_at_their_own_alpha():
    calibration, certification = draw(900, 0), draw(900, 1)
    asked = {"delta": DELTA, "control": "predictions"}
    both = certify(calibration, certification, 2, alpha=(0.8, 0.9), **asked)  # neither comes to the end of its path
    alone = [certify(calibration, certification, 2, alpha=a, **asked) for a in (0.8, 0.9)]
    assert both.thresholds.tolist() == [alone[0].thresholds[0], alone[1].thresholds[1]]
    assert both.thresholds[0] < both.thresholds[1] < np.inf


# --- Levels that are passed on between predictions --------------------------------------------------------------------


def graphical_procedure(p_values, delta):
    """Bretz, Maurer, Brannath and Posch (2009), Algorithm 1, with a hypothesis for each element of each path.

    A hypothesis hands its level to the next one on its path, the last one to the first ones of the other paths.
    """
    nodes = [(c, i) for c, own in enumerate(p_values) for i in range(len(own))]
    m = len(p_values)
    level = {node: delta / m * (node[1] == 0) for node in nodes}

    def edge(a, b):
        if a[0] == b[0]:
            return float(b[1] == a[1] + 1)
        return float(a[1] == len(p_values[a[0]]) - 1 and b[1] == 0) / (m - 1)

    weight = {(a, b): edge(a, b) for a in nodes for b in nodes if a != b}
    rejected = set()
    while found := [j for j in nodes if level[j] > 0 and p_values[j[0]][j[1]] <= level[j] * (1 + 1e-12)]:
        j = found[0]
        nodes.remove(j)
        rejected.add(j)
        for i in nodes:
            level[i] += level[j] * weight[j, i]
        new = {}
        for a, b in itertools.permutations(nodes, 2):
            loop = weight[a, j] * weight[j, a]
            new[a, b] = (weight[a, b] + weight[a, j] * weight[j, b]) / (1 - loop) if loop < 1 else 0.0
        weight = new
    return [sum((c, i) in rejected for i in range(len(own))) for c, own in enumerate(p_values)]


def unequal(n, seed):
    """Three predictions of 40 scores: one is easy, one sits above alpha, one has a bad end."""
    rng = np.random.default_rng(seed)
    predictions, score = rng.integers(0, 3, n), np.round(rng.random(n), 1)
    accuracy = np.array([0.99, 0.93, 0.75])[predictions] + np.array([0.0, 0.06, 0.24])[predictions] * score
    labels = np.where(rng.random(n) < accuracy, predictions, (predictions + 1) % 3)
    return ScoredSample(labels, predictions, score, np.ones(n, dtype=bool))


def test_levels_are_passed_on_as_by_the_graphical_procedure():
    n_gained = 0
    for seed in range(30):
        calibration, certification = unequal(900, seed), unequal(900, 100 + seed)
        certificate = certify(calibration, certification, 3, alpha=ALPHA, delta=DELTA, control="predictions", u=0.5)
        paths, tested = [], []
        for c in range(3):
            part, known = of_prediction(certification, c), of_prediction(calibration, c)
            asked = {"alpha": ALPHA, "delta": DELTA / 3, "control": "all"}
            paths.append(list(ThresholdPath.of(known, 2, len(part), **asked)))
            admitted = [part.admitted_by(thresholds) for thresholds in paths[c]]
            tested.append(
                [slow_p_value((rows & (part.labels == 1)).sum(), rows.sum(), ALPHA, 0.5) for rows in admitted]
            )
        n_passed = graphical_procedure(tested, DELTA)
        expected = [path[n - 1][0] if n else np.inf for path, n in zip(paths, n_passed, strict=True)]
        assert certificate.thresholds.tolist() == expected, seed
        alone = [next((i for i, p in enumerate(own) if p > DELTA / 3), len(own)) for own in tested]
        n_gained += n_passed != alone
    assert n_gained >= 5  # so that levels that stay where they are would fail


def test_the_bound_of_a_prediction_is_at_the_level_it_was_tested_at():
    easy = draw(900, 3, low=0.999)  # both walks come to their end
    certificate = certify(easy, draw(900, 4, low=0.999), 2, alpha=ALPHA, delta=DELTA, control="predictions")
    assert certificate.n_admitted > 890
    for group in certificate.groups:
        assert group.lower_bound == pytest.approx(bound(group, DELTA / 2))
    for seed in range(20):  # of three, one or two pass theirs on
        certificate = certify(unequal(900, seed), unequal(900, 100 + seed), 3, alpha=ALPHA, control="predictions")
        levels = [level_of(group) for group in certificate.groups]
        assert all(any(level == pytest.approx(DELTA / m) for m in (1, 2, 3)) for level in levels)
        assert all(group.p_value <= level for group, level in zip(certificate.groups, levels, strict=True))


def bound(group, level):
    return stats.beta.ppf(level, group.n_admitted - group.n_errors, group.n_errors + 1)


def level_of(group):
    """The level at which Clopper and Pearson's bound is what a group shows."""
    return stats.beta.cdf(group.lower_bound, group.n_admitted - group.n_errors, group.n_errors + 1)


def test_equal_targets_make_the_same_certificate():
    calibration, certification = draw(500, 0), draw(500, 1)
    one, several = (certify(calibration, certification, 2, alpha=a, delta=DELTA) for a in (0.8, (0.8, 0.8)))
    assert several.identity == one.identity and several.class_alphas == ()
    assert "class_alphas" not in one.to_json()  # as in models that were saved before


def test_different_targets_are_said_and_kept():
    calibration, certification = draw(900, 0, low=0.8), draw(900, 1, low=0.8)
    certificate = certify(calibration, certification, 2, alpha=(0.75, 0.85), delta=DELTA)
    assert certificate.alpha == 0.75 and certificate.target == (0.75, 0.85)
    assert "right at least as often as asked (0.75 for 'a', 0.85 for 'b')" in certificate.holds_for(["a", "b"])
    restored = type(certificate).from_json(json.loads(json.dumps(certificate.to_json())))
    assert restored.identity == certificate.identity and restored.target == (0.75, 0.85)
    other = certify(calibration, certification, 2, alpha=(0.75, 0.86), delta=DELTA)
    assert dataclasses.replace(other, thresholds=certificate.thresholds, groups=certificate.groups,
                               n_admitted=certificate.n_admitted).identity != certificate.identity  # fmt: skip


def test_what_would_do_is_said_of_different_targets():
    calibration, certification = draw(400, 0), draw(400, 1)
    for control in ("groups", "predictions"):
        certificate = certify(calibration, certification, 2, alpha=(0.999, 0.99), delta=DELTA, control=control)
        assert not certificate.found and 0.5 < certificate.largest_alpha < 0.99
        assert "targets limited to about 0.8" in certificate.holds_for()
        assert certificate.warning().remedy is None  # control='all' takes one alpha


def test_all_together_takes_one_alpha():
    with pytest.raises(InvalidInputError, match="must be one number with control 'all'"):
        certify(draw(50, 0), draw(50, 1), 2, alpha=(0.8, 0.9), control="all")
    with pytest.raises(InvalidInputError, match="below 1"):
        certify(draw(50, 0), draw(50, 1), 2, alpha=(0.8, 1.0))
    with pytest.raises(InvalidInputError, match="one number or one per class"):
        certify(draw(50, 0), draw(50, 1), 2, alpha=(0.8, 0.9, 0.9))


@pytest.mark.parametrize(
    ("counts", "control", "expected"),
    [
        ([22, 9], "groups", False),
        ([22, 11], "groups", True),
        ([21, 11], "groups", False),
        ([3, 11], "predictions", True),
        ([21, 10], "predictions", False),
    ],
)
def test_each_class_needs_points_for_its_own_target(counts, control, expected):
    """0.9^22 <= 0.1 and 0.8^11 <= 0.1, but not with a point less."""
    assert can_certify(np.array(counts), alpha=(0.9, 0.8), delta=0.1, control=control) is expected


# --- Who is left out -------------------------------------------------------------------------------------------------


def test_true_classes_are_counted_whose_points_get_wrong_answers():
    """A rare class that is never predicted: every promise about predictions passes over it."""
    calibration, certification = draw(3000, 0, low=0.96), draw(3000, 1, low=0.96)
    rng = np.random.default_rng(2)
    rare = [rng.random(len(one)) < 0.02 for one in (calibration, certification)]
    samples = [
        dataclasses.replace(one, labels=np.where(chosen, 2, one.labels))
        for one, chosen in zip((calibration, certification), rare, strict=True)
    ]
    found = certify(*samples, 3, alpha=0.9, control="predictions")
    admitted = found.admits(certification.predictions, certification.score, certification.eligible)
    labels = samples[1].labels
    wrong = admitted & (labels != certification.predictions)
    assert found.class_errors == tuple((int((labels == c).sum()), int((wrong & (labels == c)).sum())) for c in range(3))
    n, k = found.class_errors[2]
    assert k > n / 2
    said = found.holds_for(["ham", "spam", "virus"])
    assert "It never admits 'virus'." in said and f"wrong answers to {k} of {n} points of class 'virus'." in said
    assert "class 'ham'" not in said  # of it few enough are answered wrongly
    restored = Certificate.from_json(json.loads(json.dumps(found.to_json())))
    assert restored.class_errors == found.class_errors
    refused = {**found.to_json(), "class_errors": [[5, -1]]}
    with pytest.raises(InvalidInputError, match="must not be negative"):
        Certificate.from_json(refused)
