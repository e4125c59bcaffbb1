"""Rows that are equal to the bit, found by their hashes however wide they are; and what grows, kept in parts.

Adding costs what is added and does not copy what is there. A support consists of parts: consecutive points, each part
with bounds of its own, all around the same centre. Parts are never written to: whoever holds an older state keeps
seeing it, also from another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from functools import cached_property
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from torchsdm.arithmetic import blocks, call, has_loops
from torchsdm.validation import Array

_BLOCK_ELEMENTS = 1 << 20  # numbers that are hashed or compared at once


class HashIndex:
    """Where things are, by their hashes (N,), 16 bytes for each. Equal hashes are only a hint: ``find`` compares.

    Examples
    --------
    >>> words, wanted = ["blue", "red", "red", "tan"], ["red", "tin"]
    >>> index = HashIndex(np.array([len(word) for word in words]))
    >>> index.find(np.array([3, 3]), lambda rows, places: [wanted[r] == words[p] for r, p in zip(rows, places)])
    {0: 2}
    """

    def __init__(self, hashes: Array) -> None:
        self.order = np.argsort(hashes, kind="stable")
        self.hashes = hashes[self.order]

    def find(self, hashes: Array, is_equal: Callable[[Array, Array], Array | Sequence[bool]]) -> dict[int, int]:
        """Which of the wanted things are here, each with its last place.

        ``is_equal`` compares the wanted things at some rows with those at as many places here.
        """
        found: dict[int, int] = {}
        at = np.searchsorted(self.hashes, hashes, side="right") - 1
        rows = np.arange(len(hashes))
        while True:
            rows = rows[at[rows] >= 0]
            rows = rows[self.hashes[at[rows]] == hashes[rows]]
            if len(rows) == 0:
                return found
            places = self.order[at[rows]]
            equal = np.asarray(is_equal(rows, places), dtype=bool)
            found |= dict(zip(rows[equal].tolist(), places[equal].tolist(), strict=True))
            at[rows] -= 1
            rows = rows[~equal]


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
        for block in blocks(len(self), len(weights), _BLOCK_ELEMENTS):
            bits = _bits(self.rows[block])
            if has_loops():
                call("row_hashes", bits, weights, len(weights), hashes[block], 0, len(bits))
            else:
                hashes[block] = (bits * weights).sum(axis=1, dtype=np.uint64)
        return hashes

    @cached_property
    def _index(self) -> HashIndex:
        return HashIndex(self.hashes)

    def find(self, wanted: RowIndex) -> dict[int, int]:
        """Which of the wanted rows are here, each with its last place."""

        def is_equal(rows: Array, places: Array) -> Array:
            equal = np.empty(len(rows), dtype=bool)
            for block in blocks(len(rows), self.rows[:1].numel(), _BLOCK_ELEMENTS):
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


def _bits(rows: Tensor) -> Array:
    """The bits of rows as float32 (n, K)."""
    return rows.flatten(1).to("cpu", torch.float32).contiguous().numpy().view(np.uint32)


PartType = TypeVar("PartType", bound=Sized)


def with_part(
    parts: Sequence[PartType], new: PartType, join: Callable[[Sequence[PartType]], PartType]
) -> tuple[PartType, ...]:
    """The parts and a new one, with which the last of them are joined while they are at most twice as large.

    So each part is more than twice as large as the next, and n elements have at most log2(n) + 1 parts. Joining makes
    an element's part half as large again or more, so an element is copied log(n) / log(1.5) times at most.

    Examples
    --------
    >>> with_part(["ninety-nine ", "red "], "balloons ", "".join)
    ('ninety-nine red balloons ',)
    >>> with_part(["ninety-nine red balloons ", "go "], "by", "".join)
    ('ninety-nine red balloons ', 'go by')
    """
    first, n = len(parts), len(new)
    while first > 0 and len(parts[first - 1]) <= 2 * n:
        first -= 1
        n += len(parts[first])
    return (*parts[:first], new if first == len(parts) else join([*parts[first:], new]))
