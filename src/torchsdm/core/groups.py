"""Groups: the points of one true class, or of one prediction. A problem of C classes has 2C of them.

Classes with few points may share a group (``torchsdm.trust``): the points whose true class, or whose prediction,
is any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from torchsdm.errors import InvalidInputError
from torchsdm.validation import Array
from torchsdm.wording import group_name


@dataclass(frozen=True)
class GroupAccuracy:
    """The admitted points of one group, and how many of them are wrong."""

    kind: str
    """'class', 'prediction' or 'all'."""
    class_number: int | None
    n_admitted: int
    n_errors: int
    classes: tuple[int, ...] = field(default=(), kw_only=True)
    """The classes that share the group, where several do; ``class_number`` is None then."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The classes of the group; none of all together."""
        return self.classes or (() if self.class_number is None else (self.class_number,))

    @property
    def accuracy(self) -> float | None:
        """Share of the admitted points that are right; None without any."""
        return None if self.n_admitted == 0 else 1 - self.n_errors / self.n_admitted

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval for the accuracy; None without admitted points."""
        return wilson_interval(self.n_admitted - self.n_errors, self.n_admitted) if self.n_admitted else None

    def name(self, class_names: Sequence[Any] | None = None) -> str:
        """As in "class 'positive'"."""
        return group_name(self.kind, self.numbers if class_names is None else [class_names[c] for c in self.numbers])

    def described(self, class_names: Sequence[Any] | None = None) -> str:
        """Name, accuracy, interval and count, in words."""
        if self.accuracy is None or self.interval is None:
            return f"{self.name(class_names)}: none admitted"
        low, high = self.interval
        right = f"{self.n_admitted - self.n_errors} of {self.n_admitted} right"
        return f"{self.name(class_names)}: {right} ({self.accuracy:.3f}, 95 % interval {low:.3f} to {high:.3f})"


@dataclass(frozen=True)
class GroupCounts:
    """Admitted points n and errors k among them: of each true class, then of each prediction; or of all together."""

    n: Array
    k: Array

    @classmethod
    def of(cls, labels: Array, predictions: Array, admitted: Array, n_classes: int) -> GroupCounts:
        """Count by true class and by prediction (2C,)."""
        return cls(
            *(
                np.concatenate([np.bincount(values[chosen], minlength=n_classes) for values in (labels, predictions)])
                for chosen in (admitted, admitted & (labels != predictions))
            )
        )

    @classmethod
    def of_all(cls, labels: Array, predictions: Array, admitted: Array) -> GroupCounts:
        """Count all together (1,)."""
        return cls(np.array([admitted.sum()]), np.array([(admitted & (labels != predictions)).sum()]))

    def pooled(self, pools: Array) -> GroupCounts:
        """Counts by class and by prediction (2C,) added up within pools (2P,); ``pools`` (C,) numbers that of each."""
        of_group = np.concatenate([pools, pools + pools.max() + 1])
        n, k = (np.bincount(of_group, weights=values).astype(np.int64) for values in (self.n, self.k))
        return GroupCounts(n, k)

    def __getitem__(self, groups: Array) -> GroupCounts:
        return GroupCounts(self.n[groups], self.k[groups])

    def __add__(self, other: GroupCounts) -> GroupCounts:
        return GroupCounts(self.n + other.n, self.k + other.k)

    def __sub__(self, other: GroupCounts) -> GroupCounts:
        return GroupCounts(self.n - other.n, self.k - other.k)

    @property
    def names(self) -> list[tuple[str, int | None]]:
        """Kind and class number of each group."""
        if len(self.n) == 1:
            return [("all", None)]
        return [(kind, c) for kind in ("class", "prediction") for c in range(len(self.n) // 2)]

    def accuracies(self) -> tuple[GroupAccuracy, ...]:
        """One ``GroupAccuracy`` per group."""
        rows = zip(self.names, self.n.tolist(), self.k.tolist(), strict=True)
        return tuple(GroupAccuracy(kind, number, n, k) for (kind, number), n, k in rows)


def wilson_interval(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a share: (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n)."""
    if not 0 <= successes <= n or n <= 0:
        raise InvalidInputError(f"'successes' of wilson_interval must be in 0..n with n > 0. Got {successes} of {n}.")
    if not 0 < level < 1:
        raise InvalidInputError(f"'level' of wilson_interval must be in (0, 1). Got {level!r}.")
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = successes / n
    centre = p + z * z / (2 * n)
    half = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, float((centre - half) / scale)), min(1.0, float((centre + half) / scale))
