"""The support set: matching as users call it, updates equal to building anew, refusals that change nothing."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import reference
from torchsdm import SupportSet
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.matching import IndexedRows
from torchsdm.matching.support import next_ids
from torchsdm.validation import as_list


def data(n=40, seed=0):
    """Points on a small grid, so with ties and duplicates; labels 0 to 2 and 9, which is no class."""
    rng = np.random.default_rng(seed)
    points = rng.integers(-2, 3, (n, 3)).astype(np.float32)
    labels = np.where(rng.random(n) < 0.1, 9, (points[:, 0] > 0).astype(np.int64))
    predictions = np.where((rng.random(n) < 0.1) | (labels == 9), rng.integers(0, 3, n), labels)
    return points, labels, predictions


def queries(n=12, seed=1):
    points, _, predictions = data(n, seed)
    return points + np.float32(0.25), predictions


def assert_equals_the_loops(support, exclude=None):
    points, predictions = queries()
    got = support.match(points, predictions, exclude)
    expected = reference.match(
        points,
        predictions,
        support.exemplars.tolist(),
        support.labels.tolist(),
        support.predictions.tolist(),
        exclude,
    )
    assert got.similarity.tolist() == expected.similarity
    assert got.nearest_index.tolist() == expected.nearest_index
    assert got.nearest_distance.tolist() == expected.nearest_distance  # squares on the grid are exact


# --- Matching --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [3, 2048])
def test_match_equals_the_loops(block_size):
    support = SupportSet(*data(), block_size=block_size)
    assert_equals_the_loops(support)
    assert_equals_the_loops(support, exclude=[-1, 0, 1, 2, 39, -1, 5, 6, 7, 8, 9, 10])


def test_match_self_excludes_every_point_from_itself():
    points, labels, predictions = data()
    got = SupportSet(points, labels, predictions).match_self()
    expected = reference.match(points, predictions, points, labels, predictions, exclude=range(len(points)))
    assert got.similarity.tolist() == expected.similarity
    assert got.nearest_index.tolist() == expected.nearest_index
    assert got.nearest_distance.tolist() == expected.nearest_distance
    assert 0.0 in expected.nearest_distance  # duplicates stay


def test_neighbors_equal_the_loops():
    support, (points, _) = SupportSet(*data()), queries()
    distances, indices = support.neighbors(points, 7)
    for row in range(len(points)):
        expected = reference.neighbors(points[row], support.exemplars.tolist(), 7)
        assert (distances[row].tolist(), indices[row].tolist()) == expected


def test_neighbors_of_no_queries_are_none():
    distances, indices = SupportSet(*data()).neighbors(np.empty((0, 3), dtype=np.float32), 2)
    assert distances.shape == indices.shape == (0, 2)


def test_tensors_arrays_and_lists_are_alike():
    points, labels, predictions = data()
    at, y_hat = queries()
    expected = SupportSet(points, labels, predictions).match(at, y_hat).similarity.tolist()
    tensors = SupportSet(torch.from_numpy(points), torch.from_numpy(labels), torch.from_numpy(predictions))
    lists = SupportSet(points.tolist(), labels.tolist(), predictions.tolist())
    assert tensors.match(torch.from_numpy(at), torch.from_numpy(y_hat)).similarity.tolist() == expected
    assert lists.match(at.tolist(), y_hat.tolist()).similarity.tolist() == expected


def test_exemplars_that_carry_a_gradient_are_taken_without_it():
    points, labels, predictions = data()
    support = SupportSet(torch.from_numpy(points).requires_grad_(), labels, predictions)
    at, y_hat = queries()
    assert_equals_the_loops(support)
    assert not support.match(torch.from_numpy(at).requires_grad_(), y_hat).nearest_distance.requires_grad


def test_float64_exemplars_are_kept_and_half_precision_becomes_float32():
    fine = 1 + np.array([[1.0], [3.0], [7.0]]) * 2.0**-40  # one number in float32
    support = SupportSet(fine, [0, 0, 1], [0, 0, 1])
    got = support.match(np.array([[1 + 6 * 2.0**-40]]), [1])
    assert (got.similarity.item(), got.nearest_index.item(), got.nearest_distance.item()) == (1, 2, 2.0**-40)
    assert SupportSet(fine.astype(np.float16), [0, 0, 1], [0, 0, 1]).exemplars.dtype == torch.float32


def test_memory_mapped_exemplars_stay_mapped(tmp_path):
    points, labels, predictions = data()
    np.save(tmp_path / "points.npy", points)
    mapped = np.load(tmp_path / "points.npy", mmap_mode="r")
    support = SupportSet(mapped, labels, predictions)
    assert support.exemplars.data_ptr() == mapped.ctypes.data
    assert_equals_the_loops(support)


# --- Updates ---------------------------------------------------------------------------------------------------------


def test_adding_is_building_at_once():
    points, labels, predictions = data()
    grown = SupportSet(points[:15], labels[:15], predictions[:15], block_size=4)
    assert grown.add(points[15:], labels[15:], predictions[15:]) is grown
    assert torch.equal(grown.exemplars, torch.from_numpy(points))
    assert_equals_the_loops(grown)
    whole = SupportSet(points, labels, predictions).match_self()
    assert grown.match_self().similarity.tolist() == whole.similarity.tolist()


def test_adding_far_points_to_a_frozen_centre_stays_exact():
    points, labels, predictions = data()
    support = SupportSet(points, labels, predictions)
    centre = support.centre.clone()
    support.add(points[:5] + np.float32(2.0**20), labels[:5], predictions[:5])
    assert torch.equal(support.centre, centre)
    assert_equals_the_loops(support)


def test_removing_is_building_without():
    points, labels, predictions = data()
    support = SupportSet(points, labels, predictions, ids=[f"p{i}" for i in range(40)])
    gone = [0, 7, 39, 7]
    assert support.remove(gone) is support
    keep = [i for i in range(40) if i not in gone]
    assert torch.equal(support.exemplars, torch.from_numpy(points[keep]))
    assert support.labels.tolist() == labels[keep].tolist()
    assert support.ids.tolist() == [f"p{i}" for i in keep]
    assert_equals_the_loops(support)


def test_relabelling_is_building_with_other_labels():
    points, labels, predictions = data()
    given = labels.copy()
    support = SupportSet(points, given, predictions)
    assert support.relabel([3, 4, 20], [1, 77, 0]) is support
    labels[[3, 4, 20]] = [1, 77, 0]
    assert support.labels.tolist() == labels.tolist()
    assert given.tolist() == data()[1].tolist()  # the caller's array is the caller's
    assert_equals_the_loops(support)


def test_a_relabelled_point_stops_or_starts_to_vouch():
    support = SupportSet([[1.0], [2.0], [3.0]], [0, 0, 1], [0, 0, 1])
    assert support.match([[0.0]], [0]).similarity.item() == 2
    assert support.relabel([1], [9]).match([[0.0]], [0]).similarity.item() == 1
    assert support.relabel([1], [0]).match([[0.0]], [0]).similarity.item() == 2


def test_ids_go_with_their_points():
    points, labels, predictions = data()
    support = SupportSet(points, labels, predictions)
    assert support.ids.tolist() == list(range(40))
    support.remove([0]).add(points[:2], labels[:2], predictions[:2])
    assert support.ids.tolist() == [*range(1, 40), 40, 41]
    support.add(points[:1], labels[:1], predictions[:1], ids=["new"])
    assert support.ids.tolist() == [*range(1, 42), "new"]
    assert next_ids(["a", 7, "b", 3], 2) == [8, 9]
    assert next_ids(["a"], 2) == [0, 1]


def test_representation_counts_the_points_that_vouch():
    text = repr(SupportSet([[1.0], [2.0], [3.0]], [0, 0, 9], [0, 1, 1]))
    assert text == "SupportSet(3 exemplars of 1 filters, 1 correctly predicted)"


def test_plain_lists():
    for values in (np.array([1, 2]), torch.tensor([1, 2]), (1, 2), range(1, 3), [np.int64(1), np.int32(2)]):
        plain = as_list(values, "ids", "f")
        assert plain == [1, 2] and {type(value) for value in plain} == {int}
    assert as_list(["a", 1, 2.5], "ids", "f") == ["a", 1, 2.5]  # each keeps its own type
    for values in (3, "abc", np.zeros((2, 2)), None):
        with pytest.raises(InvalidTypeError, match="'ids' of f must be a one-dimensional sequence"):
            as_list(values, "ids", "f")


# --- Parts -----------------------------------------------------------------------------------------------------------


def grown(sizes, **options):
    """A support of 40 points that were added a few at a time, with what it was made of."""
    points, labels, predictions = data()
    cuts = np.cumsum(sizes)
    assert cuts[-1] == 40
    pieces = list(zip(*(np.split(values, cuts[:-1]) for values in (points, labels, predictions)), strict=True))
    support = SupportSet(*pieces[0], **options)
    for piece in pieces[1:]:
        support.add(*piece)
    return support, (points, labels, predictions)


def contents(support):
    """All of a support, as lists."""
    at, y_hat = queries()
    found = support.match(at, y_hat, k=min(3, len(support)))
    return [
        values.tolist()
        for values in (
            *(support.exemplars, support.labels, support.predictions, support.squared_norms, support.ids),
            *(found.similarity, found.nearest_distance, found.nearest_index, found.neighbor_indices),
        )
    ]


@pytest.mark.parametrize("sizes", [[40], [30, 5, 1, 1, 3], [1] * 40, [20, 9, 4, 2, 1, 1, 1, 1, 1], [5, 35]])
@pytest.mark.parametrize("block_size", [3, 2048])
def test_a_support_in_parts_is_the_same_support(sizes, block_size):
    support, (points, labels, predictions) = grown(sizes, block_size=block_size)
    whole = SupportSet(points, labels, predictions, centre=support.centre)
    assert contents(support) == contents(whole)
    assert repr(support) == repr(whole) and len(support) == 40
    for exclude in ([-1, 0, 1, 2, 39, -1, 5, 36, 37, 38, 29, 30], None):
        assert_equals_the_loops(support, exclude)
    assert support.match_self().similarity.tolist() == whole.match_self().similarity.tolist()
    distances, indices = support.neighbors(queries()[0], 40)
    assert [distances.tolist(), indices.tolist()] == [each.tolist() for each in whole.neighbors(queries()[0], 40)]


def test_parts_are_few_and_the_first_stays_where_it_is(tmp_path):
    points, labels, predictions = data(200)
    np.save(tmp_path / "points.npy", points[:100])
    mapped = np.load(tmp_path / "points.npy", mmap_mode="r")
    support = SupportSet(mapped, labels[:100], predictions[:100])
    for row in range(100, 149):
        support.add(points[row : row + 1], labels[row : row + 1], predictions[row : row + 1])
        assert support.parts[0].points.points.data_ptr() == mapped.ctypes.data
        assert len(support.parts) <= 7
    assert len(support.parts) > 2
    assert torch.equal(support.exemplars, torch.from_numpy(points[:149]))
    assert_equals_the_loops(support)
    support.add(points[149:], labels[149:], predictions[149:])  # half of all or more: one part again
    assert len(support.parts) == 1 and support.exemplars.tolist() == points.tolist()
    assert_equals_the_loops(support)


def test_adding_nothing_changes_nothing():
    support = SupportSet(*data())
    before = contents(support)
    support.add(np.empty((0, 3), dtype=np.float32), [], [])
    assert contents(support) == before and len(support.parts) == 1


@pytest.mark.parametrize("gone", [[0], [39], [30], [29, 30], list(range(30, 39)), [3, 31, 36, 39], list(range(39))])
def test_removing_from_any_part(gone):
    support, (points, labels, predictions) = grown([30, 6, 2, 1, 1])
    assert [len(part) for part in support.parts] == [30, 9, 1]
    keep = [i for i in range(40) if i not in gone]
    support.remove(gone)
    assert contents(support)[:3] == [points[keep].tolist(), labels[keep].tolist(), predictions[keep].tolist()]
    assert_equals_the_loops(support)
    support.add(points[gone], labels[gone], predictions[gone])
    assert support.exemplars.tolist() == points[[*keep, *gone]].tolist()
    assert_equals_the_loops(support)


def test_parts_that_lose_no_point_are_not_copied():
    support, _ = grown([30, 6, 2, 1, 1])
    first = support.parts[0].points.points.data_ptr()
    support.remove([35])
    assert support.parts[0].points.points.data_ptr() == first


def test_relabelling_in_any_part():
    support, (points, labels, predictions) = grown([30, 6, 2, 1, 1])
    chosen = [0, 29, 30, 36, 39]
    support.relabel(chosen, [1, 77, 0, 1, 77])
    labels[chosen] = [1, 77, 0, 1, 77]
    assert support.labels.tolist() == labels.tolist()
    assert contents(support) == contents(SupportSet(points, labels, predictions, centre=support.centre))
    assert_equals_the_loops(support)


def test_a_copy_is_a_support_of_its_own():
    support, (points, labels, predictions) = grown([30, 6, 2, 1, 1])
    old = contents(support)
    changes = (
        lambda one: one.add(points[:1], labels[:1], predictions[:1]),
        lambda one: one.add(points, labels, predictions),  # joins every part
        lambda one: one.remove([0, 31, 39]),
        lambda one: one.relabel([0, 31, 39], [77, 77, 77]),
    )
    once = [contents(change(copy.copy(support))) for change in changes]
    assert contents(support) == old
    again = [contents(change(copy.copy(support))) for change in changes]  # two copies grown from one
    assert again == once and contents(support) == old and old not in once


def test_equal_exemplars_are_found_in_any_part():
    support, (points, _, _) = grown([30, 6, 2, 1, 1])
    wanted = points[[3, 31, 36, 39]].copy()
    wanted[1] += 0.5
    last = [max(i for i in range(40) if (points[i] == row).all()) for row in wanted[[0, 2, 3]]]
    assert support.rows.find(IndexedRows.of(torch.from_numpy(wanted))) == dict(zip([0, 2, 3], last, strict=True))
    before = support.rows.parts[0].hashes
    support.add(wanted[1:2], [0], [0])
    assert support.rows.find(IndexedRows.of(torch.from_numpy(wanted)))[1] == 40
    assert support.rows.parts[0].hashes is before  # indexed once


# --- Refusals --------------------------------------------------------------------------------------------------------

NAN_ROW = np.array([[1.0, 2.0, 3.0], [1.0, np.nan, 3.0]], dtype=np.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.empty((0, 3)), [], []), r"'exemplars' of SupportSet must not be empty. Got shape \(0, 3\)"),
        ((np.empty((2, 0)), [0, 0], [0, 0]), r"'exemplars' of SupportSet must not be empty. Got shape \(2, 0\)"),
        (([1.0, 2.0], [0, 0], [0, 0]), r"'exemplars' of SupportSet must have shape \(any, any\). Got \(2,\)"),
        (
            (NAN_ROW, [0, 0], [0, 0]),
            "'exemplars' of SupportSet must be finite. Got NaN, first in row 1; remove or repair",
        ),
        (([[1.0]], [0, 1], [0]), r"'labels' of SupportSet must have shape \(1,\). Got \(2,\)"),
        (([[1.0]], [0], [0, 1]), r"'predictions' of SupportSet must have shape \(1,\). Got \(2,\)"),
        (([[1.0]], [-1], [0]), r"'labels' of SupportSet must be known. Got -1 \(unlabelled\); leave such points out"),
        (([[1.0]], [0], [-2]), "'predictions' of SupportSet must be in 0..2147483647. Got -2..-2"),
        (([[1.0]], [0.5], [0]), "'labels' of SupportSet must be integers"),
        (([[1.0], [2.0]], [0, 1], [0, 1], ["a"]), "'ids' of SupportSet must name each of 2 points. Got 1 names"),
        (([[1.0], [2.0]], [0, 1], [0, 1], ["a", "a"]), "'ids' of SupportSet must be unique. Got 'a' more than once"),
    ],
)
def test_bad_supports_are_refused(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        SupportSet(*arguments)


@pytest.mark.parametrize("name", [None, 0.5, True, ("a",), 2**63, "\ud800"])
def test_ids_are_strings_or_integers(name):
    with pytest.raises(InvalidTypeError, match=r"'ids' of SupportSet must be strings or 64-bit integers. Got "):
        SupportSet([[1.0], [2.0]], [0, 1], [0, 1], ids=["a", name])


def test_a_mask_is_no_list_of_indices():
    support = SupportSet(*data())
    mask = np.zeros(40, dtype=bool)
    mask[3] = True
    for call in (lambda: support.remove(mask), lambda: support.relabel(mask, [1] * 40)):
        with pytest.raises(InvalidTypeError, match=r"must be integer indices. Got a boolean mask; use its nonzero"):
            call()
    assert len(support) == 40


def test_block_size_must_be_a_positive_integer():
    with pytest.raises(InvalidInputError, match=r"'block_size' of SupportSet must be positive. Got 0"):
        SupportSet([[1.0]], [0], [0], block_size=0)
    with pytest.raises(InvalidTypeError, match=r"'block_size' of SupportSet must be an integer. Got 2.0"):
        SupportSet([[1.0]], [0], [0], block_size=2.0)


ONE, TWO = [[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s: s.match([[1.0, 2.0]], [0]),
            r"'exemplars' of SupportSet.match must have shape \(any, 3\). Got \(1, 2\)",
        ),
        (lambda s: s.match(NAN_ROW, [0, 0]), "'exemplars' of SupportSet.match must be finite. Got NaN, first in row 1"),
        (lambda s: s.match(ONE, [0, 1]), r"'predictions' of SupportSet.match must have shape \(1,\). Got \(2,\)"),
        (lambda s: s.match(ONE, [-1]), "'predictions' of SupportSet.match must be in 0.."),
        (lambda s: s.match(ONE, [0], exclude=[40]), "'exclude' of SupportSet.match must be in -1..39. Got 40..40"),
        (lambda s: s.match(ONE, [0], exclude=[-2]), "'exclude' of SupportSet.match must be in -1..39. Got -2..-2"),
        (lambda s: s.match(ONE, [0], exclude=[1, 2]), r"'exclude' of SupportSet.match must have shape \(1,\)"),
        (
            lambda s: s.neighbors(ONE, 41),
            "'k' of SupportSet.neighbors must be at most 40, the size of the support. Got 41",
        ),
        (lambda s: s.neighbors(ONE, 0), "'k' of SupportSet.neighbors must be positive. Got 0"),
        (lambda s: s.add([[1.0]], [0], [0]), r"'exemplars' of SupportSet.add must have shape \(any, 3\). Got \(1, 1\)"),
        (
            lambda s: s.add(NAN_ROW, [0, 0], [0, 0]),
            "'exemplars' of SupportSet.add must be finite. Got NaN, first in row 1",
        ),
        (lambda s: s.add(ONE, [-1], [0]), r"'labels' of SupportSet.add must be known"),
        (lambda s: s.add(TWO, [0, 0], [0]), r"'predictions' of SupportSet.add must have shape \(2,\). Got \(1,\)"),
        (lambda s: s.add(ONE, [0], [0], ids=[5]), "'ids' of SupportSet.add must be unique. Got 5 more than once"),
        (
            lambda s: s.add(TWO, [0, 0], [0, 0], ids=["a"]),
            "'ids' of SupportSet.add must name each of 42 points. Got 41",
        ),
        (lambda s: s.remove([40]), "'indices' of SupportSet.remove must be in 0..39. Got 40..40"),
        (lambda s: s.remove([-1]), "'indices' of SupportSet.remove must be in 0..39. Got -1..-1"),
        (lambda s: s.remove(range(40)), "'indices' of SupportSet.remove must leave at least one point. Got all"),
        (lambda s: s.relabel([0], [-1]), "'labels' of SupportSet.relabel must be known"),
        (lambda s: s.relabel([0, 1], [1]), r"'labels' of SupportSet.relabel must have shape \(2,\). Got \(1,\)"),
    ],
)
def test_refused_calls_change_nothing(call, message):
    support = SupportSet(*data())
    with pytest.raises(InvalidInputError, match=message):
        call(support)
    points, labels, predictions = data()
    assert torch.equal(support.exemplars, torch.from_numpy(points))
    assert support.labels.tolist() == labels.tolist() and support.predictions.tolist() == predictions.tolist()
    assert support.ids.tolist() == list(range(40))
    assert_equals_the_loops(support)
