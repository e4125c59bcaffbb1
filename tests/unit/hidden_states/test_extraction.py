"""Batches by token budget, what is taken of states, and the language model's own answers."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torchsdm import LabelledStates
from torchsdm.errors import InvalidInputError
from torchsdm.hidden_states import judge_own_answers
from torchsdm.hidden_states.extraction import DECODER_PARTS, ENCODER_PARTS, MAX_PADDING, PARTS, batches_by_length, pool

# --- Batches ---------------------------------------------------------------------------------------------------------
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


# --- Pooling ---------------------------------------------------------------------------------------------------------


def pool_by_hand(states, spans, parts):
    """Loops over sequences, spans, parts and positions, in float64."""
    result = torch.empty(len(spans), len(spans[0]), len(parts) * states.shape[-1], dtype=torch.float64)
    for b, of_sequence in enumerate(spans):
        for p, (start, end) in enumerate(of_sequence):
            taken = []
            for part in parts:
                if part == "first":
                    taken.append(states[b, start].double())
                elif part == "final":
                    taken.append(states[b, end - 1].double())
                else:
                    total = torch.zeros(states.shape[-1], dtype=torch.float64)
                    for position in range(start, end):
                        total += states[b, position].double()
                    taken.append(total / (end - start))
            result[b, p] = torch.cat(taken)
    return result


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_pooling_equals_loops(data, parts, dtype):
    n_sequences, n_spans, length = (data.draw(st.integers(1, top)) for top in (3, 3, 12))
    starts = st.integers(0, length - 1).flatmap(lambda start: st.tuples(st.just(start), st.integers(start + 1, length)))
    spans = [[data.draw(starts) for _ in range(n_spans)] for _ in range(n_sequences)]
    states = torch.randn(n_sequences, length, 5, generator=torch.Generator().manual_seed(length)).to(dtype)
    pooled = pool(states, spans, parts)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled.double(), pool_by_hand(states, spans, parts), rtol=0, atol=1e-6)


def test_padding_is_never_looked_at():
    states = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    spans = [[(0, 6)], [(0, 3)]]
    padded = states.clone()
    padded[1, 3:] = float("nan")
    assert torch.equal(pool(padded, spans, PARTS), pool(states, spans, PARTS))


def test_a_sequence_is_pooled_to_the_same_bits_in_any_company():
    states = torch.randn(3, 40, 8, generator=torch.Generator().manual_seed(1))
    spans = [[(0, 40), (3, 9)], [(0, 17), (0, 17)], [(0, 1), (0, 1)]]
    together = pool(states, spans, PARTS)
    for row in range(3):
        length = spans[row][0][1]
        assert torch.equal(pool(states[row : row + 1, :length], spans[row : row + 1], PARTS), together[row : row + 1])


def test_the_mean_of_half_precision_states_is_taken_in_single_precision():
    states = torch.full((1, 3000, 1), 1.0).to(torch.bfloat16)
    states[0, 0] = 4.0
    assert pool(states, [[(0, 3000)]], ["mean"]).item() == pytest.approx(1 + 3 / 3000, abs=1e-6)


def test_what_h_is_made_of_by_default():
    assert DECODER_PARTS == ("final", "mean") and ENCODER_PARTS == ("first", "mean")


# --- Own answers -----------------------------------------------------------------------------------------------------


def test_labels_say_whether_the_answer_is_right_and_logits_what_the_model_thinks_of_it():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(0, 3, (50, 4)).astype(np.float32), rng.choice([3, 7, 8, 9], 50)
    states = LabelledStates(rng.normal(size=(50, 6)), labels, label_logits=logits, logit_labels=(7, 3, 9, 8))
    judged = judge_own_answers(states)
    assert judged.logit_labels == (0, 1) and judged.hidden_states is states.hidden_states
    for row in range(50):
        weights = [math.exp(float(value)) for value in logits[row]]
        answer = max(range(4), key=lambda column: weights[column])
        p = weights[answer] / sum(weights)
        assert judged.labels[row] == int((7, 3, 9, 8)[answer] == labels[row])
        np.testing.assert_allclose(judged.label_logits[row], [math.log(1 - p), math.log(p)], rtol=1e-4, atol=1e-6)
    assert 0 < judged.labels.sum() < 50


def test_certainty_is_not_rounded_away():
    states = LabelledStates(np.zeros((1, 2)), [0], label_logits=[[80.0, 0.0]], logit_labels=(0, 1))
    np.testing.assert_allclose(judge_own_answers(states).label_logits, [[-80.0, 0.0]], atol=1e-6)


def test_without_answers_it_is_refused():
    with pytest.raises(InvalidInputError, match="give 'label_words' in the prompt"):
        judge_own_answers(LabelledStates(np.zeros((2, 2)), [0, 1]))
