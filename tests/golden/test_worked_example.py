"""The worked example of conftest.py, every number worked out by hand.

Support, as (x, y) label/prediction; distances below are read off this list:

     0 (0, 0) 0/0     1 (0, 3) 0/0     2 (4, 0) 0/0     3 (0, 3) 0/0     4 (3, 4)   0/1     5 (12, 0) 2/0
     6 (20, 0) 1/1    7 (20, 3) 1/1    8 (24, 0) 1/1    9 (23, 4) 1/1    10 (20, -3) 1/1    11 (0, -3) 0/0

Group 0 (prediction = label = 0) is {0, 1, 2, 3, 11}, group 1 is {6, 7, 8, 9, 10}; 4 and 5 are nobody's match.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import reference
import torchsdm
from conftest import WorkedExample

ROOT7 = math.sqrt(7)

# Every support point against the others. Order as index(distance), up to the first non-match, which is in brackets.
#
#  0 pred 0:  1(3) 3(3) 11(3) 2(4) [4(5)]                     q 4   nearest 1, the first of a three-way tie
#  1 pred 0:  3(0) 0(3) [4(√10)]                              q 2   nearest 3, its duplicate, at 0
#  2 pred 0:  0(4) [4(√17 = 4.12)]                            q 1
#  3 pred 0:  1(0) 0(3) [4(√10)]                              q 2
#  4 pred 1:  [1(√10)]                                        q 0   1 before its duplicate 3
#  5 pred 0:  2(8) [6(8)]                                     q 1   the tie goes to the match, index 2 < 6
#  6 pred 1:  7(3) 10(3) 8(4) 9(5) [5(8)]                     q 4
#  7 pred 1:  6(3) 9(√10) 8(5) 10(6) [5(√73 = 8.54)]          q 4
#  8 pred 1:  6(4) 9(√17) 7(5) 10(5) [5(12)]                  q 4
#  9 pred 1:  7(√10) 8(√17) 6(5) 10(√58 = 7.62) [5(√137)]     q 4
# 10 pred 1:  6(3) 8(5) 7(6) 9(√58) [5(√73)]                  q 4
# 11 pred 0:  0(3) 2(5) 1(6) 3(6) [4(√58)]                    q 4
SELF_SIMILARITY = [4, 2, 1, 2, 0, 1, 4, 4, 4, 4, 4, 4]
SELF_INDEX = [1, 3, 0, 1, 1, 2, 7, 6, 6, 7, 6, 0]
SELF_SQUARED_DISTANCE = [9, 0, 16, 0, 10, 64, 9, 9, 16, 10, 9, 9]

# Training eCDFs leave out 5 (no class) and 4 (q = 0): class 0 has 0 0 3 3 4, class 1 has 3 3 3 √10 4.
# d_nearest 0: (1, 1) -> 1; 3: (1 - 2/5, 1) -> 0.6; √10: (1 - 4/5, 1 - 3/5) -> 0.2; 4: (1 - 4/5, 1 - 4/5) -> 0.2.
SELF_IN_CLASS = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
SELF_QUANTILE = [0.6, 1.0, 0.2, 1.0, 0.2, 0.6, 0.6, 0.2, 0.2, 0.6, 0.6]

# Calibration.
#
#  0 ( 0, 0) y 0 pred 0:  0(0) 1(3) 3(3) 11(3) 2(4) [4(5)]                     q 5
#  1 ( 1, 0) y 0 pred 0:  0(1) 2(3) 1(√10) 3(√10) 11(√10) [4(√20)]             q 5
#  2 ( 2, 0) y 0 pred 0:  0(2) 2(2) 1(√13) 3(√13) 11(√13) [4(√17)]             q 5   tie of 0 and 2: nearest 0
#  3 ( 8, 0) y 0 pred 0:  2(4) [5(4)]                                          q 1   tie of a match and a non-match
#  4 (20, 0) y 1 pred 1:  6(0) 7(3) 10(3) 8(4) 9(5) [5(8)]                     q 5
#  5 (21, 0) y 1 pred 1:  6(1) 8(3) 7(√10) 10(√10) 9(√20) [5(9)]               q 5
#  6 (22, 0) y 1 pred 1:  6(2) 8(2) 7(√13) 10(√13) 9(√17) [5(10)]              q 5
#  7 (16, 0) y 1 pred 1:  [5(4)]                                               q 0   the same tie, lost: 5 < 6
#  8 ( 3, 0) y 1 pred 0:  2(1) 0(3) [4(4)]                                     q 2   misclassified, and q > 0
CALIBRATION_SIMILARITY = [5, 5, 5, 1, 5, 5, 5, 0, 2]
CALIBRATION_INDEX = [0, 0, 0, 2, 6, 6, 6, 5, 2]
CALIBRATION_DISTANCE = [0, 1, 2, 4, 0, 1, 2, 4, 1]

# Calibration eCDFs, by true label, q > 0: class 0 has 0 1 2 4, class 1 has 0 1 1 2 (point 8 is among them, 7 is not).
# d_nearest 0: (1, 1) -> 1; 1: (3/4, 3/4) -> 3/4; 2: (2/4, 1/4) -> 1/4; 4: (1/4, 0) -> 0.
CALIBRATION_QUANTILE = [1, 0.75, 0.25, 0, 1, 0.75, 0.25, 0, 0.75]

# Confidence = r/(1 + r) with r = (2 + q)^(d · difference of the logits).
#
#  0: 7^(1·1) = 7        -> 7/8
#  1: 7^(3/4·4) = 343    -> 343/344
#  2: 7^(1/4·2) = √7     -> √7/(1 + √7) = 0.7257
#  3: 3^(0·3) = 1        -> 1/2
#  4: 7^(1·2) = 49       -> 49/50
#  5: 7^(3/4·4) = 343    -> 343/344
#  6: 7^(1/4·8) = 49     -> 49/50
#  7: 2^(0·1) = 1        -> 1/2
#  8: 4^(3/4·2) = 8      -> 8/9, of class 0: its true label 1 has 1/9
CALIBRATION_CONFIDENCE = [7 / 8, 343 / 344, ROOT7 / (1 + ROOT7), 1 / 2, 49 / 50, 343 / 344, 49 / 50, 1 / 2, 8 / 9]

# q' = min(q, (2 + q)^confidence). Only point 2 is not cut at q: 7^0.7257 = 4.1049; the others, in order:
# 7^0.875 = 5.49, 7^0.997 = 6.96, -, 3^0.5 = 1.73, 7^0.98 = 6.73, 6.96, 6.73, 2^0.5 = 1.41 (q = 0), 4^0.889 = 3.43.
CALIBRATION_RESCALED = [5, 5, 7 ** (ROOT7 / (1 + ROOT7)), 1, 5, 5, 5, 0, 2]

# Algorithm 1. Candidates 1, 2, 4.1049, 5. True-label probabilities, ascending, of the points at or above each:
#
#   1:       class 0  1/2 0.7257 7/8 343/344     class 1  1/9 49/50 49/50 343/344
#   2:       class 0      0.7257 7/8 343/344     class 1  1/9 49/50 49/50 343/344
#   4.1049:  class 0      0.7257 7/8 343/344     class 1      49/50 49/50 343/344
#   5:       class 0             7/8 343/344     class 1      49/50 49/50 343/344
#
# α = 0.7, (1 - α) n = 1.2 and 1.2 at candidate 1: elements 1 and 1 are 0.7257 and 49/50, both at least 0.7. Found.
# α = 0.75: candidate 1, (1, 1): 0.7257 fails; 2, (0.75, 1): 0.7257 fails; 4.1049, (0.75, 0.75): 0.7257 fails;
#           5, (0.5, 0.75): 7/8 and 49/50 hold. Found.
# α = 0.9:  1, (0.4, 0.4): 1/2 fails; 2: 0.7257 fails; 4.1049: 0.7257 fails; 5, (0.2, 0.3): 7/8 fails. Not found.
REGIONS = {
    0.7: (1.0, [ROOT7 / (1 + ROOT7), 49 / 50], [4, 4]),
    0.75: (5.0, [7 / 8, 49 / 50], [2, 3]),
    0.9: (math.inf, [math.inf, math.inf], [0, 0]),
}

# Queries.
#
#  0 ( 1, 0) pred 0: as calibration point 1                           q 5  d_nearest 1  d 3/4   343/344
#  1 (10, 0) pred 0: [5(2)]                                           q 0  d_nearest 2  d 1/4   2^(1/4·4) = 2 -> 2/3
#  2 (30, 0) pred 1: 8(6) 9(√65) 6(10) 7(√109) 10(√109) [5(18)]       q 5  d_nearest 6  d 0     1/2, q' = 7^0.5
#  3 (20, 0) pred 1: as calibration point 4                           q 5  d_nearest 0  d 1     7^(1·1) = 7 -> 7/8
#  4 (20, 3) pred 1: 7(0) 6(3) 9(√10) 8(5) 10(6) [5(√73)]             q 5  d_nearest 0  d 1     7^(1·3) -> 343/344
#  5 (20, 0) pred 0: [6(0)]                                           q 0  d_nearest 0  d 1     2^(1·1) = 2 -> 2/3
#  6 ( 0, 2) pred 0: 1(1) 3(1) 0(2) [4(√13)]                          q 3  d_nearest 1  d 3/4   5^3 = 125 -> 125/126
QUERY_SIMILARITY = [5, 0, 5, 5, 5, 0, 3]
QUERY_INDEX = [0, 5, 8, 6, 7, 6, 1]
QUERY_DISTANCE = [1, 2, 6, 0, 0, 0, 1]
QUERY_QUANTILE = [0.75, 0.25, 0, 1, 1, 1, 0.75]
QUERY_CONFIDENCE = [343 / 344, 2 / 3, 1 / 2, 7 / 8, 343 / 344, 2 / 3, 125 / 126]
QUERY_RESCALED = [5, 0, ROOT7, 5, 5, 0, 3]
# α = 0.75: q' >= 5 leaves 0, 3, 4; 3 fails 49/50.  α = 0.7: q' >= 1 leaves 0, 2, 3, 4, 6; 2 and 3 fail 49/50.
QUERY_ADMITTED = {
    0.7: [True, False, False, False, True, False, True],
    0.75: [True, False, False, False, True, False, False],
    0.9: [False] * 7,
}

# Effective sample sizes: q' of class 0 is 1 4.1049 5 5, of class 1 is 0 2 5 5 5; strictly below the query's q':
# below 5: (2, 2); below 0: (0, 0); below √7 = 2.65: (1, 2); below 3: (1, 2).
QUERY_SIZES = [[2, 2], [0, 0], [1, 2], [2, 2], [2, 2], [0, 0], [1, 2]]
# α = 0.75: ε = √(ln 8 / (2 n)), ln 8 = 2.0794: n 2 -> 0.7210; n 1 -> 1.0197, cut to 1; n 0 -> 1.
EPSILON_2 = math.sqrt(math.log(8) / 4)
QUERY_EPSILON = [EPSILON_2, 1, 1, EPSILON_2, EPSILON_2, 1, 1]
QUERY_QUANTILE_LOWER = [0.75 - EPSILON_2, 0, 0, 1 - EPSILON_2, 1 - EPSILON_2, 0, 0]
QUERY_QUANTILE_UPPER = [1, 1, 1, 1, 1, 1, 1]
# Lower: query 0 has 7^(0.0290·4) = 1.253 -> 0.556, q' = 7^0.556 = 2.95 < 5; query 4 has 7^(0.2790·3) = 5.10 -> 0.836
# < 49/50. Nobody is left.
QUERY_CONFIDENCE_LOWER_0, QUERY_CONFIDENCE_LOWER_4 = 0.5562, 0.8360


@pytest.fixture(scope="module")
def library(worked_example: WorkedExample) -> SimpleNamespace:
    """The example run through the library, in the order of the paper."""
    e = worked_example
    support = torchsdm.SupportSet(e.support_exemplars, e.support_labels, e.support_predictions)
    calibration = support.match(e.calibration_exemplars, e.calibration_predictions)
    queries = support.match(e.query_exemplars, e.query_predictions)
    ecdfs = torchsdm.ClassEcdfs.fit(
        calibration.nearest_distance, calibration.similarity, e.calibration_labels, e.n_classes
    )

    def activate(logits: np.ndarray, matches: object) -> SimpleNamespace:
        z = torch.as_tensor(logits, dtype=torch.float64)
        d = ecdfs.distance_quantile(matches.nearest_distance)
        p = torchsdm.sdm_activation(z, matches.similarity, d)
        confidence = p[torch.arange(len(z)), z.argmax(1)]
        return SimpleNamespace(
            matches=matches,
            logits=z,
            predictions=z.argmax(1),
            distance_quantile=d,
            probabilities=p,
            confidence=confidence,
            rescaled=torchsdm.rescaled_similarity(matches.similarity, confidence),
        )

    return SimpleNamespace(
        support=support,
        calibration=activate(e.calibration_logits, calibration),
        queries=activate(e.query_logits, queries),
    )


@pytest.fixture(scope="module")
def loops(worked_example: WorkedExample) -> SimpleNamespace:
    """The example run through the reference."""
    e = worked_example
    support = (e.support_exemplars, e.support_labels, e.support_predictions)
    calibration = reference.match(e.calibration_exemplars, e.calibration_predictions, *support)
    queries = reference.match(e.query_exemplars, e.query_predictions, *support)
    by_class = reference.class_distances(
        calibration.nearest_distance, calibration.similarity, e.calibration_labels, e.n_classes
    )

    def activate(logits: np.ndarray, matches: reference.Matches) -> SimpleNamespace:
        d = [reference.distance_quantile(x, by_class) for x in matches.nearest_distance]
        p = [reference.sdm_activation(*row) for row in zip(logits, matches.similarity, d, strict=True)]
        confidence = [row[int(z.argmax())] for row, z in zip(p, logits, strict=True)]
        rescaled = [reference.rescaled_similarity(*row) for row in zip(matches.similarity, confidence, strict=True)]
        return SimpleNamespace(
            matches=matches, distance_quantile=d, probabilities=p, confidence=confidence, rescaled=rescaled
        )

    return SimpleNamespace(
        by_class=by_class,
        calibration=activate(e.calibration_logits, calibration),
        queries=activate(e.query_logits, queries),
    )


@pytest.fixture(params=["library", "loops"])
def run(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Both runs, so that each hand-worked number is checked against each."""
    return request.getfixturevalue(request.param)


