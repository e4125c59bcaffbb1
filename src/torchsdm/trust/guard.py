"""The drift guard: an anytime-valid test that a stream of decisions still looks like the points it is compared with.

**p-values.** Let Z_1, ..., Z_n be the scores of those points and Z_{n+1}, Z_{n+2}, ... those of the stream; large is
strange. The p-value of input t is the rank of its score among these n scores *and all earlier ones of the stream*, ties
broken by a random number u_t in (0, 1]:

    p_t = (#{i < n+t : Z_i > Z_{n+t}} + u_t #{i <= n+t : Z_i = Z_{n+t}}) / (n + t).

If Z_1, Z_2, ... are exchangeable, then p_1, p_2, ... are independent and uniform, exactly, for every n, also for n = 0
(ranks among a few points alone would not be: they would share the luck of those points). Proof: let E_t
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
import copy
import hashlib
import json
import math
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from torchsdm.arithmetic import call, has_loops
from torchsdm.core import SDMDecisions
from torchsdm.errors import InvalidTypeError, ModelFileError, NotFittedError
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
_FORMAT = 1
_SEED_BITS = 53  # of a drawn seed: JSON readers with float64 numbers keep it

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


class Watcher(Protocol):
    """What takes in the next decisions of a stream, and returns them with certified ones demoted after an alarm."""

    @property
    def raised(self) -> bool:
        """Whether any alarm is raised."""

    def watch(self, decisions: SDMDecisions) -> SDMDecisions:
        """Take in the next decisions and return them."""


_Guard = TypeVar("_Guard", bound="KeptGuard")


class KeptGuard:
    """What guards of a model share: they are kept as strict JSON, and refused for another model."""

    _KIND: ClassVar[str]
    fingerprint: str

    def _state(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def _restored(cls: type[_Guard], state: Mapping[str, Any]) -> _Guard:
        raise NotImplementedError

    def to_json(self) -> str:
        """The whole guard as strict JSON; ``from_json`` continues to the bit where it stopped."""
        state = {"kind": self._KIND, "format": _FORMAT, "fingerprint": self.fingerprint, **self._state()}
        return strict_json(state | {"digest": _digest(state)})

    @classmethod
    def from_json(cls: type[_Guard], text: str, fingerprint: str | None = None) -> _Guard:
        """Restore a guard.

        With a ``fingerprint``, that of a guard just made from the model in use, a guard of other scores is refused.
        """
        return cls._restore(text, fingerprint, "The JSON of the guard")

    def save(self, path: str | Path) -> None:
        """Write ``to_json`` to a file, in one step: a reader sees the old state or the new one."""
        path = check_path(path, "path", f"{type(self).__name__}.save")
        try:
            replace_file(path, (self.to_json() + "\n").encode())
        except OSError as error:
            raise ModelFileError(f"{path} cannot be written: {error}.") from error

    @classmethod
    def load(cls: type[_Guard], path: str | Path, fingerprint: str | None = None) -> _Guard:
        """Read a guard from a file; see ``from_json``."""
        path = check_path(path, "path", f"{cls.__name__}.load")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(f"{path} cannot be read: {error}.") from error
        return cls._restore(text, fingerprint, str(path))

    @classmethod
    def _restore(cls: type[_Guard], text: str, fingerprint: str | None, where: str) -> _Guard:
        try:
            state = parse_json(text)
        except ValueError as error:
            raise ModelFileError(f"{where} is truncated or damaged: {error}. Start a new guard.") from error
        check_kind(state, cls._KIND, _FORMAT, where)
        if state.pop("digest", None) != _digest(state):
            raise ModelFileError(f"{where} is damaged: its contents are not what was written. Start a new guard.")
        if fingerprint not in (None, state.get("fingerprint")):
            raise ModelFileError(
                f"{where} was started with other scores: the model was fitted, updated or calibrated again since. "
                "Start a new guard."
            )
        try:
            return cls._restored(state)
        except (KeyError, TypeError, ValueError) as error:  # its digest fits, so somebody wrote it like that
            raise ModelFileError(f"{where} is not what a drift guard writes: {error}. Start a new guard.") from error


class DriftGuard(KeptGuard):
    """Watches a stream of decisions and raises an alarm when it no longer looks like the points it is compared with.

    1. Make it from a fitted classifier (``from_classifier``) or from plain arrays.
    2. ``update`` it with the decisions, in the order of the inputs, in blocks of any size.
    3. ``raised`` stays true after an alarm, until somebody calls ``reset`` with a reason.

    If the stream is exchangeable with those points, the alarm is raised with probability at most ``false_alarm``, at
    any time, however long the stream is watched, and for any number of points. The docstring of the module has the
    proof.

    What this rests on:

    - Nothing of the model saw the points: not the support, not training, not calibration. Then they and the stream are
      decided on by the same function, which depends on neither. Of a certification set this is true. Of a calibration
      set it is not: it may have chosen the epoch, the eCDFs behind the confidence were fitted on it, and with
      ``training='linear'`` it is in the support. Its scores look better than those of new inputs, and a guard that
      compared with it would raise too many alarms. So ``from_classifier`` takes certification points or none. Without
      any, inputs are compared with each other: the promise stays, and a turn is noticed, but not a stream that is
      strange from its first input on.
    - The function stays the same. After an update of the support, or ``recalibrate``, make a new guard.
    - The order of the inputs says nothing about them. A file sorted by topic, or one input sent again and
      again, is a stream that turns.
    - The probability is over points, stream and tie-breaking numbers together, for each stream. After a false alarm the
      points are probably unlucky ones, and the next stream is more likely to raise another.

    Only strange inputs raise the alarm, not inputs that are more ordinary than before. Inputs after a turn join those
    that later ones are ranked against, so a slow drift is harder to see than a sudden one. Memory grows with the
    stream, by 24 bytes for each input; the time of an update hardly does. Only one thread at a time may update a guard.

    Parameters
    ----------
    calibration_distance, calibration_confidence, calibration_similarity : (n,)
        Nearest distance, confidence and similarity q of the points to compare with; they need no labels. Their order
        does not matter. There may be none.
    false_alarm : float, default=0.01
        Largest probability of ever raising the alarm in a calm stream.
    seed : int, optional
        Of the random numbers that break ties. By default it is drawn from the system, so that nobody can know it and no
        two guards share their luck; it is saved with the guard.

    Attributes
    ----------
    n_seen : int
        Inputs of the stream so far.
    raised_at : int or None
        The input, counted from 1, that raised the alarm.
    raised_by : str or None
        The signal that raised it: 'nearest_distance', 'confidence' or 'similarity'.
    resets : tuple of GuardReset
    n_known : int
        How many points it compares with.
    fingerprint : str
        SHA-256 of their scores; of a guard without points, of the calibration scores of its model.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> rng = np.random.default_rng(0)
    >>> def decisions(distance):
    ...     return SimpleNamespace(nearest_distance=distance, confidence=1 / (1 + distance), similarity=distance < 2)
    >>> known = decisions(rng.random(200))
    >>> guard = DriftGuard(known.nearest_distance, known.confidence, known.similarity, seed=0)
    >>> _ = guard.update(decisions(rng.random(300)))
    >>> guard.raised
    False
    >>> _ = guard.update(decisions(rng.random(20) + 0.8))
    >>> guard.raised, guard.raised_at
    (True, 308)
    """

    _KIND = "torchsdm drift guard"

    def __init__(
        self,
        calibration_distance: ArrayLike,
        calibration_confidence: ArrayLike,
        calibration_similarity: ArrayLike,
        false_alarm: float = 0.01,
        seed: int | None = None,
    ) -> None:
        check_share(false_alarm, "false_alarm", "DriftGuard")
        seed = secrets.randbits(_SEED_BITS) if seed is None else seed
        check_positive(seed, "seed", "DriftGuard", integer=True, zero=True)
        names = ("calibration_distance", "calibration_confidence", "calibration_similarity")
        values = (calibration_distance, calibration_confidence, calibration_similarity)
        scores = _strangeness(dict(zip(names, values, strict=True)), "DriftGuard")
        self._calibration = np.sort(scores)  # (3, n), each row ascending
        self.false_alarm, self.seed = float(false_alarm), int(seed)
        self.fingerprint = _fingerprint(scores)
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
    def from_classifier(cls, clf: Any, false_alarm: float = 0.01, seed: int | None = None) -> DriftGuard:
        """The guard of a fitted ``SDMClassifier``, or of an ``SDMTextClassifier`` around one.

        It compares with the certification points (``clf.certification_``, with the three signals as attributes), as
        they are decided now. If there are none, it compares inputs with each other only (``n_known`` is 0). An ensemble
        is refused: the numbers of its rows come from different rounds.
        """
        clf = getattr(clf, "classifier_", clf)
        try:
            model = clf.model_
        except NotFittedError:
            raise
        except AttributeError as error:
            raise InvalidTypeError(
                f"'clf' of DriftGuard.from_classifier must be an SDMClassifier. Got {type(clf).__name__}; an ensemble "
                "has no certification set of its own, so make the guard from one of its rounds."
            ) from error
        known = getattr(clf, "certification_", None)
        if known is not None:
            return cls(known.nearest_distance, known.confidence, known.similarity, false_alarm, seed)
        guard = cls((), (), (), false_alarm, seed)
        known = model.decide_encoded(model.calibration.known.points) if model.outdated else model.calibration
        guard.fingerprint = _fingerprint(_strangeness({name: getattr(known, name) for name in SIGNALS}, "DriftGuard"))
        return guard

    @property
    def n_known(self) -> int:
        """How many points it compares with."""
        return int(self._calibration.shape[1])

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
        seen = f"{self.n_seen} seen, compared with {self.n_known} points and each other"
        return f"DriftGuard({state}, {seen}, log_martingale={self.log_martingale:.2f})"

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
            n_ranked = self.n_known + self.n_seen + np.arange(1, n + 1)
            p[signal] = (stranger + u[signal] * (equal + 1)) / n_ranked
        return p

    def reset(self, reason: str) -> GuardReset:
        """Start again with an empty stream, and remember why; returns what is remembered.

        The points that it compares with stay. If the alarm was right, collect new labelled data, certify again and make
        a new guard.
        """
        check_reason(reason, "DriftGuard.reset", "guard")
        made = GuardReset(reason, self.n_seen, self.raised_at)
        self.resets = (*self.resets, made)
        self._start_stream()
        return made

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

    def _state(self) -> dict[str, Any]:
        return {"calibration": encoded(self._calibration), **self.stream_state()}

    @classmethod
    def _restored(cls, state: Mapping[str, Any]) -> DriftGuard:
        distance, unsureness, is_contradicted = decoded(state["calibration"], len(SIGNALS), None)
        guard = cls(distance, -unsureness, 1 - is_contradicted, state["false_alarm"], state["seed"])
        if guard.n_known and guard.fingerprint != state["fingerprint"]:
            raise ValueError("its fingerprint is not that of its points")
        guard.fingerprint = str(state["fingerprint"])
        return guard.with_stream(state)

    def beside(self, false_alarm: float, seed: int) -> DriftGuard:
        """A guard over the same points, with an empty stream of its own."""
        other = copy.copy(self)
        other.false_alarm, other.seed, other.resets = float(false_alarm), int(seed), ()
        other._start_stream()
        return other

    def stream_state(self) -> dict[str, Any]:
        """All but the points, as plain values; ``with_stream`` restores it."""
        return {
            "false_alarm": self.false_alarm,
            "seed": self.seed,
            "stream": encoded(np.sort(np.hstack([np.empty((len(SIGNALS), 0)), *self._runs]))),
            "log_bets": encoded(self._log_bets),
            "log_martingales": encoded(self._log_martingales),
            "raised_at": self.raised_at,
            "raised_by": self.raised_by,
            "resets": [asdict(reset) for reset in self.resets],
        }

    def with_stream(self, state: Mapping[str, Any]) -> DriftGuard:
        """A guard over the same points that goes on where another stopped."""
        guard = self.beside(state["false_alarm"], state["seed"])
        stream = decoded(state["stream"], len(SIGNALS), None)
        guard.n_seen, guard._runs = stream.shape[1], _with_run((), stream)
        guard._log_bets = decoded(state["log_bets"], len(SIGNALS), len(_BETS))
        guard._log_martingales = decoded(state["log_martingales"], len(SIGNALS))
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


def _fingerprint(scores: Array) -> str:
    """SHA-256 of scores (3, N), in any order."""
    return hashlib.sha256(np.sort(scores).astype("<f8").tobytes()).hexdigest()


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


def encoded(array: Array) -> dict[str, Any]:
    """Numbers as base64 of little-endian float64: exact and compact."""
    return {"shape": list(array.shape), "base64": base64.b64encode(array.astype("<f8").tobytes()).decode()}


def decoded(stored: Mapping[str, Any], *shape: int | None) -> Array:
    """The reverse, of a shape in which None is any length; an infinite number is one, NaN is none."""
    array = np.frombuffer(base64.b64decode(stored["base64"]), dtype="<f8").reshape(stored["shape"]).astype(np.float64)
    is_shaped = array.ndim == len(shape) and all(want in (None, n) for want, n in zip(shape, array.shape, strict=True))
    if not is_shaped or np.isnan(array).any():
        raise ValueError(f"some numbers have shape {array.shape}, or are NaN")
    return array


def _digest(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True, allow_nan=False).encode()).hexdigest()
