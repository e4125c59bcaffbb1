"""Folders of hidden states: round trips, resuming, refusing what does not belong, damage, and a real kill -9."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
import textwrap
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from torchsdm import read_states
from torchsdm.data import (
    Document,
    ExtractedStates,
    ModelOrigin,
    PoolingOrigin,
    PromptOrigin,
    Source,
    StatesOrigin,
    state_blocks,
)
from torchsdm.data.store import MANIFEST_NAME, FolderWriter, StatesFolder, begun_folder
from torchsdm.errors import CheckpointError, InvalidInputError, ModelFileError, TorchSDMError
from torchsdm.files import describe_file
from warm_process import WarmProcess

needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX")

N_ROWS, SHARD_SIZE = 7, 3  # blocks of 3, 3 and 1
STATES = np.random.default_rng(0).standard_normal((N_ROWS, 4)).astype(np.float32)
LOGITS = np.arange(N_ROWS * 2, dtype=np.float32).reshape(N_ROWS, 2)
TEXTS = ["plain", "Grüße, 世界 \U0001f41d", "two\nlines", "\r carriage \r\n", "\u2028 \x85 \x0c \x1e", '"\\', " \0 "]
IDS = ["a", "b", 3, "3", "é", -5, 2**62]
LABELS = ["yes", "no", "yes", "no", "no", "yes", "no"]
ORIGIN = StatesOrigin(
    ModelOrigin("a/model", "abc", "f00", "float32"),
    PromptOrigin("Is {document} good?", (("no", "No"), ("yes", "Yes")), None, False, {}, "Is X good?"),
    PoolingOrigin(("final", "mean"), -1, None, 0, 128),
)
DOCUMENTS = "d00"  # their fingerprint


def documents_of(labels=LABELS):
    rows = zip(TEXTS, IDS, labels or [None] * N_ROWS, strict=True)
    return [Document(text, name, label) for text, name, label in rows]


def extracted(states, logits=None, n_cut=None):
    n_rows = len(states)
    n_cut = np.zeros(n_rows, dtype=np.int64) if n_cut is None else n_cut
    return ExtractedStates(states, logits, np.full(n_rows, 5, dtype=np.int64), n_cut)


def writer_of(directory, origin=ORIGIN, documents=DOCUMENTS, n_rows=N_ROWS, shard_size=SHARD_SIZE, **settings):
    return FolderWriter(directory, origin, documents, n_rows, shard_size, **settings)


def write_on(writer, *, n_blocks=99, states=STATES, logits=None, documents=None):
    """Write what is not there yet, at most some blocks of it; how many were made."""
    documents, made = documents or documents_of(), []
    for start in range(writer.n_finished * writer.shard_size, N_ROWS, writer.shard_size)[:n_blocks]:
        rows = slice(start, start + writer.shard_size)

        def make(rows=rows):
            made.append(rows)
            n_cut = np.arange(N_ROWS)[rows] % 2 * 10
            return extracted(states[rows], None if logits is None else logits[rows], n_cut)

        writer.add(documents[rows], make)
    return len(made)


def file_of(directory, number, kind="states"):
    """The file of a block, or of its ids, texts and labels."""
    return directory / manifest(directory)["shards"][number][kind]["file"]


def replace_states(directory, number, **tensors):
    """Write other arrays into a block, as if they had been written at first."""
    path = file_of(directory, number)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    change_manifest(directory, lambda stored: stored["shards"][number].update(states=describe_file(path)))


@pytest.fixture
def finished(tmp_path):
    directory = tmp_path / "states"
    with writer_of(directory) as writer:
        write_on(writer)
    return directory


@pytest.fixture
def finished_names(tmp_path):
    """The files of each block of a finished run."""
    with writer_of(tmp_path / "whole") as writer:
        write_on(writer)
    shards = manifest(tmp_path / "whole")["shards"]
    return [(shard["states"]["file"], shard["examples"]["file"]) for shard in shards]


@pytest.fixture
def unfinished(tmp_path):
    directory = tmp_path / "states"
    with writer_of(directory) as writer:
        write_on(writer, n_blocks=2)
    return directory


def contents(directory):
    """All files but the lock, by name."""
    return {path.name: path.read_bytes() for path in Path(directory).iterdir() if path.name != ".lock"}


def manifest(directory):
    return json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))


def change_manifest(directory, change):
    changed = manifest(directory)
    change(changed)
    (directory / MANIFEST_NAME).write_text(json.dumps(changed), encoding="utf-8")


def assert_complete(directory):
    states = read_states(directory)
    assert np.array_equal(states.hidden_states, STATES)
    assert states.labels.tolist() == LABELS and states.ids == IDS and states.texts == TEXTS


# --- Round trips -----------------------------------------------------------------------------------------------------


def test_states_with_labels_are_read_back(finished):
    assert_complete(finished)
    assert_complete(str(finished))
    states = read_states(finished)
    assert len(states) == N_ROWS and states.hidden_states.dtype == np.float32
    assert states.label_logits is None
    assert states.origin == ORIGIN
    assert states.places == [f"row {number}" for number in range(1, N_ROWS + 1)]


def test_states_without_labels_are_read_back(tmp_path):
    with writer_of(tmp_path / "a") as writer:
        write_on(writer, documents=documents_of(labels=None))
    states = read_states(tmp_path / "a")
    assert np.array_equal(states.hidden_states, STATES)
    assert states.labels is None and states.ids == IDS and states.texts == TEXTS


def test_label_logits_are_read_back(tmp_path):
    with writer_of(tmp_path / "a") as writer:
        write_on(writer, logits=LOGITS)
    states = read_states(tmp_path / "a")
    assert np.array_equal(states.hidden_states, STATES) and np.array_equal(states.label_logits, LOGITS)
    assert states.logit_labels == ("no", "yes")
    assert np.array_equal(states.label_logits_of(["yes", "no"]), LOGITS[:, ::-1])


@pytest.mark.parametrize("labels", [[1, 0, 1, 0, 0, 1, -3], [True, False] * 3 + [True], LABELS])
def test_labels_keep_their_type(tmp_path, labels):
    with writer_of(tmp_path / "a") as writer:
        write_on(writer, documents=documents_of(labels))
    read = read_states(tmp_path / "a").labels
    assert read.tolist() == labels and [type(label) for label in read.tolist()] == [type(label) for label in labels]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_dtype_is_read_back_exactly(tmp_path, dtype):
    with writer_of(tmp_path / "a") as writer:
        write_on(writer, states=STATES.astype(dtype))
    read = read_states(tmp_path / "a").hidden_states
    assert read.dtype == dtype and np.array_equal(read, STATES.astype(dtype))


def test_states_of_several_positions_and_any_layout_are_read_back(tmp_path):
    states = np.arange(N_ROWS * 6, dtype=np.float32).reshape(2, 3, N_ROWS).transpose(2, 1, 0)
    with writer_of(tmp_path / "a") as writer:
        write_on(writer, states=states)
    assert np.array_equal(read_states(tmp_path / "a").hidden_states, states)


def test_a_single_block_may_be_larger_than_the_run(tmp_path):
    with writer_of(tmp_path / "a", shard_size=100) as writer:
        assert write_on(writer) == 1
    assert_complete(tmp_path / "a")


def test_counts_are_summed_over_all_blocks(unfinished):
    with writer_of(unfinished) as writer:
        assert writer.counted("tokens_cut") == 30 and writer.counted("documents_cut") == 3
        assert write_on(writer) == writer.n_extracted == 1
        assert writer.counted("tokens_cut") == 30 and manifest(unfinished)["shards"][2]["counts"]["tokens_cut"] == 0


def test_the_manifest_holds_facts_and_origin(tmp_path):
    with writer_of(tmp_path / "a", facts={"torch": "2.9"}) as writer:
        write_on(writer)
    stored = manifest(tmp_path / "a")
    assert stored["facts"] == {"torch": "2.9"}
    assert stored["origin"] == {**ORIGIN.to_json(), "documents": {"fingerprint": DOCUMENTS}}
    assert (stored["n_rows"], stored["shard_size"]) == (N_ROWS, SHARD_SIZE)
    assert [shard["rows"] for shard in stored["shards"]] == [3, 3, 1]


def test_rows_that_do_not_match_their_examples_are_refused(tmp_path):
    with writer_of(tmp_path / "a") as writer:
        with pytest.raises(TorchSDMError, match=r"\b2\b.*\b3\b|\b3\b.*\b2\b"):
            writer.add(documents_of()[:3], lambda: extracted(STATES[:2]))
        assert writer.n_finished == 0


# --- Blocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "lengths"), [(1, [1] * 7), (2, [2, 1, 2, 1, 1]), (3, [3, 3, 1]), (7, [3, 3, 1]), (1000, [3, 3, 1])]
)
def test_blocks_are_the_whole(tmp_path, size, lengths):
    with writer_of(tmp_path / "a") as writer:
        write_on(writer, logits=LOGITS)
    blocks = list(state_blocks(tmp_path / "a", size))
    assert [len(block) for block in blocks] == lengths
    assert np.array_equal(np.concatenate([block.hidden_states for block in blocks]), STATES)
    assert np.array_equal(np.concatenate([block.label_logits for block in blocks]), LOGITS)
    assert [label for block in blocks for label in block.labels.tolist()] == LABELS
    assert [name for block in blocks for name in block.ids] == IDS
    assert [text for block in blocks for text in block.texts] == TEXTS
    assert all(block.origin == ORIGIN for block in blocks)
    assert [place for block in blocks for place in block.places] == [f"row {n}" for n in range(1, N_ROWS + 1)]
    assert all(block.hidden_states.dtype == np.float32 for block in blocks)


def test_blocks_need_no_labels(tmp_path):
    with writer_of(tmp_path / "a") as writer:
        write_on(writer, documents=documents_of(labels=None))
    for block in state_blocks(str(tmp_path / "a"), 2):
        assert block.labels is None and block.label_logits is None


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_blocks_of_several_positions_keep_their_dtype(tmp_path, dtype):
    states = np.arange(N_ROWS * 6, dtype=dtype).reshape(N_ROWS, 3, 2)
    with writer_of(tmp_path / "a") as writer:
        write_on(writer, states=states)
    blocks = [block.hidden_states for block in state_blocks(tmp_path / "a", 2)]
    assert blocks[0].shape == (2, 3, 2) and {block.dtype for block in blocks} == {states.dtype}
    assert np.array_equal(np.concatenate(blocks), states)


def test_a_folder_has_states(unfinished):
    assert Source.open(unfinished).holds_states() is Source.open(str(unfinished)).holds_states("h") is True


def test_the_arrays_of_each_block_are_those_of_the_whole(finished):
    stored = StatesFolder.open(finished)
    blocks = list(stored.block_arrays())
    assert [len(block["hidden_states"]) for block in blocks] == [3, 3, 1]
    whole = stored.arrays()["hidden_states"]
    assert np.array_equal(np.concatenate([block["hidden_states"] for block in blocks]), whole)
    assert [len(block) for block in stored.block_examples()] == [3, 3, 1]
    assert [example["id"] for examples in stored.block_examples() for example in examples] == IDS


def test_blocks_of_an_unfinished_run_are_refused(unfinished):
    with pytest.raises(ModelFileError, match=r"is not finished: 6 of 7 rows are done"):
        next(state_blocks(unfinished))


def test_blocks_of_a_directory_of_something_else_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"has no files"):
        next(state_blocks(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidInputError, match=r"must end in .*Got 'config.json'"):
        next(state_blocks(tmp_path))


@pytest.mark.parametrize(("number", "kind"), [(1, "states"), (2, "examples")])
def test_a_missing_or_truncated_file_is_said_before_the_first_block(finished, number, kind):
    path = file_of(finished, number, kind)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelFileError, match=rf"{path.name} is truncated or damaged.*Run the extraction again"):
        next(state_blocks(finished, 1))
    path.unlink()
    with pytest.raises(ModelFileError, match=rf"{path.name} is missing"):
        next(state_blocks(finished, 1))


@pytest.mark.parametrize("kind", ["states", "examples"])
def test_a_flipped_bit_is_noticed_before_the_first_row_of_its_block(finished, kind):
    path = file_of(finished, 1, kind)
    flip(path, -3)
    blocks = state_blocks(finished, 2)
    assert [len(next(blocks)) for _ in range(2)] == [2, 1]
    with pytest.raises(
        ModelFileError, match=rf"{path.name} is damaged: its contents are not what was written. Run the"
    ):
        next(blocks)


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(bytes(content))


SOME = torch.from_numpy(STATES[3:6])


@pytest.mark.parametrize(
    "odd",
    [
        {"hidden_states": SOME[:, :2]},
        {"hidden_states": SOME.double()},
        {"hidden_states": SOME, "label_logits": torch.from_numpy(LOGITS[3:6])},
        {"others": SOME},
        {"hidden_states": SOME.bfloat16()},
    ],
    ids=["width", "dtype", "more", "others", "bfloat16"],
)
def test_blocks_that_are_not_alike_are_refused(finished, odd):
    alike = {name: torch.zeros(3, dtype=torch.int64) for name in ("n_tokens", "n_cut")}
    replace_states(finished, 1, **odd, **alike)
    for attempt in (lambda: read_states(finished), lambda: list(state_blocks(finished))):
        with pytest.raises(ModelFileError, match=rf"{file_of(finished, 1).name} is damaged and cannot be read"):
            attempt()


def test_fewer_examples_than_rows_are_refused(finished):
    path = file_of(finished, 1, "examples")
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:1]), encoding="utf-8")
    change_manifest(finished, lambda stored: stored["shards"][1].update(examples=describe_file(path)))
    for attempt in (lambda: read_states(finished), lambda: list(state_blocks(finished))):
        with pytest.raises(ModelFileError, match=rf"{path.name} is damaged: .* has 1 rows, not 3"):
            attempt()


@pytest.mark.parametrize("n_rows", [2, 4])
def test_a_block_of_other_rows_than_examples_is_refused(finished, n_rows):
    replace_states(finished, 1, hidden_states=torch.from_numpy(STATES[:n_rows]))
    for attempt in (lambda: read_states(finished), lambda: list(state_blocks(finished))):
        with pytest.raises(ModelFileError, match=rf"hidden_states has {n_rows} rows, not 3"):
            attempt()


def test_a_folder_without_states_or_without_rows_is_refused(tmp_path):
    with writer_of(tmp_path / "others", shard_size=N_ROWS) as writer:
        write_on(writer)
    replace_states(tmp_path / "others", 0, others=torch.from_numpy(STATES))
    for attempt in (lambda path: read_states(path), lambda path: next(state_blocks(path))):
        with pytest.raises(InvalidInputError, match="others: no 'hidden_states' found"):
            attempt(tmp_path / "others")
    with writer_of(tmp_path / "empty", n_rows=0):
        pass
    with pytest.raises(InvalidInputError, match="empty: no 'hidden_states' found"):
        read_states(tmp_path / "empty")
    assert list(state_blocks(tmp_path / "empty")) == []


# --- Resuming --------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_where_it_stopped(tmp_path, finished):
    whole = contents(finished)
    directory = tmp_path / "resumed"
    for n_finished in range(3):
        with writer_of(directory) as writer:
            assert writer.n_finished == n_finished
            assert write_on(writer, n_blocks=1) == 1
    assert contents(directory) == whole


def test_a_finished_run_has_nothing_left_to_write(finished):
    before = contents(finished)
    with writer_of(finished) as writer:
        assert write_on(writer) == 0
    assert contents(finished) == before


def test_a_run_is_resumed_with_its_own_shard_size(unfinished):
    with writer_of(unfinished, shard_size=2) as writer:
        assert writer.shard_size == SHARD_SIZE
        write_on(writer)
    assert_complete(unfinished)


def test_an_exception_leaves_what_is_finished_and_lets_go_of_the_lock(tmp_path):
    def fail():
        with writer_of(tmp_path / "a") as writer:
            write_on(writer, n_blocks=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with writer_of(tmp_path / "a") as writer:
        assert writer.n_finished == 1
        write_on(writer)
    assert_complete(tmp_path / "a")


def test_a_directory_is_made_with_its_parents(tmp_path):
    with writer_of(tmp_path / "a" / "b" / "c") as writer:
        write_on(writer)
    assert_complete(tmp_path / "a" / "b" / "c")


def test_a_run_that_has_written_nothing_is_not_finished(tmp_path):
    with writer_of(tmp_path / "a"):
        pass
    with pytest.raises(ModelFileError, match=rf"is not finished: 0 of {N_ROWS} rows are done"):
        read_states(tmp_path / "a")
    with writer_of(tmp_path / "a") as writer:
        write_on(writer)
    assert_complete(tmp_path / "a")


def test_leftovers_of_a_crash_are_removed(unfinished, finished_names):
    half = file_of(unfinished, 0).read_bytes()[:50]
    block, examples = finished_names[2]
    for name in (block, examples, MANIFEST_NAME):
        (unfinished / f".writing-{name}").write_bytes(half)
    (unfinished / block).write_bytes(half)  # a damaged block that no manifest names is made again
    with writer_of(unfinished) as writer:
        assert not list(unfinished.glob(".writing-*"))
        assert write_on(writer) == 1
    assert_complete(unfinished)


def test_a_block_that_was_finished_before_the_manifest_named_it_is_used(finished):
    whole = contents(finished)
    change_manifest(finished, lambda stored: stored["shards"].pop())
    with writer_of(finished) as writer:
        assert writer.n_finished == 2 and write_on(writer) == writer.n_extracted == 0
    assert contents(finished) == whole


def test_the_same_texts_twice_are_one_block_with_names_of_their_own(tmp_path):
    twice = [Document(text, name, "a") for name, text in enumerate(["x", "y", "x", "y"])]
    with writer_of(tmp_path / "a", n_rows=4, shard_size=2) as writer:
        for rows in (slice(0, 2), slice(2, 4)):
            writer.add(twice[rows], lambda: extracted(STATES[:2]))
        assert writer.n_extracted == 2
    states = read_states(tmp_path / "a")
    assert states.ids == [0, 1, 2, 3] and np.array_equal(states.hidden_states, STATES[[0, 1, 0, 1]])


# --- Folders of earlier versions --------------------------------------------------------------------------------------


def write_earlier(directory, n_blocks=3):
    """A folder as it was written before blocks were named by content: numbered shards without a digest inside."""
    directory.mkdir()
    shards = []
    for number, start in enumerate(range(0, N_ROWS, SHARD_SIZE)[:n_blocks]):
        rows = slice(start, start + SHARD_SIZE)
        states, texts = directory / f"shard-{number:05d}.safetensors", directory / f"shard-{number:05d}.jsonl"
        arrays = {"hidden_states": STATES[rows], "label_logits": LOGITS[rows]}
        arrays |= {name: np.zeros(len(STATES[rows]), dtype=np.int64) for name in ("n_tokens", "n_cut")}
        save_file({name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, states)
        examples = [
            {"id": i, "text": t, "label": y} for i, t, y in zip(IDS[rows], TEXTS[rows], LABELS[rows], strict=True)
        ]
        texts.write_bytes("".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in examples).encode())
        counts = {"documents_cut": 0, "tokens_cut": 0}
        entry = {"rows": len(examples), "counts": counts}
        shards.append(entry | {"states": describe_file(states), "examples": describe_file(texts)})
    stored = {"format": "torchsdm-states", "format_version": 1, "facts": {}, "n_rows": N_ROWS, "shard_size": SHARD_SIZE}
    stored |= {"origin": {**ORIGIN.to_json(), "documents": {"fingerprint": DOCUMENTS}}, "shards": shards}
    (directory / MANIFEST_NAME).write_text(json.dumps(stored), encoding="utf-8")
    return directory


def test_a_folder_of_an_earlier_version_is_read(tmp_path):
    directory = write_earlier(tmp_path / "a")
    assert_complete(directory)
    assert read_states(directory).origin == ORIGIN and read_states(directory).logit_labels == ("no", "yes")
    assert [len(block) for block in state_blocks(directory, 2)] == [2, 1, 2, 1, 1]


def test_a_folder_of_an_earlier_version_is_finished_and_not_mixed(tmp_path):
    directory = write_earlier(tmp_path / "a", n_blocks=2)
    before = contents(directory)
    with pytest.raises(CheckpointError, match="a different model fingerprint: 'f00' then, 'f01' now"):
        writer_of(directory, changed_origin("model", fingerprint="f01")).__enter__()
    assert contents(directory) == before
    with writer_of(directory) as writer:
        assert writer.n_finished == 2 and write_on(writer, logits=LOGITS) == 1
    assert_complete(directory)


# --- Refusing what does not belong -----------------------------------------------------------------------------------


def changed_origin(part, **values):
    return replace(ORIGIN, **{part: replace(getattr(ORIGIN, part), **values)})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            {"origin": changed_origin("model", fingerprint="f01")},
            "a different model fingerprint: 'f00' then, 'f01' now",
        ),
        (
            {"origin": changed_origin("model", dtype="bfloat16")},
            "a different model dtype: 'float32' then, 'bfloat16' now",
        ),
        (
            {"origin": changed_origin("prompt", template="Or {document}?")},
            "a different prompt template: 'Is {document} goo",
        ),
        (
            {"origin": changed_origin("prompt", label_words=ORIGIN.prompt.label_words[::-1])},
            "a different prompt label_words: (('no', 'No'), ('yes', 'Yes')) then, (('yes', 'Yes'), ('no', 'No')) now",
        ),
        ({"origin": changed_origin("prompt", use_chat=True)}, "a different prompt use_chat: False then, True now"),
        ({"origin": changed_origin("pooling", layer=2)}, "a different states layer: -1 then, 2 now"),
        ({"documents": "d01"}, "a different documents fingerprint: 'd00' then, 'd01' now"),
    ],
)
def test_another_origin_is_refused_and_what_changed_is_named(unfinished, change, what):
    before, other = contents(unfinished), writer_of(unfinished, **change)
    with pytest.raises(CheckpointError, match=f"{re.escape(what)}.*Use another directory, or remove this one"):
        other.__enter__()
    assert contents(unfinished) == before
    with writer_of(unfinished) as writer:  # the lock was let go of
        assert writer.n_finished == 2


def test_a_long_difference_is_shortened(unfinished):
    with pytest.raises(CheckpointError) as error:
        writer_of(unfinished, changed_origin("prompt", template="long " * 1000)).__enter__()
    assert len(str(error.value)) < 500 + len(str(unfinished)) and "'long long" in str(error.value)


@pytest.mark.parametrize("place", ["reference", "revision"])
def test_where_the_model_lies_makes_no_difference(unfinished, place):
    with writer_of(unfinished, changed_origin("model", **{place: "/elsewhere"}), facts={"torch": "3"}) as writer:
        assert write_on(writer) == 1
    assert_complete(unfinished)


@pytest.mark.parametrize("n_rows", [N_ROWS - 1, N_ROWS + 1])
def test_another_number_of_rows_is_refused(unfinished, n_rows):
    with pytest.raises(CheckpointError, match=rf"a different number of documents: {N_ROWS} then, {n_rows} now"):
        writer_of(unfinished, n_rows=n_rows).__enter__()


def test_the_origin_of_a_directory_can_be_asked_for(unfinished, tmp_path):
    assert begun_folder(unfinished).origin == ORIGIN
    assert begun_folder(tmp_path / "none") is None
    (unfinished / MANIFEST_NAME).write_text("{")
    with pytest.raises(ModelFileError, match=r"manifest.json is damaged"):
        begun_folder(unfinished)


def test_safetensors_files_of_something_else_are_refused_and_left_alone(tmp_path):
    save_file({"weight": torch.from_numpy(STATES)}, tmp_path / "model.safetensors")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"safetensors files that are not ours. Use a separate directory"):
        writer_of(tmp_path).__enter__()
    assert contents(tmp_path) == before


def test_a_directory_of_leftovers_alone_is_begun_anew(tmp_path):
    for name in (".writing-0123.safetensors", f".writing-{MANIFEST_NAME}"):
        (tmp_path / name).write_bytes(b"half")
    with writer_of(tmp_path) as writer:
        assert writer.n_finished == 0
        write_on(writer)
    assert_complete(tmp_path)


def test_other_files_do_no_harm(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with writer_of(tmp_path) as writer:
        write_on(writer)
    assert_complete(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_two_writers_in_one_process_do_not_mix(tmp_path):
    with writer_of(tmp_path / "a") as writer:
        with pytest.raises(CheckpointError, match="is being written by another process"):
            writer_of(tmp_path / "a").__enter__()
        write_on(writer)
    assert_complete(tmp_path / "a")


# --- Directories that cannot be written ------------------------------------------------------------------------------


@contextmanager
def without_privileges():
    """As nobody, where the tests run as root, whom no directory refuses."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def read_only(finished):
    """Finished states in a directory that anyone may read and nobody may write."""
    folder = Path(tempfile.mkdtemp())
    directory = folder / "states"
    shutil.copytree(finished, directory)
    folder.chmod(0o755)
    directory.chmod(0o555)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(folder)


