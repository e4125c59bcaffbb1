"""Which labels are probably wrong: every row judged by what never saw its label.

With y_i the label that row i was given, C classes, p_i(c) a probability of class c from a logistic regression fitted on
the rows of the other folds, and n_i(c) the votes for c among the k rows nearest to row i, itself left out,

    contradiction_i = log10 (sum_{c != y_i} p_i(c) v_i(c)) / (p_i(y_i) v_i(y_i)),    v_i(c) = (n_i(c) + 1) / (k + C):

at 0 there is as much evidence for the label as against it, at 3 a thousand times more against it. Both witnesses count,
and neither has seen the label. Folds are drawn without a look at the labels: stratified ones would depend on the very
label they are to judge. The regression is on standardised states with the penalty |w|^2 * PENALTY / 2, strong enough
that wrong labels are not learned by heart; near is near in angle between standardised states.

A contradiction is a score to sort by, not the odds that the label is wrong: the two witnesses see the same states, so
their product is too sure, and where classes overlap it contradicts right labels.

Whoever corrects labels by this list makes them agree with a model. A certificate that counts agreement with such labels
counts too much, so rows to certify with are set aside first: they are neither judged nor heard. The others are entered
in the ledger of looks (``torchsdm.trust.Ledger``), and no later fit draws its certification part from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler, normalize
from tqdm.auto import tqdm

from torchsdm.baselines import LogisticModel
from torchsdm.core import linked
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError, Remedy
from torchsdm.estimators import given_states, row_keys
from torchsdm.labels import count_classes
from torchsdm.matching import SupportSet
from torchsdm.training import certification_split
from torchsdm.trust import current_ledger
from torchsdm.validation import (
    Array,
    ArrayLike,
    RandomState,
    as_list,
    check_hidden_states,
    check_label_array,
    check_positive,
    check_same_length,
    check_share,
    draw_seed,
)
from torchsdm.wording import shortened

PENALTY = 100.0  #: of the squared weights; docs/decisions/0020 says how it was chosen
_CALLER = "audit_labels"
_VALUES_AT_ONCE = 1 << 20  # rows × classes that are judged at once


@dataclass(frozen=True, slots=True)
class ContradictingNeighbor:
    """One of the rows nearest to a judged one, with another label."""

    row: int
    place: str
    id: Any
    label: Any
    distance: float
    """Between standardised states scaled to length 1: 0 for the same direction, 2 for the opposite."""
    text: str | None


@dataclass(frozen=True, slots=True)
class AuditedLabel:
    """One row's label, and what speaks against it."""

    row: int
    """From 0, in the order of the data."""
    place: str
    """Where the row is in its file, such as "line 4"."""
    id: Any
    label: Any
    suggested: Any
    """The label with the most evidence; the given one, if that has it."""
    contradiction: float
    """log10 of the evidence against the label over that for it: a score to sort by, not odds to bet on."""
    probability: float
    """p(label) of the regression that did not see this row."""
    n_agreeing: int
    """How many of the k nearest rows have this label."""
    n_neighbors: int
    """k."""
    text: str | None
    neighbors: tuple[ContradictingNeighbor, ...]
    """The nearest of the k that have another label, nearest first."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for strict JSON."""
        return {**asdict(self), "neighbors": [asdict(neighbor) for neighbor in self.neighbors]}

    def __str__(self) -> str:
        lines = [
            f"{self.place}, id {self.id!r}: {self.label!r} -> {self.suggested!r}, contradiction "
            f"{self.contradiction:.1f} ({self.n_agreeing} of {self.n_neighbors} neighbours agree)"
        ]
        lines += [] if self.text is None else [f"  {shortened(self.text, 100)}"]
        for one in self.neighbors:
            text = "" if one.text is None else f"  {shortened(one.text, 80)}"
            lines.append(f"  - {one.place}, id {one.id!r}: {one.label!r}, distance {one.distance:.3f}{text}")
        return "\n".join(lines)


@dataclass(frozen=True)
class LabelAudit:
    """The labels of a data set, the most contradicted first."""

    rows: tuple[AuditedLabel, ...]
    set_aside: Array
    """The numbers of the rows that were neither judged nor heard, ascending, for a later fit to certify with."""
    classes: Array
    """(C,)"""
    n_neighbors: int
    """k; all other rows, if there are fewer than asked for."""
    n_folds: int
    seed: int
    _witnesses: _Witnesses = field(repr=False)

    @property
    def evidence(self) -> Array:
        """p_i(c) v_i(c) / sum_c p_i(c) v_i(c), (N, C), of the judged rows in the order of the data.

        Row i does not depend on its label.

        Computed when asked for: it alone takes memory for every row and class.
        """
        table = np.empty((len(self.rows), len(self.classes)))
        for rows, _, _, log_evidence in self._witnesses.heard():
            table[rows] = log_evidence.exp().numpy()
        return table

    @property
    def contradicted(self) -> tuple[AuditedLabel, ...]:
        """The rows with more evidence for another label than for theirs."""
        return tuple(one for one in self.rows if one.suggested != one.label)