def close(actual: object, expected: object, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(actual, dtype=np.float64), expected, rtol=tolerance, atol=tolerance)


def same(actual: object, expected: object) -> None:
    np.testing.assert_array_equal(np.asarray(actual), expected)


def test_every_support_point_against_the_others(worked_example: WorkedExample) -> None:
    e = worked_example
    m = torchsdm.SupportSet(e.support_exemplars, e.support_labels, e.support_predictions).match_self()
    same(m.similarity, SELF_SIMILARITY)
    same(m.nearest_index, SELF_INDEX)
    close(m.nearest_distance, np.sqrt(SELF_SQUARED_DISTANCE))


def test_every_support_point_against_the_others_in_the_reference(worked_example: WorkedExample) -> None:
    e = worked_example
    m = reference.match(
        e.support_exemplars,
        e.support_predictions,
        e.support_exemplars,
        e.support_labels,
        e.support_predictions,
        range(12),
    )
    same(m.similarity, SELF_SIMILARITY)
    same(m.nearest_index, SELF_INDEX)
    close(m.nearest_distance, np.sqrt(SELF_SQUARED_DISTANCE))


def test_training_distance_quantiles(worked_example: WorkedExample) -> None:
    distance = np.sqrt(np.array(SELF_SQUARED_DISTANCE, dtype=np.float64))[SELF_IN_CLASS]
    q = np.array(SELF_SIMILARITY)[SELF_IN_CLASS]
    labels = worked_example.support_labels[SELF_IN_CLASS]
    by_class = reference.class_distances(distance, q, labels, 2)
    close([reference.distance_quantile(x, by_class) for x in distance], SELF_QUANTILE)
    close(torchsdm.ClassEcdfs.fit(distance, q, labels, 2).distance_quantile(distance), SELF_QUANTILE)


