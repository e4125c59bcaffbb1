"""Rows of answers: ids, texts and evidence as asked for; and which inputs are answered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from json_schema import problems
from torchsdm import LabelledStates
from torchsdm.application import SavedModel
from torchsdm.application.answers import (
    answer_rows,
    decision_schema,
    rejected_row,
    with_rejected,
)
from torchsdm.application.requests import given_block, selected
from torchsdm.data import BadRow, Place
from torchsdm.errors import InvalidInputError


@pytest.fixture
def block(insects):
    return LabelledStates(insects.fresh[:3], None, ["a", 7, "c"], ["one", "two", "three"])


def test_a_row_is_the_decision_under_its_id(fitted, block):
    decisions = fitted.decide(block.hidden_states).to_dicts()
    rows = answer_rows(fitted, block)
    assert rows == [{"id": name, "line": None, **row} for name, row in zip(["a", 7, "c"], decisions, strict=True)]
    assert {next(iter(row)) for row in rows} == {"id"}


def test_exemplars_calibration_points_and_texts_are_given_as_asked(fitted, block):
    explanations = fitted.explain(block.hidden_states, 2)
    rows = answer_rows(fitted, block, k=2)
    assert [row["exemplars"] for row in rows] == [one.to_dict(texts=False)["exemplars"] for one in explanations]
    assert all("text" not in row and "calibration_points" not in row for row in rows)
    whole = answer_rows(fitted, block, k=2, calibration=True, texts=True)
    assert whole == [
        {"id": name, "line": None, "text": text, **one.to_dict()}
        for name, text, one in zip(block.ids, block.texts, explanations, strict=True)
    ]


def test_a_row_has_the_line_of_its_file(fitted, block):
    places = [Place("line 4", 4), Place("b.jsonl line 9", 9), "row 3"]
    assert [row["line"] for row in answer_rows(fitted, replace(block, places=places))] == [4, 9, None]
    (like, *_) = answer_rows(fitted, block)
    assert rejected_row(BadRow(3, places[1], "no text", 3), like)["line"] == 9


def test_inputs_without_ids_are_numbered_and_without_texts_have_none(fitted, insects):
    def ids_and_texts(*columns):
        rows = answer_rows(fitted, LabelledStates(insects.fresh[:2], None, *columns), texts=True)
        return [(row["id"], row["text"]) for row in rows]

    assert ids_and_texts() == [(0, None), (1, None)]
    named = ids_and_texts(np.array([5, 6]), np.array(["x", "y"]))
    assert named == [(5, "x"), (6, "y")]
    assert {type(name) for name, _ in named} == {int}


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
    pairs = [pair for one in found for pair in zip(one.ids, one.texts, strict=True)]
    assert pairs == [(name, f"t{name}") for name in expected]
    assert [value for one in found for value in one.hidden_states[:, 0]] == expected
    assert len(read) == n_read


def test_an_id_that_no_input_has_is_named():
    for only, first in ((("9", "1"), None), (("9", "1"), 2), (("9",), 5)):
        with pytest.raises(InvalidInputError, match="There is no input with the id '9'"):
            list(selected(blocks([]), only, first))


# --- Inputs that could not be read -----------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [[], [0], [2], [4], [0, 1, 2], [1, 3, 4], [4, 5]])
@pytest.mark.parametrize("sizes", [(4,), (1, 3), (2, 2)])
def test_every_input_has_its_row_in_its_place(numbers, sizes):
    n_rows = 4 + len(numbers)
    left = [number for number in range(n_rows) if number not in numbers]
    bad = {number: BadRow(number, f"line {number + 1}", "empty text", f"b{number}") for number in numbers}

    def answers():
        start = 0
        for size in sizes:
            numbers = left[start : start + size]
            yield numbers, [{"id": number, "admitted": True, "lane": "trusted"} for number in numbers]
            start += size

    rows = [row for block in with_rejected(answers(), bad) for row in block]
    assert [row["id"] for row in rows] == [f"b{number}" if number in bad else number for number in range(n_rows)]
    assert [row["lane"] == "rejected" for row in rows] == [number in bad for number in range(n_rows)]
    assert all(row["reason"] == str(bad[number]) for number, row in enumerate(rows) if number in bad)


def test_a_rejected_row_has_the_keys_of_a_decision_and_no_values(fitted, block):
    (like, *_) = answer_rows(fitted, block, k=2, calibration=True, texts=True)
    row = rejected_row(BadRow(3, "", "no text", 3), like)
    assert list(row) == list(like)
    assert problems(row, decision_schema()) == []
    assert row["probabilities"] == dict.fromkeys(like["probabilities"]) and row["text"] is None
    known = {name for name, value in row.items() if value not in (None, False, []) and not isinstance(value, dict)}
    assert known == {"id", "lane", "reason"}
    assert [problems({**row, name: like[name]}, decision_schema()) != [] for name in ("confidence", "exemplars")] == [
        True,
        True,
    ]
    assert problems({**row, "admitted": True}, decision_schema()) != []
