"""A path of threshold vectors from safe to lenient, found on the calibration sample.

Start from the most lenient rule, which admits every eligible point. Estimate for each group how surely it would pass
the test on a certification sample of a given size; raise the threshold of the predicted class that harms the weakest
group most, by about one in a hundred of its points; repeat. The path is this trajectory backwards, to the most lenient
rule. It starts at the first rule whose weakest group is sure enough to pass (z >= 3.5), or, if none is, at the surest.
Thresholds only fall along it.

How surely a group passes. With n admitted points and k errors on calibration, r times as many points on certification,
and c the number of errors that the randomised test allows there on average over u: with X ~ Binomial(rn, 1 - alpha), F
its distribution function and b the largest number with F(b) <= delta, it is c = b + (delta - F(b)) / P(X = b + 1), and

    z = (c + 1/2 - rn e) / sqrt(rn e (1 - e) (1 + r)),    e = (k + 1/2) / (n + 1),

where 1 + r accounts for the error of e itself. A group that is too small to pass with no error at all has z = -inf.
Only the order of the path depends on this estimate, never the promise. It must not use u itself (``certificate``).

Where classes share a group, the predictions of a pool share a threshold. They do because they have too few points for
a promise of their own. A group can pass the test only with n points where alpha^n <= delta, all of them right
(``points_needed``), and with a few errors only if it has some times as many. So, with m_c the points that class c can
be expected to have on certification, truly or by prediction, whichever are fewer:

1. a class with m_c >= ENOUGH * points_needed has a group of its own;
2. the others share one with those of their family, such as the intents of one domain, if together they have enough;
3. what is left shares one, and if that has not enough either, the smallest other group takes it in.

Why sizes alone. m_c is counted on calibration, and nothing here asks who is right. Any rule that looks at calibration
alone would do: given the calibration sample, the pools are fixed, so a group is a fixed set of true classes or of
predictions, and its admitted certification points are drawn independently. That is all that the proof in
``certificate`` asks of a group. Pools chosen by the errors of the certification sample would void it: whoever puts
classes that happened to err with classes that happened not to, tests the luck of the draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import bdtr, bdtrik, ndtr

from torchsdm.core import GroupCounts, Target, by_number, smallest, target_of
from torchsdm.validation import Array

if TYPE_CHECKING:
    from torchsdm.trust.certificate import ScoredSample

UNLABELLED = -2  #: the label of a certification point that nobody has labelled
ENOUGH = 4  #: times the points of the smallest group that can pass, to have a group of one's own


def points_needed(alpha: float, delta: float) -> int:
    """The smallest group that can pass the test, without any error: alpha^n <= delta."""
    return math.ceil(math.log(delta) / math.log(alpha) - 1e-9)


def pooled(expected: Array, *, alpha: float, delta: float, families: Array | None = None) -> Array:
    """The pool of each class (C,), numbered from 0 by the first class of each.

    Parameters
    ----------
    expected : (C,)
        The points that each class can be expected to have on certification.
    alpha, delta : float
        Of the certificate.
    families : (C,), optional
        Number of the family of each class; classes of one family are pooled first. By default they are all one.

    Examples
    --------
    >>> pooled(np.array([400, 20, 500, 30, 60]), alpha=0.9, delta=0.1).tolist()  # a class of its own takes 88
    [0, 1, 2, 1, 1]
    >>> pooled(np.array([400, 20, 500, 3]), alpha=0.9, delta=0.1).tolist()  # 23 are still too few
    [0, 0, 1, 0]
    """
    enough = ENOUGH * points_needed(alpha, delta)
    n_classes = len(expected)
    family = np.zeros(n_classes, dtype=int) if families is None else np.asarray(families)
    is_small = expected < enough
    pool = np.where(is_small, n_classes + family, np.arange(n_classes))  # a number for each class, then each family
    sizes = {name: expected[pool == name].sum() for name in np.unique(pool).tolist()}
    rest = [name for name in sizes if sizes[name] < enough]
    left = sum(sizes[name] for name in rest)
    if rest and left < enough and len(rest) < len(sizes):
        rest.append(min((name for name in sizes if name not in rest), key=lambda name: sizes[name]))
    pool[np.isin(pool, rest)] = -1
    _, first, number = np.unique(pool, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number]


_SURE = 3.5  # z of a start; in simulations 3, 3.5, 4 and the surest admitted equally much, 0.65 on average
POWER = 0.8  #: chance of a certificate that counts as "enough examples"
_STEPS = 100  # raises of a threshold from the most lenient to the strictest
_HOPE = 0.2  # a prediction whose chance to be certified is estimated below this is given up before it costs delta


def group_counts(
    sample: ScoredSample, admitted: Array, n_classes: int, control: str, pools: Array | None = None
) -> GroupCounts:
    """Count the admitted points of a sample and their errors, by group, by pool (C,) of classes, or all together.

    A point without a label is an error of its prediction, and of every true class: it may be any of them.
    """
    if control == "all":
        return GroupCounts.of_all(sample.labels, sample.predictions, admitted)
    unknown = admitted & (sample.labels == UNLABELLED)
    counts = GroupCounts.of(sample.labels, sample.predictions, admitted & ~unknown, n_classes)
    predictions = sample.predictions[unknown]
    if pools is not None:
        counts, predictions = counts.pooled(pools), pools[predictions]
    n_groups = len(counts.n) // 2  # of true classes, and as many of predictions
    errors = np.append(np.full(n_groups, unknown.sum()), np.bincount(predictions, minlength=n_groups))
    return counts + GroupCounts(errors, errors)


def by_group(target: Target, n_classes: int, control: str, pools: Array | None = None) -> Array:
    """The target of each group (G,), in the order of ``group_counts``; pools have the same one."""
    alphas = by_number(target, n_classes if pools is None else int(pools.max()) + 1)
    return alphas[:1] if control == "all" else np.concatenate([alphas, alphas])


@dataclass(frozen=True)
class ThresholdPath:
    """Threshold vectors (K, C), the safest first, and how surely each group of each would pass, z (K, G)."""

    thresholds: Sequence[Array]
    sureness: Sequence[Array]

    def __iter__(self) -> Iterator[Array]:
        return iter(self.thresholds)

    @property
    def power(self) -> float:
        """The estimated chance that the weakest group of the first element passes."""
        return float(ndtr(self.sureness[0].min())) if self.sureness else 0.0

    def ends(self) -> Array:
        """The probability (K,) that a walk ends at each element; what is left to 1 is that it fails at the first.

        All groups of an element must pass, which they do about independently. From element to element, though, few
        points change: what makes one pass makes the others pass. So the chance to come as far as element i is

            P(reach i) = min over j <= i of P(pass j),    P(pass j) = product over groups of Phi(z_jg).
        """
        passes = np.array([ndtr(z).prod() for z in self.sureness])
        reach = np.minimum.accumulate(passes)
        return reach - np.append(reach[1:], 0.0)

    @classmethod
    def of(
        cls,
        calibration: ScoredSample,
        n_classes: int,
        n_certification: int,
        *,
        alpha: Target,
        delta: float,
        control: str,
        pools: Array | None = None,
        growth: float = 1,
    ) -> ThresholdPath:
        """Find the path on a calibration sample, for a certification sample of a given size.

        ``pools`` (C,) numbers the pool of each class, if some share a group (``pools_of``). ``growth`` asks what would
        be if calibration and certification were so many times larger.
        """
        targets = by_group(alpha, n_classes, control, pools)
        ratio = n_certification / max(len(calibration), 1)
        rule = _Tightening(calibration, n_classes, control, pools)
        vectors: list[Array] = []
        surely: list[Array] = []
        while (thresholds := rule.thresholds()) is not None:
            vectors.append(thresholds)
            surely.append(sureness(rule.counts, targets, delta, ratio, growth))
            rule.tighten(int(surely[-1].argmin()))
        if not vectors:
            return cls([], [])
        weakest = [float(z.min()) for z in surely]
        start = next((i for i, z in enumerate(weakest) if z >= _SURE), int(np.argmax(weakest)))
        return cls(vectors[start::-1], surely[start::-1])


def pools_of(
    calibration: ScoredSample,
    n_classes: int,
    n_certification: int,
    *,
    alpha: Target,
    delta: float,
    control: str,
    families: Array | None = None,
) -> Array | None:
    """The pool of each class (C,) under control 'pooled', by how many eligible calibration points it has."""
    if control != "pooled":
        return None
    n = GroupCounts.of(calibration.labels, calibration.predictions, calibration.eligible, n_classes).n
    fewest = n.reshape(2, n_classes).min(axis=0)  # truly or by prediction
    expected = fewest * n_certification / max(len(calibration), 1)
    return pooled(expected, alpha=smallest(alpha), delta=delta, families=families)


def allowed_errors(n: Array, alpha: Array, delta: float) -> Array:
    """The errors among n points that the randomised test allows, on average over u (``c`` above)."""
    error = 1 - alpha
    whole = np.floor(bdtrik(delta, n, error))
    below, above = bdtr(whole, n, error), bdtr(whole + 1, n, error)
    return whole + (delta - below) / (above - below)


def of_prediction(sample: ScoredSample, c: int) -> ScoredSample:
    """The points of one prediction, as a sample of their own: right (0) or wrong (1)."""
    part = sample[sample.predictions == c]
    nothing = np.zeros(len(part), dtype=int)
    return replace(part, labels=(part.labels != c).astype(int), predictions=nothing)


def predictions_to_try(
    calibration: ScoredSample, n_classes: int, n_certification: int, *, alpha: Target, delta: float
) -> dict[int, int]:
    """The predictions that are worth a walk, and how many certification points are expected to have each."""
    parts = [of_prediction(calibration, c) for c in range(n_classes)]
    expected = [round(len(part) * n_certification / max(len(calibration), 1)) for part in parts]

    def power(c: int, level: float) -> float:
        return ThresholdPath.of(parts[c], 2, expected[c], alpha=target_of(alpha, c), delta=level, control="all").power

    return {c: expected[c] for c in hopeful(power, n_classes, delta)}


def hopeful(power: Callable[[int, float], float], n_classes: int, delta: float) -> list[int]:
    """The predictions that are worth a share of delta, by their power at a level; at least the most hopeful one."""
    found = [c for c in range(n_classes) if power(c, delta / n_classes) >= _HOPE]
    return found or [int(np.argmax([power(c, delta) for c in range(n_classes)]))]


def sureness(counts: GroupCounts, alpha: Array, delta: float, ratio: float, growth: float = 1) -> Array:
    """How surely each group would pass (z) on a certification sample ``ratio`` times as large as calibration.

    ``growth`` is how many times larger both samples are taken to be.
    """
    n = np.floor(growth * ratio * counts.n)  # expected on certification
    error = (counts.k + 0.5) / (counts.n + 1)
    can_pass = (n > 0) & (alpha**n <= delta)  # with no error at all
    n_tested = np.where(can_pass, n, np.ceil(1 + np.log(delta) / np.log(alpha))).astype(np.int64)
    allowed = allowed_errors(n_tested, alpha, delta)
    z = (allowed + 0.5 - n_tested * error) / np.sqrt(n_tested * error * (1 - error) * (1 + ratio))
    return np.where(can_pass, z, -np.inf)


class _Tightening:
    """A rule that starts lenient and whose thresholds are raised, one block of predictions at a time.

    A block is a predicted class, or a pool of them; with control of everything together it is all of them. A block per
    class would be thin there.
    """

    def __init__(self, sample: ScoredSample, n_classes: int, control: str, pools: Array | None = None) -> None:
        self.sample, self.n_classes, self.control, self.pools = sample, n_classes, control, pools
        chosen = sample.eligible
        own = np.arange(n_classes) if pools is None else pools
        self.block_of: Array = np.zeros(n_classes, dtype=int) if control == "all" else own  # (C,)
        rows = np.flatnonzero(chosen)
        rows = rows[np.argsort(sample.score[rows], kind="stable")]
        block = self.block_of[sample.predictions[rows]]
        self.blocks = [rows[block == b] for b in range(int(self.block_of.max()) + 1)]  # by score
        self.first = [0] * len(self.blocks)  # the first row of each block that is still admitted
        self.counts = group_counts(sample, chosen, n_classes, control, pools)
        self.confusions = self._confusions(sample[chosen])
        self.is_stuck = False

    def thresholds(self) -> Array | None:
        """The thresholds (C,), infinite for a class without admitted points; None once nothing can be raised."""
        if self.is_stuck or not any(first < len(rows) for first, rows in zip(self.first, self.blocks, strict=True)):
            return None
        lowest = [
            self.sample.score[rows[first]] if first < len(rows) else np.inf
            for first, rows in zip(self.first, self.blocks, strict=True)
        ]
        return np.array(lowest, dtype=float)[self.block_of]

    def tighten(self, group: int) -> None:
        """Raise the threshold that harms a group most, by about one in a hundred of its points."""
        block = self._block_of(group)
        if block is None or self.first[block] == len(self.blocks[block]):
            self.is_stuck = True
            return
        rows, first = self.blocks[block], self.first[block]
        last = min(first + max(1, len(rows) // _STEPS), len(rows))
        while last < len(rows) and self.sample.score[rows[last]] == self.sample.score[rows[last - 1]]:
            last += 1  # points with the same score go together
        gone = self.sample[rows[first:last]]
        everyone = np.ones(len(gone), dtype=bool)
        self.counts = self.counts - group_counts(gone, everyone, self.n_classes, self.control, self.pools)
        self.confusions -= self._confusions(gone)
        self.first[block] = last
        self.is_stuck = last == len(rows)  # a class without any admitted point: no rule to walk to

    def _block_of(self, group: int) -> int | None:
        """The block to raise for a group; None where none would help."""
        if self.control == "all":
            return 0
        if group >= len(self.blocks):  # of predictions
            return group - len(self.blocks)
        errors = self.confusions[group]
        return int(errors.argmax()) if errors.any() else None

    def _confusions(self, sample: ScoredSample) -> Array:
        """How many errors have their true class and their prediction in each two blocks (B, B)."""
        wrong = sample.labels != sample.predictions
        y, y_hat = self.block_of[sample.labels[wrong]], self.block_of[sample.predictions[wrong]]
        n = len(self.blocks)
        return np.bincount(y * n + y_hat, minlength=n**2).reshape(n, n)
