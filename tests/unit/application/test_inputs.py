"""Files that nothing can be made of: one sentence that names the file and the place, before anything is computed.

Every verb reads through ``Reading`` or ``read_training``; tests/system/test_commands.py shows that it does.
"""

from __future__ import annotations

import gc
import json
from pathlib import Path

import numpy as np
import pytest

import tiny_models
from small import small_settings
from torchsdm import SDMClassifier, SDMTextClassifier
from torchsdm.application import SavedModel, check_output, saved_model
from torchsdm.application.saved_model import Reading
from torchsdm.application.train import read_training
from torchsdm.data import Columns, Source, join_states
from torchsdm.errors import InvalidInputError, TorchSDMError

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

N, WIDTH = 40, 6
LABELS = np.arange(N) % 2
STATES = (np.random.default_rng(0).normal(size=(N, WIDTH)) + 2.0 * LABELS[:, None]).astype(np.float32)


QUICK = small_settings(alpha=0.6, n_filters=4, max_epochs=2)


@pytest.fixture(scope="module")
def over_states(tmp_path_factory):
    """A model over states, which knows no language model."""
    path = tmp_path_factory.mktemp("saved") / "model"
    SDMClassifier(**QUICK).fit(STATES, LABELS).save(path)
    return SavedModel.load(path)


@pytest.fixture(scope="module")
def over_texts(tmp_path_factory):
    """A model over texts."""
    folder = tmp_path_factory.mktemp("saved")
    language_model = tiny_models.save_model(folder / "bert", *tiny_models.bert())
    words = tiny_models.TEXT.split()
    texts = [" ".join(words[row : row + 5]) for row in range(N)]
    SDMTextClassifier(language_model, classifier=SDMClassifier(**QUICK)).fit(texts, LABELS).save(folder / "model")
    return SavedModel.load(folder / "model")


def assert_refused(expected, path, *roads):
    for road in roads:
        with pytest.raises(TorchSDMError) as raised:
            road()
        message = str(raised.value)
        assert expected in message and "\n" not in message, message
        assert str(path) in message or path.name in message


# --- Files that cannot be read ----------------------------------------------------------------------------------------

ENDINGS = ("jsonl", "csv", "npz", "safetensors", "parquet")
LINES = '{"text": "a film", "label": "pos"}\n{"text": "a plot", "label": "neg"}\n'
UNREADABLE = {
    **{f"empty.{ending}": (b"", "empty") for ending in ENDINGS},
    **{f"garbage.{ending}": (b"\xff" + np.random.default_rng(1).bytes(300), "garbage") for ending in ENDINGS},
    "broken.jsonl": (f'{LINES}{{"text": bro\n{LINES}'.encode(), "broken.jsonl, line 3"),
    "notes.txt": (b"fine", "notes.txt"),
    "folder": (None, "folder"),
    "nowhere.jsonl": (b"", "nowhere.jsonl"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_named(name, over_texts, tmp_path):
    content, expected = UNREADABLE[name]
    path = tmp_path / name
    if content is None:
        path.mkdir()
    elif name != "nowhere.jsonl":
        path.write_bytes(content)
    extractor = over_texts.text_classifier.extractor_ if name.endswith(("jsonl", "csv", "txt")) else None
    assert_refused(
        expected,
        path,
        lambda: list(Reading(over_texts, str(path), Columns()).blocks()),
        lambda: read_training(str(path), Columns(), extractor),
    )


# --- States that cannot be used ---------------------------------------------------------------------------------------

HOLED, INFINITE = STATES.copy(), STATES.copy()
HOLED[30, 2], INFINITE[0, 0] = np.nan, np.inf
BAD_STATES = {
    "NaN": ({"hidden_states": HOLED}, "row 31: the states contain NaN"),
    "infinity": ({"hidden_states": INFINITE}, "row 1: the states contain NaN or infinity"),
    "complex": ({"hidden_states": STATES.astype(complex)}, "rows of numbers"),
    "words": ({"hidden_states": STATES.astype(str)}, "rows of numbers"),
    "flat": ({"hidden_states": STATES[:, 0]}, "rows of numbers"),
    "few labels": ({"labels": LABELS[:5]}, "labels"),
    "labels in columns": ({"labels": np.ones((N, 2), int)}, "labels must have one value per row"),
    "ids in columns": ({"ids": np.ones((N, 2), int)}, "ids must have one value per row"),
    "ids of halves": ({"ids": np.arange(N) / 2}, "row 1: an id must be text or an integer"),
}


@pytest.mark.parametrize("kind", BAD_STATES)
def test_states_that_cannot_be_used_are_named_by_their_row(kind, over_states, tmp_path, monkeypatch):
    monkeypatch.setattr(saved_model, "BLOCK", 7)  # rows are counted over all blocks
    changed, expected = BAD_STATES[kind]
    path = tmp_path / "states.npz"
    np.savez(path, **{"hidden_states": STATES, "labels": LABELS, "ids": np.arange(N), **changed})
    assert_refused(
        expected,
        path,
        lambda: list(Reading(over_states, str(path), Columns()).blocks()),
        lambda: list(Reading(over_states, str(path), Columns(), needs_labels=True).blocks()),
        lambda: read_training(str(path), Columns(), None),
    )


def test_a_file_without_rows_is_empty(over_states, tmp_path):
    path = tmp_path / "states.npz"
    np.savez(path, hidden_states=STATES[:0], labels=LABELS[:0])
    assert_refused("is empty", path, lambda: list(Reading(over_states, str(path), Columns()).blocks()))


def test_an_address_names_a_file_of_another_filesystem(tmp_path):
    path = tmp_path / "new.jsonl"
    path.write_text("{}\n", encoding="utf-8")
    source = Source.open(path.as_uri())
    copied = source.path
    assert copied != path and copied.name == path.name and copied.read_bytes() == path.read_bytes()
    with pytest.raises(InvalidInputError, match=r"^file:.*/new.jsonl: wrong$"), source.errors():
        raise InvalidInputError(f"{copied}: wrong")
    del source
    gc.collect()
    assert not copied.exists()
    with pytest.raises(InvalidInputError, match=r"^There is no file 'file:.*absent.jsonl'\.$"):
        Source.open((tmp_path / "absent.jsonl").as_uri())
    with pytest.raises(InvalidInputError, match=r"^nowhere://new.jsonl cannot be read: .*nowhere"):
        Source.open("nowhere://new.jsonl")


def test_training_data_may_be_a_folder(over_states, tmp_path):
    rows = [{"id": f"r{row}", "hidden_states": STATES[row].tolist(), "label": int(LABELS[row])} for row in range(N)]
    (tmp_path / "data").mkdir()
    for name, part in (("one.jsonl", rows), ("data/b.jsonl", rows[9:]), ("data/a.jsonl", rows[:9])):
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in part), encoding="utf-8")
    for read in (
        lambda source: read_training(source, Columns(), None),
        lambda source: join_states(list(Reading(over_states, source, Columns(), needs_labels=True).blocks())),
    ):
        one, many = read(str(tmp_path / "one.jsonl")), read(str(tmp_path / "data"))
        np.testing.assert_array_equal(many.hidden_states, one.hidden_states)
        assert list(many.ids) == list(one.ids) and list(many.labels) == list(one.labels)