def audit_labels(
    X: ArrayLike | LabelledStates,
    y: ArrayLike | None = None,
    *,
    ids: Sequence[Any] | Array | None = None,
    texts: Sequence[str] | Array | None = None,
    n_neighbors: int = 20,
    n_folds: int = 5,
    n_shown: int = 3,
    certification_size: float | None = 0.25,
    random_state: RandomState = 0,
    verbose: bool = False,
) -> LabelAudit:
    """Judge every label by models and neighbours that did not see it.

    Parameters
    ----------
    X : (N, D); or LabelledStates
        Hidden states. LabelledStates, as ``read_states`` returns them, include labels, ids and texts.
    y : (N,)
        Labels of any type that scikit-learn accepts; of each class at least two examples per fold.
    ids, texts : (N,), optional
        Names, by default row numbers, and texts, for the list.
    n_neighbors : int, default=20
        k, the nearest rows that vote.
    n_folds : int, default=5
        Each fold is judged by a model fitted on the others.
    n_shown : int, default=3
        Contradicting neighbours to list with each row.
    certification_size : float or None, default=0.25
        Share of the rows to set aside, drawn as ``SDMClassifier.fit`` draws its certification part, copies together.
        None audits all rows; certify with others then.
    random_state : int, RandomState or Generator, default=0
        Of the rows set aside and of the folds; the same seed gives the same audit.
    verbose : bool
        Show a progress bar.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(200, n_features=4, centers=2, random_state=0)
    >>> y[7] = 1 - y[7]
    >>> audit_labels(X, y, certification_size=None).rows[0].row
    7
    """
    data = given_states(X, y, ids, texts, _CALLER)
    check_positive(n_neighbors, "n_neighbors", _CALLER, integer=True)
    check_positive(n_shown, "n_shown", _CALLER, integer=True, zero=True)
    classes, labels = check_auditable(data.labels, n_folds)
    states = check_hidden_states(BaseEstimator(), data.hidden_states, _CALLER, reset=True, pooled=True)
    for name, values in (("y", labels), ("ids", data.ids), ("texts", data.texts)):
        if values is not None:
            check_same_length(len(states), values, name, _CALLER)
    seed, set_aside = draw_seed(random_state, _CALLER), np.array([], dtype=np.int64)
    names = range(len(states)) if data.ids is None else as_list(data.ids, "ids", _CALLER)
    texts_of = [None] * len(states) if data.texts is None else list(data.texts)
    keys = row_keys(states, texts_of, data.origin)
    if certification_size is not None:
        check_share(certification_size, "certification_size", _CALLER)
        set_aside, _ = certification_split(labels, float(certification_size), seed, linked(list(keys.T)))
    judged = np.setdiff1d(np.arange(len(states)), set_aside)
    classes, labels = check_auditable(classes[labels[judged]], n_folds, " among the rows that are not set aside")
    current_ledger().inspect(keys[judged])

    h, k = states[judged].float().numpy(), min(n_neighbors, len(judged) - 1)
    distances, nearest = _neighbors(h, k)
    witnesses = _Witnesses.of(h, labels, classes, nearest, n_folds, seed, verbose)
    contradiction, log_p, n_agreeing, suggestions = _judge(witnesses, labels)

    given, suggested, row_of = classes[labels].tolist(), classes[suggestions].tolist(), judged.tolist()

    def named(place: int) -> tuple[int, str, Any, Any]:
        row = row_of[place]
        return row, data.place(row), names[row], given[place]

    def neighbors_of(row: int) -> tuple[ContradictingNeighbor, ...]:
        against = np.flatnonzero(labels[nearest[row]] != labels[row])[:n_shown]
        pairs = zip(nearest[row, against].tolist(), distances[row, against].tolist(), strict=True)
        return tuple(
            ContradictingNeighbor(*named(other), distance, texts_of[row_of[other]]) for other, distance in pairs
        )

    rows = []
    for row in torch.from_numpy(contradiction).argsort(descending=True, stable=True).tolist():
        labelled = *named(row), suggested[row]
        evidence = float(contradiction[row]), math.exp(log_p[row]), int(n_agreeing[row]), k
        rows.append(AuditedLabel(*labelled, *evidence, texts_of[row_of[row]], neighbors_of(row)))
    return LabelAudit(tuple(rows), set_aside, classes, k, n_folds, seed, witnesses)