@needs_posix
def test_a_directory_that_may_not_be_written_is_named(read_only):
    (read_only / ".lock").unlink(missing_ok=True)
    with without_privileges(), pytest.raises(CheckpointError, match=r"states cannot be written: .*Permission denied"):
        writer_of(read_only).__enter__()


@needs_posix
def test_a_directory_that_may_not_be_written_is_named_though_it_can_be_locked(read_only):
    (read_only / ".lock").touch()
    (read_only / ".lock").chmod(0o666)
    with without_privileges(), pytest.raises(CheckpointError, match=r"states cannot be written: .*Permission denied"):
        writer_of(read_only).__enter__()


@needs_posix
def test_a_directory_that_may_not_be_made_is_named(read_only):
    with without_privileges(), pytest.raises(CheckpointError, match=r"new cannot be written: .*Permission denied"):
        writer_of(read_only / "new").__enter__()


@needs_posix
def test_a_directory_that_may_only_be_read_is_read(read_only):
    with without_privileges():
        assert_complete(read_only)


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path):
    (tmp_path / "a").write_text("x")
    for directory in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(CheckpointError, match=f"{re.escape(str(directory))} cannot be written"):
            writer_of(directory).__enter__()


@needs_posix
@pytest.mark.parametrize("part", ["states", "examples", "manifest"])
def test_a_full_disk_keeps_what_is_finished(tmp_path, part):
    import resource

    note = "x" * ((1 << 20) - 5000 if part == "manifest" else 4)
    with writer_of(tmp_path / "a", facts={"note": note}) as writer:
        write_on(writer, n_blocks=2)
    before, stored = resource.getrlimit(resource.RLIMIT_FSIZE), manifest(tmp_path / "a")
    width, text = (1 << 20 if part == name else 4 for name in ("states", "examples"))
    limit = (tmp_path / "a" / MANIFEST_NAME).stat().st_size + 100 if part == "manifest" else 1 << 20
    with writer_of(tmp_path / "a") as writer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))  # no file may grow beyond it
        try:
            with pytest.raises(CheckpointError, match=r"File too large.*Finished blocks are kept"):
                writer.add([Document("x" * text, 1)], lambda: extracted(np.zeros((1, width), dtype=np.float32)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert writer.n_finished == 2 and writer.n_extracted == 0
    assert manifest(tmp_path / "a") == stored
    with writer_of(tmp_path / "a") as writer:
        write_on(writer)
    assert_complete(tmp_path / "a")


# --- Damage ----------------------------------------------------------------------------------------------------------


def test_an_unfinished_run_is_refused_with_the_remedy(unfinished):
    with pytest.raises(
        ModelFileError, match=r"is not finished: 6 of 7 rows are done. Run the extraction again; it resumes"
    ):
        read_states(unfinished)


def test_a_directory_of_something_else_holds_no_states(tmp_path):
    with pytest.raises(InvalidInputError, match=r"has no files"):
        read_states(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidInputError, match=r"must end in .*Got 'config.json'"):
        read_states(tmp_path)


FILES = [(1, "states"), (2, "examples"), (0, "states")]


@pytest.mark.parametrize(("number", "kind"), FILES)
def test_a_truncated_file_is_named(finished, number, kind):
    path = file_of(finished, number, kind)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2])
    message = rf"{path.name} is truncated or damaged: {size // 2} bytes where {size} were"
    with pytest.raises(ModelFileError, match=message):
        read_states(finished)


