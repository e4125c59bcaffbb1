"""Loading a large model and answering one query, against reading its largest file once."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measure import Figure, compare

from torchsdm import SDMClassifier

N, D, M = 100_000, 64, 1_000


def run() -> Iterator[Figure]:
    """A support of 100,000 × 1,000."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, N)
    states = rng.standard_normal((N, D), dtype=np.float32) + labels[:, None] * 0.5
    classifier = SDMClassifier(n_filters=M, n_rounds=1, training="sdm", max_epochs=2, random_state=0)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as directory:
        warnings.simplefilter("ignore")  # no region is needed here
        classifier.fit(states[:1_000], labels[:1_000]).add_exemplars(states[1_000:], labels[1_000:])
        classifier.save(directory)
        os.sync()  # otherwise write-back would slow the first reads
        largest = max(Path(directory).iterdir(), key=lambda path: path.stat().st_size)
        yield compare(
            f"load a model with {N:,} × {M:,} support, decide on one input",
            lambda: SDMClassifier.load(directory).decide(states[:1]),
            f"reading its file of {largest.stat().st_size / 1e6:.0f} MB once",
            largest.read_bytes,
            at_most=1.5,
        )
        yield compare(
            "the same with verify=True (SHA-256 of every file)",
            lambda: SDMClassifier.load(directory, verify=True).decide(states[:1]),
            "reading its file once",
            largest.read_bytes,
            repeats=3,
        )
