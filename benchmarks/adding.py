"""Adding 100 exemplars to a saved model, against one fsync of their bytes: the cost of what is added alone."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from measure import Figure, compare, judged, seconds
from problems import clouds, support_of

from torchsdm import SDMClassifier
from torchsdm.model import Examples

SUPPORTS = (10_000, 100_000, 1_000_000)
ADDED, M = 100, 256
FOLDER = Path(__file__).resolve().parents[1] / "build"  # on a disk: in a system's temporary folder fsync may be free


def run() -> Iterator[Figure]:
    """Supports of three sizes; the largest also against the smallest, and its first update after loading."""
    rng = np.random.default_rng(0)
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as directory, open(Path(directory) / "appended", "ab") as file:
        rows = rng.bytes(ADDED * M * 4)

        def fsync() -> None:
            file.write(rows)
            file.flush()
            os.fsync(file.fileno())

        def add(classifier: SDMClassifier) -> None:
            classifier.add_exemplars(rng.standard_normal((ADDED, M), dtype=np.float32), [0, 1] * (ADDED // 2))

        models = {}
        for n in SUPPORTS:
            path = Path(directory) / str(n)
            models[n] = _saved_and_loaded(n, path)
            first = seconds(lambda n=n: add(models[n]))
            yield compare(
                f"add {ADDED} exemplars to {n:,} × {M}",
                lambda n=n: add(models[n]),
                "one fsync of their bytes",
                fsync,
                at_most=20 if n == SUPPORTS[-1] else None,
                repeats=21,
            )
        largest = max(path.iterdir(), key=lambda one: one.stat().st_size)
        once = seconds(largest.read_bytes)
        work = f"the first time after loading {n:,} × {M}, with an index of all exemplars"
        yield judged(work, "reading their file once", first / once, work_seconds=first, yardstick_seconds=once)
        yield compare(
            f"add {ADDED} exemplars to {SUPPORTS[-1]:,} × {M}",
            lambda: add(models[SUPPORTS[-1]]),
            f"the same to {SUPPORTS[0]:,} × {M}",
            lambda: add(models[SUPPORTS[0]]),
            repeats=21,
        )


def _saved_and_loaded(n: int, path: Path) -> SDMClassifier:
    """A model whose support has n exemplars, from its files."""
    points, labels = clouds(n, M)
    classifier = SDMClassifier(adaptor="identity", n_rounds=1, training="sdm", max_epochs=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no region is needed here
        classifier.fit(points[:1_000], labels[:1_000], ids=[f"first {i}" for i in range(1_000)])
    classifier.models_ = (
        replace(classifier.model_, support=support_of(points, labels), examples=Examples.of(range(n))),
    )
    classifier.save(path)
    return SDMClassifier.load(path)