def test_calibration_matches(run: SimpleNamespace) -> None:
    same(run.calibration.matches.similarity, CALIBRATION_SIMILARITY)
    same(run.calibration.matches.nearest_index, CALIBRATION_INDEX)
    same(run.calibration.matches.nearest_distance, CALIBRATION_DISTANCE)


def test_query_matches(run: SimpleNamespace) -> None:
    same(run.queries.matches.similarity, QUERY_SIMILARITY)
    same(run.queries.matches.nearest_index, QUERY_INDEX)
    same(run.queries.matches.nearest_distance, QUERY_DISTANCE)


def test_distance_quantiles(run: SimpleNamespace) -> None:
    close(run.calibration.distance_quantile, CALIBRATION_QUANTILE)
    close(run.queries.distance_quantile, QUERY_QUANTILE)


def test_confidence(run: SimpleNamespace) -> None:
    close(run.calibration.confidence, CALIBRATION_CONFIDENCE)
    close(run.queries.confidence, QUERY_CONFIDENCE)
    close(np.asarray(run.calibration.probabilities)[8], [8 / 9, 1 / 9])


def test_loss(worked_example: WorkedExample) -> None:
    # -log_{2+q} of the true label's probability, each in the base of its own point; they add up over nine points.
    by_hand = [
        math.log(8 / 7, 7),
        math.log(344 / 343, 7),
        math.log((1 + ROOT7) / ROOT7, 7),
        math.log(2, 3),
        math.log(50 / 49, 7),
        math.log(344 / 343, 7),
        math.log(50 / 49, 7),
        math.log(2, 2),
        math.log(9, 4),  # 1/9: predicted 0, labelled 1
    ]
    e = worked_example
    arguments = (e.calibration_labels, CALIBRATION_SIMILARITY, CALIBRATION_QUANTILE)
    assert reference.sdm_loss(e.calibration_logits, *arguments) == pytest.approx(sum(by_hand) / 9, rel=1e-12)
    loss = torchsdm.sdm_loss(
        e.calibration_logits.astype(np.float64),
        e.calibration_labels,
        np.array(CALIBRATION_SIMILARITY),
        np.array(CALIBRATION_QUANTILE, dtype=np.float64),
    )
    assert float(loss) == pytest.approx(sum(by_hand) / 9, rel=1e-12)


