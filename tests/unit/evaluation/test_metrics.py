"""Metrics of selection against loops and hand-computed values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from torchsdm import Decisions
from torchsdm.errors import InvalidInputError
from torchsdm.evaluation.metrics import (
    Cell,
    aurc,
    coverage_at_accuracy,
    excess_aurc,
    expected_calibration_error,
    ood_auroc,
    ood_fpr_at_95,
    ordering_score,
    possible_label_errors,
    rejection_confusion,
    reliability_bins,
    risk_coverage_curve,
    selective_accuracy,
    top_label_calibration,
)

CLASSES = np.array(["a", "b", "c"])


def decisions_of(predictions, admitted, confidence=None, score=None):
    numbers = np.array([CLASSES.tolist().index(label) for label in predictions])
    confidence = np.full(len(numbers), 0.9) if confidence is None else np.asarray(confidence)
    probabilities = np.repeat(((1 - confidence) / 2)[:, None], 3, axis=1)
    probabilities[np.arange(len(numbers)), numbers] = confidence
    admitted_at = np.asarray(admitted, dtype=bool)[:, None]
    logits = np.eye(3)[numbers]
    return Decisions.of_probabilities(
        CLASSES, [0.9], logits, probabilities, admitted_at, **({} if score is None else {"score": np.asarray(score)})
    )


# --- The paper's row -------------------------------------------------------------------------------------------------

#          right   wrong  right  wrong  right  rejected
TRUTH = np.array(["a", "b", "b", "a", "a", "b"])
PREDICTED = ["a", "a", "b", "b", "a", "b"]
ADMITTED = [1, 1, 1, 1, 1, 0]


def test_the_row_by_hand():
    row = selective_accuracy(decisions_of(PREDICTED, ADMITTED), TRUTH)
    assert row.by_class["a"] == Cell(3, 3, 2, 0.5) and row.by_class["b"] == Cell(3, 2, 1, 2 / 6)
    assert row.by_class["c"] == Cell(0, 0, 0, 0.0) and row.by_class["c"].is_absent
    assert row.by_prediction["a"] == Cell(3, 3, 2, 0.5) and row.by_prediction["b"] == Cell(3, 2, 1, 2 / 6)
    assert row.marginal == Cell(6, 5, 3, 5 / 6) and row.marginal.accuracy == 0.6
    assert row.holds(0.5) and not row.holds(0.51)  # class b stands at 1 of 2


def test_a_class_with_a_target_of_its_own_is_held_to_it():
    decisions = decisions_of(PREDICTED, ADMITTED)
    assert selective_accuracy(decisions, TRUTH, class_alphas=(0.6, 0.5, 0.9)).holds(0.5)
    row = selective_accuracy(decisions, TRUTH, class_alphas=(0.7, 0.5, 0.9))  # class a stands at 2 of 3
    assert not row.holds(0.5) and row.by_class["a"].is_below(0.5) and row.by_prediction["a"].is_below(0.5)
    assert not row.by_class["b"].is_below(0.5) and not row.marginal.is_below(0.5)


def test_where_all_is_rejected_nothing_falls_below():
    row = selective_accuracy(decisions_of(PREDICTED, [0] * 6), TRUTH)
    assert row.marginal.accuracy is None and row.marginal.interval() is None and not row.marginal.is_below(0.99)
    assert row.holds(1.0) and not row.by_class["a"].is_absent


def test_an_accuracy_of_alpha_is_not_below_it():
    assert not Cell(20, 20, 19, 1.0).is_below(0.95) and Cell(20, 20, 18, 1.0).is_below(0.95)


@pytest.mark.parametrize("labels", [[0, 1, 1, 0, 0, 1], ["a", "b", "b", "a", "a", "z"]])
def test_labels_that_are_no_classes_are_refused_not_counted_as_mistakes(labels):
    decisions = decisions_of(PREDICTED, ADMITTED)
    with pytest.raises(InvalidInputError, match="must contain only labels seen in fit"):
        rejection_confusion(decisions, labels)
    if "a" in labels:
        with pytest.raises(InvalidInputError, match="must contain only labels seen in fit"):
            selective_accuracy(decisions, labels)
    else:  # strangers
        assert selective_accuracy(decisions, labels).marginal.accuracy is None


def test_scores_that_are_no_numbers_are_refused():
    for measure in (aurc, excess_aurc):
        with pytest.raises(InvalidInputError, match="must be finite"):
            measure(np.array([np.nan, 1.0]), np.array([True, False]))
    with pytest.raises(InvalidInputError, match="must be finite"):
        ood_auroc([1.0, np.nan], [0.0])
    with pytest.raises(InvalidInputError, match="must not be empty"):
        expected_calibration_error(np.array([]), np.array([]))


def test_labels_must_fit():
    with pytest.raises(InvalidInputError, match="one value for each of 6"):
        selective_accuracy(decisions_of(PREDICTED, ADMITTED), TRUTH[:5])


# --- Risk and coverage -----------------------------------------------------------------------------------------------


def slow_curve(score, correct):
    steps = []
    for threshold in sorted(set(score), reverse=True):
        chosen = [right for s, right in zip(score, correct, strict=True) if s >= threshold]
        steps.append((len(chosen) / len(score), sum(not right for right in chosen) / len(chosen)))
    return steps


@pytest.mark.parametrize("seed", range(10))
def test_the_curve_and_its_area_are_those_of_a_loop(seed):
    rng = np.random.default_rng(seed)
    score, correct = rng.integers(0, 8, 40) / 8, rng.random(40) < 0.7  # many ties
    coverage, risk = risk_coverage_curve(score, correct)
    expected = slow_curve(score.tolist(), correct.tolist())
    np.testing.assert_allclose(np.stack([coverage, risk], axis=1), expected)
    area, before = 0.0, 0.0
    for c, r in expected:
        area += r * (c - before)
        before = c
    assert math.isclose(aurc(score, correct), area)


def test_areas_by_hand():
    correct = np.array([True, True, False, True])
    assert math.isclose(aurc(np.array([4, 3, 2, 1]), correct), (0 + 0 + 1 / 3 + 1 / 4) / 4)
    assert math.isclose(excess_aurc(np.array([4, 3, 2, 1]), correct), (1 / 3) / 4)  # the best has the wrong one last
    assert math.isclose(excess_aurc(np.array([4, 3, 1, 2]), correct), 0.0, abs_tol=1e-15)
    assert aurc(np.ones(4), correct) == 0.25  # one step for all


def test_coverage_at_an_accuracy_is_the_largest_not_the_first():
    correct = np.array([True, False, True, True, True])
    assert coverage_at_accuracy(np.arange(5, 0, -1), correct, 0.8) == 1.0
    assert coverage_at_accuracy(np.arange(5, 0, -1), correct, 0.9) == 0.2
    assert coverage_at_accuracy(np.arange(5), ~correct[[0, 0, 0, 0, 0]], 0.9) == 0.0


def test_the_order_is_by_score_or_else_by_confidence():
    assert ordering_score(decisions_of(["a"], [1], [0.7])).tolist() == [0.7]
    assert ordering_score(decisions_of(["a"], [1], [0.7], score=[-3.0])).tolist() == [-3.0]


def test_a_curve_needs_inputs():
    with pytest.raises(InvalidInputError, match="the same length, above 0"):
        risk_coverage_curve(np.array([]), np.array([]))


# --- Out of distribution ---------------------------------------------------------------------------------------------


def test_auroc_counts_pairs():
    rng = np.random.default_rng(0)
    inside, outside = rng.integers(0, 6, 30), rng.integers(0, 5, 20)
    pairs = np.mean([1.0 if i > o else 0.5 if i == o else 0.0 for i in inside for o in outside])
    assert math.isclose(ood_auroc(inside, outside), pairs)
    assert ood_auroc(inside, outside) == roc_auc_score([1] * 30 + [0] * 20, [*inside, *outside])


def test_fpr_at_95():
    inside = np.arange(100)  # at least 95 of them are 5 or more
    assert ood_fpr_at_95(inside, np.array([4, 5, 6, -1])) == 0.5
    assert ood_fpr_at_95(np.ones(10), np.ones(5)) == 1.0  # a score that tells nothing
    with pytest.raises(InvalidInputError, match="both kinds"):
        ood_fpr_at_95(inside, [])


# --- Calibration -----------------------------------------------------------------------------------------------------


def test_bins_hold_their_upper_edge():
    bins = reliability_bins(np.array([0.0, 0.1, 0.100001, 1.0]), np.array([True, False, True, True]), 10)
    assert bins.counts.tolist() == [2, 1, 1] and bins.accuracy.tolist() == [0.5, 1.0, 1.0]
    np.testing.assert_allclose(bins.edges, [[0, 0.1], [0.1, 0.2], [0.9, 1.0]])


def test_calibration_error_against_a_loop():
    rng = np.random.default_rng(1)
    confidence, correct = rng.random(200), rng.random(200) < 0.5
    total = 0.0
    for b in range(15):
        low, high = b / 15, (b + 1) / 15
        chosen = [i for i in range(200) if (low < confidence[i] or b == 0) and confidence[i] <= high]
        if chosen:
            accuracy = sum(correct[i] for i in chosen) / len(chosen)
            total += len(chosen) / 200 * abs(accuracy - sum(confidence[i] for i in chosen) / len(chosen))
    assert math.isclose(expected_calibration_error(confidence, correct), total)


def test_top_label_calibration_looks_at_confidence_not_admission():
    decisions = decisions_of(["a", "a", "b", "b"], [0, 0, 0, 0], [0.95, 0.96, 0.94, 0.99])
    cells = top_label_calibration(decisions, np.array(["a", "b", "b", "b"]), 0.95)
    assert (cells["a"].n_admitted, cells["a"].n_correct) == (2, 1)
    assert (cells["b"].n_admitted, cells["b"].n_correct) == (1, 1) and cells["c"].is_absent


def test_what_was_done_to_right_and_wrong():
    table = rejection_confusion(decisions_of(PREDICTED, ADMITTED), TRUTH)
    assert table == {"admitted_correct": 3, "admitted_wrong": 2, "rejected_correct": 1, "rejected_wrong": 0}


def test_possible_label_errors_are_admitted_disagreements_most_confident_first():
    decisions = decisions_of(["a", "a", "b", "a"], [1, 1, 1, 0], [0.91, 0.99, 0.95, 1.0])
    assert possible_label_errors(decisions, np.array(["b", "b", "b", "b"])).tolist() == [1, 0]


def test_inputs_that_could_not_be_read_count_as_rejected():
    decisions = decisions_of(PREDICTED, ADMITTED)
    before, after = selective_accuracy(decisions, TRUTH), selective_accuracy(decisions, TRUTH, 2)
    assert (before.marginal.n_total, after.marginal.n_total) == (6, 8)
    assert after.marginal.share == before.marginal.share * 6 / 8
    for one, other in ((before.by_class, after.by_class), (before.by_prediction, after.by_prediction)):
        assert [(cell.n_total, cell.accuracy) for cell in one.values()] == [
            (cell.n_total, cell.accuracy) for cell in other.values()
        ]
        assert [cell.share * 6 / 8 for cell in one.values()] == [cell.share for cell in other.values()]