def check_auditable(y: Any, n_folds: int, where: str = "") -> tuple[Array, Array]:
    """Classes (C,) and class numbers (N,) of labels with at least two examples of each class per fold."""
    check_positive(n_folds, "n_folds", _CALLER, integer=True)
    if n_folds < 2:
        raise InvalidInputError(f"'n_folds' of {_CALLER} must be at least 2. Got {n_folds}.")
    classes, labels = count_classes(check_label_array(y, _CALLER), _CALLER)
    counts = np.bincount(labels)
    if counts.min() < 2 * n_folds:
        rare, n_rare = int(counts.argmin()), int((counts < 2 * n_folds).sum())
        others = f", and too few of {n_rare - 1} more" if n_rare > 1 else ""
        raise InvalidInputError(
            f"An audit with {n_folds} folds needs at least {2 * n_folds} examples of each class, two per fold. "
            f"Got {counts[rare]} of class {classes.tolist()[rare]!r}{others}{where}.",
            remedy=Remedy.FEWER_FOLDS,
        )
    return classes, labels


def _neighbors(states: Array, k: int) -> tuple[Array, Array]:
    """Distances and numbers (N, k) of the rows nearest to each, itself left out; labels play no part."""
    directions = normalize(StandardScaler().fit_transform(states))
    alike = np.zeros(len(states), dtype=np.int64)
    found = SupportSet(directions, alike, alike).match(directions, alike, exclude=np.arange(len(states)), k=k)
    return found.neighbor_distances.numpy(), found.neighbor_indices.numpy()


@dataclass(frozen=True)
class _Witnesses:
    """The regressions and neighbours that judge every row; what they say is computed for some rows at a time."""

    states: Array
    """(N, D)"""
    fold_of: Array
    """The fold of each row (N,)."""
    regressions: tuple[LogisticModel, ...]
    """By fold: fitted on the rows of the others."""
    neighbor_labels: Array
    """Class numbers (N, k) of the nearest rows."""
    n_classes: int

    @classmethod
    def of(
        cls, states: Array, labels: Array, classes: Array, nearest: Array, n_folds: int, seed: int, verbose: bool
    ) -> _Witnesses:
        """Draw the folds and fit the regressions."""
        fold_of = np.random.default_rng(seed).permutation(len(states)) % n_folds
        regressions = []
        for fold in tqdm(range(n_folds), unit="fold", disable=None if verbose else True):
            seen = fold_of != fold
            missing = np.setdiff1d(np.arange(len(classes)), labels[seen])
            if len(missing):
                name = classes.tolist()[missing[0]]
                raise InvalidInputError(
                    f"All examples of class {name!r} fell into one fold.", remedy=Remedy.OTHER_FOLDS
                )
            regressions.append(LogisticModel(PENALTY).fit(states[seen], labels[seen]))
        return cls(states, fold_of, tuple(regressions), labels[nearest], len(classes))

    def heard(self) -> Iterator[tuple[Array, torch.Tensor, Array, torch.Tensor]]:
        """Fold by fold, the numbers of some rows (B,), and what is said of them, which does not depend on the block.

        That is log p_i(c), n_i(c), and the log of p_i(c) v_i(c) over its sum, (B, C) each.
        """
        k, at_once = self.neighbor_labels.shape[1], max(1, _VALUES_AT_ONCE // self.n_classes)
        log_v = np.log((np.arange(k + 1) + 1) / (k + self.n_classes))  # by the number of votes
        for fold, regression in enumerate(self.regressions):
            judged = np.flatnonzero(self.fold_of == fold)
            for start in range(0, len(judged), at_once):
                rows = judged[start : start + at_once]
                cells = self.neighbor_labels[rows] + self.n_classes * np.arange(len(rows))[:, None]
                votes = np.bincount(cells.ravel(), minlength=len(rows) * self.n_classes).reshape(len(rows), -1)
                log_p = torch.from_numpy(regression.logits(self.states[rows])).double().log_softmax(dim=1)
                yield rows, log_p, votes, (log_p + torch.from_numpy(log_v[votes])).log_softmax(dim=1)


def _judge(witnesses: _Witnesses, labels: Array) -> tuple[Array, Array, Array, Array]:
    """Of each row (N,): the contradiction, log p and votes of its given label, and the suggested class number."""
    (contradiction, log_p), (n_agreeing, suggestions) = np.empty((2, len(labels))), np.empty((2, len(labels)), np.int64)
    for rows, log_ps, votes, evidence in witnesses.heard():
        given = torch.from_numpy(labels[rows])[:, None]  # (B, 1)
        against = evidence.scatter(1, given, -torch.inf).logsumexp(dim=1)
        contradiction[rows] = ((against - evidence.gather(1, given)[:, 0]) / math.log(10)).numpy()
        log_p[rows] = log_ps.gather(1, given)[:, 0].numpy()
        n_agreeing[rows] = votes[np.arange(len(rows)), labels[rows]]
        suggestions[rows] = evidence.argmax(dim=1).numpy()
    return contradiction, log_p, n_agreeing, suggestions
