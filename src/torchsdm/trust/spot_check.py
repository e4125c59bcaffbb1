"""Spot checks: an anytime-valid test, with few labels, that admitted answers are still right as often as promised.

**Who is checked.** The j-th admitted answer is drawn with probability rho_j: if u_j < rho_j, where u_1, u_2, ... are
uniform and depend on nothing. rho_j may depend on all that happened before the answer (counts, times, earlier draws and
verdicts), but not on the answer itself. A person then says whether it is right.

**The promise that is tested** is "accuracy >= alpha": every answer, given all that happened before it, is right with
probability a_j >= alpha. Where answers are independent and right equally often, that is their accuracy; but it may also
change from answer to answer, as long as it stays at alpha or above.

**One bet.** For a tilt l > 0 a checked answer multiplies the money by

    f(right) = e^-l / (1 + alpha (e^-l - 1)),    f(wrong) = 1 / (1 + alpha (e^-l - 1)),

the ratio of the likelihoods of two accuracies: one whose odds are e^-l times those of alpha, and alpha. Its mean is
(1 + a_j (e^-l - 1)) / (1 + alpha (e^-l - 1)): 1 for a_j = alpha, and the less, the larger a_j is. So under the promise
no bet gains on average, for *every* a_j >= alpha, and for a_j that vary. Nor does the draw change that: u_j says
nothing about the answer, so its mean factor is (1 - rho_j) + rho_j E f <= 1.

**The evidence.** Start with 1. Before check t, take w_t out of the reserve, put w_t / K on each of K tilts, and leave
all winnings there, as the drift guard does:

    M_t = r_t + sum over l, sum over s <= t of (w_s / K) f_l(x_s) ... f_l(x_t),    r_t = 1 - w_1 - ... - w_t.

Under the promise it is a supermartingale that starts at 1, so by Ville's inequality P(some M_t >= c) <= 1 / c, at
whatever time somebody looks. The inner sum is over the check from which accuracy might have fallen: years of good
answers do not have to be outweighed first.

**Many alarms.** There is one test of all answers together and one of each of C predictions; each alarm is raised where
its evidence reaches 1 / share. Half of ``false_alarm`` is for all together, the other half is divided equally among the
predictions. By the union bound any of them is a false alarm with probability at most ``false_alarm``, for ever, however
predictions depend on each other.

**Bounds.** For the average of a_1, ..., a_n over the checks so far, A_n, take the same tilts without a reserve:

    G_n(a) = mean over l of exp(l R_n - n log(1 + a (e^l - 1))),    R_n: how many of n are right.

With the true a_1, ..., a_n in place of n times a, each term would be a martingale. The logarithm of 1 + a (e^l - 1)
is concave in a, so by Jensen's inequality G_n(A_n) is at most the mean of these martingales, and by Ville's
P(some G_n(A_n) >= c) <= 1 / c. G_n falls as a grows: the lower bound is where it is c. The upper bound is 1 minus the
lower bound of the share of wrong answers. The level 1 - ``confidence`` is shared as ``false_alarm`` is, and halved
between both bounds: all bounds, of all groups, at all times, hold together with probability at least ``confidence``.
They are about the answers checked so far, whose accuracy may change, so no bound is carried on from an earlier time (no
running intersection): that would mix statements about different averages.

**A number a week.** With ``per_week`` = B the rate is rho_j = min(1, B / N_j), where N_j counts admitted answers, this
one included, and older ones less: by e^-T after T weeks. It begins at N_0 = B / ``rate``. The expected number of draws
in T weeks is at most B (T + log(N_T / N_0)), whatever the traffic: an admitted answer raises log N by at least
1 / N_j, time lowers it by T, and the difference is log(N_T / N_0). So while traffic stays what it was, at most B a week
are drawn, and nearly B, if so many are admitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from torchsdm.core import Decisions, Target, by_number, check_target, largest, smallest
from torchsdm.errors import InvalidInputError, InvalidTypeError, ModelFileError
from torchsdm.settings import check_fields
from torchsdm.trust._stream import check_kind, check_reason, log_stakes, reserve
from torchsdm.trust.guard import GuardReset
from torchsdm.trust.lanes import CERTIFIED, TRUSTED, demoted
from torchsdm.validation import (
    Array,
    ArrayLike,
    as_list,
    check_positive,
    check_same_length,
    check_share,
    is_storable_label,
)
from torchsdm.wording import REASONS, group_name, listed

_KIND, _FORMAT = "torchsdm spot check", 1
_TILTS = 2.0 ** np.arange(2, -6, -1)  # of the log-odds: from 4, for answers that are nearly all wrong, to 1 / 32
_WEEK = 7 * 24 * 3600.0  # seconds
_BLOCK = 65_536  # verdicts at a time, to bound memory
_HALVINGS = 60  # of [0, 1], until a bound is as exact as float64

_Decided = TypeVar("_Decided", bound=Decisions)


@dataclass(frozen=True)
class CheckedGroup:
    """What spot checks found about one prediction, or about all answers together."""

    prediction: Any
    """The label; None stands for all together."""
    target: float
    """The accuracy that is promised."""
    n_checked: int
    n_wrong: int
    lower_bound: float
    """Of the average chance of being right over the answers checked so far."""
    upper_bound: float
    log_evidence: float
    """log M_t; the alarm is raised at ``log_threshold``."""
    log_threshold: float
    raised_at: int | None
    """The verdict, counted from 1 over all predictions, that raised the alarm."""

    @property
    def raised(self) -> bool:
        """Whether the alarm was raised since the last reset."""
        return self.raised_at is not None

    @property
    def accuracy(self) -> float | None:
        """Share of the checked answers that are right; None without any."""
        return None if self.n_checked == 0 else (self.n_checked - self.n_wrong) / self.n_checked

    @property
    def name(self) -> str:
        """As in "prediction 'positive'"."""
        return group_name("prediction", [] if self.prediction is None else [self.prediction])


class SpotCheck:
    """Draws admitted answers at random for a person to check, and raises an alarm when too many are wrong.

    1. Make it with the promise: the ``target`` and the classes of the certificate.
    2. ``draw`` says which of the next decisions to check, in blocks of any size.
    3. ``update`` it with the verdicts, one or many at a time.
    4. ``raised`` stays true after an alarm, until somebody calls ``reset`` with a reason. ``demote`` takes admission
       away from the answers that an alarm is about.

    As long as admitted answers are right with probability ``target`` or more, an alarm is raised with probability at
    most ``false_alarm``: any alarm, about any prediction or about all answers together, at any time, however long one
    goes on. The docstring of the module has the proof.

    What this rests on:

    - Verdicts are about answers that were drawn, all of them, in an order that has nothing to do with whether they are
      right. Whoever checks doubtful answers first, or leaves some out, tests another question.
    - Nobody treats a drawn answer differently before its verdict. Who could gain by that must not know ``seed``.
    - Verdicts are right. A wrong verdict counts as it was given.
    - "Right with probability ``target``" is meant given the past. An alarm on a stretch of harder inputs, on which
      answers are right less often than promised, is no false one, even if easier inputs would make up for it later.
    - Each prediction is held to its target. A certificate with ``control="all"`` promised it for all together only.

    Parameters
    ----------
    target : float or (C,)
        Accuracy promised, in (0.5, 1), or one for each class (``Certificate.target``). All answers together are held to
        the smallest.
    classes : (C,)
        The labels that may be predicted.
    false_alarm : float, default=0.01
        Largest probability of ever raising an alarm while the promise holds.
    confidence : float, default=0.95
        Probability with which all bounds, of all groups, hold together at all times.
    rate : float, default=0.05
        Share of the admitted answers to check, in (0, 1]; with ``per_week``, the share to begin with.
    per_week : float, optional
        How many to check in a week, about. The rate then follows the number of admitted answers.
    seed : int, default=0
        Of the draws.

    Attributes
    ----------
    classes : tuple
    n_admitted, n_drawn : int
        Admitted decisions seen by ``draw``, and how many of them it drew; a reset does not change them.
    resets : tuple of GuardReset
        ``n_seen`` counts verdicts.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> checks = SpotCheck(0.9, ["ham", "spam"], rate=0.2)
    >>> checks.draw(SimpleNamespace(admitted=np.ones(10, dtype=bool))).nonzero()[0].tolist()
    [2, 3]
    >>> checks.update(["ham", "spam", "spam"], [True, True, True])
    ()
    >>> [group.name for group in checks.update(["spam"] * 12, [False] * 12)]
    ['all together', "prediction 'spam'"]
    >>> checks.raised, checks.raised_at, checks.overall.accuracy
    (True, 9, 0.2)
    """

    def __init__(
        self,
        target: float | Sequence[float],
        classes: ArrayLike,
        *,
        false_alarm: float = 0.01,
        confidence: float = 0.95,
        rate: float = 0.05,
        per_week: float | None = None,
        seed: int = 0,
    ) -> None:
        labels = as_list(classes, "classes", "SpotCheck")
        if not labels or not all(map(is_storable_label, labels)) or len(set(labels)) < len(labels):
            raise InvalidInputError(
                f"'classes' of SpotCheck must be labels (strings, finite numbers or booleans), each once. Got {labels}."
            )
        self.classes: tuple[Any, ...] = tuple(labels)
        self.target: Target = check_target(target, len(labels), "SpotCheck")
        if largest(self.target) == 1:
            raise InvalidInputError(
                "'target' of SpotCheck must be below 1: the first wrong answer would break it, and no certificate "
                "promises it."
            )
        check_share(false_alarm, "false_alarm", "SpotCheck")
        check_share(confidence, "confidence", "SpotCheck")
        check_positive(rate, "rate", "SpotCheck")
        if rate > 1:
            raise InvalidInputError(
                f"'rate' of SpotCheck must be in (0, 1]. Got {rate!r}; for a number of answers, give 'per_week'."
            )
        if per_week is not None:
            check_positive(per_week, "per_week", "SpotCheck")
        check_positive(seed, "seed", "SpotCheck", integer=True, zero=True)
        self.false_alarm, self.confidence, self.seed = float(false_alarm), float(confidence), int(seed)
        self.per_week = None if per_week is None else float(per_week)
        self._rate = float(rate)
        self._traffic, self._at = (0.0 if self.per_week is None else self.per_week / self._rate), -math.inf
        self.n_admitted, self.n_drawn = 0, 0
        self.resets: tuple[GuardReset, ...] = ()
        self._number = {label: number for number, label in enumerate(self.classes)}
        # Groups: each prediction, in the order of the classes, then all together.
        self._targets = np.append(by_number(self.target, len(labels)), smallest(self.target))
        self._shares = np.append(np.full(len(labels), 0.5 / len(labels)), 0.5)
        self._start_stream()

    def _start_stream(self) -> None:
        n_groups = len(self._targets)
        self._n_checked, self._n_wrong = np.zeros(n_groups, dtype=np.int64), np.zeros(n_groups, dtype=np.int64)
        self._log_staked = np.full((n_groups, len(_TILTS)), -np.inf)  # see _played
        self._raised_at: list[int | None] = [None] * n_groups

    # --- Drawing -----------------------------------------------------------------------------------------------------

    @property
    def rate(self) -> float:
        """The probability with which the next admitted answer is drawn, if no time passes."""
        return self._rate if self.per_week is None else min(1.0, self.per_week / (self._traffic + 1))

    def draw(self, decisions: Any, at: float | None = None) -> Array:
        """Which of the next decisions are to be checked (N,); only admitted ones are.

        Parameters
        ----------
        decisions : Decisions
            Or anything with ``admitted`` as a boolean array (N,). How a stream is cut into blocks changes nothing.
        at : float, optional
            With ``per_week``, the time of these decisions in seconds, such as ``time.time()``.
        """
        admitted = np.asarray(getattr(decisions, "admitted", None))
        if admitted.dtype != bool or admitted.ndim != 1:
            raise InvalidTypeError("SpotCheck.draw needs decisions with 'admitted' as a boolean array (N,).")
        n = int(admitted.sum())
        rates = np.full(n, self._rate) if self.per_week is None else self._rates(n, self.per_week, at)
        generator = np.random.Generator(np.random.PCG64(self.seed).advance(self.n_admitted))
        drawn = np.zeros(len(admitted), dtype=bool)
        drawn[admitted] = generator.random(n) < rates
        self.n_admitted, self.n_drawn = self.n_admitted + n, self.n_drawn + int(drawn.sum())
        return drawn

    def _rates(self, n: int, per_week: float, at: float | None) -> Array:
        """min(1, B / N_j) for the next n admitted answers; N_j is counted on."""
        if at is None or not math.isfinite(at):
            raise InvalidInputError(
                f"'at' of SpotCheck.draw must be the time in seconds, with 'per_week', as in draw(decisions, "
                f"time.time()). Got {at!r}."
            )
        later = max(self._at, float(at))  # a clock that is set back stops time for a while
        weeks = 0.0 if self._at == -math.inf else (later - self._at) / _WEEK
        traffic = np.cumsum(np.append(self._traffic * math.exp(-weeks), np.ones(n)))
        self._traffic, self._at = float(traffic[-1]), later
        rates: Array = np.minimum(1.0, per_week / traffic[1:])
        return rates

    def draw_at(self, rate: float = 0.05, per_week: float | None = None) -> None:
        """Draw so many from now on. A rate may follow all that happened before, so the promise stays as it is."""
        after = SpotCheck(self.target, self.classes, rate=rate, per_week=per_week)
        if self.per_week is None:
            self._traffic, self._at = after._traffic, after._at
        self._rate, self.per_week = after._rate, after.per_week

    # --- Verdicts ----------------------------------------------------------------------------------------------------

    def update(self, predictions: ArrayLike, is_right: ArrayLike) -> tuple[CheckedGroup, ...]:
        """Take in verdicts, in their order; returns the groups about which they raised an alarm, the first one first.

        Parameters
        ----------
        predictions : (N,)
            The labels that were admitted.
        is_right : (N,)
            Whether each is right, as booleans. How a stream is cut into updates changes nothing.
        """
        numbers, is_wrong = self._verdicts(predictions, is_right)
        calm = [group for group, at in enumerate(self._raised_at) if at is None]
        first = self.n_checked + 1
        for group in (*np.unique(numbers).tolist(), len(self.classes)):
            rows = np.flatnonzero(numbers == group) if group < len(self.classes) else np.arange(len(numbers))
            for block in np.split(rows, range(_BLOCK, len(rows), _BLOCK)):
                self._take_in(group, is_wrong[block], first + block)
        # Of two alarms by one verdict the one about all together comes first: it says more.
        raised = sorted((at, -group) for group in calm if (at := self._raised_at[group]) is not None)
        groups = self.groups if raised else ()
        return tuple(groups[-number] for _, number in raised)

    def _verdicts(self, predictions: ArrayLike, is_right: ArrayLike) -> tuple[Array, Array]:
        """The number of each prediction, and whether it is wrong."""
        labels = as_list(predictions, "predictions", "SpotCheck.update")
        right = np.asarray(is_right)
        if right.ndim != 1 or (len(right) and right.dtype != bool):
            raise InvalidTypeError(
                f"'is_right' of SpotCheck.update must be booleans, True for a right answer. Got {is_right!r}."
            )
        check_same_length(len(labels), right, "is_right", "SpotCheck.update")
        numbers = [self._number.get(label, -1) if isinstance(label, str | int | float) else -1 for label in labels]
        if -1 in numbers:
            raise InvalidInputError(
                f"'predictions' of SpotCheck.update must be labels that were admitted ({listed(self.classes, 10)}), "
                f"whatever is right instead. Got {labels[numbers.index(-1)]!r}."
            )
        return np.array(numbers, dtype=np.int64), ~right.astype(bool)

    def _take_in(self, group: int, is_wrong: Array, positions: Array) -> None:
        """Verdicts about one group, and their positions in the stream."""
        log_evidence, self._log_staked[group] = _played(
            self._targets[group], self._n_checked[group], self._n_wrong[group], self._log_staked[group], is_wrong
        )
        self._n_checked[group] += len(is_wrong)
        self._n_wrong[group] += int(is_wrong.sum())
        crossed = np.flatnonzero(log_evidence >= self._log_thresholds[group])
        if len(crossed) and self._raised_at[group] is None:
            self._raised_at[group] = int(positions[crossed[0]])

    @property
    def _log_thresholds(self) -> Array:
        """log(1 / the share of each group of ``false_alarm``)."""
        thresholds: Array = -np.log(self.false_alarm * self._shares)
        return thresholds

    @property
    def n_checked(self) -> int:
        """Verdicts since the last reset."""
        return int(self._n_checked[-1])

    @property
    def n_wrong(self) -> int:
        """How many of them were that the answer is wrong."""
        return int(self._n_wrong[-1])

    @property
    def raised(self) -> bool:
        """Whether any alarm was raised since the last reset."""
        return self.raised_at is not None

    @property
    def raised_at(self) -> int | None:
        """The verdict, counted from 1, that raised the first alarm."""
        return min((at for at in self._raised_at if at is not None), default=None)

    @property
    def raised_by(self) -> tuple[Any, ...]:
        """The predictions about which an alarm was raised, and None if one was about all together."""
        return tuple(label for label, at in zip((*self.classes, None), self._raised_at, strict=True) if at is not None)

    @property
    def overall(self) -> CheckedGroup:
        """What was found about all answers together."""
        return self.groups[-1]

    @property
    def groups(self) -> tuple[CheckedGroup, ...]:
        """What was found about each prediction, in the order of the classes, and about all together, which is last."""
        n, wrong = self._n_checked, self._n_wrong
        log_level = -np.log((1 - self.confidence) * self._shares / 2)
        evidence = [
            _log_evidence(target, count, errors, staked)
            for target, count, errors, staked in zip(
                self._targets.tolist(), n.tolist(), wrong.tolist(), self._log_staked, strict=True
            )
        ]
        columns = (
            *((*self.classes, None), self._targets.tolist(), n.tolist(), wrong.tolist()),
            *(_lower_bounds(n, n - wrong, log_level).tolist(), (1 - _lower_bounds(n, wrong, log_level)).tolist()),
            *(evidence, self._log_thresholds.tolist(), self._raised_at),
        )
        return tuple(CheckedGroup(*row) for row in zip(*columns, strict=True))

    def __repr__(self) -> str:
        state = f"raised at verdict {self.raised_at} by {self.raised_by}" if self.raised else "calm"
        return f"SpotCheck({state}, {self.n_wrong} of {self.n_checked} checked answers wrong)"

    def demote(self, decisions: _Decided) -> _Decided:
        """The same decisions while an alarm is raised: what it is about goes to review.

        An alarm about a prediction concerns all answers with it, trusted ones too: more of them are wrong than promised
        at any level of evidence. An alarm about all together concerns certified answers, whose promise is an average.
        """
        if not self.raised:
            return decisions
        labels, raised = decisions.predictions.tolist(), self.raised_by
        is_calm = np.array([label not in raised for label in labels], dtype=bool)
        reasons = np.array([REASONS["checks of one"].format(label=label) for label in labels], dtype=object)
        after = demoted(decisions, is_calm, lanes=(TRUSTED, CERTIFIED), reason=reasons)
        if None in raised:
            after = demoted(after, np.zeros(len(labels), dtype=bool), reason=REASONS["checks"])
        return after

    def reset(self, reason: str) -> None:
        """Start again without verdicts, and remember why. The draws go on.

        If the alarm was right, certify again with new labelled data first.
        """
        check_reason(reason, "SpotCheck.reset", "spot check")
        self.resets = (*self.resets, GuardReset(reason, self.n_checked, self.raised_at))
        self._start_stream()

    def succeed(self, earlier: SpotCheck, reason: str) -> SpotCheck:
        """Begin where the checks of the model before a change ended: the draws go on, its alarms stay.

        The stream of verdicts ended with the change, so it counts as a reset. An alarm that was raised then is raised
        from verdict 0 on, until somebody resets it.
        """
        self.resets = (*earlier.resets, GuardReset(reason, earlier.n_checked, earlier.raised_at))
        self._start_stream()
        self._raised_at = [0 if label in earlier.raised_by else None for label in (*self.classes, None)]
        self.seed, self.n_admitted, self.n_drawn = earlier.seed, earlier.n_admitted, earlier.n_drawn
        self._rate, self.per_week = earlier._rate, earlier.per_week
        self._traffic, self._at = earlier._traffic, earlier._at
        return self

    # --- Saving ------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The whole state as plain values for strict JSON; ``from_dict`` continues to the bit where it stopped."""
        groups = zip(self._n_checked, self._n_wrong, self._log_staked, self._raised_at, strict=True)
        return {
            "kind": _KIND,
            "format": _FORMAT,
            "target": list(self.target) if isinstance(self.target, tuple) else self.target,
            "classes": list(self.classes),
            "false_alarm": self.false_alarm,
            "confidence": self.confidence,
            "rate": self._rate,
            "per_week": self.per_week,
            "seed": self.seed,
            "n_admitted": self.n_admitted,
            "n_drawn": self.n_drawn,
            "traffic": self._traffic,
            "at": self._at if math.isfinite(self._at) else None,
            "groups": [
                {
                    "n_checked": int(n),
                    "n_wrong": int(n_wrong),
                    "log_staked": log_staked.tolist() if n else [],
                    "raised_at": raised_at,
                }
                for n, n_wrong, log_staked, raised_at in groups
            ],
            "resets": [asdict(reset) for reset in self.resets],
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> SpotCheck:
        """The reverse of ``to_dict``."""
        check_kind(state, _KIND, _FORMAT, "The state of the spot checks")
        try:
            return cls._restored(state)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(
                f"The state of the spot checks is not what was written: {error}. Start new ones."
            ) from error

    @classmethod
    def _restored(cls, state: Mapping[str, Any]) -> SpotCheck:
        settings = ("target", "classes", "false_alarm", "confidence", "rate", "per_week", "seed")
        stored = _Stored(**{name: value for name, value in state.items() if name not in (*settings, "kind", "format")})
        check_fields(stored)
        checks = cls(**{name: state[name] for name in settings})
        checks.n_admitted, checks.n_drawn = stored.n_admitted, stored.n_drawn
        checks._traffic, checks._at = float(stored.traffic), -math.inf if stored.at is None else float(stored.at)
        groups = [check_fields(_StoredGroup(**group)) for group in stored.groups]
        checks._n_checked[:] = [group.n_checked for group in groups]
        checks._n_wrong[:] = [group.n_wrong for group in groups]
        for staked, group in zip(checks._log_staked, groups, strict=True):
            if len(group.log_staked) != (len(_TILTS) if group.n_checked else 0):
                raise ValueError(f"it has {len(group.log_staked)} stakes on {len(_TILTS)} tilts")
            staked[: len(group.log_staked)] = group.log_staked
        checks._raised_at = [group.raised_at for group in groups]
        checks.resets = tuple(check_fields(GuardReset(**reset)) for reset in stored.resets)
        counts = np.stack([checks._n_checked - checks._n_wrong, checks._n_wrong])
        is_whole = (counts >= 0).all() and (counts[:, :-1].sum(axis=1) == counts[:, -1]).all()
        if not is_whole or np.isnan(checks._log_staked).any():
            raise ValueError("its counts do not fit together")
        return checks


@dataclass(frozen=True)
class _Stored:
    """What a stored state has beside the settings."""

    n_admitted: int
    n_drawn: int
    traffic: float
    at: float | None
    groups: list[dict[str, Any]]
    resets: list[dict[str, Any]]


@dataclass(frozen=True)
class _StoredGroup:
    n_checked: int
    n_wrong: int
    log_staked: list[float]
    raised_at: int | None


def _log_factors(alpha: float, n: Array, n_wrong: Array) -> Array:
    """log of f(x_1) ... f(x_n) for each tilt (K, N), from how many checks there were, and how many were wrong."""
    log_mean = np.log1p(alpha * np.expm1(-_TILTS))
    factors: Array = -_TILTS[:, None] * (n - n_wrong) - n * log_mean[:, None]
    return factors


def _played(
    alpha: float, n_before: int, n_wrong_before: int, log_staked: Array, is_wrong: Array
) -> tuple[Array, Array]:
    """log M_t after each of the next verdicts (N,), and ``log_staked`` (K,) after them.

    ``log_staked`` is the logarithm of the sum over s of (w_s / K) / (f(x_1) ... f(x_(s-1))) for each tilt: what all
    stakes so far would have been worth before the first check. Times f(x_1) ... f(x_t) it is the money on the bet. The
    products follow from counts, and the sums are added up in order, so no rounding depends on how verdicts are cut.
    """
    n = n_before + np.arange(len(is_wrong) + 1)
    n_wrong = n_wrong_before + np.append(0, np.cumsum(is_wrong))
    log_factors = _log_factors(alpha, n, n_wrong)  # (K, 1 + N), of the products up to each check
    stakes, log_reserve = log_stakes(n_before, len(is_wrong), len(_TILTS))
    placed = np.column_stack([log_staked, np.array(stakes) - log_factors[:, :-1]])
    staked = np.logaddexp.accumulate(placed, axis=1)[:, 1:]
    log_evidence: Array = np.logaddexp.reduce(np.vstack([log_reserve, log_factors[:, 1:] + staked]), axis=0)
    return log_evidence, staked[:, -1] if len(is_wrong) else log_staked


def _log_evidence(alpha: float, n: int, n_wrong: int, log_staked: Array) -> float:
    """log M_t of a state."""
    money = _log_factors(alpha, np.array([n]), np.array([n_wrong]))[:, 0] + log_staked
    return float(np.logaddexp.reduce(np.append(math.log(reserve(n)), money)))


def _lower_bounds(n: Array, hits: Array, log_levels: Array) -> Array:
    """The smallest share (G,) that so many hits among n do not refute: where log G_n(a) is ``log_levels``, or 0."""
    below, above = np.zeros(len(n)), np.ones(len(n))
    for _ in range(_HALVINGS):
        a = (below + above) / 2
        is_refuted = _log_mean_tilted(a, n, hits) >= log_levels
        below, above = np.where(is_refuted, a, below), np.where(is_refuted, above, a)
    return below


def _log_mean_tilted(a: Array, n: Array, hits: Array) -> Array:
    """log G_n(a), as in the docstring of the module (G,)."""
    exponents = _TILTS * hits[:, None] - n[:, None] * np.log1p(a[:, None] * np.expm1(_TILTS))  # (G, K)
    values: Array = np.logaddexp.reduce(exponents, axis=1) - math.log(len(_TILTS))
    return values