@pytest.mark.parametrize(("number", "kind"), FILES)
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_a_flipped_bit_is_noticed_by_reading(finished, number, kind, place):
    path = file_of(finished, number, kind)
    flip(path, int(place * (path.stat().st_size - 1)))
    with pytest.raises(ModelFileError, match=rf"{path.name} is damaged: its contents are not what was written"):
        read_states(finished)


@pytest.mark.parametrize(("number", "kind"), FILES)
def test_a_missing_file_is_named(finished, number, kind):
    path = file_of(finished, number, kind)
    path.unlink()
    with pytest.raises(ModelFileError, match=rf"{path.name} is missing\. Run the extraction again"):
        read_states(finished)


@pytest.mark.parametrize("kind", ["states", "examples"])
@pytest.mark.parametrize(
    ("number", "damage"), [(0, "truncated"), (1, "longer"), (1, "missing"), (0, "another byte"), (2, "another byte")]
)
def test_a_damaged_block_alone_is_made_again(finished, kind, number, damage):
    """As the message of read_states says: run the extraction again."""
    whole, path = contents(finished), file_of(finished, number, kind)
    content = whole[path.name]
    path.write_bytes(
        {"truncated": content[:-1], "longer": content + b" "}.get(damage, content[:-2] + b"!" + content[-1:])
    )
    if damage == "missing":
        path.unlink()
    with pytest.raises(ModelFileError, match=rf"{path.name}.*Run the extraction again"):
        read_states(finished)
    with writer_of(finished) as writer:
        assert writer.n_finished == number
        assert write_on(writer) == (kind == "states")
    assert contents(finished) == whole


