"""Documents from every source: what is read, what is refused and where it stands, what the fingerprint knows."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import re
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from torchsdm.data.documents import Document, Documents
from torchsdm.errors import DataWarning, InvalidInputError, InvalidTypeError, MissingExtraError

TEXTS = ["A fine film.", "Grüße, 世界 \U0001f41d", 'He said "no",\nand\tleft.\r\n\u2028 \r \x85 end']
LABELS = [1, 0, 1]
IDS = ["a", "b", "07"]
ANSWERS = ["Good.", "Bad, really.", 'Both:\n"so-so"']
COLUMNS = {"text": TEXTS, "label": LABELS, "id": IDS, "answer": ANSWERS}


def rows(columns):
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def write(path, content):
    """Write text or bytes as they are, compressed where the name says so."""
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_csv(path, columns):
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter="\t" if ".tsv" in path.suffixes else ",")
    writer.writerows([list(columns), *zip(*columns.values(), strict=True)])
    return write(path, buffer.getvalue())


def write_jsonl(path, columns):
    return write(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows(columns)))


def write_parquet(path, columns):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def dataset(columns):
    from datasets import Dataset

    return Dataset.from_dict(columns)


TABLES = {
    "jsonl": lambda folder, columns: write_jsonl(folder / "a.jsonl", columns),
    "jsonl.gz": lambda folder, columns: write_jsonl(folder / "a.jsonl.gz", columns),
    "csv": lambda folder, columns: write_csv(folder / "a.csv", columns),
    "tsv": lambda folder, columns: write_csv(folder / "a.tsv", columns),
    "csv.gz": lambda folder, columns: write_csv(folder / "a.csv.gz", columns),
    "tsv.gz": lambda folder, columns: write_csv(folder / "a.tsv.gz", columns),
    "parquet": lambda folder, columns: write_parquet(folder / "a.parquet", columns),
    "frame": lambda folder, columns: pd.DataFrame(columns, index=[9, 9, 7]),
    "dataset": lambda folder, columns: dataset(columns),
    "mappings": lambda folder, columns: rows(columns),
    "generated mappings": lambda folder, columns: iter(rows(columns)),
}
SEQUENCES = {
    "list": list,
    "tuple": tuple,
    "numpy": np.array,
    "numpy objects": lambda values: np.array(values, dtype=object),
    "series": lambda values: pd.Series(values, index=[5, 5, 4]),
    "generator": iter,
}


def seen(documents):
    return [(document.text, document.label, document.id, document.answer) for document in documents]


def refused(*args, **settings):
    """The message with which documents are refused, on opening or on the first pass."""
    with pytest.raises(InvalidInputError) as error:
        Documents(*args, **settings).report  # noqa: B018
    return str(error.value)


ALL = list(zip(TEXTS, LABELS, IDS, ANSWERS, strict=True))


# --- Sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_table_gives_the_same_documents(tmp_path, kind):
    documents = Documents(TABLES[kind](tmp_path, COLUMNS))
    assert seen(documents) == ALL
    assert all(type(document.label) is int for document in documents)
    assert documents.has_labels and documents.has_ids and documents.has_answers
    assert len(documents) == 3
    first = {"jsonl": "line 1", "jsonl.gz": "line 1", "parquet": "row 1"}.get(
        kind, "line 2" if "sv" in kind else "row 1"
    )
    assert next(iter(documents)).place == first


@pytest.mark.parametrize("kind", TABLES)
def test_columns_can_be_named(tmp_path, kind):
    columns = {"body": TEXTS, "text": ["x"] * 3, "y": LABELS, "label": [9] * 3, "key": IDS, "reply": ANSWERS}
    documents = Documents(TABLES[kind](tmp_path, columns), text="body", label="y", id="key", answer="reply")
    assert seen(documents) == ALL


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_of_texts_alone_has_nothing_else(tmp_path, kind):
    documents = Documents(TABLES[kind](tmp_path, {"text": TEXTS, "other": [1, 2, 3]}))
    assert not (documents.has_labels or documents.has_ids or documents.has_answers)
    assert seen(documents) == [(text, None, number, None) for number, text in enumerate(TEXTS)]
    assert documents.report.label_counts == {None: 3}


@pytest.mark.parametrize("kind", TABLES)
def test_a_column_that_is_not_there_is_refused_and_the_others_listed(tmp_path, kind):
    source = TABLES[kind](tmp_path, {"body": TEXTS, "label": LABELS})
    assert re.search(r"no column 'text' for the text. Got 'body', 'label'; name one of them", refused(source))
    source = TABLES[kind](tmp_path, {"text": TEXTS, "label": LABELS})
    assert "no column 'y' for the label. Got 'text', 'label'" in refused(source, label="y")


@pytest.mark.parametrize("kind", TABLES)
def test_columns_that_are_called_so_can_be_left_alone(tmp_path, kind):
    columns = {**COLUMNS, "label": ["x", "", "y"], "id": ["same"] * 3}
    documents = Documents(TABLES[kind](tmp_path, columns), label=False, id=False, answer=False)
    assert seen(documents) == [(text, None, number, None) for number, text in enumerate(TEXTS)]
    assert not (documents.has_labels or documents.has_ids or documents.has_answers)


@pytest.mark.parametrize("text", [None, False, 0])
def test_a_text_without_a_column_is_refused(text):
    with pytest.raises((InvalidInputError, InvalidTypeError), match="text"):
        Documents([{"body": "a"}], text=text).report  # noqa: B018


@pytest.mark.parametrize("kind", SEQUENCES)
def test_labels_ids_and_answers_stand_beside_every_kind_of_sequence(kind):
    make = SEQUENCES[kind]
    documents = Documents(make(TEXTS), labels=np.array(LABELS), ids=IDS, answers=tuple(ANSWERS))
    assert seen(documents) == ALL
    assert [document.place for document in documents] == ["row 1", "row 2", "row 3"]
    assert all(type(document.label) is int and type(document.text) is str for document in documents)


@pytest.mark.parametrize("labels", [torch.tensor(LABELS), pd.Series(LABELS, index=[2, 1, 0]), np.array(LABELS)])
def test_labels_may_be_any_one_dimensional_sequence(labels):
    labels_read = [document.label for document in Documents(TEXTS, labels=labels)]
    assert labels_read == LABELS and all(type(label) is int for label in labels_read)


def test_a_list_of_texts_alone_is_numbered():
    documents = Documents(TEXTS)
    assert not (documents.has_labels or documents.has_ids or documents.has_answers)
    assert [(document.id, document.label) for document in documents] == [(0, None), (1, None), (2, None)]


def test_a_list_changed_afterwards_makes_no_difference():
    texts = list(TEXTS)
    documents = Documents(texts)
    texts.append("more")
    assert [document.text for document in documents] == TEXTS


def labels_of(documents):
    return [document.label for document in documents]


def dataset_of_classes(labels=LABELS, column="label", **kind):
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), column: ClassLabel(**(kind or {"names": ["bad", "good"]}))})
    return Dataset.from_dict({"text": TEXTS, column: labels}, features=features)


NAMED = [["bad", "good"][label] for label in LABELS]


def test_a_dataset_gives_the_names_of_its_classes(tmp_path):
    source = dataset_of_classes()
    assert labels_of(Documents(source)) == NAMED
    assert labels_of(Documents(source.with_format("numpy"))) == NAMED
    assert labels_of(Documents(source.to_iterable_dataset())) == NAMED
    assert labels_of(Documents(source["text"], labels=source["label"])) == NAMED
    assert labels_of(Documents(dataset_of_classes(column="topic"), label="topic")) == NAMED
    assert dict(Documents(source).report.label_counts) == {"bad": NAMED.count("bad"), "good": NAMED.count("good")}


def test_a_parquet_file_of_a_dataset_gives_them_too(tmp_path):
    path = tmp_path / "a.parquet"
    dataset_of_classes().to_parquet(path)
    assert labels_of(Documents(path)) == NAMED
    dataset_of_classes(column="topic").to_parquet(path)
    assert labels_of(Documents(path, label="topic")) == NAMED


class ClassLabel:
    """As of a dataset library that is not installed."""

    names = ("bad", "good")


class Duck(list):
    """What we ask of a dataset: rows, and the features of its columns."""

    column_names = ("text", "label")
    features = {"text": object(), "label": ClassLabel()}  # noqa: RUF012


def test_the_library_itself_is_not_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    rows = Duck({"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True))
    assert labels_of(Documents(rows)) == NAMED
    rows.features = None  # unknown, as after a map over a stream
    assert labels_of(Documents(rows)) == LABELS


def test_numbers_without_names_stay_numbers():
    assert labels_of(Documents(dataset_of_classes(num_classes=2))) == LABELS
    assert labels_of(Documents(dataset({"text": TEXTS, "label": LABELS}))) == LABELS


@pytest.mark.parametrize(
    "metadata", [b"", b"{", b"[]", b'{"info": 3}', b'{"info": {"features": {"label": 3, "text": {"names": [1]}}}}']
)
def test_metadata_of_another_kind_is_ignored(tmp_path, metadata):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"text": TEXTS, "label": LABELS}).replace_schema_metadata({b"huggingface": metadata})
    pq.write_table(table, tmp_path / "a.parquet")
    assert labels_of(Documents(tmp_path / "a.parquet")) == LABELS


def test_a_dataset_without_labels_in_some_rows():
    source = dataset_of_classes([LABELS[0], -1, -1])
    assert "no label: rows 2, 3." in refused(source)
    assert labels_of(Documents(source, problems="skip")) == NAMED[:1]
    assert labels_of(Documents(source, label=False)) == [None, None, None]


def test_a_dataset_that_gives_tensors_for_labels_is_refused():
    assert "label that is neither text nor a number: rows 1, 2, 3." in refused(dataset(COLUMNS).with_format("torch"))


def test_the_splits_of_a_dataset_are_named():
    from datasets import DatasetDict

    source = DatasetDict(train=dataset(COLUMNS), test=dataset(COLUMNS))
    with pytest.raises(InvalidTypeError, match=r"one split of a dataset. Got 'train', 'test'; choose one"):
        Documents(source)


def test_the_name_says_where_documents_are_from(tmp_path):
    path = write_csv(tmp_path / "a.csv", COLUMNS)
    assert Documents(path).name == Documents(str(path)).name == str(path)
    assert Documents(TEXTS).name == "the list"
    assert Documents(pd.DataFrame(COLUMNS)).name == "the table"
    assert Documents(dataset(COLUMNS)).name == "the dataset"


def test_rows_of_a_long_parquet_file_are_all_read_and_counted(tmp_path):
    texts = [f"text {i}" for i in range(2500)]
    path = write_parquet(tmp_path / "a.parquet", {"text": texts})
    assert [document.text for document in Documents(path)] == texts
    texts[1699] = ""
    assert "empty text: row 1700." in refused(write_parquet(tmp_path / "a.parquet", {"text": texts}))


# --- Wrong sources ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [None, 3, 2.5, b"bytes", {"text": TEXTS}, object()])
def test_a_source_of_another_type_is_refused(source):
    with pytest.raises(InvalidTypeError, match=rf"'source' of Documents must be a path.*Got {type(source).__name__}"):
        Documents(source)


@pytest.mark.parametrize("strange", ["a text", None, 3])
def test_mappings_and_other_things_are_not_mixed(strange):
    with pytest.raises(InvalidTypeError, match=r"must be all mappings or all texts. Got"):
        Documents([{"text": "a"}, strange])


def test_a_path_that_is_no_file_is_refused(tmp_path):
    for source in (tmp_path / "none.csv", str(tmp_path / "none.csv"), "A fine film.", "Is [this] fine?"):
        message = refused(source)
        assert f"{str(source)!r} is not a file; write [text] for one text." in message


@pytest.mark.parametrize("text", ["A fine film. " * 1000, "A\0film", "One\nfilm."], ids=["long", "null", "lines"])
def test_a_text_in_the_place_of_a_path_is_refused_in_a_short_message(text):
    message = refused(text)
    assert "is not a file" in message and len(message) < 300


@pytest.mark.parametrize("name", ["a.txt", "a", "a.gz", "a.json", "a.csv.zip"])
def test_another_ending_is_refused(tmp_path, name):
    message = refused(write(tmp_path / name, "text\na\n"))
    assert f"must end in .jsonl, .csv, .tsv, .parquet. Got {name!r}" in message


@pytest.mark.parametrize("name", ["labels", "ids", "answers"])
def test_values_beside_anything_but_texts_are_refused(tmp_path, name):
    sources = {
        "a file": write_csv(tmp_path / "a.csv", COLUMNS),
        "a table": pd.DataFrame(COLUMNS),
        "a dataset": dataset(COLUMNS),
        "mappings": rows(COLUMNS),
    }
    for what, source in sources.items():
        message = refused(source, **{name: COLUMNS[name[:-1]]})
        assert f"'{name}' of Documents only goes with a sequence of strings. Got {what}; use {name[:-1]}=" in message


@pytest.mark.parametrize("name", ["labels", "ids", "answers"])
def test_values_beside_texts_must_be_as_many(name):
    message = refused(TEXTS, **{name: ["a", "b"]})
    assert f"'{name}' of Documents must have one value for each of 3 inputs. Got 2" in message
    for strange in ("abc", {"a": 1}, [[1, 2], [3, 4], [5, 6]] * np.ones(1), 5):
        with pytest.raises(InvalidTypeError, match=rf"'{name}' of Documents must be a one-dimensional sequence"):
            Documents(TEXTS, **{name: strange})


@pytest.mark.parametrize("kind", TABLES)
def test_an_empty_table_is_refused(tmp_path, kind):
    if kind == "frame":
        source = pd.DataFrame({"text": [], "label": []})
    else:
        source = TABLES[kind](tmp_path, {"text": [], "label": []})
    assert "is empty: it contains no document" in refused(source)


@pytest.mark.parametrize("source", [[], (), np.array([]), iter([])])
def test_an_empty_sequence_is_refused(source):
    assert "the list is empty: it contains no document" in refused(source)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.jsonl.gz", "a.csv.gz"])
def test_a_file_of_nothing_is_refused(tmp_path, name):
    for content in ("", "\n\n"):
        assert f"{name} is empty" in refused(write(tmp_path / name, content))


@pytest.mark.parametrize(("name", "value"), [("problems", "ignore"), ("repeated", "first"), ("problems", None)])
def test_unknown_choices_are_refused(name, value):
    assert f"'{name}' of Documents must be one of" in refused(TEXTS, **{name: value})


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", COLUMNS)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"Reading Parquet needs pyarrow.*'torchsdm\[report\]'"):
        Documents(path)


# --- Tables with strange columns -------------------------------------------------------------------------------------


def test_a_frame_whose_columns_are_numbers_is_read_by_the_names_that_are_listed():
    frame = pd.DataFrame([["a", 1], ["b", 0]])
    assert "no column 'text' for the text. Got '0', '1'; name one of them" in refused(frame)
    assert [(document.text, document.label) for document in Documents(frame, text="0", label="1")] == [
        ("a", 1),
        ("b", 0),
    ]


def test_two_columns_of_one_name_are_refused(tmp_path):
    assert "'text'" in refused(write(tmp_path / "a.csv", "text,text,label\na,b,1\n"))


def test_two_columns_of_one_name_of_a_frame_are_refused():
    assert "'text'" in refused(pd.DataFrame([["a", "b", 1]], columns=["text", "text", "label"]))


@pytest.mark.parametrize("part", ["label", "id"])
def test_a_key_that_the_first_row_alone_lacks_is_not_dropped_in_silence(tmp_path, part):
    lines = rows(COLUMNS)
    del lines[0][part]
    path = write(tmp_path / "a.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))
    for source, place in ((lines, "row 2"), (path, "line 2")):
        for problems in ("raise", "skip"):
            assert f"{place}: a {part}, but the first document has none" in refused(source, problems=problems)


# --- Lines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_of_csv_are_counted_through_quoted_texts(tmp_path, newline):
    lines = ["text,label", '"two', 'lines",0', "one,1", '"a', "", 'b ""c""",0', ",1", ""]
    path = write(tmp_path / "a.csv", newline.join(lines))
    documents = Documents(path, problems="skip")
    assert [document.place for document in documents] == ["line 2", "line 4", "line 5"]
    texts = [document.text.replace("\r\n", "\n").replace("\r", "\n") for document in documents]
    assert texts == ["two\nlines", "one", 'a\n\nb "c"']
    assert "empty text: line 8." in refused(path)


