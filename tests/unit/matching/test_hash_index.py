"""Equals are found by their hashes, and compared."""

from __future__ import annotations

import numpy as np
import pytest

from torchsdm.matching.hash_index import HashIndex


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
