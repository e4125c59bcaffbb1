"""The log of changes on disk: damage is named, nothing is read half, and strangers' logs call nothing."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3

import numpy as np
import pytest

from torchsdm import SDMClassifier
from torchsdm.errors import ModelFileError, ModelInUseError
from torchsdm.model import Entry, LogWriter, ReviewStore, changes, log_writer, read_changes, read_config, read_history
from torchsdm.model.changes import undone_by

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    X = (rng.standard_normal((60, 4)) + 3 * y[:, None]).astype(np.float32)
    path = tmp_path_factory.mktemp("base") / "model"
    SDMClassifier(n_filters=4, n_rounds=1, training="sdm", max_epochs=1, random_state=0).fit(X, y).save(path)
    return path


@pytest.fixture
def model(base, tmp_path):
    shutil.copytree(base, tmp_path / "model")
    return tmp_path / "model"


def addition(n=3, seed=0):
    rows = np.random.default_rng(seed).standard_normal((n, 4 + 2 + 1)).astype(np.float32)
    ids = [f"{seed}-{i}" for i in range(n)]
    return Entry("add", n, {"repeated": "refuse"}, ids, [0] * n, [f"text {one}" for one in ids], rows)


@pytest.fixture
def writer(model):
    writer = LogWriter(model, "a test")
    writer.lock()
    yield writer
    writer.close()


def append(writer, *entries, **options):
    return writer.append(entries, who="me", why="a test", **options)


def read(model, **options):
    return read_changes(model, read_config(model), **options)


def test_which_changes_are_undone():
    assert undone_by({}) == {}
    assert undone_by({3: 1}) == {1: 3}
    assert undone_by({3: 1, 4: 3}) == {3: 4}
    assert undone_by({3: 1, 4: 3, 5: 1}) == {3: 4, 1: 5}
    assert undone_by({3: 1, 4: 3, 5: 4}) == {4: 5, 1: 3}


def test_what_was_appended_is_read(model, writer):
    assert read(model) == changes.ReadLog(0, [], [])
    (first,) = append(writer, addition(3, 1), key="k")
    second, third = append(writer, Entry("remove", 1, ids=["1-0"]), addition(2, 2))
    log = read(model)
    assert [one.change for one in log.records] == log.history == [first, second, third]
    assert [one.together_with for one in log.history] == [1, 2, 2] and log.version == 3
    np.testing.assert_array_equal(log.records[2].rows, addition(2, 2).rows)
    assert log.records[0].ids == ["1-0", "1-1", "1-2"] and log.records[0].texts[0] == "text 1-0"
    assert log.records[1].rows is None and log.records[1].labels == []
    assert [one.change.version for one in read(model, after=2).records] == [3]
    assert read_history(model) == log.history


def test_what_is_acknowledged_is_synced_first(model, writer):
    """What kill -9 cannot show: after a power failure, too, an acknowledged change is there."""
    append(writer, addition(3, 1))
    for connection in (writer._connection, ReviewStore(model / "changes" / "review.sqlite")._connection):
        assert tuple(connection.execute("PRAGMA synchronous").fetchone()) == (2,)  # FULL
        assert tuple(connection.execute("PRAGMA journal_mode").fetchone()) == ("wal",)


def test_a_writer_that_comes_later_goes_on(model, writer):
    append(writer, addition(3, 1))
    writer.close()
    other = LogWriter(model, "another")
    other.lock()
    append(other, addition(2, 2))
    with pytest.raises(ModelInUseError, match=rf"changed by another \(process {os.getpid()}, since"):
        LogWriter(model, "me").lock()
    other.unlock()
    writer.lock()
    append(writer, addition(4, 3))
    assert [one.n for one in read_history(model)] == [3, 2, 4]
    for number, record in enumerate(read(model).records, start=1):
        np.testing.assert_array_equal(record.rows, addition(record.change.n, number).rows)


# --- Damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def closed(model):
    """A model with three changes; the log is closed, so that everything is in its main file."""
    writer = LogWriter(model, "a test")
    writer.lock()
    for seed in range(3):
        append(writer, addition(3, seed))
    writer.close()
    assert sorted(path.name for path in (model / "changes").iterdir()) == ["head", "log.sqlite", "writer.lock"]
    return model


def test_a_truncated_log_is_named_with_what_to_do(closed):
    path = closed / "changes" / "log.sqlite"
    for size in (path.stat().st_size - 1, path.stat().st_size // 2, 0):
        os.truncate(path, size)
        for options in ({}, {"verify": False}):
            with pytest.raises(ModelFileError, match=r"log\.sqlite.*Restore the directory from a copy"):
                SDMClassifier.load(closed, **options)
    path.unlink()
    with pytest.raises(ModelFileError, match=r"log\.sqlite is missing.*Restore"):
        SDMClassifier.load(closed)
    assert SDMClassifier.load(closed, changes=False).version_ == 0


def test_no_flipped_bit_gives_other_numbers(closed):
    """Any byte of the log may be damaged: the model is loaded as it was, or not at all."""
    fresh = np.random.default_rng(1).standard_normal((20, 4)).astype(np.float32)
    expected = SDMClassifier.load(closed)
    rows, known = expected.decide(fresh).to_dicts(), (expected.model_.known_ids(), expected.model_.examples.all()[1])
    path = closed / "changes" / "log.sqlite"
    whole, said = path.read_bytes(), []
    content = addition(3, 1).rows.tobytes()
    inside = whole.index(content) + np.arange(0, len(content), 4)  # much of the file is empty space
    anywhere = np.random.default_rng(2).choice(len(whole), 150, replace=False)
    for place in [*inside.tolist(), *anywhere.tolist()]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        try:
            loaded = SDMClassifier.load(closed)
        except ModelFileError as error:
            said.append(str(error))
            continue
        assert loaded.decide(fresh).to_dicts() == rows and loaded.version_ == 3
        assert (loaded.model_.known_ids(), loaded.model_.examples.all()[1]) == known
    assert len(said) >= len(inside) + 5 and all("log.sqlite" in one and "Restore" in one for one in said)


def test_texts_labels_and_reasons_cannot_be_edited(closed):
    for statement in (
        "UPDATE points SET text = 'other' WHERE version = 2 AND row = 0",
        "UPDATE points SET label = '1' WHERE version = 2 AND row = 0",
        "DELETE FROM points WHERE version = 3",
        "DELETE FROM changes WHERE version = 3",
        "DELETE FROM changes WHERE version = 1",
        "UPDATE changes SET who = 'somebody else' WHERE version = 1",
        "UPDATE changes SET start = 0 WHERE version = 2",
        "UPDATE rows SET content = zeroblob(length(content)) WHERE version = 2",
        "UPDATE rows SET content = x'00' WHERE version = 2",
        "UPDATE rows SET version = 9 WHERE version = 2",
    ):
        copy = closed.with_name("copy")
        shutil.copytree(closed, copy)
        connection = sqlite3.connect(copy / "changes" / "log.sqlite")
        connection.execute(statement)
        connection.commit()
        connection.close()
        with pytest.raises(ModelFileError, match=r"log\.sqlite.*Restore"):
            SDMClassifier.load(copy)
        with pytest.raises(ModelFileError, match=r"log\.sqlite"):
            SDMClassifier.load(copy, verify=True)
        shutil.rmtree(copy)


def test_digests_of_many_rows_are_checked_only_when_asked(closed, monkeypatch):
    path, size = closed / "changes" / "log.sqlite", 3 * addition(3, 1).rows.nbytes
    content = bytearray(path.read_bytes())
    content[content.index(addition(3, 1).rows.tobytes())] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(changes, "VERIFIED_BYTES", size - 1)
    SDMClassifier.load(closed)
    SDMClassifier.load(closed, verify=False)
    for verify, most in ((True, size - 1), (None, size)):
        monkeypatch.setattr(changes, "VERIFIED_BYTES", most)
        with pytest.raises(ModelFileError, match=path.name):
            SDMClassifier.load(closed, verify=verify)


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_changes_that_were_acknowledged_are_missed_if_the_wal_file_is_lost(model, writer, damage, tmp_path):
    for seed in range(3):
        append(writer, addition(3, seed))
    shutil.copytree(model, tmp_path / "copy")
    wal = tmp_path / "copy" / "changes" / "log.sqlite-wal"
    content = bytearray(wal.read_bytes())
    if damage == "missing":
        wal.unlink()
    else:
        content[len(content) // 2] ^= 1
        wal.write_bytes(content[: len(content) // 2] if damage == "truncated" else content)
    (tmp_path / "copy" / "changes" / "log.sqlite-shm").unlink()
    with pytest.raises(ModelFileError, match=r"log\.sqlite or its -wal file .* but 3 were acknowledged.*Restore"):
        SDMClassifier.load(tmp_path / "copy")
    with pytest.raises(ModelFileError, match="3 were acknowledged"):
        LogWriter(tmp_path / "copy", "me").lock()


def test_half_a_head_is_no_head(closed):
    head = closed / "changes" / "head"
    content = head.read_bytes()
    for left in (b"", content[:40], content[:-1] + b"x", b"\xff" * 95):
        head.write_bytes(left)
        assert SDMClassifier.load(closed).version_ == 3
    assert content == changes.head_line(*changes.read_head(closed / "changes") or (3, content.split()[1].decode()))


def test_a_log_of_another_model_is_refused(closed, base, tmp_path):
    shutil.copytree(base, tmp_path / "other")
    writer = LogWriter(tmp_path / "other", "me")
    writer.lock()
    append(writer, addition(3, 0))
    writer.close()
    shutil.rmtree(tmp_path / "other" / "changes")
    shutil.copytree(closed / "changes", tmp_path / "other" / "changes")
    with pytest.raises(ModelFileError, match=r"log\.sqlite is not the log that config\.json names"):
        SDMClassifier.load(tmp_path / "other")


def test_rows_that_do_not_fit_the_model_are_refused(model, writer):
    append(writer, Entry("add", 1, {}, ["a"], [0], [None], np.zeros((1, 3), np.float32)))
    with pytest.raises(ModelFileError, match="rows of change 1 do not fit the model"):
        SDMClassifier.load(model)


def test_a_stranger_s_log_calls_nothing(closed):
    """A view with a function in place of a table; SQLite must not run what a schema asks for."""
    path = closed / "changes" / "log.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE facts RENAME TO old")
    connection.execute("CREATE VIEW facts AS SELECT name, load_extension('evil') AS value FROM old")
    connection.commit()
    connection.close()
    with pytest.raises(ModelFileError, match=r"log\.sqlite .* is not as torchsdm makes it"):
        SDMClassifier.load(closed)


# --- Housekeeping ----------------------------------------------------------------------------------------------------


def test_many_rows_are_kept_in_parts_of_bounded_size(model, writer, monkeypatch):
    monkeypatch.setattr(changes, "_PART_BYTES", 100)
    append(writer, addition(20, 1), addition(0, 2))
    first, second = read(model).records
    np.testing.assert_array_equal(first.rows, addition(20, 1).rows)
    assert second.rows.shape == (0, 7)
    with sqlite3.connect(model / "changes" / "log.sqlite") as connection:
        sizes = [size for (size,) in connection.execute("SELECT length(content) FROM rows ORDER BY part")]
    connection.close()
    assert sizes == [100, 100, 100, 100, 100, 60]


def test_only_the_last_outcomes_are_kept(model, writer):
    for number in range(10):
        append(writer, Entry("recalibrate", 0, {}, outcome=b"outcome %d" % number))
    kept = read(model).outcomes
    assert sorted(kept.values()) == [b"outcome %d" % number for number in range(6, 10)]
    log = read(model)
    names = log.sequence_names()
    assert kept[names[10]] == b"outcome 9" and len(names) == 10
    without_the_last = log.undoing([10]).sequence_names()
    assert without_the_last == {version: name for version, name in names.items() if version < 10}
    without_two = log.undoing([10, 9]).sequence_names()
    assert without_two[8] == names[8] and not {9, 10} & set(without_two)
    append(writer, Entry("undo", 0, {"version": 10}), Entry("recalibrate", 0, {}, outcome=b"another"))
    again = read(model).sequence_names()
    assert again[12] not in names.values() and again[9] == names[9]  # without one of them it is another sequence


def test_an_append_that_fails_leaves_the_log_as_it_was(model, writer, monkeypatch):
    append(writer, addition(3, 1))
    with monkeypatch.context() as patch:
        patch.setattr(log_writer, "_insert", lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("disk is full")))
        with pytest.raises(ModelFileError, match=r"log.sqlite cannot be written: disk is full. Nothing was changed"):
            append(writer, addition(3, 2))
    assert len(read(model).records) == writer.version == 1
    append(writer, addition(3, 3))
    np.testing.assert_array_equal(read(model).records[1].rows, addition(3, 3).rows)


def test_a_first_append_that_fails_leaves_no_log(model, monkeypatch):
    config = json.loads((model / "config.json").read_text())
    writer = LogWriter(model, "me")
    writer.lock()
    with monkeypatch.context() as patch:
        patch.setattr(log_writer, "name_log", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(ModelFileError, match="No space left"):
            append(writer, addition(3, 1))
    assert json.loads((model / "config.json").read_text()) == config and read_history(model) == []
    append(writer, addition(3, 1))
    writer.close()
    assert len(read(model).records) == 1
