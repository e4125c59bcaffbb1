"""Loop versions of the paper's equations, in float64, to test the library against.

Nothing here is fast and nothing here is imported from the library. Every function follows one equation, one point
at a time, and returns plain Python numbers and lists.

Distances are square roots of exactly rounded sums of squares, so their order does not depend on the order of summation.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Vector = Sequence[float] | np.ndarray
Matrix = Sequence[Sequence[float]] | np.ndarray


# --- Similarity and nearest distance (Eq. 4) -------------------------------------------------------------------------


def euclidean_distance(a: Vector, b: Vector) -> float:
    """L2 distance of two vectors, differences and squares in float64."""
    return math.sqrt(math.fsum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True)))


def ordered_support(query: Vector, support: Matrix, exclude: int = -1) -> list[tuple[float, int]]:
    """All support points but `exclude` as (distance, index), ordered by distance, then by index."""
    return sorted((euclidean_distance(query, point), i) for i, point in enumerate(support) if i != exclude)


def similarity(
    query: Vector,
    prediction: int,
    support: Matrix,
    support_labels: Sequence[int],
    support_predictions: Sequence[int],
    exclude: int = -1,
) -> int:
    """q: the number of consecutive nearest support points with prediction = label = the query's prediction (Eq. 4)."""
    q = 0
    for _, i in ordered_support(query, support, exclude):
        if int(support_predictions[i]) != int(prediction) or int(support_labels[i]) != int(prediction):
            break
        q += 1
    return q


def nearest(query: Vector, support: Matrix, exclude: int = -1) -> tuple[float, int]:
    """d_nearest and the index of the first support point in the order, whether it matches or not."""
    return ordered_support(query, support, exclude)[0]


def neighbors(query: Vector, support: Matrix, k: int, exclude: int = -1) -> tuple[list[float], list[int]]:
    """Distances and indices of the first k support points in the order."""
    first = ordered_support(query, support, exclude)[:k]
    return [distance for distance, _ in first], [i for _, i in first]


class Matches(NamedTuple):
    """One entry per query."""

    similarity: list[int]
    nearest_distance: list[float]
    nearest_index: list[int]


def match(
    queries: Matrix,
    predictions: Sequence[int],
    support: Matrix,
    support_labels: Sequence[int],
    support_predictions: Sequence[int],
    exclude: Sequence[int] | None = None,
) -> Matches:
    """Eq. 4 and d_nearest for every query; `exclude` holds each query's own support index, or -1."""
    out = Matches([], [], [])
    for n, query in enumerate(queries):
        own = -1 if exclude is None else int(exclude[n])
        distance, index = nearest(query, support, own)
        out.similarity.append(
            similarity(query, predictions[n], support, support_labels, support_predictions, exclude=own)
        )
        out.nearest_distance.append(distance)
        out.nearest_index.append(index)
    return out


# --- Distance quantile (Eq. 5) ---------------------------------------------------------------------------------------


def class_distances(
    nearest_distance: Vector, similarity: Sequence[int], labels: Sequence[int], n_classes: int
) -> list[list[float]]:
    """The sorted d_nearest of the points with q > 0, one list per true label."""
    lists: list[list[float]] = [[] for _ in range(n_classes)]
    for distance, q, y in zip(nearest_distance, similarity, labels, strict=True):
        if q > 0:
            lists[int(y)].append(float(distance))
    return [sorted(values) for values in lists]


def distance_quantile(nearest_distance: float, distances_by_class: Sequence[Sequence[float]]) -> float:
    """d = min over classes of 1 - #{x < d_nearest}/n_c (Eq. 5); 0 where a class has no points."""
    quantiles = []
    for values in distances_by_class:
        if len(values) == 0:
            quantiles.append(0.0)
            continue
        below = sum(1 for x in values if x < nearest_distance)
        quantiles.append((len(values) - below) / len(values))
    return min(quantiles)


# --- Activation and loss (Eqs. 6, 7) ---------------------------------------------------------------------------------