def test_blocks_of_another_run_are_noticed(finished, tmp_path):
    with writer_of(tmp_path / "other") as writer:
        write_on(writer, states=STATES + 1)
    path = file_of(finished, 1)
    shutil.copy(tmp_path / "other" / path.name, finished)
    with pytest.raises(ModelFileError, match=rf"{path.name} is damaged"):
        read_states(finished)


def half(content):
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (half, "manifest.json is damaged"),
        (lambda content: b"", "manifest.json is damaged"),
        (lambda content: b"not JSON", "manifest.json is damaged"),
        (lambda content: b"\xff\xfe\x00", "manifest.json is damaged"),
        (lambda content: bytes(len(content)), "manifest.json is damaged"),
        (lambda content: b"[]", "is not a torchsdm states manifest; left untouched"),
        (lambda content: b"null", "is not a torchsdm states manifest; left untouched"),
        (lambda content: b'{"name": "a web page"}', "is not a torchsdm states manifest; left untouched"),
        (
            lambda content: content.replace(b"torchsdm-states", b"torchsdm-model"),
            "is not a torchsdm states manifest; left untouched",
        ),
        (lambda content: content.replace(b'"format_version": 1', b'"format_version": 2'), "has format version 2; this"),
    ],
    ids=["half", "empty", "not JSON", "not UTF-8", "zeros", "list", "null", "foreign", "format", "version"],
)
def test_a_damaged_or_foreign_manifest_is_named_and_left_alone(finished, damage, message):
    path = finished / MANIFEST_NAME
    path.write_bytes(damage(path.read_bytes()))
    before = contents(finished)
    for attempt in (lambda: read_states(finished), lambda: writer_of(finished).__enter__()):
        with pytest.raises(ModelFileError, match=message):
            attempt()
    assert contents(finished) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda stored: stored.pop("shards"),
        lambda stored: stored.pop("origin"),
        lambda stored: stored["origin"].pop("documents"),
        lambda stored: stored["origin"].pop("prompt"),
        lambda stored: stored["origin"]["model"].pop("fingerprint"),
        lambda stored: stored["origin"]["states"].update(another=1),
        lambda stored: stored.pop("n_rows"),
        lambda stored: stored.pop("shard_size"),
        lambda stored: stored.update(shards={"0": {}}),
        lambda stored: stored.update(shards=["shard-00000"]),
        lambda stored: stored.update(n_rows="7"),
        lambda stored: stored["shards"][1].pop("rows"),
        lambda stored: stored["shards"][1].pop("counts"),
        lambda stored: stored["shards"][1].pop("examples"),
        lambda stored: stored["shards"][1]["states"].pop("sha256"),
        lambda stored: stored["shards"][1]["states"].update(bytes="many"),
    ],
)
def test_a_manifest_that_lacks_something_is_damaged(finished, change):
    change_manifest(finished, change)
    for attempt in (lambda: read_states(finished), lambda: writer_of(finished).__enter__()):
        with pytest.raises(
            ModelFileError, match=r"manifest.json is damaged: entries are missing or invalid. Remove the dir"
        ):
            attempt()


