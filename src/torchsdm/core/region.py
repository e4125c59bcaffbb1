"""Algorithm 1: the high-reliability region, and the selection rule (Eq. 9).

For a candidate t, the smallest rescaled similarity admitted, let n_c count the calibration points of class c with
q' >= t and b_c those whose probability of the true class is below alpha. The threshold psi_c is the element at index
k(n_c) = min(floor((1 - alpha) n_c), n_c - 1) of the sorted probabilities, so

    psi_c >= alpha   if and only if   b_c <= k(n_c).

Each class may have an alpha of its own, which takes the place of alpha for that class: a ``Target`` is a float, or a
tuple with a number for every class. Where a single number must stand for the tuple it is the smallest, which all
classes are held to.

Two counts per class replace the eCDFs, and both change only at the class's own points. One sort and one pass over the
points (``best_candidates``) therefore find the first candidate at which every class holds: O(n log n), for any number
of classes.

The region is an estimate, no guarantee. Only true classes are checked, never predictions. The calibration set is
reused: the epoch and the round were chosen on it, the eCDFs were fitted on it, and nothing corrects for the search. And
psi is anti-conservative (``threshold_index``). A promise takes ``torchsdm.trust.certify``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from torchsdm.arithmetic import call, has_loops
from torchsdm.errors import InvalidInputError, NoRegionWarning, RegionWarning, Remedy
from torchsdm.labels import by_class
from torchsdm.validation import (
    Array,
    ArrayLike,
    as_tensor,
    check_alpha,
    check_alphas,
    check_positive,
    check_range,
)
from torchsdm.wording import described

Target: TypeAlias = "float | tuple[float, ...]"


def check_target(alpha: Any, n_classes: int, caller: str) -> Target:
    """One alpha, or a sequence with one for each class; equal ones are one."""
    if np.ndim(alpha) == 0:
        return check_alpha(alpha, caller)
    values = tuple(check_alpha(one, caller) for one in alpha)
    if len(values) != n_classes:
        raise InvalidInputError(
            f"'alpha' of {caller} must be one number or one per class, {n_classes}. Got {len(values)}."
        )
    return values if len(set(values)) > 1 else values[0]


def check_targets(alpha: Any, classes: Array, caller: str) -> tuple[Target, ...]:
    """The targets that an estimator's ``alpha`` stands for: one alpha, several, or a mapping of classes to alphas.

    Examples
    --------
    >>> check_targets({"spam": 0.99, "ham": 0.9}, np.array(["ham", "spam"]), "fit")
    ((0.9, 0.99),)
    >>> check_targets([0.9, 0.95], np.array(["ham", "spam"]), "fit")
    (0.9, 0.95)
    """
    if not isinstance(alpha, Mapping):
        return check_alphas(alpha, caller)
    return (check_target(by_class(alpha, classes, "alpha", caller), len(classes), caller),)


def check_alpha_setting(alpha: Any, caller: str) -> None:
    """What can be checked of an estimator's ``alpha`` before its classes are known."""
    if isinstance(alpha, Mapping):
        for value in alpha.values():
            if np.ndim(value):
                raise InvalidInputError(
                    f"'alpha' of {caller} must be several numbers or one for each class, not both. Got {value!r} for "
                    "a class."
                )
        check_alphas(list(alpha.values()), caller)
        return
    check_alphas(alpha, caller)


def check_control(target: Target, control: str, caller: str) -> None:
    """Refuse a target for each class where classes are taken together."""
    if isinstance(target, tuple) and control in ("pooled", "all"):
        together = "all answers" if control == "all" else "classes with few points"
        raise InvalidInputError(
            f"'alpha' of {caller} must be one number with control {control!r}, which takes {together} together. Got "
            "one for each class; ask for control 'groups' or 'predictions', or for one alpha."
        )


def by_number(target: Target, n_classes: int) -> Array:
    """The target of each class (C,)."""
    return np.broadcast_to(np.asarray(target, dtype=np.float64), (n_classes,))


def target_of(target: Target, class_number: int | None) -> float:
    """The target of one class; None stands for all of them together."""
    return target[class_number] if isinstance(target, tuple) and class_number is not None else smallest(target)