def test_lines_of_csv_are_counted_after_a_header_of_two_lines(tmp_path):
    path = write(tmp_path / "a.csv", '"te\nxt",label\n,1\na,1\n,2\n')
    assert "empty text: lines 3, 5." in refused(path, text="te\nxt")


@pytest.mark.parametrize(
    "content",
    ["text,label\n\n\na,1\n", "text,label\nb,1\n\na,1\n", "\ntext,label\n\na,1\n"],
    ids=["after the header", "between", "before the header"],
)
def test_blank_lines_of_csv_are_counted(tmp_path, content):
    *_, last = Documents(write(tmp_path / "a.csv", content))
    assert (last.text, last.place) == ("a", "line 4")


def test_blank_lines_of_jsonl_are_counted(tmp_path):
    for newline in ("\n", "\r\n"):
        lines = ["", '{"text": "a"}', " \t", "", '{"text": "b"}', '{"text": " "}', ""]
        path = write(tmp_path / "a.jsonl", newline.join(lines))
        assert "empty text: line 6." in refused(path)
        assert [document.place for document in Documents(path, problems="skip")] == ["line 2", "line 5"]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz", "a.jsonl", "a.jsonl.gz"])
def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path, name):
    content = '{"text": "a"}\n' if "jsonl" in name else "text\na\n"
    documents = Documents(write(tmp_path / name, b"\xef\xbb\xbf" + content.encode()))
    assert [document.text for document in documents] == ["a"]


