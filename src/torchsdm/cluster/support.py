"""A support whose exemplars are spread over the shards of a cluster; its answers are those of a ``SupportSet``.

A query is answered in two rounds, as parts of a support are searched on one machine (``matching.search``): every shard
finds what comes first among its points, the firsts of all are merged by (distance, support index), and every shard
counts its matches before the first non-match of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, takewhile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.cluster.backend import Backend, as_backend, import_ray
from torchsdm.cluster.blocks import BLOCK_ROWS, Block, HeldRows, Recipe, StoredRows, even_parts, joined, stretches
from torchsdm.cluster.shards import Batch, Shards, StateName
from torchsdm.matching import Found, IndexedRows, Match, Support, rows_at_once, with_part
from torchsdm.training import Spread
from torchsdm.validation import as_tensor

_ROWS = ("exemplars", "labels", "predictions", "squared_norms")
_ROWS_ALONE = 1 << 13  # queries of a batch that one shard answers in one call


@dataclass(frozen=True)
class State:
    """One state of a support, which never changes."""

    shards: Shards
    centre: Tensor
    blocks: tuple[Block, ...]
    earlier: Mapping[int, tuple[Recipe, StateName]] = field(default_factory=dict)
    """What the shards know of the state before it."""

    @cached_property
    def starts(self) -> list[int]:
        """The support index of each block's first point; then the number of all points."""
        return list(accumulate(map(len, self.blocks), initial=0))

    @cached_property
    def marks(self) -> tuple[Tensor, ...]:
        """Labels and predictions (S,)."""
        marks = [one.marks() for one in self.blocks]
        return tuple(torch.cat(values).to(torch.int64) for values in zip(*marks, strict=True))

    @cached_property
    def known(self) -> dict[int, tuple[Recipe, StateName]]:
        """The recipe and name of this state for each shard that has points."""
        found = {}
        for shard in sorted({one.shard for one in self.blocks}):
            placed = zip(self.starts, self.blocks, strict=False)
            recipe = Recipe(self.centre.numpy(), tuple((start, one) for start, one in placed if one.shard == shard))
            before = self.earlier.get(shard)
            if before is not None and before[0].blocks == recipe.blocks:
                found[shard] = before
            else:
                found[shard] = recipe, self.shards.named(shard, recipe)
        return found

    @property
    def is_on_one(self) -> bool:
        """Whether a single shard has all points."""
        return len(self.known) == 1

    @cached_property
    def rows_at_once(self) -> int:
        """The queries of a batch: what the largest shard takes if it keeps products from one round to the next."""
        return _ROWS_ALONE if self.is_on_one else rows_at_once(max(self.sizes()))

    def sizes(self) -> list[int]:
        """The points of each shard."""
        sizes = [0] * len(self.shards)
        for one in self.blocks:
            sizes[one.shard] += len(one)
        return sizes

    def changed(self, blocks: Iterable[Block]) -> State:
        """Another state, made from this one."""
        return State(self.shards, self.centre, tuple(blocks), self.__dict__.get("known", self.earlier))