def sdm_log_activation(logits: Vector, similarity: float, distance_quantile: float) -> list[float]:
    """Logarithm, in base 2 + q, of Eq. 6 for one point.

    With m the largest logit, log_{2+q} sdm_i = d (z_i - m) - log_{2+q} sum_c (2 + q)^{d (z_c - m)}.
    """
    base, d = 2.0 + float(similarity), float(distance_quantile)
    z = [float(value) for value in logits]
    largest = max(z)
    exponents = [d * (value - largest) for value in z]
    # The largest term is 1; log1p of the others keeps what a plain log would lose next to 1.
    others = list(exponents)
    others.remove(0.0)
    log_total = math.log1p(math.fsum(base**e for e in others)) / math.log(base)
    return [e - log_total for e in exponents]


def sdm_activation(logits: Vector, similarity: float, distance_quantile: float) -> list[float]:
    """(2 + q)^(d z_i) / sum_c (2 + q)^(d z_c) for one point (Eq. 6), every power taken below the largest logit."""
    base, d = 2.0 + float(similarity), float(distance_quantile)
    z = [float(value) for value in logits]
    largest = max(z)
    powers = [base ** (d * (value - largest)) for value in z]
    total = math.fsum(powers)
    return [power / total for power in powers]


def sdm_loss(logits: Matrix, labels: Sequence[int], similarity: Vector, distance_quantile: Vector) -> float:
    """The mean of -log_{2+q} sdm(z')_y (Eq. 7)."""
    losses = [
        -sdm_log_activation(z, q, d)[int(y)]
        for z, y, q, d in zip(logits, labels, similarity, distance_quantile, strict=True)
    ]
    return math.fsum(losses) / len(losses)


# --- Rescaled similarity and the high-reliability region (Eqs. 8, 9, Algorithm 1) ------------------------------------


def rescaled_similarity(similarity: float, confidence: float) -> float:
    """q' = min(q, (2 + q)^confidence) (Eq. 8)."""
    q = float(similarity)
    return min(q, (2.0 + q) ** float(confidence))


def inverse_cdf_index(n: int, alpha: float) -> int:
    """Position of inf{x : F(x) > 1 - alpha} among n sorted values: floor((1 - alpha) n), at most the last."""
    return min(math.floor(round((1.0 - alpha) * n, 9)), n - 1)


class Region(NamedTuple):
    """What Algorithm 1 returns, and the number of calibration points of each class it rests on."""

    found: bool
    min_rescaled_similarity: float
    thresholds: list[float]
    class_counts: list[int]


def find_high_reliability_region(
    rescaled_similarity: Vector,
    probabilities: Matrix,
    labels: Sequence[int],
    alpha: float | Sequence[float],
    min_class_count: int = 0,
) -> Region:
    """Algorithm 1, as printed: the first distinct q' > 0 whose class-wise thresholds are all at least alpha.

    With a sequence, each class has its own alpha.
    """
    rescaled = [float(value) for value in rescaled_similarity]
    true_label_probability = [float(row[int(y)]) for row, y in zip(probabilities, labels, strict=True)]
    n_classes = len(probabilities[0])
    alphas = list(alpha) if isinstance(alpha, Sequence) else [alpha] * n_classes

    for candidate in sorted({value for value in rescaled if value > 0}):
        thresholds: list[float] = []
        counts: list[int] = []
        for c in range(n_classes):
            values = sorted(
                p
                for p, y, value in zip(true_label_probability, labels, rescaled, strict=True)
                if int(y) == c and value >= candidate
            )
            counts.append(len(values))
            # A class without points fails the candidate.
            thresholds.append(values[inverse_cdf_index(len(values), alphas[c])] if values else -math.inf)
        if all(map(operator.ge, thresholds, alphas)) and all(count >= min_class_count for count in counts):
            return Region(True, candidate, thresholds, counts)
    return Region(False, math.inf, [math.inf] * n_classes, [0] * n_classes)