def smallest(target: Target) -> float:
    """The number that stands for a target."""
    return min(target) if isinstance(target, tuple) else target


def largest(target: Target) -> float:
    """The most that is asked of any class."""
    return max(target) if isinstance(target, tuple) else target


def capped(target: Target, cap: float) -> Target:
    """The same with no class above a cap.

    Examples
    --------
    >>> capped((0.9, 0.99), 0.95), capped(0.99, 0.95)
    ((0.9, 0.95), 0.95)
    """
    return tuple(min(one, cap) for one in target) if isinstance(target, tuple) else min(target, cap)


_ALPHA_STEPS = 20  # bisections of [0.5, 1] in the search for the largest alpha: to 5e-7


@dataclass(frozen=True)
class HighReliabilityRegion:
    """Where Algorithm 1 estimates, on the calibration set, that each class reaches alpha."""

    alpha: float
    """The target; the smallest, if classes have different ones."""
    min_rescaled_similarity: float
    """q'_min; infinite if no region was found."""
    thresholds: Tensor
    """psi (C,), float64; infinite if no region was found."""
    class_counts: Tensor
    """Calibration points of each class behind the region (C,), int64; zeros if none was found."""
    failed_classes: tuple[int, ...] = ()
    """If no region was found: the classes below alpha at the candidate that reaches the largest alpha."""
    largest_alpha: float | None = None
    """If no region was found: the largest alpha that has one, or None if no alpha above 0.5 has. With targets that
    differ, the largest number that they could be limited to."""
    largest_alpha_counts: tuple[int, ...] = ()
    """Calibration points of each class behind the region of ``largest_alpha``; few make it worthless."""
    class_alphas: tuple[float, ...] = ()
    """The target of each class (C,), if they differ."""

    @property
    def target(self) -> Target:
        """What is asked: alpha, or the alpha of each class."""
        return self.class_alphas or self.alpha

    @property
    def found(self) -> bool:
        """Whether there is a region; without one everything is rejected."""
        return math.isfinite(self.min_rescaled_similarity)

    @property
    def scarce_classes(self) -> tuple[int, ...]:
        """Classes with fewer than 1 / (1 - alpha) points in the region: their threshold is just the minimum.

        More points do not make a region safe; see ``threshold_index``.
        """
        if not self.found:
            return ()
        targets = torch.tensor(by_number(self.target, len(self.class_counts)))
        return tuple(torch.nonzero(self.class_counts * (1 - targets) < 1 - 1e-9).squeeze(1).tolist())

    def admits(self, rescaled_similarity: ArrayLike, predictions: ArrayLike, confidence: ArrayLike) -> Tensor:
        """Selection rule (Eq. 9): admitted (N,) where ``q' >= q'_min and sdm(z')_yhat >= psi_yhat``."""
        caller = "HighReliabilityRegion.admits"
        q_rescaled = as_tensor(rescaled_similarity, "rescaled_similarity", caller).double()
        y_hat = as_tensor(predictions, "predictions", caller, kind="integer", like=q_rescaled)
        p = as_tensor(confidence, "confidence", caller, like=q_rescaled).double()
        return (q_rescaled >= self.min_rescaled_similarity) & (p >= self.thresholds.to(p.device)[y_hat])

    def explain(self, class_names: Sequence[Any] | None = None) -> str | None:
        """What a user should know before relying on the region, or None if there is nothing to say."""
        warning = self.warning(class_names)
        return None if warning is None else str(warning)

    def warning(self, class_names: Sequence[Any] | None = None, *, certified: bool = False) -> RegionWarning | None:
        """The same as a warning, with the remedy as a value; ``certified`` if a certificate admits as well."""

        def named(classes: Sequence[int]) -> str:
            return ", ".join(repr(c if class_names is None else class_names[c]) for c in classes)

        asked = described(self.target, class_names)
        if not self.found:
            classes = f" Class {named(self.failed_classes)} stays below alpha." if self.failed_classes else ""
            so = "no answer is trusted, but the certificate admits" if certified else "everything is rejected"
            text = f"No high-reliability region at alpha={asked}; {so}.{classes}"
            if self.largest_alpha is None:
                return NoRegionWarning(
                    f"{text} No alpha above 0.5 has a region either: the model is too weak or there is too little data."
                )
            reached = math.floor(self.largest_alpha * 1e4 + 1e-9) / 1e4
            if reached <= 0.5:
                reached = math.floor(self.largest_alpha * 1e7) / 1e7
            counts = ", ".join(str(count) for count in self.largest_alpha_counts)
            reaching = f"The largest alpha that has one is {reached:.7g}"
            if self.class_alphas:
                reaching = f"With no target above {reached:.7g} there would be one"
            text += f" {reaching}, based on {counts} points by class"
            if reached <= 0.5:
                return NoRegionWarning(f"{text}; it is barely above 0.5.")
            return NoRegionWarning(f"{text}.", remedy=Remedy.LOWER_ALPHA)
        if self.scarce_classes and self.alpha == 1.0:
            return RegionWarning(
                "At alpha=1 every threshold is just the minimum of the calibration points, however many there are: a "
                "new point may well be below it."
            )
        if self.scarce_classes:
            counts = ", ".join(str(int(self.class_counts[c])) for c in self.scarce_classes)
            most = max(target_of(self.target, c) for c in self.scarce_classes)
            fewer = "any number" if most == 1 else math.ceil(1 / (1 - most) - 1e-9)
            return RegionWarning(
                f"The region at alpha={asked} is based on few calibration points of class "
                f"{named(self.scarce_classes)} ({counts}, fewer than {fewer}): the threshold is just their minimum.",
                remedy=Remedy.MORE_CALIBRATION,
            )
        return None


