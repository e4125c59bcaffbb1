"""How the cost of what surrounds matching grows: deciding, certifying, comparing, the report.

Each step is measured with more inputs, more classes and a larger support, one at a time, against a small problem.
Growth is linear where the ratio is at most what grew; where it is smaller, something else takes most of the time.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import Figure, PeakMemory, judged

from torchsdm import Evaluation, LabelledStates, SDMClassifier, write_report
from torchsdm.evaluation import classifier_entrants
from torchsdm.validation import Array

D, M, N_FITTED = 32, 256, 20_000


@dataclass(frozen=True)
class Problem:
    """So many inputs of so many classes against so many exemplars."""

    inputs: int = 5_000
    classes: int = 10
    support: int = 10_000

    def __str__(self) -> str:
        return f"{self.inputs:,} inputs, {self.classes:,} classes, {self.support:,} exemplars"


SMALL = Problem()
LARGER = (
    Problem(inputs=50_000),
    Problem(classes=100),
    Problem(classes=1_000),
    Problem(support=100_000),
    Problem(support=1_000_000),
)


def run() -> Iterator[Figure]:
    """The same steps on all problems."""
    warnings.simplefilter("ignore")
    small = _costs(SMALL)
    for problem in LARGER:
        grew = max(mine / its for mine, its in zip(astuple(problem), astuple(SMALL), strict=True))
        for step, (seconds, n_bytes) in _costs(problem).items():
            note = f"{n_bytes / 1e6:.0f} MB above the data, and {small[step][1] / 1e6:.0f} MB for the small problem"
            yield judged(f"{step}: {problem}", f"CPU time with {SMALL}", seconds / small[step][0], grew, note=note)


def _costs(problem: Problem) -> dict[str, tuple[float, float]]:
    """CPU seconds and peak memory above the data of each step."""
    n, n_classes = problem.inputs, problem.classes
    classifier = SDMClassifier(0.9, M, n_rounds=1, max_epochs=4, learning_rate=1e-3, random_state=0)
    classifier.fit(*_states(N_FITTED, n_classes, seed=0))
    n_more = problem.support - len(classifier.support_)
    if n_more > 0:
        classifier.add_exemplars(*_states(n_more, n_classes, seed=2))
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
