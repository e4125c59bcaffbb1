"""The ledger of looks: what certification samples were asked, counted by their rows, whoever asked.

A look is a question to a sample. Its certificate fails with probability delta; of several on one sample at least one
fails with up to the sum of their deltas, so whoever tries estimators until one passes pays for each. Samples are known
again by the keys of their rows (``keys_of``), so that neither a copy of the estimator, nor a new fit, nor another
language model, nor a part of the rows starts afresh. The same question again gives the same answer and costs nothing.

There is one ledger a process (``current_ledger``). ``separate_ledger`` is for simulations, where every fit is an
experiment of its own.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import numpy as np

from torchsdm.validation import Array

_SHARED = 0.01  # of the smaller sample: fewer rows in common, or a single one, are an accident, such as a short text
MOST_KEYS = 1 << 22  #: of samples and of inspected rows each; the oldest samples are forgotten beyond that


@dataclass(frozen=True)
class Look:
    """A question that a sample was asked."""

    keys: Array
    """Of its rows (N, K)."""
    question: str
    """A digest of what was asked: of scores and labels, not only of the rows."""
    delta: float


def share_rows(keys: Array, others: Array) -> bool:
    """Whether two samples have more rows in common than by accident."""
    n_shared = int(np.isin(keys, others).any(axis=1).sum())
    return n_shared > 1 and n_shared >= _SHARED * min(len(keys), len(others))


class Ledger:
    """Looks and inspected rows, in memory; several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._samples: dict[bytes, tuple[Array, dict[str, float]]] = {}  # keys and questions, oldest first
        self._inspected = np.empty(0, dtype=np.uint64)

    def spent(self, keys: Array) -> dict[str, float]:
        """The deltas of all looks at samples that share rows with this one, by question."""
        with self._lock:
            samples = list(self._samples.values())
        return {name: delta for others, asked in samples if share_rows(keys, others) for name, delta in asked.items()}

    def add(self, look: Look) -> bool:
        """Enter a look; whether it is new: one that is there already is no other."""
        name = hashlib.sha256(np.sort(look.keys, axis=None).tobytes()).digest()
        with self._lock:
            keys, asked = self._samples.get(name, (look.keys, {}))
            if asked.get(look.question) == look.delta:
                return False
            self._samples[name] = keys, {**asked, look.question: look.delta}
            n_keys = sum(keys.size for keys, _ in self._samples.values())
            while n_keys > MOST_KEYS and len(self._samples) > 1:
                n_keys -= self._samples.pop(next(iter(self._samples)))[0].size
        return True

    def inspect(self, keys: Array) -> None:
        """Enter rows whose labels a model helped to look at: none of them can certify as if nobody had."""
        with self._lock:
            self._inspected = np.union1d(self._inspected[-MOST_KEYS:], keys)

    def inspected(self, keys: Array) -> Array:
        """Which rows (N,) were looked at."""
        with self._lock:
            return np.asarray(np.isin(keys, self._inspected).any(axis=1))

    def ask(self, look: Look, known: Mapping[str, float] | None = None) -> dict[str, float]:
        """Enter a look; the deltas of all others that share rows with it, by question.

        ``known`` are questions that its sample was asked elsewhere, such as before a model was saved.
        """
        with self._lock:
            others, known = self.spent(look.keys), known or {}
            for one in (*(replace(look, question=name, delta=known[name]) for name in known.keys() - others), look):
                self.add(one)
        return {name: delta for name, delta in {**others, **known}.items() if name != look.question}


_separate: ContextVar[Ledger | None] = ContextVar("_separate", default=None)
_of_process = Ledger()


def current_ledger() -> Ledger:
    """The ledger of this process, or of the ``separate_ledger`` that the caller is in."""
    return _separate.get() or _of_process


def keep_ledger(ledger: Ledger) -> None:
    """Have this process use a ledger from now on, such as one that is kept in a file."""
    global _of_process
    _of_process = ledger


@contextmanager
def separate_ledger() -> Iterator[Ledger]:
    """Begin with an empty ledger, for this thread, and forget it at the end.

    For simulations, benchmarks and cross-validation, where every fit is an experiment of its own and nobody picks the
    one that passed. Used to try until something is certified, it makes the certificate worthless.

    Examples
    --------
    >>> with separate_ledger() as ledger:
    ...     ledger is current_ledger()
    True
    """
    token = _separate.set(ledger := Ledger())
    try:
        yield ledger
    finally:
        _separate.reset(token)
