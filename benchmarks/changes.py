"""Changes of a saved model: an append to its log against one sync of the same bytes."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
from measure import Figure, compare

from torchsdm import SDMClassifier
from torchsdm.model import Entry, LogWriter

N, M, C = 100, 256, 2
N_BATCHES, BATCH = 300, 16
N_REPLAYED = 2_000


def run() -> Iterator[Figure]:
    """Appends of 100 points × 256, and opening a model with 2,000 appends."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, C, 500)
    states = rng.standard_normal((500, 64), dtype=np.float32) + y[:, None]
    classifier = SDMClassifier(n_filters=M, n_rounds=1, training="sdm", max_epochs=2, random_state=0)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # no region is needed here
        classifier.fit(states, y).save(Path(folder) / "model")
        model = (Path(folder) / "model").resolve()
        rows, numbers = rng.standard_normal((N, M + C + 1), dtype=np.float32), count()
        rows[:, -1] = 0  # nothing resembles the background
        writer = LogWriter(model, "a benchmark")
        writer.lock()

        def append(n: int) -> None:
            number = next(numbers)
            ids = [f"{number}-{i}" for i in range(n)]
            entry = Entry("add", n, {"repeated": "refuse"}, ids, [0] * n, [f"text {one}" for one in ids], rows[:n])
            writer.append([entry], who="a benchmark", why="")

        content = rows.tobytes()
        with open(Path(folder) / "bytes", "wb") as file:

            def sync() -> None:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())

            append(N)
            start = time.perf_counter()
            for _ in range(N_BATCHES):
                append(BATCH)
            per_second = N_BATCHES / (time.perf_counter() - start)
            yield compare(
                f"append {N} points × {M} to a log of changes",
                lambda: append(N),
                "one fsync of the same bytes",
                sync,
                repeats=31,
                note=f"{per_second:,.0f} appends of {BATCH} points a second",
            )
        while next(numbers) < N_REPLAYED:
            append(BATCH)
        writer.close()
        plain = Path(folder) / "plain"
        classifier.save(plain)
        yield compare(
            f"open a model with {N_REPLAYED:,} appends in its log",
            lambda: SDMClassifier.load(model),
            "opening it without any",
            lambda: SDMClassifier.load(plain),
            repeats=3,
        )