@pytest.mark.parametrize("kind", ["states", "examples"])
@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub/shard", "./shard-00000.jsonl", "..", ""])
def test_a_manifest_leads_nowhere_else(finished, kind, name):
    outside = finished.parent / "outside"
    shutil.copy(file_of(finished, 0, kind), outside)  # size and digest would be right
    change_manifest(finished, lambda stored: stored["shards"][0][kind].update(file=name))
    with pytest.raises(ModelFileError, match=r"entries are missing or invalid|is missing"):
        read_states(finished)


@pytest.mark.parametrize(("shard", "rows"), [(2, 2), (0, 2), (0, 4)])
def test_a_manifest_that_counts_other_rows_than_there_are_is_refused(finished, shard, rows):
    """Else rows that nobody wrote are read from memory that nobody set."""

    def change(stored):
        stored["n_rows"] += rows - stored["shards"][shard]["rows"]
        stored["shards"][shard]["rows"] = rows

    change_manifest(finished, change)
    with pytest.raises(ModelFileError, match=rf"{file_of(finished, shard).stem}|examples-0000{shard}|manifest"):
        read_states(finished)


def test_opening_without_a_check_of_digests_sees_sizes_alone(finished):
    flip(file_of(finished, 0), -1)
    assert StatesFolder.open(finished).n_finished_rows == N_ROWS
    with pytest.raises(ModelFileError, match="not what was written"):
        StatesFolder.open(finished, verify=True)


