"""The exact test of ``certificate``, and a walk: steps are tested on the certification sample until one fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import bdtr, betaincinv

from torchsdm.core import GroupAccuracy, GroupCounts
from torchsdm.validation import Array


@dataclass(frozen=True)
class GroupCheck(GroupAccuracy):
    """One group on the certification sample: its admitted points, and what they say about its accuracy."""

    p_value: float
    """Of "the accuracy is below alpha", randomised."""
    lower_bound: float
    """Clopper and Pearson's bound for the accuracy of this group, at the level that it was tested at: delta, or with
    control of predictions its share. It describes the sample, and may be a little below alpha, because it is not
    randomised; what is promised is alpha."""


class Walk:
    """How far a sequence of steps holds on the certification sample: each has some groups, all of which must pass."""

    def __init__(
        self, steps: Sequence[Any], count: Callable[[Any], GroupCounts], targets: float | Array, u: float, n_errors: int
    ) -> None:
        self.steps, self.targets, self.u = steps, targets, u
        self._count, self._n_errors = count, n_errors
        self.level, self.n_passed = 0.0, 0

    @property
    def is_at_end(self) -> bool:
        """Whether every step holds."""
        return self.n_passed == len(self.steps)

    @property
    def passed(self) -> Sequence[Any]:
        """The steps that hold."""
        return self.steps[: self.n_passed]

    def go_on(self, level: float) -> None:
        """Test step by step at a level, for every group of it at once, until one fails."""
        self.level = level
        while not self.is_at_end and (self.p_values(self.steps[self.n_passed]) <= level).all():
            self.n_passed += 1

    def counts(self, step: Any) -> GroupCounts:
        """The points and errors of each group of a step; those that cannot be tested are errors of every group."""
        counts = self._count(step)
        return GroupCounts(counts.n + self._n_errors, counts.k + self._n_errors)

    def p_values(self, step: Any) -> Array:
        """Of each group of a step."""
        return p_values(self.counts(step), self.targets, self.u)

    def checks(self, step: Any) -> tuple[GroupCheck, ...]:
        """What the sample says about each group of a step."""
        counts = self.counts(step)
        tested = self.p_values(step).tolist(), lower_bounds(counts, self.level).tolist()
        return tuple(
            GroupCheck(kind, number, n, k, p, bound)
            for (kind, number), n, k, p, bound in zip(
                counts.names, counts.n.tolist(), counts.k.tolist(), *tested, strict=True
            )
        )


def share_delta(walks: Sequence[Walk], delta: float) -> None:
    """Walk at equal shares of delta; those that come to the end of their path pass theirs on to those that stopped."""
    stopped = list(walks)
    for walk in walks:
        walk.go_on(delta / len(walks))
    while at_end := [walk for walk in stopped if walk.is_at_end]:
        stopped = [walk for walk in stopped if not walk.is_at_end]
        for walk in stopped:
            walk.go_on(walk.level + sum(done.level for done in at_end) / len(stopped))


def p_values(counts: GroupCounts, alpha: float | Array, u: float = 1.0) -> Array:
    """max(P(X < k) + u P(X = k), alpha^n) with X ~ Binomial(n, 1 - alpha), for each group; 1 without points.

    ``alpha`` may be one for each group. P(X < k) + u P(X = k) = (1 - u) P(X <= k - 1) + u P(X <= k).
    """
    n, k = np.maximum(counts.n, 1), counts.k
    fewer = np.where(k > 0, bdtr(np.maximum(k - 1, 0), n, 1 - alpha), 0.0)
    return np.maximum((1 - u) * fewer + u * bdtr(k, n, 1 - alpha), np.power(alpha, counts.n))


def lower_bounds(counts: GroupCounts, delta: float) -> Array:
    """Clopper and Pearson's lower bound for the accuracy of each group, with confidence 1 - delta."""
    n, k = counts.n.astype(float), counts.k.astype(float)
    upper_error = betaincinv(k + 1, np.maximum(n - k, 1e-9), 1 - delta)  # of k errors among n
    return np.where(counts.n > counts.k, 1 - upper_error, 0.0)
