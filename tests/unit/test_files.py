"""Files that are whole or not there: replacing, one writer, leftovers, digests, entries, strict JSON."""

from __future__ import annotations

import hashlib
import json
import os

import numpy as np
import pytest

from torchsdm.errors import CheckpointError, ModelFileError
from torchsdm.files import (
    describe_file,
    file_digest,
    file_problem,
    is_file_entry,
    only_writer,
    remove_unfinished,
    replace_file,
    strict_json,
    whole_file,
    writing_to,
)

needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- Replacing -------------------------------------------------------------------------------------------------------


def test_a_file_is_made_or_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.bin"
    for content in (b"first, longer", b"second", b""):
        replace_file(path, content)
        assert path.read_bytes() == content
        assert names(tmp_path) == ["a.bin"]


def test_a_reader_of_the_old_file_keeps_it(tmp_path):
    path = tmp_path / "a.bin"
    replace_file(path, b"old")
    with open(path, "rb") as reader:
        replace_file(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


def test_a_leftover_of_a_crash_does_not_shine_through(tmp_path):
    (tmp_path / ".writing-a.bin").write_bytes(b"much longer than what comes")
    replace_file(tmp_path / "a.bin", b"new")
    assert (tmp_path / "a.bin").read_bytes() == b"new"
    assert names(tmp_path) == ["a.bin"]


def test_the_old_file_stays_if_the_new_one_cannot_be_written(tmp_path):
    path = tmp_path / "a.bin"
    replace_file(path, b"old")
    (tmp_path / ".writing-a.bin").mkdir()  # nothing can be written there
    with pytest.raises(OSError, match=r"writing-a\.bin"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


@needs_posix
def test_the_old_file_stays_if_the_disk_is_full(tmp_path):
    import resource

    path = tmp_path / "a.bin"
    replace_file(path, b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))  # no file may grow beyond a megabyte
    try:
        with pytest.raises(OSError, match="File too large"):
            replace_file(path, bytes(2 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"old"


def test_content_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """After a power cut the name must not stand for an empty file, so the order of system calls matters."""
    order, path = [], tmp_path / "a.bin"
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (order.append(("sync", os.fstat(file).st_ino)), fsync(file))[1])
    monkeypatch.setattr(os, "replace", lambda old, new: (order.append(("name", os.fspath(new))), replace(old, new))[1])
    replace_file(path, b"content")
    assert order[:2] == [("sync", path.stat().st_ino), ("name", str(path))]
    if os.name == "posix":  # the new name too must outlive a power cut
        assert order[2:] == [("sync", tmp_path.stat().st_ino)]


def test_leftovers_are_removed_and_nothing_else(tmp_path):
    kept = ["a.bin", ".lock", "writing-a", ".writing", "x.writing-a"]
    for name in (*kept, ".writing-a.bin", ".writing-", ".writing-b.safetensors"):
        (tmp_path / name).write_bytes(b"x")
    remove_unfinished(tmp_path)
    assert names(tmp_path) == sorted(kept)
    remove_unfinished(tmp_path)
    assert names(tmp_path) == sorted(kept)


# --- Digests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, (1 << 22) - 1, 1 << 22, (1 << 22) + 1, 9_000_000])
def test_the_digest_of_a_file_is_its_sha256(tmp_path, size):
    content = np.random.default_rng(size).bytes(size)
    (tmp_path / "a.bin").write_bytes(content)
    assert file_digest(tmp_path / "a.bin") == hashlib.sha256(content).hexdigest()


def test_a_file_is_described_by_name_size_and_digest(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"abc")
    described = describe_file(tmp_path / "a.bin")
    assert described == {
        "file": "a.bin",
        "bytes": 3,
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }
    assert is_file_entry(described) and is_file_entry(json.loads(strict_json(described)))
    assert file_problem(tmp_path, described, with_digest=True) is None


def test_what_is_wrong_with_a_file_is_said(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"abc")
    entry = describe_file(path)
    path.write_bytes(b"ab")
    assert file_problem(tmp_path, entry, with_digest=False) == (
        f"{path} is truncated or damaged: 2 bytes where 3 were written."
    )
    path.write_bytes(b"abcd")
    assert "4 bytes where 3 were written" in file_problem(tmp_path, entry, with_digest=True)
    path.write_bytes(b"abd")
    assert file_problem(tmp_path, entry, with_digest=True) == (
        f"{path} is damaged: its contents are not what was written."
    )
    assert file_problem(tmp_path, entry, with_digest=False) is None  # a quick look sees the size alone
    path.unlink()
    for with_digest in (False, True):
        assert file_problem(tmp_path, entry, with_digest=with_digest) == f"{path} is missing."
    path.mkdir()
    assert file_problem(tmp_path, entry, with_digest=False) == f"{path} is missing."


@pytest.mark.parametrize("name", ["../a.bin", "/etc/passwd", "b/a.bin", "./a.bin", "a.bin/", "b/../a.bin"])
def test_an_entry_that_leads_elsewhere_is_none(name):
    assert is_file_entry({"file": "a.bin", "bytes": 3, "sha256": "0"})
    assert not is_file_entry({"file": name, "bytes": 3, "sha256": "0"})


@pytest.mark.parametrize("name", ["", ".", "..", "a\0b"])
def test_an_entry_that_names_no_file_reads_nothing(tmp_path, name):
    entry = {"file": name, "bytes": 3, "sha256": "0"}
    assert not is_file_entry(entry) or "is missing" in file_problem(tmp_path, entry, with_digest=True)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        "a.bin",
        ["a.bin", 3, "0"],
        {},
        {"bytes": 3, "sha256": "0"},
        {"file": "a.bin", "sha256": "0"},
        {"file": "a.bin", "bytes": 3},
        {"file": 5, "bytes": 3, "sha256": "0"},
        {"file": "a.bin", "bytes": "3", "sha256": "0"},
        {"file": "a.bin", "bytes": 3, "sha256": None},
    ],
)
def test_an_entry_that_lacks_something_is_none(entry):
    assert not is_file_entry(entry)