# --- Other processes, and their death --------------------------------------------------------------------------------

PROGRAM = """
    import json, os, signal, sys, time
    from pathlib import Path
    import numpy as np
    from torchsdm.data import Document
    from torchsdm.data import ExtractedStates, FolderWriter, StatesOrigin

    ORIGIN = StatesOrigin.from_json(json.loads(sys.argv[1]))

    def die_at(step):
        # the process dies just before the system call that is its step-th fsync or replace
        count = 0
        def counted(call):
            def wrapped(*args):
                nonlocal count
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1
                return call(*args)
            return wrapped
        os.fsync, os.replace = counted(os.fsync), counted(os.replace)

    def write(directory, n_shards, stop=None, step=None):
        if step is not None:
            die_at(step)
        with FolderWriter(Path(directory), ORIGIN, "d00", 2 * n_shards, 2) as writer:
            for number in range(writer.n_finished, n_shards if stop is None else stop):
                states = np.arange(8000, dtype=np.float32).reshape(2, -1) + np.float32(number)
                documents = [Document(f"text {number} {i}", 2 * number + i) for i in range(2)]
                counts = np.array([number, 0])
                writer.add(documents, lambda: ExtractedStates(states, None, counts, counts))

    def hold(directory):
        with FolderWriter(Path(directory), ORIGIN, "d00", 2, 2):
            open(os.path.join(directory, "held"), "w").close()
            time.sleep(600)

    {"write": write, "hold": hold}[sys.argv[2]](**json.loads(sys.argv[3]))
"""