def test_rescaled_similarity(run: SimpleNamespace) -> None:
    close(run.calibration.rescaled, CALIBRATION_RESCALED)
    close(run.queries.rescaled, QUERY_RESCALED)
    assert CALIBRATION_RESCALED[2] == pytest.approx(4.1049, abs=1e-4)


def test_neighbors_of_the_origin(worked_example: WorkedExample) -> None:
    # From (0, 0): itself, then 1, 3 and 11 at 3 in the order of their indices, then 2 at 4, 4 at 5.
    e = worked_example
    support = torchsdm.SupportSet(e.support_exemplars, e.support_labels, e.support_predictions)
    distances, indices = support.neighbors(e.support_exemplars[:1], 6)
    same(indices, [[0, 1, 3, 11, 2, 4]])
    same(distances, [[0, 3, 3, 3, 4, 5]])
    assert reference.neighbors((0, 0), e.support_exemplars, 6) == ([0, 3, 3, 3, 4, 5], [0, 1, 3, 11, 2, 4])


@pytest.mark.parametrize("alpha", REGIONS)
@pytest.mark.filterwarnings("ignore")  # regions this small are warned about, by intention
def test_region_and_admission(
    alpha: float, worked_example: WorkedExample, library: SimpleNamespace, loops: SimpleNamespace
) -> None:
    labels = worked_example.calibration_labels
    min_rescaled, thresholds, counts = REGIONS[alpha]

    region = torchsdm.find_high_reliability_region(
        library.calibration.rescaled, library.calibration.probabilities, labels, alpha
    )
    assert region.found == math.isfinite(min_rescaled)
    assert float(region.min_rescaled_similarity) == min_rescaled
    assert region.alpha == alpha
    close(region.thresholds, thresholds)
    q = library.queries
    same(region.admits(q.rescaled, q.predictions, q.confidence), QUERY_ADMITTED[alpha])

    found, value, psi, class_counts = reference.find_high_reliability_region(
        loops.calibration.rescaled, loops.calibration.probabilities, labels, alpha
    )
    assert (found, value, class_counts) == (math.isfinite(min_rescaled), min_rescaled, counts)
    close(psi, thresholds)


