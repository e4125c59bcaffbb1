"""The language model's own answers: labels, and its own opinion of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchsdm import LabelledStates
from torchsdm.errors import InvalidInputError
from torchsdm.hidden_states import judge_own_answers


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