# --- Broken files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_file_that_is_not_utf8_is_refused(tmp_path, name, encoding):
    content = '{"text": "Gruß"}\n' if "jsonl" in name else "text,label\nok,1\nGruß,2\n"
    message = refused(write(tmp_path / name, content.encode(encoding)), problems="skip")
    assert name in message and ": not UTF-8" in message


def test_a_byte_that_is_not_utf8_is_not_put_in_another_line(tmp_path):
    message = refused(write(tmp_path / "a.csv", b"text,label\nok,1\nGru\xdf,2\n"))
    assert re.search("line 3|after line [012]", message)
    message = refused(write(tmp_path / "a.jsonl", b'{"text": "ok"}\n{"text": "Gru\xdf"}\n'))
    assert re.search("line 2|after line [01]", message)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz"])
def test_a_truncated_or_damaged_gzip_file_is_refused(tmp_path, name):
    numbers = np.random.default_rng(0).random(3000)
    columns = {"text": [f"text {number}" for number in numbers]}
    path = (write_csv if "csv" in name else write_jsonl)(tmp_path / name, columns)
    assert len(Documents(path)) == 3000
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-6] ^= 255  # of the checksum
    for damaged in (whole[: len(whole) // 2], whole[:-1], whole[:5], bytes(flipped), b"text\nnot compressed\n"):
        path.write_bytes(damaged)
        assert name in refused(path, problems="skip")


@pytest.mark.parametrize("problems", ["raise", "skip"])
def test_a_broken_line_of_json_is_named_and_never_skipped(tmp_path, problems):
    good = '{"text": "a"}\n'
    path = write(tmp_path / "a.jsonl", f'{good}\n{{"text": "b"\n{good}')
    assert "a.jsonl, line 3: not valid JSON" in refused(path, problems=problems)
    path = write(tmp_path / "a.jsonl", f'{good}["b"]\n')
    assert "a.jsonl, line 2: expected a JSON object. Got list" in refused(path, problems=problems)


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 100_000], ids=["a number of 5000 digits", "100000 brackets"])
def test_json_that_python_cannot_hold_is_refused_by_line(tmp_path, value):
    path = write(tmp_path / "a.jsonl", f'{{"text": "a"}}\n{{"text": "b", "other": {value}}}\n')
    assert "a.jsonl, line 2" in refused(path)


