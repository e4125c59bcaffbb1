"""The paper's claims, tested one by one: held or not held, with the numbers either way.

A claim is judged by the measured accuracies, and then put into words. A figure based on few inputs may miss alpha by
chance, so each comes with its 95 % interval, and the evidence says when alpha is inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from torchsdm.evaluation import Entrant, Evaluation, ResultRow, Rule, is_moved, strata
from torchsdm.validation import Array

ADAPTOR_GROUPS = ("cnn", "vbll", "sdm")  #: estimators with a trained part
_FALLING = (Rule.SOFTMAX, Rule.TEMPERATURE, Rule.APS, Rule.RAPS, Rule.VBLL)  # claimed to fall below alpha
_FEWEST_ROUNDS = 4  # that can show a trend
_ENUMERATED = 6  # up to this many points, all orders are counted
_LISTED = 8  # up to this many rows that hold, each has a line of evidence
_MOST_DIGITS = 6


#: The outcome of a claim, in words.
VERDICTS = {True: "held", False: "not held", None: "not evaluated"}


@dataclass(frozen=True)
class Claim:
    """A claim and its outcome."""

    key: str
    statement: str
    held: bool | None
    """None if the claim could not be evaluated."""
    evidence: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """In words."""
        return VERDICTS[self.held]


def paper_claims(
    evaluation: Evaluation, roles: Mapping[str, str], rounds: Sequence[tuple[str, float, float]]
) -> list[Claim]:
    """The paper's claims (a) to (e) on an evaluation.

    Parameters
    ----------
    evaluation : Evaluation
        Of entrants with ``group`` and ``key``, such as those of ``paper_entrants``.
    roles : mapping
        The role of each data set.
    rounds : sequence of (name, accuracy, q'_min)
        Accuracy over the calibration set and the region's q'_min of each round.
    """
    return [
        in_distribution_accurate(evaluation, roles),
        shifted_region_accurate(evaluation, roles),
        shifted_others_fall(evaluation, roles),
        shuffled_rejected(evaluation, roles),
        similarity_rises(rounds),
        argmax_unchanged(evaluation),
    ]


def in_distribution_accurate(evaluation: Evaluation, roles: Mapping[str, str]) -> Claim:
    """Claim (a)."""
    statement = "In distribution, every estimator over an adaptor is at or above α for every class and prediction."
    rows = _rows(
        evaluation,
        roles,
        "in distribution",
        lambda entrant: entrant.group in ADAPTOR_GROUPS and entrant.key.rule is not Rule.NO_REJECT,
    )
    return all_hold("a", statement, rows, _why_not(roles, "in distribution"))


def shifted_region_accurate(evaluation: Evaluation, roles: Mapping[str, str]) -> Claim:
    """Claim (b), first part."""
    statement = f"On shifted data, {Rule.REGION} is at or above α for every class and prediction, or rejects all."
    rows = _rows(evaluation, roles, "shifted", lambda entrant: entrant.key.rule is Rule.REGION)
    return all_hold("b", statement, rows, _why_not(roles, "shifted"))


def shifted_others_fall(evaluation: Evaluation, roles: Mapping[str, str]) -> Claim:
    """Claim (b), second part."""
    statement = "On shifted data, softmax, temperature, APS, RAPS and VBLL fall below α for some class or prediction."
    rows = _rows(evaluation, roles, "shifted", lambda entrant: entrant.key.rule in _FALLING)
    if not rows:
        return Claim("b′", statement, None, (_why_not(roles, "shifted"),))
    holding = [row for row in rows if row.accuracy.holds(row.alpha)]
    compared = {row.key.rule for row in rows}
    absent = [str(rule) for rule in _FALLING if rule not in compared]
    evidence = [f"{len(rows) - len(holding)} of {len(rows)} fall below"]
    evidence += [f"not compared: {', '.join(absent)}"] if absent else []
    evidence += [f"{_name(row)} does not: {_selection(row)}" for row in holding]
    evidence += [f"{_name(row)}: {_selection(row)}; {_worst(row)}" for row in rows if row not in holding]
    return Claim("b′", statement, not holding, tuple(evidence))


def shuffled_rejected(evaluation: Evaluation, roles: Mapping[str, str]) -> Claim:
    """Claim (c)."""
    share = 1 - evaluation.alpha + 1e-12
    statement = f"{Rule.REGION} admits at most 1 − α of inputs with shuffled words."
    rows = _rows(evaluation, roles, "shuffled", lambda entrant: entrant.key.rule is Rule.REGION)
    if not rows:
        return Claim("c", statement, None, (_why_not(roles, "shuffled"),))
    held = all(row.accuracy.marginal.share <= share for row in rows)
    return Claim("c", statement, held, tuple(f"{row.dataset}: {_selection(row, share)}" for row in rows))


def similarity_rises(points: Sequence[tuple[str, float, float]]) -> Claim:
    """Claim (d), over rounds or runs, from their accuracy on the calibration set and their q'_min."""
    statement = "q′_min rises as accuracy on the calibration set falls (Kendall's τ below 0)."
    evidence = [f"{name}: accuracy {accuracy:.4f}, q′_min {_similarity(q)}" for name, accuracy, q in points]
    accuracies, similarities = [a for _, a, _ in points], [_finite(q) for _, _, q in points]
    if len(points) < _FEWEST_ROUNDS:
        return Claim("d", statement, None, (f"needs {_FEWEST_ROUNDS} rounds or runs, has {len(points)}", *evidence))
    for values, what in ((accuracies, "the accuracy"), (similarities, "q′_min")):
        if len(set(values)) == 1:
            return Claim("d", statement, None, (f"{what} is the same in all, so no trend can be seen", *evidence))
    tau = _kendall(accuracies, similarities)
    by_chance = np.mean([_kendall(accuracies, order) <= tau + 1e-12 for order in _orders(similarities)])
    chance = f"in {by_chance:.0%} of {'all' if len(points) <= _ENUMERATED else '2,000 random'} orders τ is no larger"
    return Claim("d", statement, tau < 0, (f"τ = {tau:.2f} over {len(points)}", chance, *evidence))


def argmax_unchanged(evaluation: Evaluation) -> Claim:
    """Claim (e)."""
    statement = (
        "SDM never changes the argmax: the label that each rule over the adaptor predicts has the largest logit, and "
        "at least the probability of any other."
    )
    changed: dict[str, Array] = {}
    for (position, name), decisions in evaluation.decisions.items():
        if evaluation.entrants[position].group == "sdm" and decisions.member is None:  # an ensemble has no logits
            changed[name] = changed.get(name, False) | evaluation.against_argmax[position, name]
    if not changed:
        return Claim("e", statement, None, ("no estimator over the SDM adaptor was compared",))
    evidence = tuple(f"{name}: {int(rows.sum())} of {len(rows)} differ" for name, rows in changed.items())
    return Claim("e", statement, not any(rows.any() for rows in changed.values()), evidence)


def all_hold(key: str, statement: str, rows: Sequence[ResultRow], absent: str = "there are no results") -> Claim:
    """The claim that no stratum of any row falls below its alpha; strangers have no accuracy and are left out."""
    rows = [row for row in rows if row.accuracy.labels == "classes"]
    if not rows:
        return Claim(key, statement, None, (absent,))
    failing = [row for row in rows if not row.accuracy.holds(row.alpha)]
    holding = [row for row in rows if row not in failing]
    evidence = [f"{_name(row)}: {_selection(row)}; {_worst(row)}" for row in failing]
    if len(holding) <= _LISTED:
        evidence += [f"{_name(row)} holds: {_selection(row)}" for row in holding]
    else:
        n_empty = sum(row.accuracy.marginal.n_admitted == 0 for row in holding)
        by_rejecting = f", {n_empty} of them by rejecting all" if n_empty else ""
        evidence.append(f"{len(holding)} of {len(rows)} hold{by_rejecting}")
    return Claim(key, statement, not failing, tuple(evidence))


def _rows(
    evaluation: Evaluation, roles: Mapping[str, str], role: str, chosen: Callable[[Entrant], bool]
) -> list[ResultRow]:
    """The rows of some entrants on the data sets of a role."""
    return [row for entrant, row in evaluation.results() if roles.get(row.dataset) == role and chosen(entrant)]


def _why_not(roles: Mapping[str, str], role: str) -> str:
    """Why there are no rows."""
    return "no such estimator was compared" if role in roles.values() else f"no test set is {role}"


def _kendall(a: Sequence[float], b: Sequence[float]) -> float:
    """τ_a: pairs in the same order minus those in opposite order, over all pairs."""
    pairs = list(combinations(range(len(a)), 2))
    return float(sum(np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]) for i, j in pairs)) / len(pairs)


def _orders(values: Sequence[float]) -> Iterator[Sequence[float]]:
    """All orders of a few values; two thousand random ones of many."""
    if len(values) <= _ENUMERATED:
        yield from permutations(values)
    else:
        generator = np.random.default_rng(0)
        yield from (generator.permutation(values).tolist() for _ in range(2000))


def _worst(row: ResultRow) -> str:
    """The stratum that falls furthest below alpha, and whether that may be chance."""
    below = [stratum for stratum in strata(row) if stratum.cell.is_below(row.alpha)]
    lowest = min(below, key=lambda stratum: float(stratum.cell.accuracy or 0.0))
    cell = lowest.cell
    interval = cell.interval() or (0.0, 1.0)
    chance = ", contains α" if interval[1] >= row.alpha else ""
    return (
        f"lowest {lowest.name}: {cell.n_correct} of {cell.n_admitted} right "
        f"(95 % interval {interval[0]:.2f} to {interval[1]:.2f}{chance})"
    )


def _selection(row: ResultRow, limit: float = 1.0) -> str:
    cell = row.accuracy.marginal
    if not cell.n_admitted:
        return "rejects all"
    if cell.accuracy is None:
        return f"admits {_percent(cell.share, limit)}"
    return f"admits {_percent(cell.share, limit)}, of which {_percent(cell.accuracy, row.alpha)} are right"


def _percent(value: float, limit: float) -> str:
    """With one digit, or more if rounding would move it to the limit."""
    digits = 1
    while digits < _MOST_DIGITS and is_moved(value, digits + 2, (0.0, limit, 1.0)):
        digits += 1
    return f"{100 * round(value, digits + 2):.{digits}f}%"


def _name(row: ResultRow) -> str:
    return f"{row.dataset}, {row.model}, {row.estimator}"


def _similarity(value: float) -> str:
    return "∞" if np.isinf(value) else f"{value:.4g}"


def _finite(value: float) -> float:
    """Infinity as the largest finite number, so that two of them are equal."""
    return float(np.finfo(np.float64).max) if np.isinf(value) else value