@pytest.mark.filterwarnings("ignore")
def test_points_that_define_the_region_are_in_it(worked_example: WorkedExample, library: SimpleNamespace) -> None:
    # α = 0.75: of the calibration points with q' = 5, 0 has confidence ψ_0 and 4 and 6 have ψ_1; all are admitted.
    c = library.calibration
    region = torchsdm.find_high_reliability_region(c.rescaled, c.probabilities, worked_example.calibration_labels, 0.75)
    same(region.admits(c.rescaled, c.predictions, c.confidence), [1, 1, 0, 0, 1, 1, 1, 0, 0])


@pytest.mark.parametrize(("alpha", "min_class_count", "found"), [(0.75, 2, True), (0.75, 3, False), (0.7, 4, True)])
@pytest.mark.filterwarnings("ignore")
def test_min_class_count(
    alpha: float,
    min_class_count: int,
    found: bool,
    worked_example: WorkedExample,
    library: SimpleNamespace,
    loops: SimpleNamespace,
) -> None:
    # The region of α = 0.75 rests on (2, 3) points, that of 0.7 on (4, 4).
    labels = worked_example.calibration_labels
    c, r = library.calibration, loops.calibration
    region = torchsdm.find_high_reliability_region(
        c.rescaled, c.probabilities, labels, alpha, min_class_count=min_class_count
    )
    assert region.found == found
    expected = reference.find_high_reliability_region(r.rescaled, r.probabilities, labels, alpha, min_class_count)
    assert expected.found == found