def test_a_label_of_5000_digits_is_text(tmp_path):
    path = write(tmp_path / "a.csv", f"text,label\na,{'9' * 5000}\nb,1\n")
    assert [document.label for document in Documents(path)] == ["9" * 5000, "1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\nx,1\nA comma, unquoted,0\n", "line 3: more than 2 values; quote the text"),
        ('text,label\n"two\nlines",1\na,b,c\n', "line 4: more than 2 values"),
        ('text,label\nx,1\n"never closed,0\ny,1\n', "line 3: cannot be read as CSV"),
        ('text,label\nx,1\n"closed" too early,0\n', "line 3: cannot be read as CSV"),
    ],
)
@pytest.mark.parametrize("problems", ["raise", "skip"])
def test_broken_csv_is_named_by_line_and_never_skipped(tmp_path, content, message, problems):
    assert message in refused(write(tmp_path / "a.csv", content), problems=problems)


def test_a_short_line_of_csv_lacks_what_it_lacks(tmp_path):
    message = refused(write(tmp_path / "a.csv", "label,text\n1,x\n0\n"))
    assert "1 document that cannot be used. no text: line 3." in message


@pytest.mark.parametrize("content", [b"", b"junk", b"PAR1 and no more PAR1"])
def test_a_file_that_is_no_parquet_is_refused(tmp_path, content):
    assert "a.parquet cannot be read as Parquet" in refused(write(tmp_path / "a.parquet", content))


def test_a_truncated_parquet_file_is_refused(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"text": [f"text {i}" for i in range(1000)]})
    path.write_bytes(path.read_bytes()[:-100])
    assert "a.parquet cannot be read as Parquet" in refused(path)


def test_a_csv_field_may_be_longer_than_the_csv_module_allows(tmp_path):
    text = "long " * 100_000
    path = write_csv(tmp_path / "a.csv", {"text": [text, "short"], "label": [1, 0]})
    before = csv.field_size_limit(131_072)
    try:
        assert seen(Documents(path)) == [(text, 1, 0, None), ("short", 0, 1, None)]
    finally:
        csv.field_size_limit(before)


# --- Labels and ids in files without types ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["1", "0", "-12"], [1, 0, -12]),
        (["1", "0", "yes"], ["1", "0", "yes"]),
        (["1", "0", "2.5"], ["1", "0", "2.5"]),
        (["1", "01", "2"], ["1", "01", "2"]),
        (["1", "-0", "2"], ["1", "-0", "2"]),
        (["1", " 2", "3\t"], [1, 2, 3]),
        (["1", " b", "3 "], ["1", "b", "3"]),
        (["1", "1_0", "3"], ["1", "1_0", "3"]),
        (["1", "²", "٣"], ["1", "²", "٣"]),
        (["1", "-", "3"], ["1", "-", "3"]),
    ],
)
def test_labels_of_csv_are_integers_if_all_are(tmp_path, written, read):
    for name in ("a.csv", "a.tsv"):
        path = write_csv(tmp_path / name, {"text": TEXTS, "label": written})
        labels = [document.label for document in Documents(path)]
        assert labels == read and [type(label) for label in labels] == [type(label) for label in read]


def test_labels_keep_the_type_they_have_in_json(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", {"text": TEXTS, "label": ["1", "0", "2"]})
    assert [document.label for document in Documents(path)] == ["1", "0", "2"]


def test_ids_of_csv_stay_text(tmp_path):
    path = write_csv(tmp_path / "a.csv", {"text": TEXTS, "id": ["1", "01", "2"]})
    assert [document.id for document in Documents(path)] == ["1", "01", "2"]


def test_an_empty_label_or_id_of_csv_is_a_missing_one(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,1\nb,\nc,0\n")
    assert "1 document that cannot be used. no label: line 3." in refused(path)
    labels = [document.label for document in Documents(path, problems="skip")]
    assert labels == [1, 0] and all(type(label) is int for label in labels)
    path = write(tmp_path / "a.csv", "text,id\na,x\nb,\nc,\n")
    assert "no id: lines 3, 4." in refused(path)


# --- Unusable documents ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["text", "answer"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "no {}"),
        (float("nan"), "no {}"),
        (np.float32("nan"), "no {}"),
        (pd.NA, "no {}"),
        (pd.NaT, "no {}"),
        ("", "empty {}"),
        (" \t\r\n\u00a0\u2003", "empty {}"),
        (7, "{} that is not a string"),
        (b"bytes", "{} that is not a string"),
        (["a"], "{} that is not a string"),
        ("half \ud83d", "{} that UTF-8 cannot encode"),
        ("\udc41 half", "{} that UTF-8 cannot encode"),
    ],
)
def test_texts_and_answers_that_cannot_be_used_are_named(name, value, problem):
    columns = {"text": ["a", "b", "c"], "answer": ["x", "y", "z"], name: ["a", value, "c"]}
    problem = problem.format(name)
    for source in (rows(columns), pd.DataFrame(columns, dtype=object)):
        message = refused(source, answer="answer")
        assert f"has 1 document that cannot be used. {problem}: row 2." in message and "problems='skip'" in message
        documents = Documents(source, answer="answer", problems="skip")
        assert [document.place for document in documents] == ["row 1", "row 3"]
        assert documents.report.problems == {problem: ["row 2"]} and documents.report.n_problems == 1


def test_an_answer_that_nobody_asked_for_is_no_problem():
    columns = {"text": list("abcd"), "answer": ["x", None, 42, float("nan")]}
    assert [document.answer for document in Documents(rows(columns))] == ["x", None, None, None]
    assert "no answer: rows 2, 4; answer that is not a string: row 3." in refused(rows(columns), answer="answer")
    assert "no answer: rows 2, 4; answer that is not a string: row 3." in refused(
        list("abcd"), answers=columns["answer"]
    )


def test_an_answer_that_nobody_asked_for_can_be_stored_or_is_named():
    source = [{"text": "a", "answer": "half \ud83d"}, {"text": "b", "answer": "whole"}]
    documents = Documents(source, problems="skip")
    for document in documents:
        (document.answer or "").encode()  # raises if a shard cannot hold it


def test_lone_surrogates_of_a_file_are_named(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "whole \\ud83d\\udc1d"}\n{"text": "half \\ud83d"}\n')
    assert "text that UTF-8 cannot encode: line 2." in refused(path)
    assert [document.text for document in Documents(path, problems="skip")] == ["whole \U0001f41d"]


@pytest.mark.parametrize("label", [None, float("nan"), np.float64("nan"), pd.NA])
def test_missing_labels_are_named(tmp_path, label):
    for settings in (
        {"source": ["a", "b"], "labels": [1, label]},
        {"source": rows({"text": "ab", "label": [1, label]})},
    ):
        assert "no label: row 2." in refused(**settings)
        assert [document.text for document in Documents(**settings, problems="skip")] == ["a"]


def test_missing_values_of_every_kind_of_table_are_named(tmp_path):
    columns = {"text": ["a", None, "c"], "label": ["x", "y", None]}
    for kind in ("jsonl", "parquet", "frame", "dataset", "mappings"):
        unit = "line" if kind == "jsonl" else "row"
        message = refused(TABLES[kind](tmp_path, columns))
        assert f"2 documents that cannot be used. no text: {unit} 2; no label: {unit} 3." in message


@pytest.mark.parametrize(
    "label",
    [[1], {"a": 1}, "half \ud83d", datetime.date(2024, 1, 1), torch.tensor(1), float("inf")],
    ids=["list", "dict", "lone surrogate", "date", "tensor", "infinity"],
)
def test_labels_that_no_file_can_hold_are_named(label):
    message = refused([{"text": "a", "label": "x"}, {"text": "b", "label": label}])
    assert re.search("1 document that cannot be used. .*label.*: row 2", message)


@pytest.mark.parametrize("value", [None, float("nan"), 1.5, 1.0, True, [1], ("a",), 2**63, "\ud800"])
def test_ids_that_cannot_be_used_are_named(value):
    message = refused(["a", "b", "c"], ids=["x", value, "z"])
    assert re.search(r"1 document that cannot be used. [a-z ]*\bid\b[-a-zA-Z0-9 ]*: row 2\.", message)


def test_an_id_given_twice_is_named():
    assert "duplicate id: rows 3, 4." in refused(list("abcd"), ids=["x", "y", "x", "x"])
    documents = Documents(list("abcd"), ids=["x", "y", "x", "z"], problems="skip")
    assert [document.text for document in documents] == ["a", "b", "d"]
    assert len(Documents(["a", "b"], ids=["1", 1])) == 2  # a text and a number are two ids


def test_an_id_of_a_document_that_is_left_out_may_be_given_again():
    documents = Documents(["", "b"], ids=["x", "x"], problems="skip")
    assert [(document.text, document.id) for document in documents] == [("b", "x")]


def test_skipped_documents_keep_their_number():
    documents = Documents(["a", "", "c"], problems="skip")
    assert [(document.text, document.id) for document in documents] == [("a", 0), ("c", 2)]
    assert len(documents) == 2


def test_every_kind_of_problem_is_counted_and_the_first_places_named():
    message = refused(["a", *[""] * 8, None, 3, "b"])
    assert "the list has 10 documents that cannot be used." in message
    assert "empty text: rows 2, 3, 4, 5, 6 and 3 more; no text: row 10; text that is not a string: row 11." in message
    report = Documents(["a", *[""] * 8, None, 3, "b"], problems="skip").report
    assert (report.n_documents, report.n_problems) == (2, 10)
    assert report.problems["empty text"] == [f"row {number}" for number in range(2, 10)]
    assert Documents(["a"]).report.explain() is None


def test_documents_that_are_all_unusable_are_refused_though_problems_are_skipped():
    message = refused(["", None], problems="skip")
    assert "the list has no document that can be used: empty text: row 1; no text: row 2." in message


def test_what_is_skipped_is_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Documents(["a", "", "", "b"], problems="skip")) == 2


# --- Repeated texts --------------------------------------------------------------------------------------------------


def test_repeated_texts_are_kept_with_a_warning_that_counts_contradictions():
    documents = Documents(["a", "b", "a", "a", "b"], labels=[0, 1, 1, 0, 1])
    with pytest.warns(DataWarning) as caught:
        assert [document.id for document in documents] == [0, 1, 2, 3, 4]
    message = str(caught[0].message)
    assert message.startswith("the list: duplicate text: rows 3, 4, 5; with a different label: row 3. ")
    assert "'drop'" in message and "'keep'" in message
    assert len(caught) == 1 and caught[0].filename == __file__
    assert documents.report.repeated == ["row 3", "row 4", "row 5"]
    assert documents.report.contradicted == ["row 3"]
    assert documents.report.label_counts == {0: 2, 1: 3}


def test_repeated_texts_are_warned_of_once():
    documents = Documents(["a", "a"])
    with pytest.warns(DataWarning, match=r"duplicate text: row 2\. "):
        len(documents)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(documents)) == len(documents) == 2
        assert documents.report.repeated == ["row 2"]  # a second pass adds nothing


def test_repeated_texts_that_are_meant_are_kept_without_a_warning():
    documents = Documents(["a", "b", "a"], labels=[0, 1, 1], repeated="keep")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [document.id for document in documents] == [0, 1, 2]
    assert documents.report.repeated == documents.report.contradicted == ["row 3"]


def test_repeated_texts_can_be_dropped():
    documents = Documents(["a", "b", "a", "c", "a"], labels=[0, 1, 1, 0, 0], repeated="drop")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [(document.text, document.label, document.id) for document in documents] == [
            ("a", 0, 0),
            ("b", 1, 1),
            ("c", 0, 3),
        ]
    assert len(documents) == 3
    assert documents.report.repeated == ["row 3", "row 5"] and documents.report.contradicted == ["row 3"]
    assert documents.report.label_counts == {0: 2, 1: 1}
    assert Documents(["a", "b"]).report.explain_repeated() is None


def test_a_text_is_repeated_only_with_the_same_answer():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Documents(["a", "a"], answers=["x", "y"])) == 2
        assert len(Documents(["a", "a "])) == 2
        assert len(Documents(["ab", "a"], answers=["c", "bc"])) == 2
    with pytest.warns(DataWarning, match="row 2"):
        len(Documents(["a", "a"], answers=["x", "x"]))


