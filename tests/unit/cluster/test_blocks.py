"""Blocks name points completely: where rows are, which are left, what labels were changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from torchsdm.cluster import blocks
from torchsdm.cluster.blocks import Block, LoggedRows, StoredSupport, even_parts, joined, stretches
from torchsdm.errors import ModelFileError
from torchsdm.matching import RowsInFile, SupportSet

ROWS = torch.arange(24.0).reshape(8, 3)


@dataclass(frozen=True)
class Rows:
    """A source in memory, without Ray."""

    name: str = "rows"

    def points(self, first, stop):
        return ROWS[first:stop]

    def marks(self, first, stop):
        return torch.arange(8)[first:stop], torch.arange(8)[first:stop] % 2

    def squared_norms(self, first, stop):
        return None


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


class Held:
    """Labels and predictions that are kept without Ray."""

    def __init__(self, labels, predictions):
        self.labels, self.predictions = labels, predictions

    @classmethod
    def of(cls, labels, predictions):
        return cls(labels, predictions)

    def marks(self, first, stop):
        return self.labels[first:stop], self.predictions[first:stop]


@pytest.fixture
def segment(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "HeldRows", Held)
    ROWS.numpy().tofile(tmp_path / "segment")
    return str(tmp_path / "segment")


def logged(path, first, stop):
    """Two columns of some rows of the segment."""
    places = [RowsInFile(path, first * 12, stop - first, 3, 1, 3)]
    return blocks.logged(places, torch.arange(first, stop), torch.zeros(stop - first, dtype=torch.int64))


def test_rows_of_a_segment(segment):
    rows = logged(segment, 2, 6)
    assert rows.points(1, 3).tolist() == ROWS[3:5, 1:].tolist()
    assert rows.marks(1, 3)[0].tolist() == [3, 4]


def test_rows_that_follow_one_another_in_a_segment_are_one_place(segment):
    whole = joined([Block(logged(segment, first, first + 2), 0, 2) for first in (0, 2, 6)])
    assert isinstance(whole.source, LoggedRows)
    assert [(one.start, one.n_rows) for one in whole.source.places] == [(0, 4), (72, 2)]
    assert whole.points().tolist() == ROWS[[0, 1, 2, 3, 6, 7], 1:].tolist()
    assert whole.marks()[0].tolist() == [0, 1, 2, 3, 6, 7]


@pytest.mark.parametrize("changed", [{"removed": (0,)}, {"relabelled": ((0, 5),)}, {"stop": 1}])
def test_what_the_log_does_not_have_as_it_is_goes_to_the_object_store(segment, monkeypatch, changed):
    kept = {}
    monkeypatch.setattr(
        blocks, "HeldRows", type("Store", (Held,), {"of": classmethod(lambda cls, **t: kept.update(t))})
    )
    monkeypatch.setattr(blocks, "logged", None)
    source = LoggedRows((RowsInFile(segment, 0, 2, 3, 1, 3),), Held(torch.arange(2), torch.arange(2)))
    one = Block(source, **{"first": 0, "stop": 2, **changed})
    joined([one, Block(source, 0, 2)])
    assert kept["points"].tolist() == [*one.points().tolist(), *ROWS[:2, 1:].tolist()]
    assert kept["labels"].tolist() == [*one.marks()[0].tolist(), 0, 1]


def test_a_segment_that_is_gone_or_too_short(segment):
    with pytest.raises(ModelFileError, match="Every node must see the files"):
        logged(f"{segment}-2", 0, 1).points(0, 1)
    with pytest.raises(ModelFileError, match="Every node must see the files"):
        logged(segment, 4, 9).points(0, 5)


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
