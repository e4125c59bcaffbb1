"""Which files an input consists of, in which order, and what is refused."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from torchsdm import Documents
from torchsdm.data import Source
from torchsdm.errors import EmptyInputError, InvalidInputError

ROWS = [{"id": f"r{number}", "text": f"Text number {number}.", "label": number % 2} for number in range(7)]


def write(path, rows=()):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def parquet(path, rows, columns=None):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(ROWS[0]) if columns is None else columns
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in names}), path)
    return path


@pytest.fixture
def data(tmp_path):
    """A folder as others write it: parts, one of them compressed and one without rows, and what is not data."""
    folder = tmp_path / "data"
    write(folder / "part-10.jsonl", ROWS[2:4])
    write(folder / "part-2.jsonl.gz", ROWS[4:6])
    write(folder / "part-3.jsonl")
    write(folder / "day=1" / "part-9.jsonl", ROWS[:2])
    write(folder / "zone" / "deep" / "part-0.jsonl", ROWS[6:])
    for name in ("_SUCCESS", "_metadata", ".part-10.jsonl.crc", "_temporary/part-1.jsonl", ".hidden/part-1.jsonl"):
        write(folder / name, [{"wrong": name}])
    return folder


def names(path):
    source = Source.open(path)
    return [source.file_name(file) for file in source.files]


def refused(path, expected):
    with pytest.raises(InvalidInputError) as raised:
        len(Documents(path))
    assert expected in str(raised.value), raised.value
    assert not isinstance(raised.value, EmptyInputError) and "\n" not in str(raised.value)


# --- What is found ---------------------------------------------------------------------------------------------------


def test_a_folder_is_all_its_files_in_the_order_of_their_names(data):
    expected = ["day=1/part-9.jsonl", "part-10.jsonl", "part-2.jsonl.gz", "part-3.jsonl", "zone/deep/part-0.jsonl"]
    assert names(data) == expected
    assert names(data / "zone" / ".." / "day=1") == ["part-9.jsonl"]
    assert names(data / "part-10.jsonl") == [""]  # the input itself


def test_a_pattern_is_what_matches(data, monkeypatch):
    assert names(data / "part-*.jsonl") == ["part-10.jsonl", "part-3.jsonl"]
    assert names(data / "**" / "*.jsonl") == names(data)[:2] + names(data)[3:]
    assert names(data / "[d-z]*" / "**" / "*-[09].jsonl") == ["day=1/part-9.jsonl", "zone/deep/part-0.jsonl"]
    assert "_SUCCESS" not in names(data / "*")
    monkeypatch.chdir(data)
    for pattern in ("part-?.jsonl", "./part-?.jsonl"):
        assert [document.id for document in Documents(f"{pattern}*")] == ["r4", "r5"]


def test_a_name_with_wildcards_that_is_there_is_no_pattern(tmp_path):
    write(tmp_path / "[a]*.jsonl", ROWS[:1])
    write(tmp_path / "a-b.jsonl", ROWS[1:])
    assert len(Documents(tmp_path / "[a]*.jsonl")) == 1
    write(tmp_path / "[x]" / "a.jsonl", ROWS)
    write(tmp_path / "x" / "a.jsonl", ROWS[:1])
    assert len(Documents(tmp_path / "[x]")) == 7


def test_a_linked_folder_belongs_to_the_input(data, tmp_path):
    write(tmp_path / "elsewhere" / "a.jsonl", ROWS[:1])
    (data / "linked").symlink_to(tmp_path / "elsewhere")
    assert "linked/a.jsonl" in names(data)


# --- One stream of rows ----------------------------------------------------------------------------------------------


def test_the_rows_are_those_of_one_file(data, tmp_path):
    one, many = Documents(write(tmp_path / "one.jsonl", ROWS)), Documents(data)
    assert [(d.id, d.text, d.label, d.number) for d in many] == [(d.id, d.text, d.label, d.number) for d in one]
    assert many.report.fingerprint == one.report.fingerprint and many.name == str(data)
    assert [document.place for document in many][1:4] == [
        "day=1/part-9.jsonl line 2",
        "part-10.jsonl line 1",
        "part-10.jsonl line 2",
    ]
    assert [len(block) for block in many.blocks(3)] == [3, 3, 1]  # files do not cut blocks


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_other_kinds_of_rows_are_one_stream_too(kind, tmp_path):
    for name, rows in (("b", ROWS[3:]), ("a", ROWS[:3]), ("aa", [])):
        if kind == "parquet":
            parquet(tmp_path / "data" / f"{name}.parquet", rows)
            continue
        separator = "," if kind == "csv" else "\t"
        lines = [separator.join(map(str, row.values())) for row in rows]
        write(tmp_path / "data" / f"{name}.{kind}").write_text(
            "\n".join([separator.join(ROWS[0]), *lines]) if name != "aa" else ""
        )
    read = list(Documents(tmp_path / "data"))
    assert [(one.id, one.text, one.label) for one in read] == [tuple(row.values()) for row in ROWS]
    assert read[3].place == ("b.parquet row 1" if kind == "parquet" else f"b.{kind} line 2")


def test_rows_without_ids_are_numbered_over_all_files(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.jsonl", [{"text": f"{name} {number}"} for number in range(2)])
    assert [document.id for document in Documents(tmp_path)] == [0, 1, 2, 3]


def test_the_files_are_those_of_the_first_look(data):
    documents = Documents(data)
    write(data / "later.jsonl", [{"id": "new", "text": "Later.", "label": 0}])
    assert len(list(documents)) == 7


def test_problems_are_named_with_their_files(tmp_path):
    write(tmp_path / "a.jsonl", [*ROWS[:2], {**ROWS[2], "text": " "}])
    write(tmp_path / "b.jsonl", [{**ROWS[3], "text": ""}, ROWS[1], ROWS[4]])
    refused(tmp_path, "empty text: a.jsonl line 3, b.jsonl line 1; duplicate id: b.jsonl line 2.")
    documents = Documents(tmp_path, problems="reject")
    assert {number: str(bad) for number, bad in documents.report.bad_rows.items()} == {
        2: "a.jsonl line 3: empty text",
        3: "b.jsonl line 1: empty text",
        4: "b.jsonl line 2: duplicate id",
    }
    assert [document.number for document in documents] == [0, 1, 5]


def test_places_of_one_file_are_listed_briefly(tmp_path):
    write(tmp_path / "a.jsonl", [ROWS[0], *[{**ROWS[1], "text": ""}] * 8])
    write(tmp_path / "b.jsonl", ROWS[2:])
    refused(tmp_path, "empty text: a.jsonl lines 2, 3, 4, 5, 6 and 3 more.")


# --- What is refused -------------------------------------------------------------------------------------------------


def test_nothing_is_said(tmp_path):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "hidden" / "_SUCCESS")
    for name in ("empty", "hidden"):
        with pytest.raises(InvalidInputError, match=rf"{name} has no files; names that begin with a dot or an under"):
            Source.open(tmp_path / name)
    with pytest.raises(InvalidInputError, match=r"No file matches '.*/\*\.jsonl'; names"):
        Source.open(tmp_path / "*.jsonl")
    with pytest.raises(InvalidInputError, match=r"There is no file '.*none.jsonl'"):
        Source.open(tmp_path / "none.jsonl")
    write(tmp_path / "blank" / "a.jsonl")
    write(tmp_path / "blank" / "b.jsonl")
    with pytest.raises(EmptyInputError, match="blank is empty"):
        Documents(tmp_path / "blank")


def test_kinds_are_not_mixed(data):
    write(data / "README.md")
    refused(data, "has files of several kinds: README.md and day=1/part-9.jsonl. Choose one kind with a pattern such")
    assert len(Documents(data / "**" / "*.jsonl*")) == 7


def test_files_of_arrays_are_not_joined(tmp_path):
    write(tmp_path / "a.npz")
    write(tmp_path / "b.npz")
    refused(tmp_path, "Several files are read as one input if they end in .jsonl, .csv, .tsv, .parquet.")


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("columns", "name"), [(["id", "label"], "text"), (["text", "label"], "id"), (["text", "id"], "label")]
)
def test_files_with_different_columns_are_refused(kind, columns, name, tmp_path):
    for file, names in (("a", ["id", "text", "label"]), ("b", columns)):
        if kind == "parquet":
            parquet(tmp_path / f"{file}.parquet", ROWS[:2], names)
        else:
            lines = [",".join(names), *(",".join(str(row[one]) for one in names) for row in ROWS[:2])]
            (tmp_path / f"{file}.csv").write_text("\n".join(lines))
    expected = f"must have the same columns. b.{kind} has no column {name!r}, but a.{kind} does."
    refused(tmp_path, expected)
    (tmp_path / f"a.{kind}").rename(tmp_path / f"c.{kind}")  # the first file is the one that lacks it
    refused(tmp_path, expected.replace("a.", "c."))


def test_columns_that_nobody_uses_may_differ(tmp_path):
    parquet(tmp_path / "a.parquet", ROWS[:3], ["id", "text"])
    parquet(tmp_path / "b.parquet", ROWS[3:])
    assert len(Documents(tmp_path, label=False)) == 7


def test_a_file_cut_in_half_is_named(tmp_path):
    parquet(tmp_path / "a.parquet", ROWS[:3])
    cut = parquet(tmp_path / "b.parquet", ROWS[3:])
    cut.write_bytes(cut.read_bytes()[:-50])
    refused(tmp_path, f"{cut} cannot be read as Parquet: ")
    cut = write(tmp_path / "zipped" / "b.jsonl.gz", ROWS)
    write(tmp_path / "zipped" / "a.jsonl", ROWS[:1])
    cut.write_bytes(cut.read_bytes()[:-12])
    refused(tmp_path / "zipped", f"{cut} cannot be read beyond line")


def test_class_names_must_agree(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def with_names(name, *names):
        features = {"label": {"names": list(names), "_type": "ClassLabel"}}
        schema = json.dumps({"info": {"features": features}})
        table = pa.table({"text": [f"{name} {names}"], "label": [1]}).replace_schema_metadata({"huggingface": schema})
        pq.write_table(table, tmp_path / f"{name}.parquet")

    with_names("a", "bad", "good")
    with_names("b", "bad", "good")
    assert [document.label for document in Documents(tmp_path)] == ["good", "good"]
    with_names("b", "good", "bad")
    refused(tmp_path, "must have the same class names. Those of b.parquet and a.parquet differ.")


def test_rows_of_all_files_are_read_one_file_after_the_other(data):
    rows = list(Source.open(data).rows())
    assert [row for _, row in rows] == ROWS
    assert all(re.fullmatch(r"\S+ line \d", place) for place, _ in rows)
