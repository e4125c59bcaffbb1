"""The drift guard: an anytime-valid test that a stream of decisions still looks like the calibration set.

**p-values.** Let Z_1, ..., Z_n be the scores of the calibration points and Z_{n+1}, Z_{n+2}, ... those of the stream;
large is strange. The p-value of input t is the rank of its score among the calibration scores *and all earlier ones of
the stream*, ties broken by a random number u_t in (0, 1]:

    p_t = (#{i < n+t : Z_i > Z_{n+t}} + u_t #{i <= n+t : Z_i = Z_{n+t}}) / (n + t).

If Z_1, Z_2, ... are exchangeable, then p_1, p_2, ... are independent and uniform, exactly, for every n. Proof: let E_t
be the bag {Z_1, ..., Z_{n+t}} without its order, with all scores and random numbers after input t. Given E_t, Z_{n+t}
is equally likely to be any element of the bag, so its rank with ties broken at random is uniform. And p_{t+1}, p_{t+2},
... are functions of E_t. So p_t is uniform whatever the later ones are.

**The martingale.** A bet is a density f on (0, 1]: it multiplies the money by f(p_t), whose mean is 1. Start with 1.
Before input t, take w_t out of the reserve and put w_t / K on each of K bets, and leave all winnings there:

    M_t = r_t + sum over f, sum over s <= t of (w_s / K) f(p_s) f(p_{s+1}) ... f(p_t),    r_t = 1 - w_1 - ... - w_t.

Given p_1, ..., p_{t-1} its mean is M_{t-1}, so it is a martingale, and by Ville's inequality P(some M_t >= c) <= 1 / c.
The inner sum is over the input s from which the stream might have turned: since r_t falls only like t^(-1/5), a turn
after t calm inputs costs about 1.2 log t + 4 nats, not an amount proportional to t.

**Three signals.** Each has p-values and a martingale: nearest distance (large is strange), confidence (small is
strange), similarity (0 is strange). The alarm is raised when one of them reaches 3 / false_alarm. In a calm stream each
does so with probability at most false_alarm / 3, so all together with probability at most false_alarm, however long the
stream is. The average of the three would not do: each is a martingale given its own past, but not given the past of all
three. (The bag (1, 1), (2, 3), (3, 2) shows it: its two signals disagree about the order of the first two points only
if the third is (1, 1), so both pasts together give away the third rank.)
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchsdm.arithmetic import call, has_loops
from torchsdm.core import SDMDecisions
from torchsdm.errors import InvalidInputError, InvalidTypeError, ModelFileError, NotFittedError
from torchsdm.files import parse_json, replace_file, strict_json
from torchsdm.settings import check_fields
from torchsdm.trust._stream import check_kind, check_reason, log_stakes
from torchsdm.trust.lanes import demoted
from torchsdm.validation import (
    Array,
    ArrayLike,
    as_tensor,
    check_finite,
    check_path,
    check_positive,
    check_same_length,
    check_share,
)

SIGNALS = ("nearest_distance", "confidence", "similarity")
_KIND, _FORMAT = "torchsdm drift guard", 1

# Bets f(p) = h + (1 - h) a b p^(a-1) (1-p)^(b-1), a density where a or b is 1, with h held back so that no p ruins it.
# The first three are for inputs stranger than nearly all seen, the others for streams that are stranger on the whole.
_BETS = np.array([(0.25, 1.0), (0.5, 1.0), (0.75, 1.0), (1.0, 2.0), (1.0, 4.0)])
_HELD_BACK = 0.05


@dataclass(frozen=True)
class GuardReset:
    """One reset of a guard: why, and how far the stream had come."""

    reason: str
    n_seen: int
    """Inputs of the stream that ended with the reset."""
    raised_at: int | None
    """The input at which that stream raised the alarm, if it did."""


class DriftGuard:
    """Watches a stream of decisions and raises an alarm when it no longer looks like the calibration set.

    1. Make it from a fitted classifier (``from_classifier``) or from plain arrays.
    2. ``update`` it with the decisions, in the order of the inputs, in blocks of any size.
    3. ``raised`` stays true after an alarm, until somebody calls ``reset`` with a reason.

    If the stream is exchangeable with the calibration points, the alarm is raised with probability at most
    ``false_alarm``, at any time, however long the stream is watched, and for a calibration set of any size. The
    docstring of the module has the proof.

    What this rests on:

    - None of the points is in the support. Calibration, certification and stream points are all decided against a
      support that does not contain them, by the same function, so without drift they are exchangeable.
    - That function does not depend on the points. For the calibration set this is only nearly so: epoch and round were
      chosen by the loss on it, and the eCDFs behind the confidence were fitted on it. Its scores are slightly too good,
      and the promise is approximate. For a certification set, which nothing else ever saw, it is exact;
      ``from_classifier`` prefers that one.
    - The function stays the same. After an update of the support, or ``recalibrate``, make a new guard.
    - The order of the inputs says nothing about them. A file sorted by topic, or one input sent again and
      again, is a stream that turns.
    - The probability is over calibration set, stream and tie-breaking numbers together, for each stream. After a false
      alarm the calibration set is probably an unlucky one, and the next stream is more likely to raise another.

    Only strange inputs raise the alarm, not inputs that are more ordinary than before. Inputs after a turn join those
    that later ones are ranked against, so a slow drift is harder to see than a sudden one. Memory grows with the
    stream, by 24 bytes for each input; the time of an update hardly does. Only one thread at a time may update a guard.

    Parameters
    ----------
    calibration_distance, calibration_confidence, calibration_similarity : (n,)
        Nearest distance, confidence and similarity q of the calibration points. Their order does not matter.
    false_alarm : float, default=0.01
        Largest probability of ever raising the alarm in a calm stream.
    seed : int, default=0
        Of the random numbers that break ties.

    Attributes
    ----------
    n_seen : int
        Inputs of the stream so far.
    raised_at : int or None
        The input, counted from 1, that raised the alarm.
    raised_by : str or None
        The signal that raised it: 'nearest_distance', 'confidence' or 'similarity'.
    resets : tuple of GuardReset
    fingerprint : str
        SHA-256 of the calibration scores.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> rng = np.random.default_rng(0)
    >>> def decisions(distance):
    ...     return SimpleNamespace(nearest_distance=distance, confidence=1 / (1 + distance), similarity=distance < 2)
    >>> known = decisions(rng.random(200))
    >>> guard = DriftGuard(known.nearest_distance, known.confidence, known.similarity)
    >>> _ = guard.update(decisions(rng.random(300)))
    >>> guard.raised
    False
    >>> _ = guard.update(decisions(rng.random(20) + 0.8))
    >>> guard.raised, guard.raised_at
    (True, 308)
    """

    def __init__(
        self,
        calibration_distance: ArrayLike,
        calibration_confidence: ArrayLike,
        calibration_similarity: ArrayLike,
        false_alarm: float = 0.01,
        seed: int = 0,
    ) -> None:
        check_share(false_alarm, "false_alarm", "DriftGuard")
        check_positive(seed, "seed", "DriftGuard", integer=True, zero=True)
        names = ("calibration_distance", "calibration_confidence", "calibration_similarity")
        values = (calibration_distance, calibration_confidence, calibration_similarity)
        scores = _strangeness(dict(zip(names, values, strict=True)), "DriftGuard")
        if scores.shape[1] == 0:
            raise InvalidInputError("'calibration_distance' of DriftGuard must hold the scores of points. Got none.")
        self._calibration = np.sort(scores)  # (3, n), each row ascending
        self.false_alarm, self.seed = float(false_alarm), int(seed)
        self.fingerprint = hashlib.sha256(self._calibration.astype("<f8").tobytes()).hexdigest()
        self.resets: tuple[GuardReset, ...] = ()
        self._start_stream()

    def _start_stream(self) -> None:
        self.n_seen = 0
        self.raised_at: int | None = None
        self.raised_by: str | None = None
        self._runs: tuple[Array, ...] = ()  # the stream's scores in arrays (3, ...), each row ascending; see _with_run
        self._log_bets = np.full((len(SIGNALS), len(_BETS)), -np.inf)  # money on each bet
        self._log_martingales = np.zeros(len(SIGNALS))

    @classmethod
    def from_classifier(cls, clf: Any, false_alarm: float = 0.01, seed: int = 0) -> DriftGuard:
        """The guard of a fitted ``SDMClassifier``, or of an ``SDMTextClassifier`` around one.

        It compares with the certification points if the classifier has them (``clf.certification_``, with the three
        signals as attributes), else with the calibration points, as they are decided now. An ensemble is refused: the
        numbers of its rows come from different rounds, each with a calibration set of its own.
        """
        clf = getattr(clf, "classifier_", clf)
        try:
            model = clf.model_
        except NotFittedError:
            raise
        except AttributeError as error:
            raise InvalidTypeError(
                f"'clf' of DriftGuard.from_classifier must be an SDMClassifier. Got {type(clf).__name__}; an ensemble "
                "has no calibration set of its own, so make the guard from one of its rounds."
            ) from error
        known = getattr(clf, "certification_", None)
        if known is None:
            known = model.decide_encoded(model.calibration.known.points) if model.outdated else model.calibration
        return cls(known.nearest_distance, known.confidence, known.similarity, false_alarm, seed)

    @property
    def raised(self) -> bool:
        """Whether the alarm was raised since the last reset."""
        return self.raised_at is not None

    @property
    def log_martingale(self) -> float:
        """Logarithm of a third of the largest of the three martingales; the alarm is raised at ``log_threshold``."""
        return float(self._log_martingales.max()) - math.log(len(SIGNALS))

    @property
    def log_martingales(self) -> dict[str, float]:
        """Logarithm of the martingale of each signal."""
        return dict(zip(SIGNALS, self._log_martingales.tolist(), strict=True))

    @property
    def log_threshold(self) -> float:
        """log(1 / false_alarm)."""
        return -math.log(self.false_alarm)

    def __repr__(self) -> str:
        state = f"raised at input {self.raised_at} by {self.raised_by}" if self.raised else "calm"
        return f"DriftGuard({state}, {self.n_seen} seen, log_martingale={self.log_martingale:.2f})"

    def update(self, decisions: Any) -> Array:
        """Take in the next decisions of the stream; returns ``log_martingale`` after each of them (N,).

        Parameters
        ----------
        decisions : Decisions
            Or anything with ``nearest_distance``, ``confidence`` and ``similarity`` as arrays (N,). How a stream is cut
            into blocks changes nothing.
        """
        scores = _strangeness({name: getattr(decisions, name, None) for name in SIGNALS}, "DriftGuard.update")
        n = scores.shape[1]
        p = self._p_values(scores)
        log_bets, log_martingales = self._log_bets.copy(), np.empty_like(p)
        _bet(p, self.n_seen, log_bets, log_martingales)
        runs = _with_run(self._runs, scores)
        values: Array = log_martingales.max(axis=0, initial=-np.inf) - math.log(len(SIGNALS))  # (3, N) -> (N,)
        crossed = np.flatnonzero(values >= self.log_threshold)
        if len(crossed) and not self.raised:
            self.raised_at = self.n_seen + int(crossed[0]) + 1
            self.raised_by = SIGNALS[int(log_martingales[:, crossed[0]].argmax())]
        if n:
            self._log_martingales = log_martingales[:, -1].copy()
        self._log_bets, self._runs, self.n_seen = log_bets, runs, self.n_seen + n
        return values

    def watch(self, decisions: SDMDecisions) -> SDMDecisions:
        """Take in the next decisions and return them: from the alarm on, certified ones go to review.

        Also without any alarm the decisions pass through here, so that a stream has one guard and one order.
        """
        first = self.n_seen + 1
        self.update(decisions)
        positions = np.arange(first, first + len(decisions))
        return demoted(decisions, positions < (math.inf if self.raised_at is None else self.raised_at))

    def _p_values(self, scores: Array) -> Array:
        """Smoothed conformal p-values (3, N) of the next scores; see the module's docstring."""
        n = scores.shape[1]
        n_before = self.n_seen + sum(reset.n_seen for reset in self.resets)  # numbers were drawn for them
        generator = np.random.PCG64(self.seed).advance(len(SIGNALS) * n_before)
        u = 1 - np.random.Generator(generator).random((n, len(SIGNALS))).T  # in (0, 1]; input by input
        p = np.empty_like(scores)
        for signal, new in enumerate(scores):
            stranger, equal = _count_earlier(np.unique(new, return_inverse=True)[1])
            for earlier in (self._calibration, *self._runs):
                not_above = np.searchsorted(earlier[signal], new, side="right")
                stranger += earlier.shape[1] - not_above
                equal += not_above - np.searchsorted(earlier[signal], new, side="left")
            n_ranked = self._calibration.shape[1] + self.n_seen + np.arange(1, n + 1)
            p[signal] = (stranger + u[signal] * (equal + 1)) / n_ranked
        return p

    def reset(self, reason: str) -> None:
        """Start again with an empty stream, and remember why.

        The calibration set stays. If the alarm was right, collect new labelled data, certify again and make a new
        guard.
        """
        check_reason(reason, "DriftGuard.reset", "guard")
        self.resets = (*self.resets, GuardReset(reason, self.n_seen, self.raised_at))
        self._start_stream()

    def succeed(self, earlier: DriftGuard, reason: str) -> DriftGuard:
        """Begin where a guard of the model before a change ended: its resets are remembered, and its alarm stays.

        The stream ended with the change, so it counts as a reset. An alarm that was raised then is raised from input 0
        on, until somebody resets it.
        """
        alarm = (0, earlier.raised_by) if earlier.raised else (None, None)
        self.resets = (*earlier.resets, GuardReset(reason, earlier.n_seen, earlier.raised_at))
        self._start_stream()
        self.raised_at, self.raised_by = alarm
        return self

    # --- Saving ------------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The whole guard as strict JSON; ``from_json`` continues to the bit where it stopped."""
        state = {
            "kind": _KIND,
            "format": _FORMAT,
            "false_alarm": self.false_alarm,
            "seed": self.seed,
            "fingerprint": self.fingerprint,
            "calibration": _encoded(self._calibration),
            "stream": _encoded(np.sort(np.hstack([np.empty((len(SIGNALS), 0)), *self._runs]))),
            "log_bets": _encoded(self._log_bets),
            "log_martingales": _encoded(self._log_martingales),
            "raised_at": self.raised_at,
            "raised_by": self.raised_by,
            "resets": [asdict(reset) for reset in self.resets],
        }
        return strict_json(state | {"digest": _digest(state)})

    @classmethod
    def from_json(cls, text: str, fingerprint: str | None = None) -> DriftGuard:
        """Restore a guard.

        With a ``fingerprint``, that of a guard just made from the model in use, a guard of other calibration scores is
        refused.
        """
        return cls._restore(text, fingerprint, "The JSON of the guard")

    def save(self, path: str | Path) -> None:
        """Write ``to_json`` to a file, in one step: a reader sees the old state or the new one."""
        path = check_path(path, "path", "DriftGuard.save")
        try:
            replace_file(path, (self.to_json() + "\n").encode())
        except OSError as error:
            raise ModelFileError(f"{path} cannot be written: {error}.") from error

    @classmethod
    def load(cls, path: str | Path, fingerprint: str | None = None) -> DriftGuard:
        """Read a guard from a file; see ``from_json``."""
        path = check_path(path, "path", "DriftGuard.load")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(f"{path} cannot be read: {error}.") from error
        return cls._restore(text, fingerprint, str(path))

    @classmethod
    def _restore(cls, text: str, fingerprint: str | None, where: str) -> DriftGuard:
        try:
            state = parse_json(text)
        except ValueError as error:
            raise ModelFileError(f"{where} is truncated or damaged: {error}. Start a new guard.") from error
        check_kind(state, _KIND, _FORMAT, where)
        if state.pop("digest", None) != _digest(state):
            raise ModelFileError(f"{where} is damaged: its contents are not what was written. Start a new guard.")
        if fingerprint not in (None, state.get("fingerprint")):
            raise ModelFileError(
                f"{where} was started with other calibration scores: the model was fitted, updated or calibrated again "
                "since. Start a new guard."
            )
        try:
            return cls._restored(state)
        except (KeyError, TypeError, ValueError) as error:  # its digest fits, so somebody wrote it like that
            raise ModelFileError(f"{where} is not what a drift guard writes: {error}. Start a new guard.") from error

    @classmethod
    def _restored(cls, state: Mapping[str, Any]) -> DriftGuard:
        n_signals = len(SIGNALS)
        distance, unsureness, is_contradicted = _decoded(state["calibration"], n_signals, None)
        guard = cls(distance, -unsureness, 1 - is_contradicted, state["false_alarm"], state["seed"])
        stream = _decoded(state["stream"], n_signals, None)
        guard.n_seen, guard._runs = stream.shape[1], _with_run((), stream)
        guard._log_bets = _decoded(state["log_bets"], n_signals, len(_BETS))
        guard._log_martingales = _decoded(state["log_martingales"], n_signals)
        last = check_fields(GuardReset("", guard.n_seen, state["raised_at"]))
        guard.raised_at, guard.raised_by = last.raised_at, state["raised_by"]
        if guard.raised_by not in ((None,) if guard.raised_at is None else SIGNALS):
            raise ValueError(f"it was raised at {guard.raised_at!r} by {guard.raised_by!r}")
        guard.resets = tuple(check_fields(GuardReset(**reset)) for reset in state["resets"])
        return guard


