"""Batches of sequences by token budget."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from torchsdm.hidden_states._batches import MAX_PADDING, batches_by_length

lengths_of_sequences = st.lists(st.integers(1, 600), max_size=80)
budgets = st.integers(1, 5000)


@given(lengths=lengths_of_sequences, budget=budgets)
def test_every_sequence_is_in_one_batch(lengths, budget):
    batches = batches_by_length(lengths, budget)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    assert all(batches)


@given(lengths=lengths_of_sequences, budget=budgets)
@example(lengths=[5, 5, 5], budget=10)
@example(lengths=[6, 5], budget=11)
def test_no_batch_exceeds_the_budget_unless_one_sequence_does(lengths, budget):
    for batch in batches_by_length(lengths, budget):
        assert len(batch) == 1 or len(batch) * max(lengths[position] for position in batch) <= budget


@given(lengths=lengths_of_sequences, budget=budgets)
@example(lengths=[10, 9, 8], budget=30)
@example(lengths=[100, 1], budget=1000)
def test_at_most_a_tenth_of_a_batch_is_padding(lengths, budget):
    assert MAX_PADDING == 0.1
    for batch in batches_by_length(lengths, budget):
        own = [lengths[position] for position in batch]
        padded = len(own) * max(own)
        assert Fraction(padded - sum(own), padded) <= Fraction(1, 10)


@given(lengths=lengths_of_sequences, budget=budgets)
def test_longest_come_first_and_equal_ones_in_their_order(lengths, budget):
    order = [position for batch in batches_by_length(lengths, budget) for position in batch]
    assert order == sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))


@given(lengths=lengths_of_sequences, budget=budgets)
def test_no_two_neighbouring_batches_could_have_been_begun_as_one(lengths, budget):
    """A batch is closed only where the next sequence would break the budget or bring too much padding."""
    batches = batches_by_length(lengths, budget)
    for batch, following in pairwise(batches):
        own = [lengths[position] for position in [*batch, following[0]]]
        padded = len(own) * max(own)
        assert padded > budget or padded - sum(own) > 0.1 * padded


@given(lengths=lengths_of_sequences, budget=budgets)
def test_the_same_lengths_give_the_same_batches(lengths, budget):
    assert batches_by_length(lengths, budget) == batches_by_length(tuple(lengths), budget)


def test_sequences_of_one_length_fill_the_budget():
    assert [len(batch) for batch in batches_by_length([7] * 10, 28)] == [4, 4, 2]
    assert batches_by_length([7] * 3, 1) == [[0], [1], [2]]
    assert batches_by_length([], 10) == []


def test_the_share_of_padding_can_be_chosen():
    assert batches_by_length([4, 2], 100, max_padding=0.25) == [[0, 1]]
    assert batches_by_length([4, 2], 100, max_padding=0.2) == [[0], [1]]
    assert batches_by_length([4, 4, 3], 100, max_padding=0.0) == [[0, 1], [2]]
