"""How the cost of what surrounds matching grows: deciding, certifying, comparing, the report, the label audit.

Each step is measured with more inputs, more classes and a larger support, one at a time, against a small problem.
Growth is linear where the ratio is at most what grew; where it is smaller, something else takes most of the time.
An audit has no support: each input is compared with all others, so what grows is the number of pairs.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from measure import Figure, PeakMemory, judged

from torchsdm import Evaluation, LabelledStates, SDMClassifier, audit_labels, write_report
from torchsdm.evaluation import classifier_entrants
from torchsdm.validation import Array

D, M, N_FITTED = 32, 256, 20_000


@dataclass(frozen=True)
class Problem:
    """So many inputs of so many classes against so many exemplars, or against each other."""

    inputs: int = 5_000
    classes: int = 10
    support: int = 10_000

    def __str__(self) -> str:
        exemplars = f", {self.support:,} exemplars" if self.support else ""
        return f"{self.inputs:,} inputs, {self.classes:,} classes{exemplars}"


SMALL = Problem()
LARGER = (
    Problem(inputs=50_000),
    Problem(classes=100),
    Problem(classes=1_000),
    Problem(support=100_000),
    Problem(support=1_000_000),
)
SMALL_AUDIT = Problem(inputs=10_000, support=0)  # 10 inputs of each of 1,000 classes, as many as five folds need
LARGER_AUDITS = tuple(
    replace(SMALL_AUDIT, **grown) for grown in ({"inputs": 100_000}, {"classes": 100}, {"classes": 1_000})
)


def run() -> Iterator[Figure]:
    """The same steps on all problems."""
    warnings.simplefilter("ignore")
    small = _costs(SMALL)
    for problem in LARGER:
        grew = max(mine / its for mine, its in zip(astuple(problem), astuple(SMALL), strict=True))
        yield from _figures(problem, _costs(problem), SMALL, small, grew)
    audit_labels(
        *_states(SMALL_AUDIT.inputs, SMALL_AUDIT.classes, seed=1), certification_size=None
    )  # read the compiled loops
    small = _audit_costs(SMALL_AUDIT)
    for problem in LARGER_AUDITS:
        n_pairs = (problem.inputs / SMALL_AUDIT.inputs) ** 2
        grew = max(n_pairs, problem.classes / SMALL_AUDIT.classes)
        yield from _figures(problem, _audit_costs(problem), SMALL_AUDIT, small, grew)


Costs = dict[str, tuple[float, float]]  # CPU seconds and peak memory above the data of each step


def _figures(problem: Problem, costs: Costs, yardstick: Problem, small: Costs, grew: float) -> Iterator[Figure]:
    for step, (seconds, n_bytes) in costs.items():
        note = f"{n_bytes / 1e6:.0f} MB above the data, and {small[step][1] / 1e6:.0f} MB for the small problem"
        yield judged(f"{step}: {problem}", f"CPU time with {yardstick}", seconds / small[step][0], grew, note=note)


def _costs(problem: Problem) -> Costs:
    n, n_classes = problem.inputs, problem.classes
    classifier = SDMClassifier(0.9, M, n_rounds=1, training="sdm", max_epochs=4, learning_rate=1e-3, random_state=0)
    classifier.fit(*_states(N_FITTED, n_classes, seed=0))
    n_more = problem.support - len(classifier.support_)
    if n_more > 0:
        classifier.add_exemplars(*_states(n_more, n_classes, seed=2))
    fresh = LabelledStates(*_states(n, n_classes, seed=1))
    classifier.decide(fresh.hidden_states[:100])  # read the compiled loops
    costs: Costs = {}
    _measured(costs, "decide", lambda: classifier.decide(fresh.hidden_states))
    _measured(costs, "certify", classifier.recalibrate)
    entrants = classifier_entrants(classifier)
    compared = _measured(costs, "evaluate", lambda: _with_tables(Evaluation(entrants, {"fresh": fresh}, 0.9)))
    with tempfile.TemporaryDirectory() as folder:
        _measured(costs, "report", lambda: write_report(Path(folder) / "report.html", compared, classifier))
    return costs


def _audit_costs(problem: Problem) -> Costs:
    costs: Costs = {}
    states = _states(problem.inputs, problem.classes, seed=1)
    _measured(costs, "audit", lambda: audit_labels(*states, certification_size=None))
    return costs


def _measured(costs: Costs, step: str, work: Callable[[], Any]) -> Any:
    start = time.process_time()
    with PeakMemory() as memory:
        result = work()
    costs[step] = time.process_time() - start, memory.extra
    return result


def _with_tables(evaluation: Evaluation) -> Evaluation:
    evaluation.table.to_markdown(), evaluation.summaries()
    return evaluation


def _states(n: int, n_classes: int, seed: int) -> tuple[Array, Array]:
    centres = 2 * np.random.default_rng(7).normal(size=(n_classes, D))
    labels = np.arange(n) % n_classes
    return (np.random.default_rng(seed).normal(size=(n, D)) + centres[labels]).astype(np.float32), labels