def find_high_reliability_region(
    rescaled_similarity: ArrayLike,
    probabilities: ArrayLike,
    labels: ArrayLike,
    alpha: float | Sequence[float],
    min_class_count: int = 0,
) -> HighReliabilityRegion:
    """Algorithm 1 over the calibration set.

    Parameters
    ----------
    rescaled_similarity : (N,)
        q' of the calibration points.
    probabilities : (N, C)
        sdm(z') of the calibration points; thresholds are taken from the probability of the *true* class.
    labels : (N,)
        True classes.
    alpha : float or (C,)
        Target accuracy in (0.5, 1], or one for each class.
    min_class_count : int
        Candidates with fewer points of some class fail. 0, as in the paper: Algorithm 1 accepts one point.
    """
    caller = "find_high_reliability_region"
    check_positive(min_class_count, "min_class_count", caller, integer=True, zero=True)
    p = as_tensor(probabilities, "probabilities", caller, kind="real", shape=(None, None)).detach().double()
    n, n_classes = p.shape
    target = check_target(alpha, n_classes, caller)
    q_rescaled = as_tensor(rescaled_similarity, "rescaled_similarity", caller, shape=(n,), like=p).detach().double()
    y = as_tensor(labels, "labels", caller, kind="integer", shape=(n,), like=p)
    check_range(y, 0, n_classes - 1, "labels", caller)
    if bool(torch.isnan(p.sum())) or bool(torch.isnan(q_rescaled.sum())):  # a sum with NaN in it is NaN
        raise InvalidInputError(f"'probabilities' and 'rescaled_similarity' of {caller} must not contain NaN.")

    points = _SortedPoints.of(q_rescaled, p.gather(1, y.unsqueeze(1)).squeeze(1), y, n_classes)
    holds, fewest_failing = points.best_candidates(target, min_class_count)
    if not holds:
        return _no_region(points, target, min_class_count, fewest_failing)
    return points.region(holds, target)


