"""Rows that belong together."""

from __future__ import annotations

import numpy as np

from torchsdm.core import linked, one_of_each


def test_rows_are_linked_by_any_column_and_through_others():
    texts, patients = np.array([7, 8, 8, 9, 5, 4]), np.array(["a", "a", "b", "c", "d", "d"])
    assert linked([texts, patients]).tolist() == [0, 0, 0, 1, 2, 2]
    assert linked([texts]).tolist() == [0, 1, 1, 2, 3, 4]
    assert linked([np.arange(5), np.arange(5)]) is None
    chain = np.arange(1000) // 2, (np.arange(1000) + 1) // 2
    assert linked(chain).tolist() == [0] * 1000


def test_one_of_each_group_is_any_of_it():
    groups, seen = np.array([0, 1, 0, 2, 0, 2]), set()
    for seed in range(50):
        rows = one_of_each(groups, np.random.default_rng(seed))
        assert sorted(groups[rows].tolist()) == [0, 1, 2] and rows.tolist() == sorted(rows.tolist())
        seen |= set(rows.tolist())
    assert seen == set(range(6))
