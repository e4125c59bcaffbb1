"""Tables of results: what each form shows, and that rounding hides nothing."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest

from torchsdm import Decisions
from torchsdm.errors import InvalidInputError
from torchsdm.evaluation.metrics import Cell, SelectiveAccuracy
from torchsdm.evaluation.tables import Grid, ResultRow, ResultTable, accuracy_text, csv_text, is_moved, share_text


def row(estimator="SDM_HR", dataset="reviews", model="phi & co_1"):
    cells = {0: Cell(50, 40, 39, 0.4), 1: Cell(50, 0, 0, 0.0)}
    predicted = {0: Cell(60, 40, 37, 0.4), 1: Cell(0, 0, 0, 0.0)}
    accuracy = SelectiveAccuracy(cells, predicted, Cell(100, 40, 38, 0.4))
    return ResultRow(dataset, model, estimator, 0.95, accuracy)


@pytest.fixture
def table():
    return ResultTable([row(), row("softmax ≥ α"), row(dataset="tweets")])


def test_text_shows_rejected_absent_and_below(table):
    lines = table.to_text().splitlines()
    assert re.split(r"\s{2,}", lines[0]) == [
        *(
            "dataset",
            "model",
            "estimator",
            "y=0",
            "share",
            "y=1",
            "share",
            "ŷ=0",
            "share",
            "ŷ=1",
            "share",
            "all",
            "share",
        )
    ]
    assert re.split(r"\s{2,}", lines[2]) == [
        *("reviews", "phi & co_1", "SDM_HR", "0.97", "0.40", "R", "0.00", "0.93↓", "0.40", "-", "0.00", "0.95", "0.40")
    ]
    assert str(table) == table.to_text() and len(lines) == 5


def test_intervals_are_shown_where_there_is_an_accuracy(table):
    first = table.to_text(intervals=True).splitlines()[2]
    assert "0.97 [0.87, 1.00]" in first and "R  " in first and "- " in first


def test_markdown_has_as_many_columns_in_every_line(table):
    lines = table.to_markdown().splitlines()
    assert len({line.count("|") for line in lines}) == 1 and set(lines[1]) == set("|- ")
    assert "| 0.93↓ |" in lines[2]
    assert "a\\|b c" in ResultTable([row("a|b\nc")]).to_markdown()


def test_latex_is_escaped_and_balanced(table):
    text = table.to_latex()
    assert "phi \\& co\\_1" in text and "softmax $\\ge$ $\\alpha$" in text
    assert "\\colorbox{red!10}{0.93}" in text and text.count("\\midrule") == 2  # below the head, between data sets
    n_columns = {line.count(" & ") for line in text.splitlines() if line.startswith(("reviews", "tweets"))}
    assert n_columns == {12} and text.count("{") == text.count("}")


def test_csv_json_and_pandas_hold_all_digits(table):
    records = table.to_dicts()
    assert len(records) == 3 * 5 and records[0]["accuracy"] == 39 / 40 and records[1]["accuracy"] is None
    assert [record["stratum"] for record in records[:5]] == ["class", "class", "prediction", "prediction", "all"]
    assert records[2]["is_below_alpha"] is True and records[1]["is_below_alpha"] is False
    assert json.loads(table.to_json()) == records
    read = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert float(read[0]["accuracy"]) == 39 / 40 and read[1]["accuracy"] == ""
    assert table.to_pandas().shape == (15, len(records[0]))


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (Cell(1000, 1000, 949, 1.0), "0.949"),  # two digits would say 0.95, which it is not
        (Cell(1000, 1000, 950, 1.0), "0.95"),
        (Cell(1000, 1000, 999, 1.0), "0.999"),  # not 1.00
        (Cell(1000, 1000, 1000, 1.0), "1.00"),
        (Cell(10**6, 10**6, 949_999, 1.0), "0.949999"),
        (Cell(3000, 3000, 1, 1.0), "0.0003"),  # not nothing
        (Cell(5, 0, 0, 0.0), "R"),
        (Cell(0, 0, 0, 0.0), "-"),
    ],
)
def test_rounding_lifts_nothing_over_a_limit(cell, expected):
    assert accuracy_text(cell, 0.95) == expected


@pytest.mark.parametrize(
    ("value", "digits", "limit", "moved"),
    [
        (0.9496, 3, 0.95, True),  # from below onto it
        (0.9494, 3, 0.95, False),  # stays below
        (0.95, 3, 0.95, False),  # lies on it
        (0.9504, 3, 0.95, False),  # from above onto it: it still is not below
        (0.9504, 2, 0.9503, True),  # from above across it
        (0.9496, 2, 0.9498, True),  # from below across it
        (0.9504, 2, 0.97, False),  # far from it
        (0.9996, 3, 1.0, True),
        (0.9994, 3, 1.0, False),
        (1.0, 3, 1.0, False),
        (0.0004, 3, 0.0, True),  # something is not nothing
        (0.0006, 3, 0.0, False),
        (0.0, 3, 0.0, False),
    ],
)
def test_a_value_is_moved_where_rounding_takes_it_to_another_side(value, digits, limit, moved):
    assert is_moved(value, digits, (limit,)) is moved
    assert is_moved(value, digits, (0.5, limit, 0.6)) is moved
    assert is_moved(value, digits, ()) is False


def test_csv_of_records_is_read_back_as_it_was():
    assert csv_text([]) == ""
    records = [{"a": 'one, "two"', "b": None, "c": 0.1}, {"a": "new\nline", "b": "", "c": 1 / 3}]
    text = csv_text(records)
    assert text.startswith("a,b,c\n") and "\r" not in text and text.endswith("\n")
    read = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [line["a"] for line in read] == ['one, "two"', "new\nline"] and [line["b"] for line in read] == ["", ""]
    assert [float(line["c"]) for line in read] == [0.1, 1 / 3]


def test_a_small_share_is_not_none():
    assert [share_text(share) for share in (0.0, 0.004, 0.006, 0.5, 1.0)] == ["0.00", "<0.01", "0.01", "0.50", "1.00"]
    assert share_text(0.99999) == ">0.99"
    small = ResultRow(
        "d", "m", "e", 0.9, SelectiveAccuracy({0: Cell(9, 1, 1, 1e-4)}, {0: Cell(9, 1, 1, 1e-4)}, Cell(9, 1, 1, 1e-4))
    )
    assert "$<$0.01" in ResultTable([small]).to_latex() and "&lt;0.01" in ResultTable([small]).to_markdown()


def test_rows_of_decisions():
    decisions = Decisions.of_probabilities(
        np.array(["n", "p"]), [0.9], np.eye(2), np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[True], [False]])
    )
    made = ResultRow.of(decisions, ["n", "p"], 0.9, dataset="d", model="m", estimator="e")
    assert made.accuracy.marginal == Cell(2, 1, 1, 0.5)
    assert "d" in ResultTable([made]).to_text()


def test_a_row_is_of_one_of_several_alphas():
    decisions = Decisions.of_probabilities(
        np.array(["n", "p"]), [0.6, 0.9], np.eye(2), np.array([[0.9, 0.1], [0.3, 0.7]]), np.array([[1, 1], [1, 0]]) > 0
    )
    assert ResultRow.of(decisions, ["n", "p"], 0.6).accuracy.marginal.n_admitted == 2
    assert ResultRow.of(decisions, ["n", "p"], 0.9).accuracy.marginal.n_admitted == 1
    with pytest.raises(InvalidInputError, match="must be one of those requested"):
        ResultRow.of(decisions, ["n", "p"], 0.7)


def test_what_no_table_can_hold():
    with pytest.raises(InvalidInputError, match="at least one row"):
        ResultTable([])
    other = SelectiveAccuracy({"x": Cell(1, 1, 1, 1.0)}, {"x": Cell(1, 1, 1, 1.0)}, Cell(1, 1, 1, 1.0))
    with pytest.raises(InvalidInputError, match="have the same classes"):
        ResultTable([row(), ResultRow("", "", "", 0.9, other)])


# --- Tables that fit -------------------------------------------------------------------------------------------------


def many(n_classes=20, model="a-language-model-with-a-long-name + SDM", dataset="a data set " * 12):
    cells = {f"a class called number {c}": Cell(50, 40, 40 - c, 0.04) for c in range(n_classes)}
    accuracy = SelectiveAccuracy(cells, cells, Cell(1000, 800, 610, 0.8))
    return ResultRow(dataset.strip(), model, "an estimator that is called like this", 0.95, accuracy)


@pytest.mark.parametrize("intervals", [False, True])
def test_the_narrow_table_fits_whatever_it_has(intervals):
    rows = [many(), many(model="another, whose name is even longer than that of the first one + SDM")]
    table = ResultTable(rows, "A note. " * 40)
    beneath = {rows[0].dataset: {"lanes": "word " * 50}}
    for width in (100, 80):
        text = table.to_narrow_text(intervals=intervals, width=width, beneath=beneath)
        assert max(map(len, text.splitlines())) <= width
    assert max(map(len, table.to_text().splitlines())) > 400


def test_the_narrow_table_has_the_lowest_accuracy_of_any_stratum(table):
    text = table.to_narrow_text()
    assert text.startswith("reviews: 100 inputs, phi & co_1\n\nestimator    share  accuracy  lowest  of\n---")
    lines = [re.split(r"\s{2,}", line) for line in text.splitlines()]
    assert ["SDM_HR", "0.40", "0.95", "0.93↓", "ŷ=0"] in lines and [
        "softmax ≥ α",
        "0.40",
        "0.95",
        "0.93↓",
        "ŷ=0",
    ] in lines
    assert "\n\ntweets: 100 inputs" in text and "below alpha = 0.95" in " ".join(text.split())
    assert "0.93↓ [0.80, 0.97]" in table.to_narrow_text(intervals=True)
    two = ResultTable([row(), row(model="other")]).to_narrow_text()
    assert two.startswith("reviews: 100 inputs\n\nmodel       estimator")
    nothing = SelectiveAccuracy({0: Cell(5, 0, 0, 0.0)}, {0: Cell(5, 0, 0, 0.0)}, Cell(5, 0, 0, 0.0))
    rejected = ResultTable([ResultRow("d", "m", "e", 0.9, nothing)]).to_narrow_text()
    assert ["e", "0.00", "R", "R"] in [re.split(r"\s{2,}", line) for line in rejected.splitlines()]


def test_a_grid_is_cut_where_it_is_widest():
    grid = Grid(["name", "n"], [["a long name", "12,345"], ["b", "7"]])
    assert grid.to_text(14).splitlines() == ["name    n", "--------------", "a lon…  12,345", "b       7"]
    assert grid.to_text(100) == grid.to_text()


def test_a_note_of_several_lines(table):
    noted = ResultTable(table.rows, "First.\nSecond.")
    assert noted.to_text().endswith("\n\nFirst.\n\nSecond.") and noted.to_markdown().endswith("\n\nFirst.\n\nSecond.")
    assert noted.to_latex().endswith("\n% First.\n% Second.") and noted.to_narrow_text().endswith("First.\n\nSecond.")