def _strangeness(signals: Mapping[str, Any], caller: str) -> Array:
    """Nearest distance, confidence and similarity as scores (3, N), float64: large is strange."""
    columns: list[Array] = []
    for name, value in signals.items():
        if value is None:
            raise InvalidTypeError(f"{caller} needs decisions of an SDM estimator. Got some without {name!r}.")
        scores = as_tensor(value, name, caller, shape=(None,)).detach().cpu().double()
        # A distance, the first of the three, may be beyond float32, or infinite to an empty support: it has a rank.
        check_finite(scores if columns else scores.clamp(max=1.0), name, caller)
        check_same_length(len(columns[0]) if columns else len(scores), scores, name, caller)
        columns.append(scores.numpy())
    distance, confidence, similarity = columns
    return np.stack([distance, -confidence, (similarity == 0).astype(float)])


def _with_run(runs: tuple[Array, ...], scores: Array) -> tuple[Array, ...]:
    """The runs with a new one of these scores (3, N), each more than twice as long as the next.

    So there are at most log2 of all inputs, and an input is copied about as often: how long an update takes hardly
    depends on how long the stream was.
    """
    scores = np.sort(scores)
    while runs and runs[-1].shape[1] <= 2 * scores.shape[1]:
        scores = np.sort(np.hstack([runs[-1], scores]), kind="stable")  # merges ascending parts in linear time
        runs = runs[:-1]
    return (*runs, scores) if scores.shape[1] else runs


