"""What grows is kept in parts: few of them, in order, and none is touched."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from torchsdm.matching.parts import with_part


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
