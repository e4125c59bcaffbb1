"""Windows of the score: cut on calibration, tested on certification, the surest first."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from torchsdm.trust import Certificate, ScoredSample, certify
from torchsdm.trust._path import allowed_errors
from torchsdm.trust._windows import Windows, window_edges, window_size

ALPHA, DELTA = 0.9, 0.1


def draw(n, seed, low=0.7, high=1.0, n_classes=2, rounding=None):
    """Scores uniform on [0, 1]; every prediction is right with a probability that rises with the score."""
    rng = np.random.default_rng(seed)
    predictions, score = rng.integers(n_classes, size=n), rng.random(n)
    score = score if rounding is None else np.round(score, rounding)
    right = rng.random(n) < low + (high - low) * score
    labels = np.where(right, predictions, (predictions + 1) % n_classes)
    return ScoredSample(labels, predictions, score, rng.random(n) < 0.95)


def certified(calibration, certification, *, alpha=ALPHA, **settings):
    settings = {"delta": DELTA, "control": "predictions", "advice": False, **settings}
    return certify(calibration, certification, 2, alpha=alpha, **settings)


def slow_edges(scores, size):
    """Window by window, from the highest score: one point at a time, and all that are equal to the last."""
    left, edges = sorted(scores, reverse=True), []
    while len(left) >= size:
        lowest = left[size - 1]
        left = [score for score in left if score < lowest]
        edges.append(lowest)
    return edges


def slow_sureness(n, k, ratio, alpha, delta):
    m = int(ratio * n)
    if m == 0 or alpha**m > delta:
        return -np.inf
    error = (k + 0.5) / (n + 1)
    allowed = float(allowed_errors(np.array([m]), np.array([alpha]), delta)[0])
    return (allowed + 0.5 - m * error) / np.sqrt(m * error * (1 - error) * (1 + ratio))


def slow_windows(calibration, certification, c, alpha, level, u):
    """(lower, n, k, p) of the windows of one prediction that hold, by plain loops; and whether all of them do."""
    rows = [
        [(s, y == c) for y, p, s, e in zip(*(x.tolist() for x in vars(one).values()), strict=True) if p == c and e]
        for one in (calibration, certification)
    ]
    n_asked = round((calibration.predictions == c).sum() * len(certification) / len(calibration))
    ratio = n_asked / (calibration.predictions == c).sum()
    edges = slow_edges([s for s, _ in rows[0]], int(np.ceil(window_size(alpha, level) / ratio)))
    uppers = [np.inf, *edges]
    inside = [
        [[right for s, right in points if lower <= s < upper] for lower, upper in zip(edges, uppers, strict=False)]
        for points in rows
    ]
    z = [slow_sureness(len(one), one.count(False), ratio, alpha, level) for one in inside[0]]
    n_first = max(1, next((i for i, one in enumerate(z) if one < 3), len(z)))
    tested = []
    for lower, one in zip(edges, inside[1], strict=True):
        n, k = len(one), one.count(False)
        binomial = stats.binom(n, 1 - alpha)
        tested.append((lower, n, k, max(binomial.cdf(k - 1) + u * binomial.pmf(k), alpha**n) if n else 1.0))
    passes = [p <= level for *_, p in tested]
    if not all(passes[:n_first]):
        return [], False
    n_passed = next((i for i, one in enumerate(passes) if not one), len(passes))
    return tested[:n_passed], n_passed == len(passes)


@pytest.mark.parametrize("rounding", [None, 2, 1])
@pytest.mark.parametrize("seed", range(12))
def test_windows_are_those_of_plain_loops(seed, rounding):
    calibration, certification = draw(3000, seed, rounding=rounding), draw(2000, 100 + seed, rounding=rounding)
    found = certified(calibration, certification)
    slow = [slow_windows(calibration, certification, c, ALPHA, DELTA / 2, found.u) for c in range(2)]
    if all(is_at_end != slow[1 - c][1] for c, (_, is_at_end) in enumerate(slow)):  # the other walks on at all of delta
        assert found.windows
        return
    for c, (expected, _) in enumerate(slow):
        own = [one for one in found.windows if one.class_number == c]
        assert [(one.lower, one.n_admitted, one.n_errors) for one in own] == [row[:3] for row in expected]
        assert [one.p_value for one in own] == pytest.approx([row[3] for row in expected])
        assert [one.upper for one in own] == [None, *(one.lower for one in own[:-1])][: len(own)]


@pytest.mark.parametrize("rounding", [None, 1])
def test_edges_are_those_of_plain_loops(rounding):
    scores = np.random.default_rng(0).random(500)
    scores = scores if rounding is None else np.round(scores, rounding)
    for size in (1, 7, 120, 499, 500, 501):
        assert window_edges(scores, size).tolist() == slow_edges(scores.tolist(), size)


def test_a_rest_that_fills_no_window_is_never_trusted():
    calibration, certification = draw(2000, 0, low=0.99), draw(2000, 1, low=0.99)
    found = certified(calibration, certification)
    assert found.windows
    lowest = min(one.lower for one in found.windows)
    assert lowest > 0
    below = np.array([lowest / 2])
    assert not found.trusts(np.array([0]), below, np.array([True])).any()


def test_without_a_certification_point_a_window_fails():
    calibration = draw(3000, 0, low=0.99)
    certification = draw(3000, 1, low=0.99)
    surest = Windows.of(
        calibration[calibration.predictions == 0], (certification.predictions == 0).sum(), alpha=ALPHA, delta=DELTA / 2
    ).edges[0]
    keep = (certification.predictions != 0) | (certification.score < surest - 0.05)
    found = certified(calibration, certification[keep])
    assert {one.class_number for one in found.windows} == {1}


def test_windows_are_cut_and_counted_before_certification_is_seen():
    calibration, certification = draw(3000, 3), draw(2000, 4)
    rng = np.random.default_rng(5)
    edges = {c: certified_edges(calibration, certification, c) for c in range(2)}
    others = dataclasses.replace(certification, labels=rng.permutation(certification.labels))
    assert edges == {c: certified_edges(calibration, others, c) for c in range(2)}


def certified_edges(calibration, certification, c):
    found = [one.lower for one in certified(calibration, certification).windows if one.class_number == c]
    own = calibration[calibration.predictions == c]
    cut = Windows.of(own, round(len(own) * len(certification) / len(calibration)), alpha=ALPHA, delta=DELTA / 2).edges
    assert found == cut[: len(found)].tolist()
    return cut.tolist()


def test_a_bad_surest_window_admits_nothing_below_it():
    calibration, certification = draw(4000, 0, low=0.97, high=0.97), draw(4000, 1, low=0.97, high=0.97)
    surest = certification.score > 0.9
    labels = np.where(surest, 1 - certification.predictions, certification.labels)
    assert not certified(calibration, dataclasses.replace(certification, labels=labels)).windows


def test_points_that_cannot_be_tested_are_errors_of_every_window():
    calibration, certification = draw(4000, 0, low=0.95), draw(4000, 1, low=0.95)
    plain, harmed = (certified(calibration, certification, n_errors=n).windows for n in (0, 2))
    first, other = plain[0], harmed[0]
    assert (other.n_admitted, other.n_errors) == (first.n_admitted + 2, first.n_errors + 2)
    assert not certified(calibration, certification, n_errors=60).windows


def test_each_class_has_its_own_target():
    calibration, certification = draw(6000, 0, low=0.93), draw(6000, 1, low=0.93)
    found = certified(calibration, certification, alpha=[0.8, 0.97])
    lowest = found.window_thresholds
    assert lowest[0] < lowest[1]


def test_windows_reach_no_lower_than_the_average():
    calibration, certification = draw(4000, 0, low=0.9), draw(4000, 1, low=0.9)
    found = certified(calibration, certification)
    own = [one.lower for one in found.windows if one.class_number == 0]
    assert len(own) > 2
    between = (own[1] + own[2]) / 2
    stricter = dataclasses.replace(found, thresholds=np.array([between, np.inf]))
    assert stricter.window_thresholds.tolist() == [own[1], np.inf]
    assert dataclasses.replace(stricter, found=False).window_thresholds.tolist() == found.window_thresholds.tolist()


def test_windows_below_the_average_are_not_kept(monkeypatch):
    calibration, certification = draw(4000, 0, low=0.9), draw(4000, 1, low=0.9)
    strict = np.array([0.9999, np.inf])  # admits next to nothing
    monkeypatch.setattr("torchsdm.trust.certificate._walk", lambda *_: (strict, ()))
    found = certified(calibration, certification, control="groups")
    assert found.found and not found.windows
    monkeypatch.setattr("torchsdm.trust.certificate._walk", lambda *_: (strict + np.inf, ()))
    assert certified(calibration, certification, control="groups").windows


def test_what_is_trusted_is_admitted():
    calibration, certification, new = draw(3000, 0), draw(3000, 1), draw(3000, 2)
    found = certified(calibration, certification)
    asked = new.predictions, new.score, new.eligible
    trusted, admitted = found.trusts(*asked), found.admits(*asked)
    assert trusted.any()
    assert not (trusted & ~admitted).any()
    assert not (trusted & ~new.eligible).any()


def test_windows_are_kept():
    found = certified(draw(3000, 0), draw(3000, 1))
    assert found.windows
    restored = Certificate.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert restored.windows == found.windows
    assert restored.identity == found.identity
    assert dataclasses.replace(found, windows=found.windows[:-1]).identity != found.identity


def test_a_certificate_without_windows_is_written_as_before():
    assert "windows" not in certified(draw(60, 0), draw(60, 1)).to_json()


def test_the_size_of_a_window_allows_half_of_the_errors():
    for alpha, delta in ((0.9, 0.05), (0.95, 0.01), (0.8, 0.1)):
        n = window_size(alpha, delta)
        allowed = allowed_errors(np.array([n - 1, n]), np.array(alpha), delta)
        assert allowed[0] < 0.5 * (1 - alpha) * (n - 1)
        assert allowed[1] >= 0.5 * (1 - alpha) * n


def test_the_promise_of_windows_in_words():
    found = certified(draw(3000, 0), draw(3000, 1))
    said = found.holds_for(["ham", "spam"])
    n = [
        sum(one.class_number == c and one.lower >= found.window_thresholds[c] for one in found.windows) for c in (0, 1)
    ]
    assert f"({n[0]} windows of 'ham', {n[1]} windows of 'spam')" in said
    assert "they hold together with probability at least 0.8" in said
