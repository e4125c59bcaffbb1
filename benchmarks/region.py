"""Algorithm 1 against a sort."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from measure import Figure, compare

from torchsdm import find_high_reliability_region

N = 60_000


def run() -> Iterator[Figure]:
    """The worst case: no candidate holds, so all are tried, and then the largest alpha that would work is searched."""
    rng = np.random.default_rng(0)
    for n_classes in (2, 100):
        q_rescaled = rng.random(N) * 1_000
        probabilities = rng.dirichlet(np.ones(n_classes), N)
        labels = rng.integers(0, n_classes, N)

        def region() -> None:
            found = find_high_reliability_region(q_rescaled, probabilities, labels, alpha=0.95)  # noqa: B023
            assert not found.found

        yield compare(
            f"Algorithm 1, {N:,} points, {n_classes} classes, no region",
            region,
            f"numpy sort of their {N:,} q′",
            lambda: np.sort(q_rescaled),  # noqa: B023
            at_most=50,
            repeats=15,
        )
