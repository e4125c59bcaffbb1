"""What a shard does, called directly: both rounds, what it keeps, and what it computes again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from torchsdm import SupportSet
from torchsdm.cluster import shards as module
from torchsdm.cluster.blocks import Block, Recipe
from torchsdm.cluster.shards import Batch, Shard, StateName
from torchsdm.matching import Found, Match

G = torch.Generator().manual_seed(0)
POINTS = torch.randint(0, 3, (60, 4), generator=G).float()
LABELS = torch.randint(0, 2, (60,), generator=G)
QUERIES, ASKED = torch.randint(0, 3, (30, 4), generator=G).float(), torch.randint(0, 2, (30,), generator=G)
SUPPORT = SupportSet(POINTS, LABELS, LABELS)


@dataclass(frozen=True)
class Rows:
    """All points, in memory."""

    def read(self, first, stop, *names):
        return tuple(getattr(SUPPORT, name)[first:stop] for name in names)


class Store:
    """An object store: a reference is what it stands for."""

    @staticmethod
    def get(reference):
        return reference


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    monkeypatch.setattr(module, "import_ray", lambda: Store)


def state(name, *stretches):
    return StateName(
        name, Recipe(SUPPORT.centre.numpy(), tuple((first, Block(Rows(), first, stop)) for first, stop in stretches))
    )


STATES = [state("a", (0, 7), (30, 60)), state("b", (7, 30))]


def asked(k=0):
    return Batch(QUERIES.numpy(), ASKED.numpy(), None, k)


def boundary_of(firsts):
    return firsts.boundary_distance.numpy(), firsts.boundary_index.numpy()


@pytest.mark.parametrize("turned", [False, True])
def test_two_rounds_give_the_answer_in_any_order(turned):
    batch, pairs = asked(k=9), list(zip([Shard(), Shard()], STATES, strict=True))
    pairs = pairs[::-1] if turned else pairs
    firsts = Found.merged([shard.find_first(one, batch, True, ()) for shard, one in pairs])
    counts = [torch.from_numpy(shard.count_matches(one, batch, boundary_of(firsts))) for shard, one in pairs]
    got, expected = Match.of(firsts._replace(count=sum(counts))), SUPPORT.match(QUERIES, ASKED, k=9)
    for name, values in vars(expected).items():
        assert torch.equal(values, getattr(got, name)), name


def test_a_shard_that_forgot_counts_all_the_same():
    shard, batch = Shard(), asked()
    firsts = shard.find_first(STATES[0], batch, True, ())
    expected = shard.count_matches(STATES[0], batch, boundary_of(firsts))
    assert not shard.searches
    again = shard.count_matches(STATES[0], batch, boundary_of(firsts))  # as Ray repeats what was not answered
    elsewhere = Shard().count_matches(STATES[0], batch, boundary_of(firsts))
    assert expected.tolist() == again.tolist() == elsewhere.tolist()
    assert expected.sum() > 0


def test_products_are_kept_for_few_batches():
    shard = Shard()
    batches = [asked() for _ in range(7)]
    firsts = [shard.find_first(STATES[0], batch, True, ()) for batch in batches]
    assert len(shard.searches) == module.IN_FLIGHT + 1
    first, last = (shard.count_matches(STATES[0], batches[at], boundary_of(firsts[at])) for at in (0, -1))
    assert first.tolist() == last.tolist()


def test_nothing_is_kept_where_nothing_is_counted():
    shard = Shard()
    shard.find_first(STATES[0], asked(), False, ())
    assert not shard.searches


def test_states_share_their_parts_and_are_dropped():
    shard = Shard()
    shard.find_first(STATES[0], asked(), False, ())
    more = state("c", (0, 7), (30, 60), (7, 30))
    shard.find_first(more, asked(), False, ())
    assert shard.states["a"][1] is shard.states["c"][1]
    shard.find_first(more, asked(), False, ["a", "never there"])
    assert list(shard.states) == ["c"]
    shard.find_first(STATES[1], asked(), False, ["c"])
    assert len(shard.parts) == len(shard.points) == 1  # what no state has is gone


def test_moved_points_are_not_read_again():
    """A point before them was removed: they start elsewhere, but are the same."""
    shard = Shard()
    shard.find_first(STATES[0], asked(), False, ())
    moved = StateName("d", Recipe(SUPPORT.centre.numpy(), ((5, Block(Rows(), 30, 60)),)))
    shard.find_first(moved, asked(), False, ())
    assert shard.states["d"][0].points is shard.states["a"][1].points
    assert shard.states["d"][0].start == 5


def test_equal_rows_are_found_at_their_last_place():
    wanted = SupportSet(QUERIES, ASKED, ASKED).rows
    found = [Shard().find_rows(one, QUERIES.numpy(), ()) for one in STATES]
    merged = {row: max(one.get(row, -1) for one in found) for row in {*found[0], *found[1]}}
    assert merged == SUPPORT.rows.find(wanted)
