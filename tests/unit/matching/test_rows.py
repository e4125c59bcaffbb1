"""Rows that are equal to the bit are found, wherever the parts are cut."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from torchsdm.matching import HashIndex, IndexedRows, RowIndex, rows
from torchsdm.matching.rows import with_part

RNG = np.random.default_rng(0)
HERE = torch.from_numpy(RNG.integers(-1, 2, (60, 4)).astype(np.float32))
WANTED = torch.from_numpy(RNG.integers(-1, 3, (40, 4)).astype(np.float32))


def by_loops(here, wanted):
    """The last place of each wanted row that is here."""
    contents = [row.numpy().tobytes() for row in here.float()]
    last = {content: place for place, content in enumerate(contents)}
    return {
        number: last[row.numpy().tobytes()]
        for number, row in enumerate(wanted.float())
        if row.numpy().tobytes() in last
    }


@pytest.mark.parametrize("cuts", [[], [1], [59], [20, 21, 40]])
@pytest.mark.parametrize("block", [1 << 20, 12])
def test_the_last_place_of_equal_rows(cuts, block, monkeypatch):
    monkeypatch.setattr(rows, "_BLOCK_ELEMENTS", block)
    parts = [RowIndex(part) for part in torch.tensor_split(HERE, cuts)]
    wanted = IndexedRows([RowIndex(part) for part in torch.tensor_split(WANTED, [7])])
    expected = by_loops(HERE, WANTED)
    assert IndexedRows(parts).find(wanted) == expected
    assert 0 < len(expected) < len(WANTED)
    assert IndexedRows(parts).shape == (60, 4) and len(wanted) == 40


def test_rows_with_equal_hashes_are_compared(monkeypatch):
    monkeypatch.setattr(RowIndex, "hashes", property(lambda index: np.zeros(len(index), dtype=np.uint64)))
    assert IndexedRows.of(HERE).find(IndexedRows.of(WANTED)) == by_loops(HERE, WANTED)


def test_hashes_tell_nearly_all_rows_apart():
    points = torch.from_numpy(RNG.standard_normal((5000, 3)).astype(np.float32))
    assert len(np.unique(RowIndex(points).hashes)) == 5000
    assert len(np.unique(RowIndex(points.flip(1)).hashes)) == 5000
    assert not set(RowIndex(points).hashes.tolist()) & set(RowIndex(points.flip(1)).hashes.tolist())


def test_equal_is_equal_as_float32_to_the_bit():
    here = torch.tensor([[1.0, 0.0], [2.0, -0.0]])
    wanted = torch.tensor([[1.0, -0.0], [2.0, -0.0], [1.0, 1e-45]])
    assert IndexedRows.of(here).find(IndexedRows.of(wanted)) == {1: 1}
    assert IndexedRows.of(here).find(IndexedRows.of(wanted.double() * (1 + 2.0**-40))) == {1: 1}
    half = torch.tensor([[1.0, 0.0]], dtype=torch.float16)
    assert IndexedRows.of(here).find(IndexedRows.of(half)) == {0: 0}


def test_rows_of_several_positions_and_strided_rows():
    states = torch.from_numpy(RNG.standard_normal((9, 3, 2)).astype(np.float32))
    assert IndexedRows.of(states).find(IndexedRows.of(states[2:5].clone())) == {0: 2, 1: 3, 2: 4}
    wide = torch.cat([HERE, HERE + 9], dim=1)
    assert IndexedRows.of(wide[:, :4]).find(IndexedRows.of(WANTED)) == by_loops(HERE, WANTED)


def test_an_index_is_built_once_for_whoever_shares_a_part(monkeypatch):
    index = RowIndex(HERE)
    first = index.hashes
    assert IndexedRows([index]).parts[0].hashes is first
    assert IndexedRows.of(IndexedRows([index])).parts[0] is index


@pytest.mark.parametrize("n_hashes", [1, 3, 2**40], ids=["all alike", "many alike", "hardly any alike"])
def test_equal_hashes_are_only_a_hint(n_hashes):
    rng = np.random.default_rng(0)
    here, wanted = rng.integers(0, 60, 200), rng.integers(0, 90, 50)

    def hashes(values):
        return values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) % np.uint64(n_hashes)

    found = HashIndex(hashes(here)).find(hashes(wanted), lambda rows, places: wanted[rows] == here[places])
    last = {value: place for place, value in enumerate(here.tolist())}
    assert found == {row: last[value] for row, value in enumerate(wanted.tolist()) if value in last}
    assert 0 < len(found) < 50


def test_nothing_here_and_nothing_wanted():
    nothing, some = np.array([], dtype=np.uint64), np.array([3], dtype=np.uint64)
    for here, wanted in ((nothing, some), (some, nothing), (nothing, nothing)):
        assert HashIndex(here).find(wanted, lambda rows, places: rows == rows) == {}


def joined(parts):
    return [element for part in parts for element in part]


@pytest.mark.parametrize("sizes", [[1] * 300, list(range(60, 0, -1)), list(range(1, 60)), [100, *[7] * 200]])
def test_each_part_is_more_than_twice_as_large_as_the_next(sizes):
    parts, n = (), 0
    for size in sizes:
        before = [list(part) for part in parts]
        grown = with_part(parts, list(range(n, n + size)), joined)
        assert [list(part) for part in parts] == before  # whoever has the old parts keeps them
        parts, n = grown, n + size
        assert joined(parts) == list(range(n))
        assert all(len(a) > 2 * len(b) for a, b in pairwise(parts))


def test_what_is_there_is_not_copied_often():
    copied, parts, rng = 0, ([0] * 100_000,), random.Random(0)
    base = parts[0]

    def counted(some):
        nonlocal copied
        copied += sum(map(len, some))
        return joined(some)

    for _ in range(2_000):
        parts = with_part(parts, [0] * rng.randint(1, 20), counted)
    added = sum(map(len, parts)) - len(base)
    assert parts[0] is base and added > 15_000
    assert copied < 10 * added