def _count_earlier(codes: Array) -> tuple[Array, Array]:
    """How many codes (N,), whole numbers below N, come before each and are larger, and how many are equal to it."""
    if not has_loops():
        return _count_earlier_plain(codes)
    larger, equal = np.empty(len(codes), dtype=np.int64), np.empty(len(codes), dtype=np.int64)
    call("count_earlier", np.ascontiguousarray(codes, dtype=np.int64), len(codes), larger, equal)
    return larger, equal


def _count_earlier_plain(codes: Array) -> tuple[Array, Array]:
    """The same in Python."""
    larger, equal = np.empty(len(codes), dtype=np.int64), np.empty(len(codes), dtype=np.int64)
    ascending: list[int] = []  # of the codes before
    for t, code in enumerate(codes.tolist()):
        first, last = bisect_left(ascending, code), bisect_right(ascending, code)
        larger[t], equal[t] = t - last, last - first
        ascending.insert(last, code)
    return larger, equal


def _log_add(a: float, b: float) -> float:
    """log(e^a + e^b)."""
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def _bet(p: Array, n_seen: int, log_bets: Array, log_martingales: Array) -> None:
    """Play the p-values (3, N) of the inputs after ``n_seen``; writes the money on each bet (3, K) and log M_t (3, N).

    One input after the other, so that the rounding does not depend on the blocks.
    """
    if not has_loops():
        _bet_plain(p, n_seen, log_bets, log_martingales)
        return
    given = np.ascontiguousarray(p, dtype=np.float64)
    call("play", given, *given.shape, n_seen, _BETS, len(_BETS), _HELD_BACK, log_bets, log_martingales)


