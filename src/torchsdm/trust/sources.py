"""Drift guards by source: each source has a stream and an alarm of its own, and all share one promise.

One stream for all inputs demotes all of them when one source turns. With a stream for each, only the answers to that
source go to review.

**The promise.** The k-th source that turns up gets the share 1 / (k (k + 1)) of ``false_alarm``. Only the first K have
a stream of their own; all later ones are one stream, with the share 1 / (K + 1). Since

    1 / (1 * 2) + 1 / (2 * 3) + ... + 1 / (K (K + 1)) + 1 / (K + 1) = 1,

the probability that any alarm is ever raised is at most ``false_alarm``, over all sources together, however many there
will be, if each stream is exchangeable with the points. Each is a ``DriftGuard``, which keeps its share alone; that
they share the points does not matter, since probabilities of alarms may be added whatever the alarms have to do with
each other. What it costs: the k-th source needs log(k (k + 1)) more evidence, 0.7 for the first, 4.7 for the tenth, 9.2
for the hundredth; a clear turn brings that much within some inputs.

**What it says of a source.** The points are a mixture of sources. A source whose inputs were always unlike the mixture
is not exchangeable with them, and its alarm will be raised without anything having changed. That is no false alarm: the
certificate is an average over the mixture, and promises nothing about this source.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from torchsdm.core import SDMDecisions
from torchsdm.errors import InvalidInputError
from torchsdm.files import parse_json
from torchsdm.settings import check_fields
from torchsdm.trust._stream import check_reason
from torchsdm.trust.guard import SIGNALS, DriftGuard, GuardReset, KeptGuard, Watcher, decoded, encoded
from torchsdm.trust.lanes import demoted
from torchsdm.validation import Array, check_path, check_positive, check_same_length
from torchsdm.wording import shortened

_LONGEST = 200  # characters of a source's name that count
_SEED_BITS = 53


@dataclass(frozen=True)
class SourceReset(GuardReset):
    """One reset of the guard of a source, or of all at once."""

    source: str | None = None
    """None: all of them."""


class SourceGuards(KeptGuard):
    """Drift guards by source; the docstring of the module says what they promise together.

    ``watch`` and ``update`` take the source of each decision beside the decisions: any text or number; None and "" are
    one source, too. The rest is as for ``DriftGuard``. Memory grows with the streams, by 24 bytes for each input; at
    most ``n_kept`` names are remembered, of at most 200 characters.

    Parameters
    ----------
    guard : DriftGuard
        Its points and its ``false_alarm`` are used, its stream is not.
    n_kept : int, default=100
        How many sources have a stream of their own. All further ones share one.
    sources : sequence of str
        Sources that are known in advance, the most important first: they have their streams whoever else turns up.
    seed : int, optional
        Of the random numbers that break ties. By default it is drawn from the system, and saved.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> def decisions(distance):
    ...     return SimpleNamespace(nearest_distance=distance, confidence=1 / (1 + distance), similarity=distance < 2)
    >>> known = decisions(rng.random(200))
    >>> guards = SourceGuards(DriftGuard(known.nearest_distance, known.confidence, known.similarity), seed=0)
    >>> sources = ["comments", "forum"] * 30
    >>> _ = guards.update(decisions(rng.random(60) + np.tile([0, 0.8], 30)), sources)
    >>> guards.raised, guards.raised_sources
    (True, ('forum',))
    """

    _KIND = "torchsdm drift guard by source"

    def __init__(
        self, guard: DriftGuard, n_kept: int = 100, sources: Sequence[Any] = (), seed: int | None = None
    ) -> None:
        seed = secrets.randbits(_SEED_BITS) if seed is None else seed
        check_positive(seed, "seed", "SourceGuards", integer=True, zero=True)
        check_positive(n_kept, "n_kept", "SourceGuards", integer=True)
        self._points = guard.beside(guard.false_alarm, 0)
        self.false_alarm, self.fingerprint, self.n_known = guard.false_alarm, guard.fingerprint, guard.n_known
        self.n_kept, self.seed = int(n_kept), int(seed)
        self._before: tuple[SourceReset, ...] = ()  # all resets up to the last one of everything
        self._streams: dict[str | None, DriftGuard] = {}  # by name, in the order of arrival; None: of all further ones
        if len(known := dict.fromkeys(map(source_name, sources))) > self.n_kept:
            raise InvalidInputError(f"'sources' of SourceGuards must be at most {n_kept} ('n_kept'). Got {len(known)}.")
        for name in known:
            self._stream_of(name)

    @classmethod
    def from_classifier(
        cls,
        clf: Any,
        false_alarm: float = 0.01,
        n_kept: int = 100,
        sources: Sequence[Any] = (),
        seed: int | None = None,
    ) -> SourceGuards:
        """The guards of a fitted classifier; see ``DriftGuard.from_classifier``."""
        return cls(DriftGuard.from_classifier(clf, false_alarm), n_kept, sources, seed)

    def __copy__(self) -> SourceGuards:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._streams = {name: copy.copy(stream) for name, stream in self._streams.items()}
        return other

    def _stream_of(self, name: str) -> DriftGuard:
        """The stream of a source, begun if the source is new."""
        kept: str | None = name if name in self._streams or self.n_sources < self.n_kept else None
        if kept not in self._streams:
            k = self.n_sources + 1
            share = k if kept is None else k * (k + 1)  # one in so many; the rest is begun when k is n_kept + 1
            words = np.random.SeedSequence([self.seed, len(self._before), k]).generate_state(1, np.uint64)
            self._streams[kept] = self._points.beside(self.false_alarm / share, int(words[0]) >> 64 - _SEED_BITS)
        return self._streams[kept]

    # --- What they have come to --------------------------------------------------------------------------------------

    @property
    def streams(self) -> Mapping[str | None, DriftGuard]:
        """The guard of each source, in the order of their arrival; that of None is for all further ones."""
        return dict(self._streams)

    @property
    def empty(self) -> DriftGuard:
        """A guard as the first source has it."""
        return self._points.beside(self.false_alarm / 2, self.seed)

    @property
    def n_sources(self) -> int:
        """Sources with a stream of their own."""
        return len(self._streams) - (None in self._streams)

    @property
    def n_seen(self) -> int:
        """Inputs of all streams."""
        return sum(stream.n_seen for stream in self._streams.values())

    @property
    def raised_sources(self) -> tuple[str | None, ...]:
        """The sources whose alarm is raised; None stands for all without a stream of their own."""
        return tuple(name for name, stream in self._streams.items() if stream.raised)

    @property
    def raised(self) -> bool:
        """Whether the alarm of any source is raised."""
        return bool(self.raised_sources)

    @property
    def resets(self) -> tuple[SourceReset, ...]:
        """All resets, of one source or of all."""
        own = (SourceReset(**asdict(one), source=name) for name, of in self._streams.items() for one in of.resets)
        return (*self._before, *own)

    def __repr__(self) -> str:
        raised = ", ".join(repr(name) for name in self.raised_sources)
        state = f"raised by {raised}" if raised else "calm"
        return f"SourceGuards({state}, {self.n_sources} sources, {self.n_seen} seen)"

    # --- The streams -------------------------------------------------------------------------------------------------

    def update(self, decisions: Any, sources: Sequence[Any] | Array | None = None) -> Array:
        """Take in the next decisions; returns ``log_martingale`` of the stream of each after it (N,)."""
        return self._taken_in(decisions, sources)[0]

    def watch(self, decisions: SDMDecisions, sources: Sequence[Any] | Array | None = None) -> SDMDecisions:
        """Take in the next decisions and return them: certified ones of a source go to review from its alarm on."""
        return demoted(decisions, self._taken_in(decisions, sources)[1])

    def by(self, sources: Sequence[Any] | Array | None) -> Watcher:
        """What watches the next decisions, of inputs from these sources: ``classifier.decide(X, guard=...)``."""
        return _Bound(self, sources)

    def _taken_in(self, decisions: Any, sources: Sequence[Any] | Array | None) -> tuple[Array, Array]:
        """``log_martingale`` of each decision's stream after it, and whether its alarm is not raised by then (N,)."""
        n = len(decisions.nearest_distance)
        given = [None] * n if sources is None else list(sources)
        check_same_length(n, given, "sources", "SourceGuards")
        names, ahead = [source_name(one) for one in given], copy.copy(self)
        values, is_calm = np.empty(n), np.empty(n, dtype=bool)
        rows: dict[str | None, list[int]] = {}  # of each stream
        for row, name in enumerate(names):
            ahead._stream_of(name)
            rows.setdefault(name if name in ahead._streams else None, []).append(row)
        for kept, own in rows.items():
            stream = ahead._streams[kept]
            positions = np.arange(stream.n_seen + 1, stream.n_seen + len(own) + 1)
            signals = {signal: np.asarray(getattr(decisions, signal))[own] for signal in SIGNALS}
            values[own] = stream.update(SimpleNamespace(**signals))
            is_calm[own] = positions < (np.inf if stream.raised_at is None else stream.raised_at)
        self._streams = ahead._streams  # all of them, or none after an error
        return values, is_calm

    def reset(self, reason: str, source: Any = None) -> SourceReset:
        """Restart the stream of a source, and remember why; returns what is remembered.

        Without a source everything starts again, and the sources are forgotten, too: the promise is then for what
        follows. Sources without a stream of their own share one, which restarts with any of them.
        """
        if source is not None:
            name: str | None = source_name(source)
            name = name if name in self._streams else None
            if name not in self._streams:
                raise InvalidInputError(
                    f"'source' of SourceGuards.reset must have a stream. Got {shortened(repr(source))}."
                )
            streams = copy.copy(self)._streams
            made = SourceReset(**asdict(streams[name].reset(reason)), source=name)
            self._streams = streams
            return made
        check_reason(reason, "SourceGuards.reset", "guard")
        raised_at = min((one.raised_at for one in self._streams.values() if one.raised_at is not None), default=None)
        made = SourceReset(reason, self.n_seen, raised_at)
        self._before, self._streams = (*self.resets, made), {}
        return made

    def succeed(self, earlier: SourceGuards, reason: str) -> SourceGuards:
        """Begin where the guards of the model before a change ended; see ``DriftGuard.succeed``."""
        self._before, self.n_kept = earlier._before, earlier.n_kept
        self._streams = {
            name: self._points.beside(stream.false_alarm, stream.seed).succeed(stream, reason)
            for name, stream in earlier._streams.items()
        }
        return self

    # --- Saving ------------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {
            "calibration": encoded(self._points._calibration),
            "false_alarm": self.false_alarm,
            "n_kept": self.n_kept,
            "seed": self.seed,
            "resets": [asdict(reset) for reset in self._before],
            "sources": [{"source": name, **stream.stream_state()} for name, stream in self._streams.items()],
        }

    @classmethod
    def _restored(cls, state: Mapping[str, Any]) -> SourceGuards:
        distance, unsureness, is_contradicted = decoded(state["calibration"], len(SIGNALS), None)
        points = DriftGuard(distance, -unsureness, 1 - is_contradicted, state["false_alarm"], 0)
        points.fingerprint = str(state["fingerprint"])
        guards = cls(points, state["n_kept"], seed=state["seed"])
        guards._before = tuple(check_fields(SourceReset(**reset)) for reset in state["resets"])
        guards._streams = {one["source"]: points.with_stream(one) for one in state["sources"]}
        if not all(name is None or isinstance(name, str) for name in guards._streams):
            raise ValueError("a source is neither text nor null")
        return guards


@dataclass(frozen=True)
class _Bound:
    """Guards with the sources of the decisions that come next."""

    guards: SourceGuards
    sources: Sequence[Any] | Array | None

    @property
    def raised(self) -> bool:
        return self.guards.raised

    def watch(self, decisions: SDMDecisions) -> SDMDecisions:
        return self.guards.watch(decisions, self.sources)


def source_name(source: Any) -> str:
    """What a source is called: at most 200 characters of text; "" if it is not known."""
    return "" if source is None else str(source)[:_LONGEST].encode("utf-8", "replace").decode()


def load_guard(path: str | Path, fingerprint: str | None = None) -> DriftGuard | SourceGuards:
    """Read the guard or the guards by source that a file keeps."""
    path = check_path(path, "path", "load_guard")
    try:
        kind = parse_json(path.read_text(encoding="utf-8")).get("kind")
    except (OSError, ValueError, AttributeError):
        kind = None  # the guard says what is wrong
    return SourceGuards.load(path, fingerprint) if kind == SourceGuards._KIND else DriftGuard.load(path, fingerprint)