class ShardedSupport(Support):
    """A support on the shards of a cluster: the same answers as from a ``SupportSet`` with the same points.

    Rows of a saved model are read by the shards themselves. Others are put into the object store once. Labels and
    predictions are read here when they are asked for, and so are exemplars, to save them.

    Examples
    --------
    ::

        connect("auto")
        support = ShardedSupport.of(SupportSet(exemplars, labels, predictions), Shards(4))
        support.match(queries, predictions)
    """

    def __init__(self, state: State, dtype: torch.dtype) -> None:
        self._state, self._dtype = state, dtype

    @classmethod
    def of(cls, support: Support, shards: Shards, stored: StoredRows | None = None) -> ShardedSupport:
        """Spread the points of a support over shards; ``stored`` says where the shards can read them themselves."""
        blocks = []
        for shard, share in enumerate(even_parts(0, len(support), len(shards))):
            for first, stop in stretches(*share):
                if stored is None:
                    rows = {name: getattr(support, name)[first:stop] for name in _ROWS}
                    blocks.append(Block(HeldRows.of(**rows), 0, stop - first, shard))
                else:
                    blocks.append(Block(stored, first, stop, shard))
        spread = cls(State(shards, support.centre.cpu(), tuple(blocks)), support.dtype)
        spread._ids = support._ids
        return spread

    def __len__(self) -> int:
        return self._state.starts[-1]

    def __repr__(self) -> str:
        return f"ShardedSupport({len(self)} exemplars of {self.n_filters} filters on {len(self.shards)} shards)"

    @property
    def shards(self) -> Shards:
        """The shards that search it."""
        return self._state.shards

    @property
    def exemplars(self) -> Tensor:
        """The exemplars (S, M), all brought here."""
        return torch.cat([one.points() for one in self._state.blocks])

    @property
    def labels(self) -> Tensor:
        """The labels (S,)."""
        return self._state.marks[0]

    @property
    def predictions(self) -> Tensor:
        """The predictions (S,)."""
        return self._state.marks[1]

    @property
    def squared_norms(self) -> Tensor:
        """Each exemplar's squared distance from the centre (S,)."""
        return torch.cat([one.centred(self.centre).squared_norms for one in self._state.blocks])

    @property
    def centre(self) -> Tensor:
        """The frozen centre (M,)."""
        return self._state.centre

    @property
    def dtype(self) -> torch.dtype:
        """The type of the exemplars."""
        return self._dtype

    @property
    def rows(self) -> IndexedRows:
        """The exemplars, of which each shard has an index, to find equal ones."""
        return RowsOnShards(self._state)

    def match_self(self) -> Match:
        """Every support point against all the others. Points pass through this process a batch at a time."""
        return _joined_matches(self._answers(self._own_batches()))

    def _match(self, queries: Tensor, predictions: Tensor | None, exclude: Tensor | None, k: int) -> Match:
        y_hat = torch.full((len(queries),), -1) if predictions is None else predictions
        batches = self._batches(queries, y_hat, exclude, k)
        return _joined_matches(self._answers(batches, counts=predictions is not None))

    def _batches(self, queries: Tensor, predictions: Tensor, exclude: Tensor | None, k: int) -> Iterator[Batch]:
        size = self._state.rows_at_once
        for start in range(0, max(1, len(queries)), size):
            rows = slice(start, start + size)
            own = None if exclude is None else exclude[rows].numpy()
            yield Batch(queries[rows].numpy(), predictions[rows].numpy(), own, k)

    def _own_batches(self) -> Iterator[Batch]:
        for start, one in zip(self._state.starts, self._state.blocks, strict=False):
            own = torch.arange(start, start + len(one))
            yield from self._batches(one.points(), one.marks()[1].to(torch.int64), own, 0)

    def _answers(self, batches: Iterable[Batch], *, counts: bool = True) -> Iterator[Match]:
        """The answers to batches, in their order; without ``counts``, only what comes first is asked for.

        While some batches are in their second round, others are in their first.
        """
        ray, shards = import_ray(), self._state.shards
        names = [(shard, name) for shard, (_, name) in self._state.known.items()]
        first_round = (
            (there, [shards.ask("find_first", shard, name, there, counts) for shard, name in names])
            for there in map(ray.put, batches)
        )

        def second_round() -> Iterator[tuple[Found, list[Any]]]:
            for there, found in shards.answered(first_round):
                firsts = Found.merged(found)
                boundary = firsts.boundary_distance.numpy(), firsts.boundary_index.numpy()
                asked = names if counts else ()
                yield firsts, [shards.ask("count_matches", shard, name, there, boundary) for shard, name in asked]

        if self._state.is_on_one:
            ((shard, name),) = names
            both_rounds = ((None, [shards.ask("match", shard, name, ray.put(batch))]) for batch in batches)
            yield from (match for _, (match,) in shards.answered(both_rounds))
            return
        for firsts, numbers in shards.answered(second_round()):
            for n in numbers:
                firsts.count.add_(as_tensor(n, "counts", "ShardedSupport"))
            yield Match.of(firsts)

    def _add(self, exemplars: Tensor, labels: Tensor, predictions: Tensor) -> None:
        """Put them at the end: with the last small additions, or where there are fewest points."""
        rows = HeldRows.of(exemplars=exemplars, labels=labels, predictions=predictions)
        for stretch in stretches(0, len(labels)):
            self._extend(Block(rows, *stretch))

    def _extend(self, new: Block) -> None:
        blocks, last = self._state.blocks, self._state.blocks[-1].shard
        small = [*takewhile(lambda one: one.is_added and one.shard == last, reversed(blocks))][::-1]
        if small and sum(map(len, small)) + len(new) <= BLOCK_ROWS:
            tail = [replace(block, shard=last, is_added=True) for block in with_part(small, new, joined)]
            self._state = self._state.changed([*blocks[: -len(small)], *tail])
        else:
            sizes = self._state.sizes()
            self._state = self._state.changed([*blocks, replace(new, shard=sizes.index(min(sizes)), is_added=True)])

    def _remove(self, indices: Tensor) -> None:
        self._replace({at: block.without(positions) for at, block, positions, _ in self._located(indices)})

    def _relabel(self, indices: Tensor, labels: Tensor) -> None:
        self._replace(
            {
                at: block.relabelled_at(positions, labels.numpy()[rows])
                for at, block, positions, rows in self._located(indices)
            }
        )

    def _located(self, indices: Tensor) -> Iterator[tuple[int, Block, np.ndarray, np.ndarray]]:
        """Which block has which of the points: number, block, positions in it, and which of the indices those are."""
        starts = np.array(self._state.starts)
        numbers = np.searchsorted(starts, indices.numpy(), side="right") - 1
        for at in np.unique(numbers):
            rows = np.flatnonzero(numbers == at)
            yield int(at), self._state.blocks[at], indices.numpy()[rows] - starts[at], rows

    def _replace(self, new: Mapping[int, Block]) -> None:
        blocks = (new.get(at, one) for at, one in enumerate(self._state.blocks))
        self._state = self._state.changed(one for one in blocks if len(one))


def spread_on(backend: Backend, caller: str) -> Spread | None:
    """How training puts the support of a round on a backend; None if it stays in the process that trains the round."""
    cluster = as_backend(backend, caller)
    if cluster is None or not cluster.spread_training:
        return None
    shards = Shards.of(cluster)  # which stay from one epoch to the next
    return lambda support: ShardedSupport.of(support, shards)


class RowsOnShards(IndexedRows):
    """The rows of a state, of which each shard indexes its own."""

    def __init__(self, state: State) -> None:
        self.state = state

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the rows (N, M)."""
        return len(self), len(self.state.centre)

    def __len__(self) -> int:
        return self.state.starts[-1]

    def find(self, wanted: IndexedRows) -> dict[int, int]:
        """Which of the wanted rows are here, each with its last place."""
        found: dict[int, int] = {}
        shards = self.state.shards
        rows = torch.cat([part.rows for part in wanted.parts])
        there = import_ray().put(rows.numpy())
        answers = [shards.ask("find_rows", shard, name, there) for shard, (_, name) in self.state.known.items()]
        for answer in shards.gathered(answers):
            found |= {row: max(place, found.get(row, -1)) for row, place in answer.items()}
        return found


def _joined_matches(matches: Iterable[Match]) -> Match:
    columns = zip(*(vars(match).values() for match in matches), strict=True)
    return Match(*(torch.cat(values) for values in columns))
