"""One thread owns the model. Requests wait for it in a queue, and it answers together those that wait together.

An idle worker takes the first request at once, and whatever arrives meanwhile is the next batch: the more clients there
are, the larger the batches. Inputs are cheaper the more of them are decided on together: the support is read once for
all, and a language model reads texts of similar lengths at once. So after a batch the worker waits a moment: the
clients that it has just answered are about to ask again.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

Result = TypeVar("Result")

_MEMORY = 0.8  # of the running mean of times, for each further batch
# Shares of the time that the last batch took:
_SILENCE = 0.1  # without an arrival: the clients that were answered do not ask again
_PATIENCE = 0.5  # the longest wait for them


class QueueFull(Exception):
    """Too many requests wait."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"{seconds} s")
        self.seconds = seconds
        """When it is worth coming back."""


class Closed(Exception):
    """The service is shutting down: requests are no longer taken, or no longer answered."""


class Abandoned(Exception):
    """The client left before its request was begun."""


@dataclass
class _Waiting:
    """A question with its share of a batch, or a call (weight infinite), which is made between batches."""

    what: Any
    weight: float
    future: Future[Any] = field(default_factory=Future)

    @property
    def is_call(self) -> bool:
        return self.weight == math.inf


async def result_of(future: Future[Result]) -> Result:
    """The result of a future of another thread, for a coroutine; a coroutine that is cancelled cancels it."""
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if future.cancelled():
            raise Closed from None
        raise


class Worker:
    """A thread that answers questions, in the order of their arrival and as many at once as a batch may have.

    ``answer`` returns as many answers as it is given questions; one that is an exception is raised to its client.
    """

    def __init__(self, answer: Callable[[Sequence[Any]], Sequence[Any]], max_waiting: int) -> None:
        self._answer, self._max_waiting = answer, max_waiting
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._mean_seconds = 0.0  # that a batch takes
        self._n_expected = 0  # questions that will wait if all ask again
        self._batch_seconds, self._batch_end = 0.0, 0.0  # of the last
        self._last_arrival = 0.0
        self._thread = threading.Thread(target=self._work, name="sdm-worker", daemon=True)
        self._thread.start()

    def ask(self, question: Any, weight: float) -> Future[Any]:
        """Queue a question; a batch has questions of a total weight of at most 1, or a single one."""
        return self._add(_Waiting(question, weight))

    def call(self, function: Callable[[], Result]) -> Future[Result]:
        """Queue a function for the worker to call, by itself, when the questions before it are answered."""
        return self._add(_Waiting(function, math.inf))

    @property
    def n_waiting(self) -> int:
        """How many questions and calls have not been begun."""
        return len(self._waiting)

    @property
    def is_alive(self) -> bool:
        """Whether questions are answered."""
        return self._thread.is_alive() and not self._closed

    def close(self, timeout: float | None = None) -> bool:
        """Take no more questions, answer those that wait, and end; returns whether all were answered in time."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _add(self, new: _Waiting) -> Future[Any]:
        with self._changed:
            if self._closed:
                raise Closed
            if not new.is_call and len(self._waiting) >= self._max_waiting:
                n_batches = max(1.0, sum(one.weight for one in self._waiting if not one.is_call))
                raise QueueFull(max(1, math.ceil(n_batches * self._mean_seconds)))
            self._waiting.append(new)
            self._last_arrival = time.monotonic()
            self._changed.notify()
        return new.future

    def _work(self) -> None:
        while batch := self._next_batch():
            begun = [one for one in batch if one.future.set_running_or_notify_cancel()]
            if begun:
                self._run(begun)

    def _next_batch(self) -> list[_Waiting]:
        """The questions, or the call, to begin with; empty if the worker is closed and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            while (seconds := self._seconds_to_wait()) > 0:
                self._changed.wait(seconds)
            batch: list[_Waiting] = []
            weight = 0.0
            while self._waiting and (not batch or weight + self._waiting[0].weight <= 1):
                batch.append(self._waiting.popleft())
                weight += batch[-1].weight
            return batch

    def _seconds_to_wait(self) -> float:
        """How long to wait for further questions; 0 if there is no reason to."""
        if self._closed or len(self._waiting) >= self._n_expected or sum(one.weight for one in self._waiting) >= 1:
            return 0.0
        silent_until = max(self._batch_end, self._last_arrival) + _SILENCE * self._batch_seconds
        return min(silent_until, self._batch_end + _PATIENCE * self._batch_seconds) - time.monotonic()

    def _run(self, batch: list[_Waiting]) -> None:
        start = time.monotonic()
        try:
            answers = [batch[0].what()] if batch[0].is_call else self._answer([one.what for one in batch])
        except BaseException as error:
            answers = [error] * len(batch)
        end = time.monotonic()
        seconds = end - start
        if not batch[0].is_call:
            self._n_expected, self._batch_end, self._batch_seconds = len(batch) + self.n_waiting, end, seconds
            before = self._mean_seconds or seconds
            self._mean_seconds = _MEMORY * before + (1 - _MEMORY) * seconds
        for one, answer in zip(batch, answers, strict=True):
            if isinstance(answer, BaseException):
                one.future.set_exception(answer)
            else:
                one.future.set_result(answer)
