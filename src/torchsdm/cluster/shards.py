"""Shards: actors that search their blocks of a support, and the driver's side of them.

A shard remembers nothing that it could not read again. Every call names the state of the support that it is about, and
the batch of queries; what the shard does not have, because it was restarted or made room, it gets or computes again. So
every call may be repeated, and Ray repeats those that a lost shard did not answer.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchsdm.cluster.backend import RayBackend, import_ray
from torchsdm.cluster.blocks import Block, Recipe
from torchsdm.errors import ClusterError, TorchSDMError
from torchsdm.matching import CentredPoints, Found, Match, Part, RowIndex, Search, match
from torchsdm.validation import Array, as_tensor, check_positive

IN_FLIGHT = 3  #: batches that are on their way at once, so that no shard waits for the driver or for another shard
PATIENCE = 120.0  #: seconds that a lost shard may take to be back
_KEPT_SEARCHES = IN_FLIGHT + 1
_SECONDS_BETWEEN_CHECKS = 5.0
_HEALTH = "health"  # a thread of the actor's own, which answers while the shard computes
T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Queries, as they travel."""

    queries: Array  # (n, M)
    predictions: Array  # (n,)
    exclude: Array | None = None  # (n,)
    k: int = 0
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def asked(self, parts: tuple[Part, ...], ask: Callable[..., T]) -> T:
        """What a search of parts answers, or the search itself."""
        exclude = None if self.exclude is None else _tensor(self.exclude)
        return ask(_tensor(self.queries), _tensor(self.predictions), parts, exclude, k=self.k)


@dataclass(frozen=True)
class StateName:
    """A state of the support as one shard has it: a name, and where to read what it stands for."""

    name: str
    recipe: Any  # a reference to a ``Recipe`` in the object store


class Shard:
    """What an actor does; it needs no Ray but to read recipes and rows from the object store.

    Every question comes with the names of the states that nobody has any more (``dropped``).
    """

    def __init__(self, n_threads: int = 1) -> None:
        self.n_threads = n_threads
        self.states: dict[str, tuple[Part, ...]] = {}
        self.parts: weakref.WeakValueDictionary[tuple[int, Block], Part] = weakref.WeakValueDictionary()
        self.points: weakref.WeakValueDictionary[tuple[Any, ...], CentredPoints] = weakref.WeakValueDictionary()
        self.searches: OrderedDict[tuple[str, str], Search] = OrderedDict()

    def find_first(self, state: StateName, batch: Batch, counts: bool, dropped: Sequence[str] = ()) -> Found:
        """Round one; ``counts`` says whether a second one follows, for which products are kept."""
        self._begin(dropped)
        search = batch.asked(self._parts(state), Search)
        found = search.find_first()
        if counts:
            self.searches[state.name, batch.name] = search
            while len(self.searches) > _KEPT_SEARCHES:
                self.searches.popitem(last=False)
        return found

    def count_matches(
        self, state: StateName, batch: Batch, boundary: tuple[Array, Array], dropped: Sequence[str] = ()
    ) -> Array:
        """Round two: how many matches (n,) are before the first non-match among all shards."""
        self._begin(dropped)
        search = self.searches.pop((state.name, batch.name), None)
        if search is None:  # lost, or it had to make room
            search = batch.asked(self._parts(state), Search)
            search.find_first()
        return search.count_matches(*(_tensor(values) for values in boundary)).numpy()

    def match(self, state: StateName, batch: Batch, dropped: Sequence[str] = ()) -> Match:
        """Both rounds, as on one machine: no other shard has points."""
        self._begin(dropped)
        return batch.asked(self._parts(state), match)

    def find_rows(self, state: StateName, rows: Array, dropped: Sequence[str] = ()) -> dict[int, int]:
        """Which of some rows are here, each with its last support index."""
        self._begin(dropped)
        wanted, found = RowIndex(_tensor(rows)), dict[int, int]()
        for part in self._parts(state):
            found |= {row: part.start + place for row, place in part.points.row_index.find(wanted).items()}
        return found

    def ping(self) -> bool:
        """Whether the actor is alive."""
        return True

    def _begin(self, dropped: Sequence[str]) -> None:
        torch.set_num_threads(self.n_threads)  # of the thread that the actor calls this from
        for name in dropped:
            self.states.pop(name, None)

    def _parts(self, state: StateName) -> tuple[Part, ...]:
        if state.name not in self.states:
            self.states[state.name] = self._made(import_ray().get(state.recipe))
        return self.states[state.name]

    def _made(self, recipe: Recipe) -> tuple[Part, ...]:
        """The parts of a state; what another state has too is shared with it."""
        centre, parts = _tensor(recipe.centre), []
        for start, block in recipe.blocks:
            part = self.parts.get((start, block))
            if part is None:
                rows = (block.source, block.first, block.stop, block.removed)
                points = self.points.get(rows)
                if points is None:
                    points = self.points[rows] = block.centred(centre)
                labels, predictions = (marks.to(torch.int64) for marks in block.marks())
                part = self.parts[start, block] = Part(points, labels, predictions, start)
            parts.append(part)
        return tuple(parts)


