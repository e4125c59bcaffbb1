"""Which of its own answers is a language model right about? States relabelled by that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError

WRONG, RIGHT = 0, 1  #: the labels of an own answer


def judge_own_answers(states: LabelledStates) -> LabelledStates:
    """States of questions, labelled by whether the language model answers them right.

    Its answer is the word with the largest logit, p its probability among the words. The label is 1 if the answer is
    the given label and 0 if it is not, and the label logits become log(1 - p) and log p: what the language model itself
    thinks of its answer.

    Parameters
    ----------
    states : LabelledStates
        With the right answers as labels, and the language model's logits of the answers it may give.
    """
    if states.labels is None or states.label_logits is None or states.logit_labels is None:
        raise InvalidInputError(
            "Own answers need a decoder that is asked for one of several words: give 'label_words' in the prompt, and "
            "a language model with an output layer."
        )
    z = np.asarray(states.label_logits, dtype=np.float64)  # (N, C)
    answered = z.argmax(axis=1)
    is_right = np.array([states.logit_labels[column] for column in answered]) == np.asarray(states.labels)
    log_p = z - np.logaddexp.reduce(z, axis=1, keepdims=True)
    is_answer = np.arange(z.shape[1]) == answered[:, None]
    log_answer = log_p[is_answer]
    log_others = np.logaddexp.reduce(np.where(is_answer, -np.inf, log_p), axis=1)
    return replace(
        states,
        labels=np.where(is_right, RIGHT, WRONG),
        label_logits=np.stack([log_others, log_answer], axis=1).astype(np.float32),
        logit_labels=(WRONG, RIGHT),
    )