def start(name, **arguments):
    """Start one of the functions above in a process of its own."""
    arguments = json.dumps(arguments)
    return WarmProcess(textwrap.dedent(PROGRAM), json.dumps(ORIGIN.to_json()), name, arguments)


def write(directory, n_shards, **arguments):
    """Write to the end or to death; the exit code."""
    return start("write", directory=str(directory), n_shards=n_shards, **arguments).wait()


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.0005)


def test_a_run_in_another_process_holds_the_directory_until_it_dies(tmp_path):
    directory = tmp_path / "held"
    holder = start("hold", directory=str(directory))
    try:
        wait_for((directory / "held").exists)
        with pytest.raises(CheckpointError, match=r"held is being written by another process"):
            writer_of(directory, n_rows=2, shard_size=2).__enter__()
    finally:
        holder.send_signal(signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL
    with writer_of(directory, n_rows=2, shard_size=2) as writer:
        assert writer.n_finished == 0


def test_a_run_that_is_killed_again_and_again_ends_like_one_that_is_not(tmp_path):
    n_shards, straight, killed = 60, tmp_path / "straight", tmp_path / "killed"
    begin = time.monotonic()
    assert write(straight, n_shards=n_shards) == 0
    seconds = (time.monotonic() - begin) / n_shards  # of one shard
    assert write(killed, n_shards=n_shards, stop=1) == 0
    rng, rows_at_death = np.random.default_rng(0), [2]
    for attempt in range(10):
        running = start("write", directory=str(killed), n_shards=n_shards)
        if attempt % 2:  # some die while they still look at what is there, some after a shard or more of their own
            wait_for(lambda before=rows_at_death[-1]: StatesFolder.open(killed).n_finished_rows > before)
        time.sleep(rng.uniform(0, 3 * seconds))
        running.send_signal(signal.SIGKILL)
        if running.wait() == 0:
            break
        stored = StatesFolder.open(killed, verify=True)  # no shard is named before it is whole
        rows_at_death.append(stored.n_finished_rows)
        if stored.n_finished_rows < 2 * n_shards:
            with pytest.raises(ModelFileError, match=rf"is not finished: {rows_at_death[-1]} of {2 * n_shards} rows"):
                read_states(killed)
    assert len(set(rows_at_death)) >= 3 and rows_at_death == sorted(rows_at_death)
    assert write(killed, n_shards=n_shards) == 0
    assert contents(killed) == contents(straight)
    states = read_states(killed)
    assert states.ids == list(range(2 * n_shards))
    assert np.array_equal(states.hidden_states[:, 0], [4000 * (i % 2) + i // 2 for i in range(2 * n_shards)])


@pytest.mark.parametrize("n_before", [0, 1], ids=["in the first shard", "in the second shard"])
def test_a_run_that_is_killed_at_any_step_can_be_resumed(tmp_path, n_before):
    """Before each fsync and each replace of one shard in turn: what is left can be gone on from."""
    straight = tmp_path / "straight"
    assert write(straight, n_shards=3) == 0
    whole, not_resumed = contents(straight), []
    for step in range(100):
        directory = tmp_path / f"killed-{step}"
        if n_before:
            assert write(directory, n_shards=3, stop=n_before) == 0
        code = write(directory, n_shards=3, stop=n_before + 1, step=step)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        if write(directory, n_shards=3) != 0 or contents(directory) != whole:
            not_resumed.append((step, sorted(contents(directory))))
    assert 6 <= step < 100  # two files and a manifest, each synced and replaced
    assert not_resumed == []
