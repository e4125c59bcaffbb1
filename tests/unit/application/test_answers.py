"""Rows of answers: ids, texts and evidence as asked for; and which inputs are answered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from torchsdm import LabelledStates
from torchsdm.application import SavedModel
from torchsdm.application.answers import answer_rows, given_block, ids_and_texts, selected
from torchsdm.errors import InvalidInputError


@pytest.fixture
def block(insects):
    return LabelledStates(insects.fresh[:3], None, ["a", 7, "c"], ["one", "two", "three"])


def test_a_row_is_the_decision_under_its_id(fitted, block):
    decisions = fitted.decide(block.hidden_states).to_dicts()
    rows = answer_rows(fitted, block)
    assert rows == [{"id": name, **row} for name, row in zip(["a", 7, "c"], decisions, strict=True)]
    assert {next(iter(row)) for row in rows} == {"id"}


def test_exemplars_calibration_points_and_texts_are_given_as_asked(fitted, block):
    explanations = fitted.explain(block.hidden_states, 2)
    rows = answer_rows(fitted, block, k=2)
    assert [row["exemplars"] for row in rows] == [one.to_dict(texts=False)["exemplars"] for one in explanations]
    assert all("text" not in row and "calibration_points" not in row for row in rows)
    whole = answer_rows(fitted, block, k=2, calibration=True, texts=True)
    assert whole == [
        {"id": name, "text": text, **one.to_dict()}
        for (name, text), one in zip(ids_and_texts(block), explanations, strict=True)
    ]


def test_inputs_without_ids_are_numbered_and_without_texts_have_none(insects):
    assert ids_and_texts(LabelledStates(insects.fresh[:2], None)) == [(0, None), (1, None)]
    named = LabelledStates(insects.fresh[:2], None, np.array([5, 6]), np.array(["x", "y"]))
    assert ids_and_texts(named) == [(5, "x"), (6, "y")]
    assert {type(name) for name, _ in ids_and_texts(named)} == {int}


def test_inputs_given_in_memory(fitted, insects):
    saved = SavedModel(Path("nowhere"), fitted, None)
    block = given_block(saved, hidden_states=insects.fresh[:2].tolist())
    np.testing.assert_array_equal(block.hidden_states, insects.fresh[:2])
    for bad, expected in (([[1, 2], [1]], "of the same length"), ([["a"]], "of numbers"), ([1, 2], "a list of states")):
        with pytest.raises(InvalidInputError, match=expected):
            given_block(saved, hidden_states=bad)
    with pytest.raises(InvalidInputError, match=r"cannot read texts\. Give hidden_states"):
        given_block(saved, texts=["a"])


# --- Selecting -------------------------------------------------------------------------------------------------------


def blocks(read, sizes=(2, 3, 2)):
    """Blocks of inputs with the ids 0, 1, ...; how many were read is counted."""
    first = 0
    for size in sizes:
        read.append(size)
        ids = list(range(first, first + size))
        yield LabelledStates(np.array(ids, dtype=float)[:, None], None, ids, [f"t{name}" for name in ids])
        first += size


@pytest.mark.parametrize(
    ("only", "first", "expected", "n_read"),
    [
        ((), None, [0, 1, 2, 3, 4, 5, 6], 3),
        ((), 3, [0, 1, 2], 2),
        ((), 2, [0, 1], 1),
        (("3", "1"), None, [1, 3], 2),
        (("6", "1"), 1, [1], 1),
        (("1", "nowhere"), 1, [1], 1),
    ],
)
def test_no_more_is_read_than_needed(only, first, expected, n_read):
    read = []
    found = list(selected(blocks(read), only, first))
    assert [pair for one in found for pair in ids_and_texts(one)] == [(name, f"t{name}") for name in expected]
    assert [value for one in found for value in one.hidden_states[:, 0]] == expected
    assert len(read) == n_read


def test_an_id_that_no_input_has_is_named():
    for only, first in ((("9", "1"), None), (("9", "1"), 2), (("9",), 5)):
        with pytest.raises(InvalidInputError, match="There is no input with the id '9'"):
            list(selected(blocks([]), only, first))