# --- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_json_holds_no_number_that_other_readers_refuse(value):
    with pytest.raises(ValueError, match="JSON"):
        strict_json({"a": [value]})


def test_json_is_read_back_and_readable():
    value = {"text": "Grüße, 世界", "numbers": [1, 2.5, None, True], "nested": {"a": {}}}
    assert json.loads(strict_json(value)) == value
    assert "Grüße, 世界" in strict_json(value) and strict_json(value).count("\n") > 5


# --- Writing to a path -----------------------------------------------------------------------------------------------


def test_a_whole_file_takes_the_place_of_the_old_one_and_of_a_link_its_target(tmp_path):
    target, link = tmp_path / "a.txt", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with whole_file(link) as path:
        path.write_text("new")
        assert target.read_text() == "old" and path.parent == tmp_path
    assert target.read_text() == "new" and link.is_symlink() and names(tmp_path) == ["a.txt", "link"]


def test_a_file_that_is_not_finished_is_removed(tmp_path):
    target = tmp_path / "a.txt"

    def interrupted():
        with whole_file(target) as path:
            path.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []


def test_a_folder_has_one_writer(tmp_path):
    folder = tmp_path / "new" / "folder"
    with only_writer(folder), pytest.raises(CheckpointError, match="folder is being written by another process"):
        only_writer(folder)
    with only_writer(folder):
        pass


def test_what_goes_wrong_in_writing_names_the_folder(tmp_path):
    said = r"cannot be written: full\. Finished blocks are kept\."
    with pytest.raises(CheckpointError, match=said) as raised, writing_to(tmp_path, " Finished blocks are kept."):
        raise OSError("full")
    assert str(tmp_path) in str(raised.value)
    with pytest.raises(ModelFileError), writing_to(tmp_path):  # an OSError of ours says already what is wrong
        raise ModelFileError("the manifest is damaged")
