"""Where the points of a sharded support are: blocks of rows in files or in the object store of the cluster.

A block names its points completely: where their rows are, which of them are left, and what labels were changed since.
So whoever has the name can read the points, on any node and after any loss, and nothing has to be remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from torchsdm.cluster.backend import import_ray
from torchsdm.matching import CentredPoints
from torchsdm.model import mapped_tensors
from torchsdm.validation import Array, as_tensor

BLOCK_ROWS = 1 << 16  #: the largest block: what is copied when a point is removed, or small additions are joined
_MAPPED_FILES = 32  # kept open by a process


@dataclass(frozen=True)
class StoredSupport:
    """The support of a saved model, in its files, which every node must see at the same path."""

    exemplars_file: str
    marks_file: str

    def read(self, first: int, stop: int, *names: str) -> tuple[Tensor, ...]:
        """Some columns of some rows, backed by the files."""
        marks = _mapped(self.marks_file)
        return tuple((marks if name in marks else _mapped(self.exemplars_file))[name][first:stop] for name in names)


@dataclass(frozen=True)
class HeldRows:
    """Rows that this process made and put into the object store, from which they are read without a copy."""

    reference: Any

    @classmethod
    def of(cls, **tensors: Tensor) -> HeldRows:
        """Put rows into the object store: exemplars, labels, predictions and, if they are known, squared norms."""
        return cls(import_ray().put({name: tensor.cpu().numpy() for name, tensor in tensors.items()}))

    def read(self, first: int, stop: int, *names: str) -> tuple[Tensor, ...]:
        """Some columns of some rows; without those that were not put there."""
        arrays = import_ray().get(self.reference)
        return tuple(as_tensor(arrays[name], name, "HeldRows")[first:stop] for name in names if name in arrays)


StoredRows: TypeAlias = StoredSupport | HeldRows  #: rows that never change


@dataclass(frozen=True)
class Block:
    """Consecutive points of a support: rows of a source, without those that were removed, some with another label."""

    source: StoredRows
    first: int
    stop: int
    shard: int = 0
    """Which shard has it."""
    is_added: bool = False
    """Whether it came after the support was spread; such blocks are joined while they are small."""
    removed: tuple[int, ...] = ()
    """Rows of the source that are no longer there, sorted."""
    relabelled: tuple[tuple[int, int], ...] = ()
    """Rows of the source with their new labels."""

    def __len__(self) -> int:
        return self.stop - self.first - len(self.removed)

    def points(self) -> Tensor:
        """Exemplars (n, M)."""
        (points,) = self.source.read(self.first, self.stop, "exemplars")
        return self._left(points)

    def marks(self) -> tuple[Tensor, Tensor]:
        """Labels and predictions (n,)."""
        labels, predictions = self.source.read(self.first, self.stop, "labels", "predictions")
        if self.relabelled:
            rows, new = torch.tensor(self.relabelled).T
            labels = labels.clone()
            labels[rows - self.first] = new.to(labels.dtype)
        return self._left(labels), self._left(predictions)

    def centred(self, centre: Tensor) -> CentredPoints:
        """The exemplars as matching takes them."""
        points, norms = self.points().contiguous(), self.source.read(self.first, self.stop, "squared_norms")
        return CentredPoints(points, centre, *map(self._left, norms)) if norms else CentredPoints.of(points, centre)

    def without(self, positions: Array) -> Block:
        """Without the points at some positions."""
        gone = {*self.removed, *self._rows(positions)}
        return replace(
            self,
            removed=tuple(sorted(gone)),
            relabelled=tuple((row, label) for row, label in self.relabelled if row not in gone),
        )

    def relabelled_at(self, positions: Array, labels: Array) -> Block:
        """With other labels for the points at some positions."""
        new = dict(self.relabelled) | dict(zip(self._rows(positions), labels.tolist(), strict=True))
        return replace(self, relabelled=tuple(sorted(new.items())))

    def _rows(self, positions: Array) -> list[int]:
        """The rows of the source that points are."""
        left = np.delete(np.arange(self.first, self.stop), np.array(self.removed, dtype=np.int64) - self.first)
        return left[positions].tolist()

    def _left(self, values: Tensor) -> Tensor:
        if not self.removed:
            return values
        keep = torch.ones(len(values), dtype=torch.bool)
        keep[torch.tensor(self.removed) - self.first] = False
        return values[keep]


@dataclass(frozen=True)
class Recipe:
    """All that a shard must know of one state of a support: its blocks, and where each starts in the support."""

    centre: Array
    blocks: tuple[tuple[int, Block], ...]


def even_parts(first: int, stop: int, n: int) -> list[tuple[int, int]]:
    """First and last of n stretches of rows, about equally long."""
    return list(pairwise(first + (stop - first) * number // n for number in range(n + 1)))


def stretches(first: int, stop: int) -> list[tuple[int, int]]:
    """First and last row of each block, as few as there can be."""
    return even_parts(first, stop, -(-(stop - first) // BLOCK_ROWS)) if first < stop else []


def joined(blocks: Sequence[Block]) -> Block:
    """Blocks of new points that follow one another as one."""
    labels, predictions = (torch.cat(values) for values in zip(*(block.marks() for block in blocks), strict=True))
    points = torch.cat([block.points() for block in blocks])
    return Block(HeldRows.of(exemplars=points, labels=labels, predictions=predictions), 0, len(labels))


@lru_cache(maxsize=_MAPPED_FILES)
def _mapped(path: str) -> dict[str, Tensor]:
    return mapped_tensors(Path(path))
