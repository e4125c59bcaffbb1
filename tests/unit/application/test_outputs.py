"""Files of rows: every format holds the same values, and a file is whole or not there."""

from __future__ import annotations

import csv
import json
import sys

import pytest

from torchsdm.application.answers import check_output, flat, write_rows
from torchsdm.errors import InvalidInputError, MissingExtraError

FORMATS = [".jsonl", ".json", ".csv", ".tsv", ".parquet"]


def row(number, name, alpha=0.9, text=None):
    return {
        "id": name,
        "text": text,
        "admitted": alpha is not None,
        "admitted_alpha": alpha,
        "probabilities": {"ja": 0.1 + 0.2, "nein, danke": 1e-300},
        "similarity": number,
        "exemplars": [{"id": "ü", "vouches": True}],
    }


BLOCKS = [[row(0, 10, None), row(1, 11, None)], [row(2, 12, text='a\t"b",\nc')]]
ROWS = [one for block in BLOCKS for one in block]


def read(path):
    """The rows of a file; of a delimited one their texts."""
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        return parquet.read_table(path).to_pylist()
    with open(path, encoding="utf-8", newline="") as file:
        if path.suffix in (".csv", ".tsv"):
            return list(csv.DictReader(file, delimiter="," if path.suffix == ".csv" else "\t"))
        return json.load(file) if path.suffix == ".json" else [json.loads(line) for line in file]


def test_a_flat_row_has_a_column_for_each_label():
    assert flat(ROWS[2]) == {
        "id": 12,
        "text": 'a\t"b",\nc',
        "admitted": True,
        "admitted_alpha": 0.9,
        "probabilities[ja]": 0.1 + 0.2,
        "probabilities[nein, danke]": 1e-300,
        "similarity": 2,
        "exemplars": '[{"id": "ü", "vouches": true}]',
    }


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_holds_every_value(ending, tmp_path):
    path = tmp_path / f"decisions{ending}"
    write_rows(path, iter(BLOCKS))
    expected = ROWS if ending.startswith(".json") else [flat(one) for one in ROWS]
    if ending in (".csv", ".tsv"):
        expected = [{name: "" if value is None else str(value) for name, value in one.items()} for one in expected]
    assert read(path) == expected
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", FORMATS)
def test_without_rows_a_file_is_empty_and_a_table_has_its_columns(ending, tmp_path):
    path = tmp_path / f"decisions{ending}"
    write_rows(path, [], lambda: ROWS[0])
    assert read(path) == []
    if ending in (".csv", ".tsv"):
        assert path.read_text().strip().split("," if ending == ".csv" else "\t")[:3] == ["id", "text", "admitted"]
    if ending == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        assert parquet.read_schema(path).names == list(flat(ROWS[0]))


def test_an_ending_in_capitals_is_the_same_ending(tmp_path):
    write_rows(tmp_path / "A.JSON", BLOCKS)
    assert json.loads((tmp_path / "A.JSON").read_text(encoding="utf-8")) == ROWS


def test_parquet_columns_have_types_even_if_they_are_empty_or_ids_are_mixed(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")

    def types(blocks):
        write_rows(tmp_path / "a.parquet", blocks)
        schema = parquet.read_schema(tmp_path / "a.parquet")
        return {name: str(schema.field(name).type) for name in ("id", "text", "admitted_alpha", "similarity")}

    numbers = {"admitted_alpha": "double", "similarity": "int64", "text": "string"}
    assert types([[row(0, 7, None)]]) == {"id": "int64", **numbers}
    assert types([[row(0, "a")], [row(0, "b", None)]]) == {"id": "string", **numbers}
    for blocks in ([[row(0, "a"), row(0, 7)]], [[row(0, 7)], [row(0, "a")]]):
        assert types(blocks) == {"id": "string", **numbers}
        assert {one["id"] for one in read(tmp_path / "a.parquet")} == {"a", "7"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_hold_is_never_written(value, tmp_path):
    for ending in (".jsonl", ".json"):
        path = tmp_path / f"decisions{ending}"
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_rows(path, [[ROWS[0], {**ROWS[1], "confidence": value}]])
        assert not path.exists()


@pytest.mark.parametrize("ending", FORMATS)
def test_a_failure_leaves_the_file_as_it_was(ending, tmp_path):
    def broken():
        yield BLOCKS[0]
        raise ZeroDivisionError

    path = tmp_path / f"decisions{ending}"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        write_rows(path, broken())
    assert path.read_text() == "old" and [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv"])
def test_lines_are_written_as_they_come(ending, tmp_path):
    """The first block leaves memory before the last is made."""
    sizes = []

    def blocks():
        for number in range(3):
            sizes.append(sum(one.stat().st_size for one in tmp_path.iterdir()))
            yield [row(number, "x" * 100_000)]

    write_rows(tmp_path / f"decisions{ending}", blocks())
    assert sizes[0] == 0 and 100_000 <= sizes[1] < sizes[2]


@pytest.mark.parametrize("name", ["decisions", "decisions.txt", "decisions.jsonl.gz", ".csv"])
def test_an_unknown_ending_is_refused_with_those_that_are_known(name, tmp_path):
    with pytest.raises(InvalidInputError, match=r"must end in one of \.jsonl, \.json, \.csv, \.tsv, \.parquet\. Got "):
        check_output(tmp_path / name)
    with pytest.raises(InvalidInputError):
        write_rows(tmp_path / name, BLOCKS)
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_pyarrow_gives_the_pip_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    check_output(tmp_path / "a.csv")
    with pytest.raises(MissingExtraError, match=r"pip install 'torchsdm\[report\]'"):
        check_output(tmp_path / "a.parquet")


def test_without_a_path_rows_are_lines_on_standard_output(capsys):
    write_rows(None, BLOCKS)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS
