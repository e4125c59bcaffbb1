"""Peak memory of a fit beyond the data itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
from measure import Figure, PeakMemory, judged

from torchsdm import SDMClassifier

N, D, M = 60_000, 768, 256


def run() -> Iterator[Figure]:
    """60,000 training and 60,000 calibration points."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 2 * N)
    states = rng.standard_normal((2 * N, D), dtype=np.float32)
    states[:, :32] += labels[:, None]
    classifier = SDMClassifier(n_filters=M, n_rounds=1, training="sdm", max_epochs=2, batch_size=50, random_state=0)
    with warnings.catch_warnings(), PeakMemory() as memory:
        warnings.simplefilter("ignore")
        classifier.fit(states, labels)
    yield judged(
        f"fit at {N:,} + {N:,} points, D = {D}, M = {M}: peak memory above the data", "GB", memory.extra / 1e9, 2.0
    )