def admits(
    min_rescaled_similarity: float, thresholds: Vector, rescaled_similarity: float, prediction: int, confidence: float
) -> bool:
    """Eq. 9: q' >= q'_min and sdm(z')_yhat >= psi_yhat."""
    return bool(rescaled_similarity >= min_rescaled_similarity and confidence >= thresholds[int(prediction)])


# --- Effective sample size, DKW band, lower and upper estimators (appendix A.5) --------------------------------------


def effective_sample_sizes(
    calibration_rescaled_similarity: Vector,
    calibration_labels: Sequence[int],
    rescaled_similarity: float,
    n_classes: int,
) -> list[int]:
    """n_c = #{calibration points of class c with q'_ca < q'} for one point."""
    counts = [0] * n_classes
    for value, y in zip(calibration_rescaled_similarity, calibration_labels, strict=True):
        if float(value) < float(rescaled_similarity):
            counts[int(y)] += 1
    return counts


def dkw_epsilon(effective_sample_sizes: Sequence[int], alpha: float) -> float:
    """sqrt(ln(2/(1 - alpha)) / (2 n_min)), at most 1; 1 where n_min = 0 or alpha = 1."""
    n_min = min(int(n) for n in effective_sample_sizes)
    if n_min == 0 or alpha == 1.0:
        return 1.0
    return min(1.0, math.sqrt(math.log(2.0 / (1.0 - alpha)) / (2.0 * n_min)))


def lower_quantile(distance_quantile: float, epsilon: float) -> float:
    """d_lower = max(d - epsilon, 0)."""
    return max(float(distance_quantile) - float(epsilon), 0.0)


def upper_quantile(distance_quantile: float, epsilon: float) -> float:
    """d_upper = min(d + epsilon, 1)."""
    return min(float(distance_quantile) + float(epsilon), 1.0)


class Answer(NamedTuple):
    """Everything Eqs. 5 to 9 and appendix A.5 say of one point."""

    prediction: int
    distance_quantile: float
    probabilities: list[float]
    confidence: float
    rescaled_similarity: float
    admitted: bool
    effective_sample_sizes: list[int]
    dkw_epsilon: float
    distance_quantile_lower: float
    distance_quantile_upper: float
    probabilities_lower: list[float]
    probabilities_upper: list[float]
    rescaled_similarity_lower: float
    admitted_lower: bool


def answer(
    logits: Vector,
    similarity: int,
    nearest_distance: float,
    distances_by_class: Sequence[Sequence[float]],
    calibration_rescaled_similarity: Vector,
    calibration_labels: Sequence[int],
    region: Region | Any,
    alpha: float,
) -> Answer:
    """One point through Eqs. 5 to 9, and again through the lower estimator: same q'_min and psi, n from q'."""
    z = [float(value) for value in logits]
    prediction = z.index(max(z))
    d = distance_quantile(nearest_distance, distances_by_class)
    probabilities = sdm_activation(z, similarity, d)
    rescaled = rescaled_similarity(similarity, probabilities[prediction])
    sizes = effective_sample_sizes(calibration_rescaled_similarity, calibration_labels, rescaled, len(z))
    epsilon = dkw_epsilon(sizes, alpha)
    lower = sdm_activation(z, similarity, lower_quantile(d, epsilon))
    rescaled_lower = rescaled_similarity(similarity, lower[prediction])

    def in_region(value: float, confidence: float) -> bool:
        return admits(region.min_rescaled_similarity, region.thresholds, value, prediction, confidence)

    return Answer(
        prediction=prediction,
        distance_quantile=d,
        probabilities=probabilities,
        confidence=probabilities[prediction],
        rescaled_similarity=rescaled,
        admitted=in_region(rescaled, probabilities[prediction]),
        effective_sample_sizes=sizes,
        dkw_epsilon=epsilon,
        distance_quantile_lower=lower_quantile(d, epsilon),
        distance_quantile_upper=upper_quantile(d, epsilon),
        probabilities_lower=lower,
        probabilities_upper=sdm_activation(z, similarity, upper_quantile(d, epsilon)),
        rescaled_similarity_lower=rescaled_lower,
        admitted_lower=in_region(rescaled_lower, lower[prediction]),
    )