class Shards:
    """The shards of a cluster, as the process that asks them sees them. Several supports may use the same ones.

    By default there is one for each node that can take one. A shard reserves one processor, whatever its threads, so
    that a lost one finds room on another node; it has ``patience`` seconds for that before ``ClusterError`` is raised.
    """

    def __init__(self, n_shards: int | None = None, *, n_threads: int = 1, patience: float = PATIENCE) -> None:
        check_positive(n_threads, "n_threads", "Shards", integer=True)
        self._ray, self.patience, self.n_threads = import_ray(), patience, n_threads
        if n_shards is None:
            n_shards = max(1, sum(node["Alive"] and node["Resources"].get("CPU", 0) >= 1 for node in self._ray.nodes()))
        check_positive(n_shards, "n_shards", "Shards", integer=True)
        actor = self._ray.remote(
            num_cpus=1,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy="SPREAD",
            concurrency_groups={_HEALTH: 1},
        )(Shard)
        self.actors = [actor.remote(n_threads) for _ in range(n_shards)]
        self._dropped: list[deque[str]] = [deque() for _ in self.actors]
        try:
            self._check_all_there()
        except ClusterError:
            for one in self.actors:  # those that are there must not keep the processors
                self._ray.kill(one)
            raise

    @classmethod
    def of(cls, backend: RayBackend) -> Shards:
        """The shards of a cluster; those that exist already are shared."""
        job = backend.connect().get_runtime_context().get_job_id()
        asked = job, backend.shards, backend.threads
        with _ONE_AT_A_TIME:
            shards = _IN_USE.get(asked)
            if shards is None:
                shards = _IN_USE[asked] = cls(backend.shards, n_threads=backend.threads or torch.get_num_threads())
            return shards

    def __len__(self) -> int:
        return len(self.actors)

    def named(self, shard: int, recipe: Recipe) -> StateName:
        """A name for a state; the shard drops the state once the name is gone."""
        state = StateName(uuid.uuid4().hex, self._ray.put(recipe))
        weakref.finalize(state, self._dropped[shard].append, state.name).atexit = False
        return state

    def ask(self, question: str, shard: int, state: StateName, *arguments: Any) -> Any:
        """Begin to ask a shard, by the name of a method of ``Shard``; ``gathered`` waits for answers."""
        dropped = self._dropped[shard]
        names = [dropped.popleft() for _ in range(len(dropped))]
        return getattr(self.actors[shard], question).remote(state, *arguments, names)

    def answered(self, questions: Iterable[tuple[T, list[Any]]]) -> Iterator[tuple[T, list[Any]]]:
        """What questions belong to, each with its answers, in their order; a few are on their way at once."""
        waiting: deque[tuple[T, list[Any]]] = deque()
        for question in questions:
            waiting.append(question)
            if len(waiting) == IN_FLIGHT:
                subject, answers = waiting.popleft()
                yield subject, self.gathered(answers)
        yield from ((subject, self.gathered(answers)) for subject, answers in waiting)

    def gathered(self, answers: Sequence[Any]) -> list[Any]:
        """Wait for answers; a lost shard is waited for while it may still come back."""
        while True:
            try:
                return self._ray.get(list(answers), timeout=_SECONDS_BETWEEN_CHECKS)
            except self._ray.exceptions.GetTimeoutError:
                self._check_all_there()
            except self._ray.exceptions.RayTaskError as error:
                cause = error.cause
                raise (cause if isinstance(cause, TorchSDMError) else error) from None
            except self._ray.exceptions.RayActorError as error:
                raise ClusterError(f"A shard is lost for good: {error}") from error

    def _check_all_there(self) -> None:
        pings = [actor.ping.options(concurrency_group=_HEALTH).remote() for actor in self.actors]
        _, missing = self._ray.wait(pings, num_returns=len(pings), timeout=self.patience)
        if missing:
            free = self._ray.available_resources().get("CPU", 0)
            raise ClusterError(
                f"{len(missing)} of {len(pings)} shards did not answer within {self.patience:g} seconds. Each needs a "
                f"processor, of which {free:g} are free in the cluster. Add nodes, or use fewer shards."
            )


_IN_USE: weakref.WeakValueDictionary[tuple[Any, ...], Shards] = weakref.WeakValueDictionary()
_ONE_AT_A_TIME = threading.Lock()


def _tensor(array: Array) -> Tensor:
    return as_tensor(array, "values", "Shard")
