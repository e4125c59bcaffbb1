"""Pieces of work for replicas of something that is expensive to make, such as a loaded model.

A replica is an actor. Answers come back in the order of the pieces, whichever replica is done first and whatever is
lost: a piece that was lost with its replica goes to another one. Ray is not asked to restart an actor, because whoever
waits for that waits as long as the cluster has no room; a new replica gets work only once it is there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from sklearn.base import clone

from torchsdm.cluster.backend import Backend, Lost, RayBackend, answer_of, as_backend, check_losses
from torchsdm.data import Document, ExtractedStates
from torchsdm.errors import InvalidInputError
from torchsdm.hidden_states import BlockReader, Elsewhere, NumberedBlocks

Piece = TypeVar("Piece")
Answer = TypeVar("Answer")

_IN_FLIGHT = 2  # pieces of a replica: one that it works on, and one that is on its way
_AHEAD = 2  # pieces per replica that may wait for an earlier one, beside those in flight


def map_in_order(
    backend: RayBackend,
    make: Callable[[], Callable[[Piece], Answer]],
    pieces: Iterable[Piece],
    *,
    device: str | None = None,
) -> Iterator[Answer]:
    """The answer to every piece, in order; they are read only as far ahead as replicas can use them.

    ``make`` makes what answers a piece, on a ``device``: once per replica, with the threads of the backend; it is sent
    to a node once.
    """
    yield from _Pool(backend, make, device).answers(pieces)


class _Replica:
    """An actor: what was made, and what it answers."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]], threads: int) -> None:
        self._make, self._threads = make, threads

    def begin(self) -> None:
        torch.set_num_threads(self._threads)  # the last bits of a language model can depend on it
        self._answer = self._make()

    def answer(self, piece: Any) -> Any:
        return self._answer(piece)


class _Pool:
    def __init__(self, backend: RayBackend, make: Callable[[], Callable[[Any], Any]], device: str | None) -> None:
        self._ray = backend.connect()
        options = backend.worker_options(torch.device(device or "cpu").type)
        self._most = backend.n_workers(options)
        self._actor = self._ray.remote(**options)(_Replica)
        self._made, self._threads = self._ray.put(make), backend.n_threads
        self._load: dict[Any, int] = {}  # pieces in flight of each replica; one that is starting takes no more
        # (number, piece, replica) by reference; without number and piece: what a replica answers when it is there
        self._asked: dict[Any, tuple[int | None, Any, Any]] = {}
        self._n_losses: dict[int | None, int] = {}  # by the number of the piece; None: of replicas that were starting

    def answers(self, pieces: Iterable[Any]) -> Iterator[Any]:
        unread = enumerate(pieces)
        waiting: list[tuple[int, Any]] = []  # a heap of the pieces to ask, read just now or lost
        done: dict[int, Any] = {}  # answers that wait for an earlier one
        n_read = n_given = 0
        try:
            while True:
                for piece in islice(unread, self._most * (_IN_FLIGHT + _AHEAD) - (n_read - n_given)):
                    heapq.heappush(waiting, piece)
                    n_read += 1
                if n_given == n_read:
                    return
                self._start(n_read - n_given - len(done))
                while waiting and any(n < _IN_FLIGHT for n in self._load.values()):
                    self._ask(*heapq.heappop(waiting))
                for lost in self._wait(done):
                    heapq.heappush(waiting, lost)
                while n_given in done:
                    yield done.pop(n_given)
                    n_given += 1
        finally:
            for replica in self._load:
                self._ray.kill(replica)

    def _start(self, wanted: int) -> None:
        """Start replicas until there are as many as have work, at most as many as there is room for."""
        while len(self._load) < min(wanted, self._most):
            replica = self._actor.remote(self._made, self._threads)
            self._load[replica] = _IN_FLIGHT
            self._asked[replica.begin.remote()] = (None, None, replica)

    def _ask(self, number: int, piece: Any) -> None:
        replica = min(self._load, key=lambda one: self._load[one])
        self._asked[replica.answer.remote(piece)] = (number, piece, replica)
        self._load[replica] += 1

    def _wait(self, done: dict[int, Any]) -> list[tuple[int, Any]]:
        """Wait for something to happen; the pieces that have to be asked again."""
        ready, _ = self._ray.wait([*self._asked], num_returns=1)
        lost: list[tuple[int, Any]] = []
        for reference in ready:
            number, piece, replica = self._asked.pop(reference)
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


def extract_on(backend: Backend, caller: str) -> Elsewhere | None:
    """Who extracts blocks in place of this process on a backend; None for this process."""
    cluster = as_backend(backend, caller)
    return None if cluster is None else partial(_extract, cluster)


def _extract(backend: RayBackend, reader: BlockReader, blocks: NumberedBlocks) -> Iterator[tuple[int, ExtractedStates]]:
    sent = portable(reader)
    return map_in_order(backend, partial(_reading, sent), blocks, device=sent.extractor.device)


def portable(reader: BlockReader) -> BlockReader:
    """A reader that can be sent to a node, which must have the language model under the same name."""
    extractor = reader.extractor
    if not isinstance(extractor.model, (str, Path)):
        raise InvalidInputError(
            "A cluster needs the name or the path of the language model, which each node loads itself. Got a "
            f"{type(extractor.model).__name__}."
        )
    model = str(extractor.model)
    place = str(Path(model).resolve()) if Path(model).exists() else model  # a node works in another directory
    return replace(reader, extractor=clone(extractor).set_params(model=place))


def _reading(
    reader: BlockReader,
) -> Callable[[tuple[int, Sequence[Document]]], tuple[int, ExtractedStates]]:
    extraction = reader.extraction
    return lambda numbered: (numbered[0], extraction.run(extraction.encoder.encode(numbered[1]), source=reader.source))
