"""Conformal sets, admitted if they contain one label: APS (Romano et al., 2020), RAPS (Angelopoulos et al., 2021).

For one input, let p_(1) >= p_(2) >= ... be the softmax in descending order and r(c) the rank of class c in it. Then

    score      s_c = p_(1) + ... + p_(r(c)) - u p_c + lam max(0, r(c) - k_reg)
    threshold  t   = the k-th smallest s_y of n calibration points, k = ceil((n + 1) alpha); infinite if k > n
    set            {c : s_c <= t}

covers the true label with probability at least alpha, and at most alpha + 1 / (n + 1) if no two scores are equal, for
inputs exchangeable with calibration points that had no part in the model. Our networks, ``SDMClassifier`` included,
choose their epoch on the calibration set, so over their logits coverage is approximate.
APS has lam = 0; without randomisation u = 0. The score never falls with the rank, so a set is a run of the most
probable labels, and the only label of a set of one is the predicted one.

Coverage is a property of the sets, on average over all inputs; it says nothing about the accuracy of sets of one label.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from torchsdm.baselines.base import SelectiveClassifier
from torchsdm.baselines.softmax import fit_temperature, softmax
from torchsdm.core import Decisions
from torchsdm.errors import InvalidInputError
from torchsdm.validation import Array, RandomState, check_positive, draw_seed

LAM_GRID = (0.0, 1e-5, 1e-4, 8e-4, 9e-4, 1e-3, 1.5e-3, 2e-3)  #: the values of lam that RAPS tries
TUNING_SHARE = 0.3  #: of the calibration set, for choosing lam and k_reg; the rest is for the threshold
_SIZE_STRATA = (2, 4, 7, 11, 101)  # first sizes of the strata 0-1, 2-3, 4-6, 7-10, 11-100, 101 and more


def uniforms_of(logits: Array, seed: int) -> Array:
    """``u`` (N,) in [0, 1): a keyed hash (BLAKE2b) of a row's sorted float64 logits, to 53 bits.

    The same logits and seed give the same u, for any batch and any order of the classes. Given the seed, a score is
    thus a fixed function of input and label, and coverage does not depend on the quality of the hash.
    """
    key = seed.to_bytes(8, "little")
    rows = np.sort(logits, axis=1).astype("<f8") + 0.0  # -0.0 becomes 0.0: equal values have equal bytes
    digests = (blake2b(row.tobytes(), digest_size=8, key=key).digest() for row in rows)
    return np.array([(int.from_bytes(digest, "little") >> 11) / 2**53 for digest in digests], dtype=np.float64)


def conformity_scores(
    logits: Array, uniforms: Array | float = 0.0, lam: float = 0.0, k_reg: int = 0, temperature: float = 1.0
) -> Array:
    """``s_c = p_(1) + ... + p_(r(c)) - u p_c + lam max(0, r(c) - k_reg)`` of every class (N, C); u (N,) or 0.

    Classes are ranked by logit; the first of equal ones ranks higher, as in ``argmax``.
    """
    order, rank = _falling(logits), np.arange(1, logits.shape[1] + 1)
    p = softmax(np.take_along_axis(logits, order, axis=1) / temperature)
    cumulated = np.minimum(p.cumsum(axis=1), 1.0)
    cumulated[:, -1] = 1.0  # exactly, so that a threshold of 1 lets everything in
    u = np.reshape(uniforms, (-1, 1))
    by_rank = cumulated - u * p + lam * np.maximum(0, rank - k_reg)
    scores: Array = np.empty_like(by_rank)
    np.put_along_axis(scores, order, np.maximum.accumulate(by_rank, axis=1), axis=1)  # despite rounding
    return scores


def conformal_quantile(scores: Array, alpha: float) -> float:
    """The k-th smallest of n scores, ``k = ceil((n + 1) alpha)``; infinite if k > n."""
    n = len(scores)
    k = math.ceil(round((n + 1) * alpha, 9))  # 100 * 0.55 is 55.00000000000001
    return math.inf if k > n else float(np.partition(scores, k - 1)[k - 1])


def prediction_sets(scores: Array, threshold: float, always: Array | None = None) -> Array:
    """``{c : s_c <= t}`` as booleans (N, C). ``always`` (N,) is a class that each set contains in any case."""
    sets: Array = scores <= threshold
    if always is not None:
        np.put_along_axis(sets, always[:, None], True, axis=1)
    return sets


def size_stratified_violation(sets: Array, labels: Array, alpha: float) -> float:
    """``max |coverage - alpha|`` over the strata of set sizes that are not empty."""
    covered, stratum = _of_labels(sets, labels), np.digitize(sets.sum(axis=1), _SIZE_STRATA)
    return max((abs(float(covered[stratum == s].mean()) - alpha) for s in np.unique(stratum)), default=0.0)


def choose_k_reg(logits: Array, labels: Array, alpha: float) -> int:
    """``k_reg``: the conformal quantile of the ranks r(y) of the true labels, at most C."""
    ranks = (_falling(logits) == labels[:, None]).argmax(axis=1) + 1
    return int(min(logits.shape[1], conformal_quantile(ranks, alpha)))


def _falling(logits: Array) -> Array:
    return np.argsort(-logits, axis=1, kind="stable")


def _of_labels(values: Array, labels: Array) -> Array:
    return np.take_along_axis(values, labels[:, None], axis=1)[:, 0]  # (N, C) -> (N,)


@dataclass(eq=False, repr=False)
class APS(SelectiveClassifier):
    """Adaptive prediction sets: admits if the set at alpha contains one label, which is the predicted one.

    With several alphas, ``Decisions.set_sizes`` is 1 if any admits the input, else the size at the smallest alpha.

    Parameters
    ----------
    alpha : float or sequence of float, default=0.95
        Coverage of the sets (1 - miscoverage), in (0.5, 1]. At 1 every set is full, and nothing is admitted.
    model : LogitModel or None
        The model that gives the logits; with None, X is logits already.
    randomized : bool, default=True
        Whether to randomise scores, which keeps coverage from exceeding alpha by much. The random number of an input is
        a function of its own logits and the seed (``uniforms_of``), so a decision does not depend on the batch.
    allow_empty_sets : bool, default=False
        Whether sets may be empty; if not, an empty one gets the predicted label, and coverage may exceed alpha.
    reference : bool, default=False
        Follow the SDM paper's baseline: divide logits by the temperature that fits the calibration set best.
        Coverage is then approximate, because the temperature has seen the labels that set the threshold.
    random_state : int, RandomState, Generator or None
        The same seed gives the same decisions.

    Attributes
    ----------
    thresholds_ : array (A,)
        For each alpha, the largest score in a set.
    penalties_ : list of (lam, k_reg)
        One per alpha.
    temperature_ : float
        Logits are divided by this: 1, or with ``reference`` the fitted temperature.
    random_seed_ : int
        The seed that was used.
    """

    randomized: bool = True
    allow_empty_sets: bool = False
    reference: bool = False
    random_state: RandomState = None

    def _calibrate(self, logits: Array, labels: Array) -> None:
        n_tuning = math.ceil(self._tuning_share() * len(logits))
        self.random_seed_ = draw_seed(self.random_state, type(self).__name__)
        self.temperature_ = fit_temperature(logits, labels) if self.reference else 1.0
        u = self._uniforms(logits)
        tune, rest = np.split(np.random.default_rng(self.random_seed_).permutation(len(u)), [n_tuning])
        alphas = self.alphas_.tolist()
        self.penalties_ = [self._choose_penalty(logits[tune], labels[tune], u[tune], alpha) for alpha in alphas]
        scores = [_of_labels(self._scores(logits, u, *penalty), labels)[rest] for penalty in self.penalties_]
        self.thresholds_ = np.array([conformal_quantile(s, alpha) for s, alpha in zip(scores, alphas, strict=True)])

    def _decide(self, logits: Array) -> Decisions:
        u = self._uniforms(logits)
        rules = zip(self.penalties_, self.thresholds_.tolist(), strict=True)
        sets = [self._sets(logits, self._scores(logits, u, *penalty), threshold) for penalty, threshold in rules]
        sizes = np.stack(sets, axis=2).sum(axis=1)  # (N, C, A) -> (N, A)
        admitted = sizes == 1
        shown = np.where(admitted.any(axis=1), 1, sizes[:, 0])
        alphas, p = self.alphas_.tolist(), softmax(logits / self.temperature_)
        return Decisions.of_probabilities(self.classes_, alphas, logits, p, admitted, set_sizes=shown)

    def _tuning_share(self) -> float:
        """Check the settings, and return the share of the calibration set that the penalty is chosen on."""
        if self.reference and (self.allow_empty_sets or not self.randomized):
            raise InvalidInputError(
                f"'reference' of {type(self).__name__} must be False unless sets are randomised and never empty. Got "
                f"randomized={self.randomized}, allow_empty_sets={self.allow_empty_sets}; leave these two out."
            )
        return 0.0

    def _choose_penalty(self, logits: Array, labels: Array, u: Array, alpha: float) -> tuple[float, int]:
        return 0.0, 0

    def _uniforms(self, logits: Array) -> Array:
        return uniforms_of(logits, self.random_seed_) if self.randomized else np.zeros(len(logits))

    def _scores(self, logits: Array, u: Array, lam: float, k_reg: int) -> Array:
        return conformity_scores(logits, u, lam, k_reg, self.temperature_)

    def _sets(self, logits: Array, scores: Array, threshold: float) -> Array:
        return prediction_sets(scores, threshold, None if self.allow_empty_sets else logits.argmax(axis=1))


@dataclass(eq=False, repr=False)
class RAPS(APS):
    """Regularised adaptive prediction sets: ``APS`` with a penalty on low ranks, for smaller sets.

    Sets are smaller when there are many classes and small probabilities are mostly noise. Parts of the penalty that are
    not given are chosen for each alpha on 30 % of the calibration set; the threshold then uses only the rest.

    Parameters
    ----------
    alpha, model, randomized, allow_empty_sets, reference, random_state
        As in ``APS``.
    k_reg : int or None
        The last rank without penalty. With None: the rank that the true label seldom exceeds (``choose_k_reg``).
    lam : float or None
        Penalty of each rank beyond. With None: the value in ``LAM_GRID`` with the smallest violation of coverage in any
        stratum of set sizes ("adaptiveness").
    """

    k_reg: int | None = None
    lam: float | None = None

    def _tuning_share(self) -> float:
        super()._tuning_share()
        if self.k_reg is not None:
            check_positive(self.k_reg, "k_reg", type(self).__name__, integer=True, zero=True)
        if self.lam is not None:
            check_positive(self.lam, "lam", type(self).__name__, zero=True)
        return 0.0 if self.k_reg is not None and self.lam is not None else TUNING_SHARE

    def _choose_penalty(self, logits: Array, labels: Array, u: Array, alpha: float) -> tuple[float, int]:
        k_reg = choose_k_reg(logits, labels, alpha) if self.k_reg is None else int(self.k_reg)

        def violation(lam: float) -> float:
            scores = self._scores(logits, u, lam, k_reg)
            threshold = conformal_quantile(_of_labels(scores, labels), alpha)
            return size_stratified_violation(self._sets(logits, scores, threshold), labels, alpha)

        lam = min(LAM_GRID, key=violation) if self.lam is None else float(self.lam)  # the smallest of equal ones
        return lam, k_reg
