"""Blocks name points completely: where rows are, which are left, what labels were changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from torchsdm.cluster import blocks
from torchsdm.cluster.blocks import Block, StoredSupport, even_parts, joined, stretches
from torchsdm.matching import SupportSet

ROWS = torch.arange(24.0).reshape(8, 3)


@dataclass(frozen=True)
class Rows:
    """A source in memory, without Ray."""

    name: str = "rows"

    def read(self, first, stop, *names):
        columns = {"exemplars": ROWS, "labels": torch.arange(8), "predictions": torch.arange(8) % 2}
        return tuple(columns[name][first:stop] for name in names if name in columns)


def test_points_that_were_removed_and_relabelled_step_by_step():
    block = Block(Rows(), 1, 8)
    steps = block.without(np.array([0, 3])).relabelled_at(np.array([0, 4]), np.array([20, 70])).without(np.array([1]))
    assert len(steps) == 4
    torch.testing.assert_close(steps.points(), ROWS[[2, 5, 6, 7]], rtol=0, atol=0)
    assert [one.tolist() for one in steps.marks()] == [[20, 5, 6, 70], [0, 1, 0, 1]]
    assert len(block) == 7  # as it was


def test_a_label_of_a_removed_point_is_forgotten():
    block = Block(Rows(), 0, 8).relabelled_at(np.array([2]), np.array([9])).without(np.array([2]))
    assert block == Block(Rows(), 0, 8, removed=(2,))


def test_the_last_label_counts():
    block = (
        Block(Rows(), 0, 8)
        .relabelled_at(np.array([2, 3]), np.array([9, 8]))
        .relabelled_at(np.array([2]), np.array([7]))
    )
    assert block.marks()[0].tolist() == [0, 1, 7, 8, 4, 5, 6, 7]


def test_norms_are_measured_where_nobody_knows_them():
    centred = Block(Rows(), 2, 6, removed=(3,)).centred(torch.ones(3, dtype=torch.float64))
    expected = ((ROWS[[2, 4, 5]] - 1) ** 2).sum(dim=1)
    assert centred.squared_norms.tolist() == expected.tolist()


@pytest.mark.parametrize(("n", "expected"), [(0, []), (5, [(3, 8)]), (10, [(3, 13)]), (11, [(3, 8), (8, 14)])])
def test_few_blocks_about_equally_large(n, expected, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 10)
    assert stretches(3, 3 + n) == expected


def test_shares_cover_all_rows():
    assert even_parts(0, 2, 3) == [(0, 0), (0, 1), (1, 2)]
    assert even_parts(0, 10, 3) == [(0, 3), (3, 6), (6, 10)]


# --- Files -----------------------------------------------------------------------------------------------------------


def test_small_additions_are_joined_as_they_are_now(monkeypatch):
    kept = {}
    store = type("Store", (), {"of": classmethod(lambda cls, **given: kept.update(given))})
    monkeypatch.setattr(blocks, "HeldRows", store)
    source = Rows()
    one = Block(source, 0, 2, removed=(0,))
    joined([one, Block(source, 0, 2, relabelled=((0, 5),))])
    assert kept["exemplars"].tolist() == [*one.points().tolist(), *ROWS[:2].tolist()]
    assert (kept["labels"].tolist(), kept["predictions"].tolist()) == ([1, 5, 1], [1, 0, 1])


def test_a_saved_support_is_read_from_its_files(tmp_path):
    from safetensors.torch import save_file

    support = SupportSet(ROWS, range(8), range(8))
    names = ("labels", "predictions", "squared_norms")
    save_file({"exemplars": ROWS}, tmp_path / "exemplars")
    save_file({name: getattr(support, name) for name in names}, tmp_path / "marks")
    block = Block(StoredSupport(str(tmp_path / "exemplars"), str(tmp_path / "marks")), 3, 6)
    centred = block.centred(support.centre)
    assert centred.points.tolist() == ROWS[3:6].tolist()
    assert centred.squared_norms.tolist() == support.squared_norms[3:6].tolist()
    assert block.marks()[0].tolist() == [3, 4, 5]