def test_effective_sample_sizes_and_band(
    worked_example: WorkedExample, library: SimpleNamespace, loops: SimpleNamespace
) -> None:
    labels = worked_example.calibration_labels
    sizes = torchsdm.core.effective_sample_sizes(library.calibration.rescaled, labels, library.queries.rescaled, 2)
    assert sizes.dtype == torch.int64
    same(sizes, QUERY_SIZES)
    close(torchsdm.core.dkw_epsilon(sizes, 0.75), QUERY_EPSILON)
    close(torchsdm.core.dkw_epsilon(sizes, 1.0), np.ones(7))

    for rescaled, n, epsilon in zip(loops.queries.rescaled, QUERY_SIZES, QUERY_EPSILON, strict=True):
        assert reference.effective_sample_sizes(loops.calibration.rescaled, labels, rescaled, 2) == n
        assert reference.dkw_epsilon(n, 0.75) == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_lower_estimator(worked_example: WorkedExample, library: SimpleNamespace, loops: SimpleNamespace) -> None:
    labels = worked_example.calibration_labels
    c, q = library.calibration, library.queries
    region = torchsdm.find_high_reliability_region(c.rescaled, c.probabilities, labels, 0.75)
    epsilon = torchsdm.core.dkw_epsilon(torchsdm.core.effective_sample_sizes(c.rescaled, labels, q.rescaled, 2), 0.75)
    lower = (q.distance_quantile - epsilon).clamp(min=0)
    close(lower, QUERY_QUANTILE_LOWER)
    p = torchsdm.sdm_activation(q.logits, q.matches.similarity, lower)
    confidence = p[torch.arange(7), q.predictions]
    close(confidence[[0, 4]], [QUERY_CONFIDENCE_LOWER_0, QUERY_CONFIDENCE_LOWER_4], tolerance=1e-4)
    rescaled = torchsdm.rescaled_similarity(q.matches.similarity, confidence)
    same(region.admits(rescaled, q.predictions, confidence), [False] * 7)

    expected = reference.find_high_reliability_region(
        loops.calibration.rescaled, loops.calibration.probabilities, labels, 0.75
    )
    for n in range(7):
        answer = reference.answer(
            worked_example.query_logits[n],
            QUERY_SIMILARITY[n],
            QUERY_DISTANCE[n],
            loops.by_class,
            loops.calibration.rescaled,
            labels,
            expected,
            0.75,
        )
        assert answer.admitted == QUERY_ADMITTED[0.75][n]
        assert not answer.admitted_lower
        close(answer.distance_quantile_lower, QUERY_QUANTILE_LOWER[n])
        close(answer.distance_quantile_upper, QUERY_QUANTILE_UPPER[n])
        close(answer.probabilities_lower, p[n])
        close(answer.rescaled_similarity_lower, rescaled[n])
