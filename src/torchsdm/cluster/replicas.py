"""Pieces of work for replicas of something that is expensive to make, such as a loaded model.

A replica is an actor. Answers come back in the order of the pieces, whichever replica is done first and whatever is
lost: a piece that was lost with its replica goes to another one. Ray is not asked to restart an actor, because whoever
waits for that waits as long as the cluster has no room; a new replica gets work only once it is there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from torchsdm.cluster._losses import Lost, answer_of, check_losses
from torchsdm.cluster.backend import RayBackend

Piece = TypeVar("Piece")
Answer = TypeVar("Answer")

_IN_FLIGHT = 2  # pieces of a replica: one that it works on, and one that is on its way
_AHEAD = 2  # pieces per replica that may wait for an earlier one, beside those in flight


def map_in_order(
    backend: RayBackend,
    make: Callable[[], Callable[[Piece], Answer]],
    pieces: Iterable[Piece],
    *,
    device_type: str = "cpu",
) -> Iterator[Answer]:
    """The answer to every piece, in order; they are read only as far ahead as replicas can use them.

    Parameters
    ----------
    backend : RayBackend
    make : callable
        Makes what answers a piece; called once per replica, with the threads of the backend. It is sent to a node once.
    pieces : iterable
    device_type : str
        With 'cuda', a replica has a GPU.
    """
    pool = _Pool(backend, make, device_type)
    try:
        yield from pool.answers(pieces)
    finally:
        pool.end()


class _Replica:
    """An actor: what was made, and what it answers."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]], threads: int) -> None:
        self._make, self._threads = make, threads

    def begin(self) -> None:
        torch.set_num_threads(self._threads)  # the last bits of a language model can depend on it
        self._answer = self._make()

    def answer(self, piece: Any) -> Any:
        return self._answer(piece)


class _Unread:
    """The pieces that nobody was asked for yet, numbered."""

    def __init__(self, pieces: Iterable[Any]) -> None:
        self._pieces, self.n_read, self.is_over = iter(pieces), 0, False

    def following(self) -> list[tuple[int, Any]]:
        """The next piece, if there is one."""
        for piece in self._pieces:
            self.n_read += 1
            return [(self.n_read - 1, piece)]
        self.is_over = True
        return []


class _Pool:
    def __init__(self, backend: RayBackend, make: Callable[[], Callable[[Any], Any]], device_type: str) -> None:
        self._ray = backend.connect()
        options = backend.worker_options(device_type)
        self._most = backend.n_workers(options)
        self._actor = self._ray.remote(**options)(_Replica)
        self._made, self._threads = self._ray.put(make), backend.n_threads
        self._load: dict[Any, int] = {}  # pieces in flight of each replica that is there
        self._starting: dict[Any, Any] = {}  # replicas by what they answer when they are there
        self._asked: dict[Any, tuple[int, Any, Any]] = {}  # (number, piece, replica) by reference
        self._n_losses: dict[int | None, int] = {}  # by the number of the piece; None: of replicas that were starting

    def answers(self, pieces: Iterable[Any]) -> Iterator[Any]:
        unread = _Unread(pieces)
        waiting: list[tuple[int, Any]] = []  # to be asked: lost pieces, the earliest first, or else the next one
        done: dict[int, Any] = {}  # answers that wait for an earlier one
        n_given = 0

        def read_on() -> None:
            if not waiting and unread.n_read - n_given < self._most * (_IN_FLIGHT + _AHEAD):
                waiting.extend(unread.following())

        read_on()
        while waiting or self._asked:
            while waiting and self._has_room:
                self._ask(*heapq.heappop(waiting))
                read_on()
            self._start(len(self._asked) + len(waiting) if unread.is_over else self._most)
            for lost in self._wait(done):
                heapq.heappush(waiting, lost)
            while n_given in done:
                yield done.pop(n_given)
                n_given += 1
            read_on()

    @property
    def _has_room(self) -> bool:
        return any(n < _IN_FLIGHT for n in self._load.values())

    def _start(self, wanted: int) -> None:
        """Start replicas until there are as many as have work, at most as many as there is room for."""
        while len(self._load) + len(self._starting) < min(wanted, self._most):
            replica = self._actor.remote(self._made, self._threads)
            self._starting[replica.begin.remote()] = replica

    def _ask(self, number: int, piece: Any) -> None:
        replica = min(self._load, key=lambda one: self._load[one])
        self._asked[replica.answer.remote(piece)] = (number, piece, replica)
        self._load[replica] += 1

    def _wait(self, done: dict[int, Any]) -> list[tuple[int, Any]]:
        """Wait for something to happen; the pieces that have to be asked again."""
        ready, _ = self._ray.wait([*self._asked, *self._starting], num_returns=1)
        lost: list[tuple[int, Any]] = []
        for reference in ready:
            number, piece, replica = self._asked.pop(reference, (None, None, self._starting.pop(reference, None)))
            try:
                answer = answer_of(self._ray, reference)
            except Lost as error:
                self._n_losses[number] = self._n_losses.get(number, 0) + 1
                what = "A replica that was starting" if number is None else f"Block {number + 1}"
                check_losses(self._n_losses[number], what, error)
                self._load.pop(replica, None)
                if number is not None:
                    lost.append((number, piece))
                continue
            self._n_losses.pop(number, None)
            if number is None:
                self._load[replica] = 0
                continue
            done[number] = answer
            if replica in self._load:
                self._load[replica] -= 1
        return lost

    def end(self) -> None:
        for replica in [*self._load, *self._starting.values()]:
            self._ray.kill(replica)
