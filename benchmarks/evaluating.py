"""How the cost of what surrounds matching grows: deciding, certifying, comparing, the report.

Each step is measured with ten times as many inputs, and with ten times as many classes, against the smaller problem;
the support stays as it is. Linear growth is a ratio of 10 in the inputs, and at most 10 in the classes.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measure import Figure, PeakMemory, judged

from torchsdm import Evaluation, LabelledStates, SDMClassifier, write_report
from torchsdm.evaluation import classifier_entrants
from torchsdm.validation import Array

D, M, N_FITTED = 32, 64, 10_000
SMALL, LARGE = 5_000, 50_000  # inputs
FEW, MANY = 10, 100  # classes


def run() -> Iterator[Figure]:
    """The same steps on three problems."""
    warnings.simplefilter("ignore")
    base, inputs, classes = (_costs(n, c) for n, c in ((SMALL, FEW), (LARGE, FEW), (SMALL, MANY)))
    for larger, what in ((inputs, f"{LARGE:,} inputs, {FEW} classes"), (classes, f"{SMALL:,} inputs, {MANY} classes")):
        for step, (seconds, n_bytes) in larger.items():
            note = f"{n_bytes / 1e6:.0f} MB above the data, and {base[step][1] / 1e6:.0f} MB for the smaller problem"
            against = f"CPU time with {SMALL:,} inputs, {FEW} classes"
            yield judged(f"{step}: {what}", against, seconds / base[step][0], 10.0, note=note)


def _costs(n: int, n_classes: int) -> dict[str, tuple[float, float]]:
    """CPU seconds and peak memory above the data of each step."""
    classifier = SDMClassifier(0.9, M, n_rounds=1, max_epochs=4, learning_rate=1e-3, random_state=0)
    classifier.fit(*_states(N_FITTED, n_classes, seed=0))
    fresh = LabelledStates(*_states(n, n_classes, seed=1))
    classifier.decide(fresh.hidden_states[:100])  # read the compiled loops
    costs: dict[str, tuple[float, float]] = {}

    def measured(step: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        with PeakMemory() as memory:
            result = work()
        costs[step] = time.process_time() - start, memory.extra
        return result

    measured("decide", lambda: classifier.decide(fresh.hidden_states))
    measured("certify", classifier.recalibrate)
    entrants = classifier_entrants(classifier)
    compared = measured("evaluate", lambda: _with_tables(Evaluation(entrants, {"fresh": fresh}, 0.9)))
    with tempfile.TemporaryDirectory() as folder:
        measured("report", lambda: write_report(Path(folder) / "report.html", compared, classifier))
    return costs


def _with_tables(evaluation: Evaluation) -> Evaluation:
    evaluation.table.to_markdown(), evaluation.summaries()
    return evaluation


def _states(n: int, n_classes: int, seed: int) -> tuple[Array, Array]:
    centres = 2 * np.random.default_rng(7).normal(size=(n_classes, D))
    labels = np.arange(n) % n_classes
    return (np.random.default_rng(seed).normal(size=(n, D)) + centres[labels]).astype(np.float32), labels