def test_an_unusable_document_is_no_repeated_one():
    documents = Documents(["a", "a", "a"], labels=[None, 1, 1], problems="skip", repeated="drop")
    assert [document.place for document in documents] == ["row 2"]
    assert documents.report.repeated == ["row 3"] and documents.report.contradicted == []


# --- Fingerprints ----------------------------------------------------------------------------------------------------


def fingerprint(*args, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return Documents(*args, **settings).report.fingerprint


def test_a_fingerprint_does_not_depend_on_the_format(tmp_path):
    own = fingerprint(TEXTS, labels=LABELS, ids=IDS, answers=ANSWERS)
    assert re.fullmatch("[0-9a-f]{64}", own)
    assert {kind: fingerprint(make(tmp_path, COLUMNS)) for kind, make in TABLES.items()} == dict.fromkeys(TABLES, own)
    renamed = {"body": TEXTS, "y": LABELS, "key": IDS, "reply": ANSWERS, "other": [1, 2, 3]}
    names = {"text": "body", "label": "y", "id": "key", "answer": "reply"}
    assert fingerprint(write_csv(tmp_path / "b.csv", renamed), **names) == own
    texts = {kind: fingerprint(make(TEXTS)) for kind, make in SEQUENCES.items()}
    assert texts == dict.fromkeys(SEQUENCES, fingerprint(write_csv(tmp_path / "b.csv", {"text": TEXTS})))


def test_a_fingerprint_changes_with_every_part():
    changed = [
        COLUMNS,
        {**COLUMNS, "text": [TEXTS[0], TEXTS[1], TEXTS[2] + " "]},
        {**COLUMNS, "text": ["A fine film", *TEXTS[1:]]},
        {**COLUMNS, "label": [1, 0, 0]},
        {**COLUMNS, "label": ["1", "0", "1"]},
        {**COLUMNS, "label": [True, False, True]},
        {**COLUMNS, "label": [1.0, 0.0, 1.0]},
        {**COLUMNS, "id": ["a", "b", "7"]},
        {**COLUMNS, "id": ["a", "b", 7]},
        {**COLUMNS, "answer": [*ANSWERS[:2], "Both:"]},
        {**COLUMNS, "text": [TEXTS[1], TEXTS[0], TEXTS[2]]},
        {name: [values[i] for i in (1, 0, 2)] for name, values in COLUMNS.items()},
        {name: values[:2] for name, values in COLUMNS.items()},
        {**COLUMNS, "text": ["A fine film.G", *TEXTS[1:]], "answer": ["ood.", *ANSWERS[1:]]},
        *({name: values for name, values in COLUMNS.items() if name != part} for part in ("label", "id", "answer")),
    ]
    prints = [fingerprint(rows(columns)) for columns in changed]
    assert len(set(prints)) == len(changed)


def test_a_fingerprint_is_of_what_is_used():
    own = fingerprint(["a", "b"], ids=["x", "y"])
    assert fingerprint(["a", "", "b"], ids=["x", "z", "y"], problems="skip") == own
    assert fingerprint(["a", "a", "b"], ids=["x", "z", "y"], repeated="drop") == own
    assert fingerprint(["a", "a", "b"], ids=["x", "z", "y"]) != own


# --- Passes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*TABLES, *SEQUENCES])
def test_every_pass_gives_the_same(tmp_path, kind):
    documents = Documents(TABLES[kind](tmp_path, COLUMNS) if kind in TABLES else SEQUENCES[kind](TEXTS))
    first = list(documents)
    assert len(first) == 3 and all(isinstance(document, Document) for document in first)
    assert list(documents) == first
    one, other = iter(documents), iter(documents)
    assert [document for pair in zip(one, other, strict=True) for document in pair] == [
        document for document in first for _ in range(2)
    ]


@pytest.mark.parametrize(("size", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (100, [5])])
def test_blocks_hold_all_documents_in_order(size, sizes):
    documents = Documents(list("abcde"))
    blocks = list(documents.blocks(size))
    assert [len(block) for block in blocks] == sizes
    assert [document for block in blocks for document in block] == list(documents)


def test_blocks_leave_out_what_is_not_used():
    documents = Documents(["a", "", "b", "a", "c"], problems="skip", repeated="drop")
    assert [[document.text for document in block] for block in documents.blocks(2)] == [["a", "b"], ["c"]]


@pytest.mark.parametrize("size", [0, -1])
def test_blocks_of_no_size_are_refused(size):
    with pytest.raises(InvalidInputError, match="size"):
        list(Documents(TEXTS).blocks(size))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "csv.gz", "parquet"])
def test_a_file_of_another_length_between_passes_is_noticed(tmp_path, kind):
    for texts in (["a", "b", "c", "d"], ["a", "b"], ["a", "", "c"]):
        path = TABLES[kind](tmp_path, {"text": ["a", "b", "c"]})
        documents = Documents(path, problems="skip")
        assert len(documents) == 3
        TABLES[kind](tmp_path, {"text": texts})
        with pytest.raises(InvalidInputError, match=rf"{path.name} changed while it was being read. Start again"):
            list(documents.blocks(2))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_another_text_or_label_between_passes_is_noticed(tmp_path, kind):
    """What is read must be what the fingerprint says; states of other texts would be kept under it."""
    for change in ({"text": ["a", "b", "x"]}, {"label": [1, 0, 0]}, {"id": ["x", "y", "w"]}):
        columns = {"text": ["a", "b", "c"], "label": [1, 0, 1], "id": ["x", "y", "z"]}
        documents = Documents(TABLES[kind](tmp_path, columns))
        assert len(documents) == 3
        TABLES[kind](tmp_path, {**columns, **change})
        with pytest.raises(InvalidInputError, match="changed while it was being read"):
            list(documents)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_file_that_is_gone_between_passes_is_named(tmp_path, kind):
    path = TABLES[kind](tmp_path, COLUMNS)
    documents = Documents(path)
    assert len(documents) == 3
    path.unlink()
    with pytest.raises(InvalidInputError, match=path.name):
        list(documents)


