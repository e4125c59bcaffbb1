"""Algorithm 1's pass over the candidates: compiled, and the same in Python."""

from __future__ import annotations

import numpy as np

from torchsdm.arithmetic import call, has_loops
from torchsdm.validation import Array


def best_candidates(
    rescaled_similarity: Array, truth: Array, labels: Array, alphas: Array, min_class_count: int
) -> tuple[int, int]:
    """Sizes of two candidates: the smallest q' at which every class holds (0 if none), and the one where fewest fail.

    The points are in descending order of q', so a candidate's points are a prefix. Each further point changes only the
    two counts of its own class. ``alphas`` (C,) are the targets of the classes.
    """
    if not has_loops():
        return best_candidates_plain(rescaled_similarity, truth, labels, alphas, min_class_count)
    sizes = np.empty(2, dtype=np.int64)
    values = (np.ascontiguousarray(one, dtype=np.float64) for one in (rescaled_similarity, truth))
    classes, targets = np.ascontiguousarray(labels, dtype=np.int64), np.ascontiguousarray(alphas, dtype=np.float64)
    call("best_candidates", *values, classes, len(classes), targets, len(targets), int(min_class_count), sizes)
    return int(sizes[0]), int(sizes[1])


def best_candidates_plain(
    rescaled_similarity: Array, truth: Array, labels: Array, alphas: Array, min_class_count: int
) -> tuple[int, int]:
    """The same in Python."""
    n_classes = len(alphas)
    n_points = np.zeros(n_classes, dtype=np.int64)
    n_low = np.zeros(n_classes, dtype=np.int64)
    fails = np.ones(n_classes, dtype=np.bool_)  # a class without points fails
    n_failing, fewest = n_classes, n_classes + 1
    holds, best = 0, 0
    for i in range(len(labels)):
        c = labels[i]
        n_points[c] += 1
        n_low[c] += truth[i] < alphas[c]
        now_fails = (n_low[c] > _threshold_index(n_points[c], alphas[c])) | (n_points[c] < min_class_count)
        n_failing += int(now_fails) - int(fails[c])
        fails[c] = now_fails
        is_whole = i + 1 == len(labels) or rescaled_similarity[i + 1] < rescaled_similarity[i]
        if is_whole and n_failing <= fewest:
            fewest, best = n_failing, i + 1
            if n_failing == 0:
                holds = i + 1
    return holds, best


def _threshold_index(n: int, alpha: float) -> int:
    """Index of psi among n sorted values; ``region.threshold_index`` says which."""
    return min(int((1 - alpha) * n + 0.5e-9), n - 1)
