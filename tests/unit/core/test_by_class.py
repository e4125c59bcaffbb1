"""Values class by class: what a mask for each class would give, by sorting once."""

from __future__ import annotations

import torch

from torchsdm.core._by_class import rows_by_class, sorted_by_class


def test_rows_and_values_are_those_of_a_mask_for_each_class():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 7, (200,), generator=generator)  # -1, 5 and 6 are no classes
    labels[labels == 3] = 2  # and class 3 is empty
    values = torch.rand(200, generator=generator).round(decimals=1)
    for c, (rows, ascending) in enumerate(
        zip(rows_by_class(labels, 5), sorted_by_class(values, labels, 5), strict=True)
    ):
        assert torch.equal(rows, torch.nonzero(labels == c).squeeze(1))
        assert torch.equal(ascending, values[labels == c].sort().values)


def test_without_points_every_class_is_empty():
    assert [len(rows) for rows in rows_by_class(torch.empty(0, dtype=torch.int64), 3)] == [0, 0, 0]