@dataclass(frozen=True)
class _SortedPoints:
    """Calibration points with q' > 0, in descending order of q': a candidate's points are a prefix."""

    rescaled_similarity: Array  # (n,)
    truth: Array  # (n,) probability of the true class
    labels: Array  # (n,)
    n_classes: int

    @classmethod
    def of(cls, q_rescaled: Tensor, truth: Tensor, labels: Tensor, n_classes: int) -> _SortedPoints:
        q, p, y = (tensor.cpu().numpy() for tensor in (q_rescaled, truth, labels))
        order = np.argsort(-q)
        order = order[: np.count_nonzero(q > 0)]
        return cls(q[order], p[order], y[order], n_classes)

    def best_candidates(self, target: Target, min_class_count: int) -> tuple[int, int]:
        """Sizes of the smallest candidate at which no class fails (0 if none), and of the one where fewest fail."""
        alphas = by_number(target, self.n_classes)
        return best_candidates(self.rescaled_similarity, self.truth, self.labels, alphas, min_class_count)

    def region(self, n: int, target: Target) -> HighReliabilityRegion:
        """The region of the candidate with n points; with none, that of no candidate."""
        thresholds = torch.full((self.n_classes,), torch.inf, dtype=torch.float64)
        counts = self.class_counts(n)
        by_class = self.truth[:n][np.argsort(self.labels[:n], kind="stable")]
        for c, values in enumerate(np.split(by_class, counts.cumsum()[:-1])):
            if len(values):
                index = threshold_index(len(values), target_of(target, c))
                thresholds[c] = np.partition(values, index)[index]
        lowest = float(self.rescaled_similarity[n - 1]) if n else math.inf
        class_alphas = target if isinstance(target, tuple) else ()
        found = (smallest(target), lowest, thresholds, torch.from_numpy(counts))
        return HighReliabilityRegion(*found, class_alphas=class_alphas)

    def class_counts(self, n: int) -> Array:
        """How many of the first n points each class has (C,)."""
        return np.bincount(self.labels[:n], minlength=self.n_classes).astype(np.int64)


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
        now_fails = (n_low[c] > threshold_index(n_points[c], alphas[c])) | (n_points[c] < min_class_count)
        n_failing += int(now_fails) - int(fails[c])
        fails[c] = now_fails
        is_whole = i + 1 == len(labels) or rescaled_similarity[i + 1] < rescaled_similarity[i]
        if is_whole and n_failing <= fewest:
            fewest, best = n_failing, i + 1
            if n_failing == 0:
                holds = i + 1
    return holds, best


def threshold_index(n: int, alpha: float) -> int:
    """Index of psi among n sorted values: floor((1 - alpha) n), counted from 0, at most the last.

    The author's rule, and anti-conservative: a new value, exchangeable with the n, reaches psi with probability
    1 - (floor((1 - alpha) n) + 1) / (n + 1), below alpha for nearly every n: 0.905 for alpha = 0.95 and n = 20.
    (1 - alpha) n is rounded to 1e-9 first, so that alpha = 0.9 with n = 10 takes element 1.
    """
    return min(int((1 - alpha) * n + 0.5e-9), n - 1)


def _no_region(
    points: _SortedPoints, target: Target, min_class_count: int, fewest_failing: int
) -> HighReliabilityRegion:
    """Say which classes fail and which alpha would have been reached.

    A candidate that holds for one alpha holds for every smaller one, so bisection finds the largest; with a target for
    each class, the largest number that all of them could be limited to.
    """
    nothing = points.region(0, target)
    if not fewest_failing:  # no point with q' > 0
        return replace(nothing, failed_classes=tuple(range(points.n_classes)))
    low, high, reached = 0.5, largest(target), 0
    for _ in range(_ALPHA_STEPS):
        middle = (low + high) / 2
        holds, _ = points.best_candidates(capped(target, middle), min_class_count)
        low, high, reached = (middle, high, holds) if holds else (low, middle, reached)
    tidy = round(high, 6)  # the largest alpha is often a round number that bisection only approaches
    if low < tidy < largest(target) and (holds := points.best_candidates(capped(target, tidy), min_class_count)[0]):
        low, reached = tidy, holds
    nearest = points.region(reached or fewest_failing, target)
    asked = torch.tensor(by_number(target, points.n_classes))
    below = (nearest.thresholds < asked) | (nearest.class_counts < max(1, min_class_count))
    failed = tuple(torch.nonzero(below).squeeze(1).tolist())
    if not reached:
        return replace(nothing, failed_classes=failed)
    counts = tuple(points.class_counts(reached).tolist())
    return replace(nothing, failed_classes=failed, largest_alpha=low, largest_alpha_counts=counts)