def test_a_pass_may_be_left_early_and_the_file_removed(tmp_path):
    path = write_csv(tmp_path / "a.csv", COLUMNS)
    documents = Documents(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for document in documents:
            assert document.text == TEXTS[0]
            break
        path.unlink()


# --- Documents of documents -------------------------------------------------------------------------------------------


def test_documents_of_documents_are_the_same_documents(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('id,text,label,answer\na,"two\nlines",x,Yes\n\nb,one line,y,No\n', encoding="utf-8")
    documents = list(Documents(path))
    assert [document.place for document in documents] == ["line 2", "line 5"]
    again = Documents(documents)
    assert list(again) == documents and again.has_labels and again.has_ids and again.has_answers
    assert again.report.fingerprint == Documents(path).report.fingerprint
    bare = Documents([Document("a", 1), Document("b", 2)])
    assert not bare.has_labels and not bare.has_answers and [one.place for one in bare] == ["row 1", "row 2"]
    with pytest.raises(InvalidInputError, match=r"only goes with a sequence of strings. Got documents"):
        Documents(documents, labels=["x", "y"])


def test_what_is_wrong_with_documents_is_named_by_their_places():
    given = [Document("a", 1, "x", place="line 3"), Document(" ", 2, "x", place="line 7")]
    assert "empty text: line 7." in refused(given)
    assert "duplicate id: line 7." in refused([given[0], replace(given[0], place="line 7")])
    assert Documents([replace(given[0], answer="Yes"), replace(given[0], id=2, place="line 9")]).report.unanswered == [
        "line 9"
    ]


def test_reading_csv_leaves_the_modules_limit_as_it_was(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text(f"text\n{'a' * 200_000}\nb\n", encoding="utf-8")
    limit = csv.field_size_limit()
    passing = iter(Documents(path))
    assert len(next(passing).text) == 200_000 and csv.field_size_limit() == limit
    assert [document.text for document in passing] == ["b"] and csv.field_size_limit() == limit


# --- Rejecting -------------------------------------------------------------------------------------------------------


def rejected(source, **options):
    documents = Documents(source, problems="reject", **options)
    found = {number: (row.number, row.id, str(row)) for number, row in documents.report.bad_rows.items()}
    assert [document.number for document in documents] == sorted({*range(len(documents) + len(found))} - {*found})
    return {number: (name, told) for number, (_, name, told) in found.items()}


def test_what_is_rejected_is_kept_with_its_number_id_and_reason(tmp_path):
    lines = ["[1]", "", '{"text": "a", "id": "x"}', '{"text": "", "id": "y"}', '{"text": "b", "id": "x"}', "{"]
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    assert rejected(path) == {
        0: (0, "line 1: expected a JSON object. Got list"),
        2: ("y", "line 4: empty text"),
        3: ("x", "line 5: duplicate id"),
        4: (4, "line 6: not valid JSON (Expecting property name enclosed in double quotes)"),
    }
    assert Documents(path, problems="reject").report.problems["empty text"] == ["line 4"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.csv.gz"])
def test_a_line_that_is_not_utf8_is_rejected_alone(tmp_path, name):
    lines = [b'{"text": "one"}', b'{"text": "Gru\xdf"}', '{"text": "Gruß"}'.encode()]
    lines = lines if "jsonl" in name else [b"text", b"one", b"Gru\xdf", "Gruß".encode()]
    path = write(tmp_path / name, b"\n".join(lines))
    place = "line 2" if "jsonl" in name else "line 3"
    ((number, (_, told)),) = rejected(path).items()
    assert number == 1 and told.startswith(f"{place}: not UTF-8")
    assert [document.text for document in Documents(path, problems="reject")] == ["one", "Gruß"]


@pytest.mark.parametrize("odd", [0, 1, 3])
def test_the_columns_are_those_of_most_rows_wherever_the_odd_one_is(odd):
    lines = [{"text": text, "id": text} for text in "abcd"]
    del lines[odd]["id"]
    assert rejected(lines) == {odd: (odd, f"row {odd + 1}: no id")}
    lines = [{"text": text} for text in "abcd"]
    lines[odd]["id"] = "x"
    assert rejected(lines) == {odd: (odd, f"row {odd + 1}: id where other documents have none")}
    lines = [{"body": text} for text in "abcd"]
    lines[odd]["text"] = "a"
    assert sorted(rejected(lines)) == sorted({*range(4)} - {odd})  # the column is there, if only once


def test_a_label_that_is_missing_is_an_error_even_when_rejecting():
    message = refused([{"text": "", "label": 1}, {"text": "a", "label": 1}, {"text": "b"}], problems="reject")
    assert "has 1 document that cannot be used. no label: row 3." in message


def test_nothing_that_can_be_read_is_an_error_even_when_rejecting(tmp_path):
    path = write(tmp_path / "a.jsonl", "[\n{\n")
    assert "a.jsonl has no row that can be read. line 1: not valid JSON" in refused(path, problems="reject")
    assert "has no column 'text'" in refused([{"body": "a"}], problems="reject")