def remote(scheme, folder):
    """A folder under the address of a filesystem: files in memory, or of this machine."""
    if scheme == "file":
        return folder.as_uri()
    filesystem = pytest.importorskip("fsspec").filesystem("memory")
    filesystem.put(str(folder), f"/{folder.name}", recursive=True)
    return f"memory://{folder.name}"


@pytest.fixture(params=["file", "memory"])
def address(request, tmp_path):
    """The address of a folder, with what is not data."""
    folder = tmp_path / f"data-{tmp_path.name}"
    for name in ("b.jsonl", "a.jsonl", "day=1/c.jsonl.gz", "_SUCCESS", ".a.jsonl.crc", "_log/d.jsonl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return remote(request.param, folder)


def test_an_address_names_a_folder_or_a_pattern_too(address):
    expected = {
        "/": ["a.jsonl", "b.jsonl", "day=1/c.jsonl.gz"],
        "": ["a.jsonl", "b.jsonl", "day=1/c.jsonl.gz"],
        "/*.jsonl": ["a.jsonl", "b.jsonl"],
        "/**/[ac].jsonl*": ["a.jsonl", "day=1/c.jsonl.gz"],
        "/day=1": ["c.jsonl.gz"],
    }
    for end, names in expected.items():
        found = Source.open(f"{address}{end}")
        assert [found.file_name(file) for file in found.files] == names
        assert all(file.read_bytes().decode().endswith(found.file_name(file)) for file in found.files)
    (path,) = (found := Source.open(f"{address}/a.jsonl")).files
    assert path.name == "a.jsonl" and path.read_bytes() == b"a.jsonl" and found.name == f"{address}/a.jsonl"


def test_an_address_without_files_is_said(address):
    nothing = "{} names no files; names that begin with a dot or an underscore do not count."
    absent = "There is no file '{}'."
    said = {"/*.csv": nothing, "/_*/*.jsonl": nothing, "/none/": absent, "/none/*": absent, "/none.jsonl": absent}
    for end, expected in said.items():
        with pytest.raises(InvalidInputError) as raised:
            Source.open(f"{address}{end}")
        assert str(raised.value) == expected.format(f"{address}{end}")


def test_an_address_that_cannot_be_reached_gives_the_reason(address, monkeypatch):
    def denied(self, path, **settings):
        raise PermissionError("access denied")

    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setattr("fsspec.implementations.arrow.ArrowFSWrapper.info", denied)
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", denied)
    for end in ("/", "/*.jsonl", "/a.jsonl"):
        with pytest.raises(InvalidInputError, match=r" cannot be read: access denied\.$"):
            Source.open(f"{address}{end}")


def test_errors_name_the_address_and_its_files(address, over_states):
    with pytest.raises(InvalidInputError) as raised:
        list(Reading(over_states, f"{address}/*.jsonl", Columns()).blocks())
    assert str(raised.value).startswith(f"{address}/a.jsonl, line 1: not valid JSON")


def test_the_output_is_not_written_among_the_input(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    (folder / "day").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for output, source in (("data/out.jsonl", "data"), ("data/day/out.jsonl", folder), ("out.jsonl", ".")):
        with pytest.raises(InvalidInputError, match=r"out.jsonl is in .*, where it would be read as input. Write it"):
            check_output(Path(output), str(source))
    for output, source in (("out.jsonl", "data"), ("data/out.jsonl", "data/day"), ("data/out.jsonl", "data/*.jsonl")):
        check_output(Path(output), source)
    (folder / "manifest.json").touch()  # a folder of states, of which the manifest names the files
    check_output(folder / "out.jsonl", str(folder))