def _bet_plain(p: Array, n_seen: int, log_bets: Array, log_martingales: Array) -> None:
    """The same in Python."""
    for i, (stake, log_reserve) in enumerate(zip(*log_stakes(n_seen, p.shape[1], len(_BETS)), strict=True)):
        for signal in range(len(p)):
            x, log_total = p[signal, i], log_reserve
            for k, (a, b) in enumerate(_BETS):
                f = _HELD_BACK + (1 - _HELD_BACK) * a * b * x ** (a - 1) * (1 - x) ** (b - 1)
                log_bets[signal, k] = _log_add(log_bets[signal, k], stake) + math.log(f)
                log_total = _log_add(log_total, log_bets[signal, k])
            log_martingales[signal, i] = log_total


def _encoded(array: Array) -> dict[str, Any]:
    """Numbers as base64 of little-endian float64: exact and compact."""
    return {"shape": list(array.shape), "base64": base64.b64encode(array.astype("<f8").tobytes()).decode()}


def _decoded(stored: Mapping[str, Any], *shape: int | None) -> Array:
    """The reverse, of a shape in which None is any length; an infinite number is one, NaN is none."""
    array = np.frombuffer(base64.b64decode(stored["base64"]), dtype="<f8").reshape(stored["shape"]).astype(np.float64)
    is_shaped = array.ndim == len(shape) and all(want in (None, n) for want, n in zip(shape, array.shape, strict=True))
    if not is_shaped or np.isnan(array).any():
        raise ValueError(f"some numbers have shape {array.shape}, or are NaN")
    return array


def _digest(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True, allow_nan=False).encode()).hexdigest()
