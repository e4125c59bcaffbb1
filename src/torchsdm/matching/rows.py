"""Which rows are equal to the bit: an index of what is in them, built at the first question and kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from torchsdm.arithmetic import call, has_loops
from torchsdm.matching.hash_index import HashIndex
from torchsdm.validation import Array

_BLOCK_ELEMENTS = 1 << 20  # numbers that are hashed or compared at once


class RowIndex:
    """Rows (N, ...), and where a row is among them. Rows are equal if they are as float32, to the bit.

    The hash of a row of K numbers, of which b_k are the 32 bits, is sum over k of w_k b_k mod 2^64 with fixed w.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def hashes(self) -> Array:
        """One number for each row (N,)."""
        hashes = np.empty(len(self), dtype=np.uint64)
        weights = np.random.default_rng(0).integers(0, 2**64, self.rows[:1].numel(), dtype=np.uint64)
        for block in _blocks(len(self), len(weights)):
            hashes[block] = _hashes(_bits(self.rows[block]), weights)
        return hashes

    @cached_property
    def _index(self) -> HashIndex:
        return HashIndex(self.hashes)

    def find(self, wanted: RowIndex) -> dict[int, int]:
        """Which of the wanted rows are here, each with its last place."""

        def is_equal(rows: Array, places: Array) -> Array:
            equal = np.empty(len(rows), dtype=bool)
            for block in _blocks(len(rows), self.rows[:1].numel()):
                ours = _bits(self.rows[torch.from_numpy(places[block])])
                equal[block] = (_bits(wanted.rows[torch.from_numpy(rows[block])]) == ours).all(axis=1)
            return equal

        return self._index.find(wanted.hashes, is_equal)


class IndexedRows:
    """The same for rows in parts, one after the other. A part is indexed once, whoever else has it."""

    def __init__(self, parts: Sequence[RowIndex]) -> None:
        self.parts = parts

    @classmethod
    def of(cls, rows: Tensor | IndexedRows) -> IndexedRows:
        """Rows with an index, if they have none yet."""
        return rows if isinstance(rows, IndexedRows) else cls([RowIndex(rows)])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the rows (N, ...)."""
        return (len(self), *self.parts[0].rows.shape[1:])

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def find(self, wanted: IndexedRows) -> dict[int, int]:
        """Which of the wanted rows are here, each with its last place."""
        found: dict[int, int] = {}
        for first, other in _numbered(wanted.parts):
            for start, part in _numbered(self.parts):
                found |= {first + row: start + place for row, place in part.find(other).items()}
        return found


def _numbered(parts: Sequence[RowIndex]) -> Iterator[tuple[int, RowIndex]]:
    """Parts with the number of their first row."""
    return zip(accumulate(map(len, parts), initial=0), parts, strict=False)


def _blocks(n: int, width: int) -> Iterator[slice]:
    size = max(1, _BLOCK_ELEMENTS // max(1, width))
    return (slice(start, start + size) for start in range(0, n, size))


def _hashes(bits: Array, weights: Array) -> Array:
    """The hash of each row of bits (n, K)."""
    hashes: Array = np.empty(len(bits), dtype=np.uint64)
    if not has_loops():
        hashes[:] = (bits * weights).sum(axis=1, dtype=np.uint64)
        return hashes
    call("row_hashes", bits, weights, len(weights), hashes, 0, len(bits))
    return hashes


def _bits(rows: Tensor) -> Array:
    """The bits of rows as float32 (n, K)."""
    return rows.flatten(1).to("cpu", torch.float32).contiguous().numpy().view(np.uint32)
