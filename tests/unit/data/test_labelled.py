"""Reading, splitting and recognising labelled states."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc
import zipfile
from itertools import product

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as torch_save_file

from small import quiet
from torchsdm import LabelledStates, SDMClassifier, read_states
from torchsdm.data import ModelOrigin, PoolingOrigin, PromptOrigin, Source, StatesOrigin, state_blocks
from torchsdm.data.labelled import join_states
from torchsdm.errors import EmptyInputError, InvalidInputError, InvalidTypeError, TorchSDMError

STATES = np.array([[1.0, 2.5, -3.0], [0.25, 1e-7, 5.0], [7.0, 8.0, 9.0]], dtype=np.float32)
LABELS = ["yes", "no", "yes"]
IDS = ["a", "b", "c"]
TEXTS = ["Hello.", "Grüße, 世界", "line\nbreak"]


def rows(**names):
    keys = {"hidden_states": STATES.tolist(), "labels": LABELS, "ids": IDS, "texts": TEXTS}
    keys = {names.get(key, key): values for key, values in keys.items()}
    return [dict(zip(keys, values, strict=True)) for values in zip(*keys.values(), strict=True)]


def write_jsonl(path, lines):
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n"
    if path.suffix == ".gz":
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.write(text)
    else:
        path.write_text(text, encoding="utf-8")
    return path


def write_parquet(path, **columns):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def assert_read(states, ids=IDS, texts=TEXTS, labels=LABELS):
    assert np.array_equal(np.asarray(states.hidden_states, dtype=np.float32), STATES)
    assert list(states.labels) == labels
    for got, expected in ((states.ids, ids), (states.texts, texts)):
        assert (got is None and expected is None) or list(got) == expected
    assert len(states) == 3


# --- Formats ---------------------------------------------------------------------------------------------------------


def test_npz(tmp_path):
    path = tmp_path / "states.npz"
    np.savez(path, hidden_states=STATES, labels=np.array(LABELS), ids=np.array(IDS), texts=np.array(TEXTS))
    assert_read(read_states(path))
    np.savez(path, hidden_states=STATES, labels=np.array(LABELS))
    assert_read(read_states(str(path)), ids=None, texts=None)


def test_safetensors(tmp_path):
    path = tmp_path / "states.safetensors"
    save_file({"hidden_states": STATES, "labels": np.array([1, 0, 1]), "ids": np.array([5, 6, 7])}, path)
    states = read_states(path)
    assert_read(states, labels=[1, 0, 1], ids=[5, 6, 7], texts=None)
    assert isinstance(states.hidden_states, torch.Tensor)


@pytest.mark.parametrize("name", ["states.jsonl", "states.jsonl.gz"])
def test_jsonl(tmp_path, name):
    assert_read(read_states(write_jsonl(tmp_path / name, rows())))


def test_jsonl_skips_blank_lines_and_other_keys(tmp_path):
    path = tmp_path / "states.jsonl"
    lines = [json.dumps({**row, "model": "m"}) for row in rows()]
    path.write_text("\n" + lines[0] + "\n\n  \n" + lines[1] + "\n" + lines[2], encoding="utf-8")
    assert_read(read_states(path))


def test_parquet_of_a_dataset_gives_the_names_of_its_classes(tmp_path):
    from datasets import ClassLabel, Dataset, Features, List, Value

    features = Features({"hidden_states": List(Value("float32")), "label": ClassLabel(names=["bad", "good"])})
    source = Dataset.from_dict({"hidden_states": [[0.5, 1.0]] * 3, "label": [0, 1, 0]}, features=features)
    source.to_parquet(tmp_path / "states.parquet")
    assert read_states(tmp_path / "states.parquet").labels == ["bad", "good", "bad"]


def test_parquet(tmp_path):
    path = write_parquet(
        tmp_path / "states.parquet", hidden_states=STATES.tolist(), labels=LABELS, ids=IDS, texts=TEXTS, other=[1, 2, 3]
    )
    states = read_states(path)
    assert_read(states)
    assert states.hidden_states.dtype == np.float32


def test_names_can_be_chosen(tmp_path):
    names = {"hidden_states": "h", "labels": "y", "ids": "key", "texts": "prompt"}
    path = write_jsonl(tmp_path / "states.jsonl", rows(**names))
    assert_read(read_states(path, states="h", labels="y", ids="key", texts="prompt"))
    np.savez(tmp_path / "states.npz", h=STATES, y=np.array(LABELS))
    assert_read(read_states(tmp_path / "states.npz", states="h", labels="y"), ids=None, texts=None)


def test_what_is_read_can_be_fitted(tmp_path, insects):
    lines = [
        {"hidden_states": h.tolist(), "labels": y, "ids": name}
        for h, y, name in zip(insects.X[:60], insects.y[:60], insects.ids, strict=False)
    ]
    states = read_states(write_jsonl(tmp_path / "states.jsonl", lines))
    classifier, again = (
        SDMClassifier(alpha=0.6, n_filters=4, n_rounds=1, training="sdm", max_epochs=1, random_state=0)
        for _ in range(2)
    )
    with quiet():
        classifier.fit(states.hidden_states, states.labels, ids=states.ids)
        again.fit(insects.X[:60], insects.y[:60])
    assert np.array_equal(classifier.decide(insects.fresh).logits, again.decide(insects.fresh).logits)


# --- Broken files ----------------------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"There is no file '.*none.npz'"):
        read_states(tmp_path / "none.npz")


def test_an_unknown_ending_is_refused(tmp_path):
    (tmp_path / "states.csv").write_text("1,2")
    with pytest.raises(InvalidInputError, match=r"must end in .npz, .safetensors, .jsonl, .parquet. Got 'states.csv'"):
        read_states(tmp_path / "states.csv")
    (tmp_path / "states").write_text("1,2")
    with pytest.raises(InvalidInputError, match="Got 'states'"):
        read_states(tmp_path / "states")


@pytest.mark.parametrize("missing", ["hidden_states", "labels"])
def test_a_missing_column_is_named(tmp_path, missing):
    columns = {"hidden_states": STATES, "labels": np.array([1, 0, 1])}
    del columns[missing]
    np.savez(tmp_path / "a.npz", **columns)
    save_file(columns, tmp_path / "a.safetensors")
    write_jsonl(tmp_path / "a.jsonl", [{k: v for k, v in row.items() if k != missing} for row in rows()])
    write_parquet(tmp_path / "a.parquet", **{key: value.tolist() for key, value in columns.items()})
    for name in ("a.npz", "a.safetensors", "a.jsonl", "a.parquet"):
        with pytest.raises(InvalidInputError, match=rf"{name}: no '{missing}' found. Name the right one"):
            read_states(tmp_path / name)


def test_broken_json_is_named_by_line(tmp_path):
    path = tmp_path / "states.jsonl"
    good = json.dumps(rows()[0])
    path.write_text(f"{good}\n\n{good[:-5]}\n")
    with pytest.raises(InvalidInputError, match=r"states.jsonl, line 3: not valid JSON"):
        read_states(path)
    path.write_text(f"{good}\n[1, 2]\n")
    with pytest.raises(InvalidInputError, match=r"states.jsonl, line 2: expected a JSON object. Got list"):
        read_states(path)


def test_a_key_that_comes_and_goes_is_named_by_line(tmp_path):
    lines = rows()
    del lines[2]["labels"]
    with pytest.raises(InvalidInputError, match=r"line 3: 'labels' is missing"):
        read_states(write_jsonl(tmp_path / "states.jsonl", lines))
    lines = rows()
    del lines[0]["texts"]
    with pytest.raises(InvalidInputError, match=r"line 2: 'texts' is missing in other lines"):
        read_states(write_jsonl(tmp_path / "states.jsonl", lines))


def test_an_empty_file_has_no_states(tmp_path):
    (tmp_path / "states.jsonl").write_text("")
    with pytest.raises(InvalidInputError, match="no 'hidden_states' found"):
        read_states(tmp_path / "states.jsonl")


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.jsonl.gz", "a.parquet", "a.jsonl"])
def test_a_file_that_is_not_what_its_name_says_is_refused_by_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xff\xfe junk")
    with pytest.raises(TorchSDMError, match=name):
        read_states(tmp_path / name)


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.jsonl.gz", "a.parquet"])
def test_a_truncated_file_is_refused_by_name(tmp_path, name):
    path = tmp_path / name
    columns = {"hidden_states": np.tile(STATES, (200, 1)), "labels": np.arange(600) % 2}
    if name == "a.npz":
        np.savez(path, **columns)
    elif name == "a.safetensors":
        save_file(columns, path)
    elif name == "a.parquet":
        write_parquet(path, **{key: value.tolist() for key, value in columns.items()})
    else:
        write_jsonl(path, rows() * 200)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(TorchSDMError, match=name):
        read_states(path)


def test_pickled_arrays_are_refused_by_name(tmp_path):
    np.savez(tmp_path / "a.npz", hidden_states=STATES, labels=np.array(["a", 1, None], dtype=object))
    with pytest.raises(TorchSDMError, match=r"a\.npz"):
        read_states(tmp_path / "a.npz")


def test_states_of_different_widths_are_refused(tmp_path):
    lines = rows()
    lines[1]["hidden_states"] = [1.0]
    with pytest.raises(TorchSDMError, match=r"line 2|states.jsonl"):
        read_states(write_jsonl(tmp_path / "states.jsonl", lines))
    path = write_parquet(tmp_path / "a.parquet", hidden_states=[[1.0, 2.0], [3.0]], labels=[0, 1])
    with pytest.raises(TorchSDMError, match=r"a\.parquet"):
        read_states(path)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", hidden_states=STATES.tolist(), labels=LABELS)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"Reading Parquet needs pyarrow.*pip install 'torchsdm\[report\]'"):
        read_states(path)


# --- Blocks ----------------------------------------------------------------------------------------------------------

N_MANY = 23
MANY = np.random.default_rng(0).standard_normal((N_MANY, 5)).astype(np.float32)
MANY_LABELS = np.arange(N_MANY) % 3
MANY_IDS = np.arange(N_MANY) + 100
MANY_TEXTS = [f"text {i} \u2028 é" for i in range(N_MANY)]
ARRAY_ENDINGS = ["npz", "compressed.npz", "safetensors"]
ENDINGS = [*ARRAY_ENDINGS, "jsonl", "jsonl.gz", "parquet"]


def write(folder, ending, states=MANY, **others):
    """A file of states and other columns; safetensors hold no texts."""
    path = folder / f"many.{ending}"
    columns = {"hidden_states": states, **others}
    if ending.endswith("npz"):
        (np.savez_compressed if "compressed" in ending else np.savez)(path, **columns)
    elif ending == "safetensors":
        save_file({key: np.array(value) for key, value in columns.items() if key != "texts"}, path)
    elif ending == "parquet":
        write_parquet(path, **{key: np.asarray(value).tolist() for key, value in columns.items()})
    else:
        lists = [np.asarray(column).tolist() for column in columns.values()]
        write_jsonl(path, [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)])
    return path


def joined(blocks, name):
    parts = [getattr(block, name) for block in blocks]
    if parts[0] is None:
        assert parts == [None] * len(parts)
        return None
    return np.concatenate([np.asarray(part) for part in parts])


@pytest.mark.parametrize("ending", ENDINGS)
def test_blocks_are_the_whole(tmp_path, ending):
    path = write(tmp_path, ending, labels=MANY_LABELS, ids=MANY_IDS, texts=MANY_TEXTS)
    whole = read_states(path)
    for size in (1, 7, N_MANY, 1000):
        blocks = list(state_blocks(path, size))
        assert [len(block) for block in blocks] == [len(MANY[start : start + size]) for start in range(0, N_MANY, size)]
        for block in blocks:
            assert type(block.hidden_states) is type(whole.hidden_states) and type(block.labels) is type(whole.labels)
            assert block.hidden_states.dtype == whole.hidden_states.dtype
        assert np.array_equal(joined(blocks, "hidden_states"), MANY) and np.array_equal(whole.hidden_states, MANY)
        assert joined(blocks, "labels").tolist() == MANY_LABELS.tolist() == list(whole.labels)
        assert joined(blocks, "ids").tolist() == MANY_IDS.tolist() == list(whole.ids)
        if ending == "safetensors":
            assert joined(blocks, "texts") is None is whole.texts
        else:
            assert joined(blocks, "texts").tolist() == MANY_TEXTS == list(whole.texts)


@pytest.mark.parametrize("ending", ENDINGS)
def test_blocks_need_no_labels(tmp_path, ending):
    blocks = list(state_blocks(str(write(tmp_path, ending)), 10))
    assert [len(block) for block in blocks] == [10, 10, 3]
    assert np.array_equal(joined(blocks, "hidden_states"), MANY)
    assert {(block.labels, block.ids, block.texts) for block in blocks} == {(None, None, None)}


@pytest.mark.parametrize("ending", ENDINGS)
def test_blocks_of_several_positions(tmp_path, ending):
    states = np.random.default_rng(1).standard_normal((N_MANY, 3, 2)).astype(np.float32)
    path = write(tmp_path, ending, states, labels=MANY_LABELS)
    blocks = list(state_blocks(path, 4))
    assert blocks[0].hidden_states.shape == (4, 3, 2)
    assert np.array_equal(joined(blocks, "hidden_states"), states)
    assert np.array_equal(read_states(path).hidden_states, states)


@pytest.mark.parametrize(("ending", "dtype"), [*product(ARRAY_ENDINGS, ["float16", "float64", "int8"]), ("npz", ">f4")])
def test_arrays_keep_their_dtype(tmp_path, ending, dtype):
    states = (MANY * 9).astype(dtype)
    path = write(tmp_path, ending, states, labels=MANY_LABELS)
    for read in [*state_blocks(path, 7), read_states(path)]:
        assert str(read.hidden_states.dtype).removeprefix("torch.") == str(states.dtype)
    assert np.array_equal(joined(list(state_blocks(path, 7)), "hidden_states"), states)
    assert np.array_equal(read_states(path).hidden_states, states)


def test_bfloat16_is_read(tmp_path):
    states = torch.from_numpy(MANY).bfloat16()
    torch_save_file({"hidden_states": states}, tmp_path / "a.safetensors")
    blocks = list(state_blocks(tmp_path / "a.safetensors", 7))
    assert torch.equal(torch.cat([block.hidden_states for block in blocks]), states)


def test_numbers_of_json_are_read_as_python_reads_them(tmp_path):
    values = [[1, 0.1], [2, 3], [True, 1e-300]]
    path = write_jsonl(tmp_path / "a.jsonl", [{"hidden_states": value, "labels": 0} for value in values])
    for read in [*state_blocks(path, 1), read_states(path)]:
        assert read.hidden_states.dtype == np.float64
    assert read_states(path).hidden_states.tolist() == values


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int64"])
@pytest.mark.parametrize("container", ["list_", "large_list", "fixed"])
def test_every_list_of_parquet_is_read_as_float32(tmp_path, kind, container):
    import pyarrow as pa

    states = (MANY * 9).astype(kind)
    item = pa.from_numpy_dtype(states.dtype)
    column = pa.list_(item, 5) if container == "fixed" else getattr(pa, container)(item)
    path = write_parquet(tmp_path / "a.parquet", hidden_states=pa.array(list(states), column))
    blocks = list(state_blocks(path, 4))
    assert {block.hidden_states.dtype for block in blocks} == {np.dtype(np.float32)}
    assert np.array_equal(joined(blocks, "hidden_states"), states.astype(np.float32))


def test_parquet_of_several_row_groups_is_read_in_blocks(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({"labels": MANY_LABELS, "hidden_states": MANY.tolist()}), tmp_path / "a.parquet", row_group_size=5
    )
    blocks = list(state_blocks(tmp_path / "a.parquet", 7))
    assert [len(block) for block in blocks] == [7, 7, 7, 2]
    assert np.array_equal(joined(blocks, "hidden_states"), MANY)
    assert joined(blocks, "labels").tolist() == MANY_LABELS.tolist()


@pytest.mark.parametrize("n_rows", [1025, 2048, 2050])
def test_more_rows_than_a_batch_of_parquet(tmp_path, n_rows):
    path = write_parquet(tmp_path / "a.parquet", hidden_states=[[i] for i in range(n_rows)], labels=range(n_rows))
    read = read_states(path)
    assert np.array_equal(read.hidden_states[:, 0], np.arange(n_rows)) and read.labels == list(range(n_rows))
    assert [len(block) for block in state_blocks(path, 1500)] == [min(n_rows, 1500), n_rows - 1500][
        : 1 + n_rows // 1501
    ]


@pytest.mark.parametrize("kind", ["npz", "compressed.npz"])
def test_fortran_order_is_read_whole_and_never_wrongly(tmp_path, kind):
    for states in (MANY, MANY[:20].reshape(5, 4, 5)):
        path = write(tmp_path, kind, np.asfortranarray(states), labels=np.arange(len(states)))
        with zipfile.ZipFile(path) as archive, archive.open("hidden_states.npy") as stream:
            assert b"'fortran_order': True" in stream.read(128)
        assert np.array_equal(read_states(path).hidden_states, states)
        (block,) = state_blocks(path, len(states))
        assert np.array_equal(block.hidden_states, states)
        blocks = state_blocks(path, len(states) - 1)
        with pytest.raises(InvalidInputError, match=r"'hidden_states' is stored column by column.*ascontiguousarray"):
            next(blocks)


def test_arrays_without_rows_are_read_and_have_no_blocks(tmp_path):
    for ending in ARRAY_ENDINGS:
        path = write(tmp_path, ending, MANY[:0], labels=MANY_LABELS[:0])
        assert read_states(path).hidden_states.shape == (0, 5) and list(read_states(path).labels) == []
        assert list(state_blocks(path)) == []


def test_large_npy_headers_are_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("hidden_states.npy", "w") as stream:
        np.lib.format.write_array(stream, MANY, version=(2, 0))
    assert np.array_equal(joined(list(state_blocks(tmp_path / "a.npz", 9)), "hidden_states"), MANY)


def peak_of_reading(path, size):
    """Peak bytes of Python and NumPy, and rows, of a pass over all blocks."""
    tracemalloc.start()
    try:
        n_rows = 0
        for block in state_blocks(path, size):
            assert block.hidden_states[0, 0] == n_rows and block.hidden_states[-1, -1] == n_rows + len(block) - 1
            n_rows += len(block)
        return tracemalloc.get_traced_memory()[1], n_rows
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_large_file_takes_the_memory_of_its_blocks(tmp_path, save):
    n_rows, width, size = (50_000, 1024, 500) if save is np.savez else (10_000, 1024, 100)
    path = tmp_path / "large.npz"
    save(path, hidden_states=np.repeat(np.arange(n_rows, dtype=np.float32)[:, None], width, axis=1))
    assert save is not np.savez or path.stat().st_size > 200e6
    peak, n_read = peak_of_reading(path, size)
    block = size * width * 4
    assert n_read == n_rows and peak < 2 * block + 5e6 < n_rows * width * 4 / 4


def test_a_large_jsonl_file_takes_the_memory_of_its_blocks(tmp_path):
    n_rows, width, size = 2000, 256, 50
    path = tmp_path / "large.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f'{{"hidden_states": {[float(i)] * width}}}\n' for i in range(n_rows))
    peak, n_read = peak_of_reading(path, size)
    assert n_read == n_rows and peak < 6e5 < path.stat().st_size / 4


def test_a_large_parquet_file_takes_the_memory_of_its_blocks(tmp_path):
    import pyarrow as pa

    n_rows, width, size = 20_000, 256, 100
    numbers = np.random.default_rng(0).standard_normal(n_rows * width).astype(np.float32)
    path = write_parquet(tmp_path / "large.parquet", hidden_states=pa.FixedSizeListArray.from_arrays(numbers, width))
    before = pa.total_allocated_bytes()
    peak = max(pa.total_allocated_bytes() - before for _ in state_blocks(path, size))
    assert 0 < peak < 5e6 < path.stat().st_size / 4  # the file is of one group of rows


# --- Blocks of broken files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "kind"), [(0, InvalidInputError), (-1, InvalidInputError), (2.0, InvalidTypeError)])
def test_a_block_has_a_size(tmp_path, size, kind):
    path = write(tmp_path, "npz")
    with pytest.raises(kind, match=r"'size' of state_blocks must be"):
        state_blocks(path, size)


def test_what_is_no_file_of_states_is_said_before_any_block_is_asked_for(tmp_path):
    with pytest.raises(InvalidInputError, match=r"There is no file '.*none.npz'"):
        state_blocks(tmp_path / "none.npz")
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(InvalidInputError, match=r"The file must end in .npz, .safetensors, .jsonl, .parquet. Got"):
        state_blocks(tmp_path / "a.csv")
    with pytest.raises(InvalidTypeError, match=r"'path' of state_blocks must be a path. Got 3"):
        state_blocks(3)


@pytest.mark.parametrize("ending", ENDINGS)
def test_missing_states_are_said_at_once(tmp_path, ending):
    path = write(tmp_path, ending, labels=MANY_LABELS)
    blocks = state_blocks(path, states="h")
    with pytest.raises(InvalidInputError, match=r"many\..*: no 'h' found. Name the right one: states="):
        next(blocks)


@pytest.mark.parametrize(
    ("ending", "name"), [*product(ARRAY_ENDINGS, ["labels", "ids"]), ("npz", "texts"), ("compressed.npz", "texts")]
)
def test_arrays_of_different_lengths_are_refused_at_once(tmp_path, ending, name):
    for n_rows in (0, N_MANY - 1, N_MANY + 1):
        path = write(tmp_path, ending, **{"labels": MANY_LABELS, name: np.arange(n_rows)})
        match = rf"'{name}' of .*many\..* must have one value for each of {N_MANY} inputs. Got {n_rows}"
        for attempt in (lambda path=path: next(state_blocks(path, 4)), lambda path=path: read_states(path)):
            with pytest.raises(InvalidInputError, match=match):
                attempt()


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize("name", ["hidden_states", "labels"])
def test_a_single_number_is_no_array_of_rows(tmp_path, ending, name):
    path = write(tmp_path, ending, **{"labels": MANY_LABELS, **{name: np.array(3.0)}})
    with pytest.raises(InvalidInputError, match=rf"many.{ending}: '{name}' is a single number"):
        next(state_blocks(path))


@pytest.mark.parametrize("ending", ENDINGS)
def test_blocks_of_a_file_cut_in_half_end_in_an_error(tmp_path, ending):
    path = write(tmp_path, ending, np.tile(MANY, (51, 1)), labels=np.tile(MANY_LABELS, 51))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InvalidInputError, match=rf"many\.{ending}(, line \d+: not valid JSON| cannot be read)"):
        list(state_blocks(path, 10))


@pytest.mark.parametrize("ending", ENDINGS)
def test_blocks_of_junk_end_in_an_error(tmp_path, ending):
    path = tmp_path / f"many.{ending}"
    for junk in (b"\xff\xfe junk", b"PK\x05\x06" + bytes(18), b"PAR1PAR1", b""):
        path.write_bytes(junk)
        with pytest.raises(InvalidInputError, match=rf"many\.{ending}"):
            list(state_blocks(path))


@pytest.mark.parametrize("ending", ["npz", "compressed.npz"])
@pytest.mark.parametrize("size", [7, N_MANY, None])
def test_a_flipped_bit_in_an_npz_file_is_noticed(tmp_path, ending, size):
    path = write(tmp_path, ending, labels=MANY_LABELS)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("hidden_states.npy")
    content = bytearray(path.read_bytes())
    content[info.header_offset + info.compress_size - 20] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=rf"many\.{ending} cannot be read as .npz data"):
        read_states(path) if size is None else list(state_blocks(path, size))


def npz_of(path, content, name="hidden_states.npy", **changes):
    """An archive of one member, of which the directory says what is not so."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
        for key, value in changes.items():
            setattr(archive.getinfo(name), key, value)
    return path


def npy(array, **changes):
    header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    text = f"{ {**header, **changes}!r}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + array.tobytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(MANY, shape=(N_MANY + 1, 5)), r"460 bytes, which does not match its shape \(24, 5\)"),
        (npy(MANY, shape=(N_MANY - 1, 5)), r"460 bytes, which does not match its shape \(22, 5\)"),
        (npy(MANY, shape=(10**15, 5)), r"which does not match its shape \(1000000000000000, 5\)"),
        (npy(MANY, shape=(-N_MANY, -5)), r"which does not match its shape \(-23, -5\)"),
        (npy(MANY)[:-1], r"459 bytes, which"),
        (npy(MANY)[:20], "EOF"),
        (npy(MANY, descr="|O"), "'hidden_states' contains Python objects, which are not read"),
        (npy(MANY, descr="nonsense"), "descr"),
        (npy(MANY).replace(b"NUMPY\x01", b"NUMPY\x07"), r"version \(7, 0\) of the .npy format"),
        (b"something else", "magic string"),
        (b"", "EOF"),
    ],
    ids=["longer", "shorter", "huge", "negative", "cut", "no header", "object", "dtype", "version", "junk", "empty"],
)
def test_a_damaged_array_in_an_npz_file_is_said_at_once(tmp_path, content, message):
    path = npz_of(tmp_path / "a.npz", content)
    for attempt in (lambda: next(state_blocks(path, 4)), lambda: read_states(path)):
        with pytest.raises(InvalidInputError, match=rf"a\.npz cannot be read as .npz data: .*{message}"):
            attempt()


def test_an_npz_file_whose_directory_promises_too_much_is_refused(tmp_path):
    content = npy(MANY, shape=(N_MANY + 1, 5))
    path = npz_of(tmp_path / "a.npz", content, file_size=len(content) + 20)
    with pytest.raises(InvalidInputError, match=r"a\.npz cannot be read as .npz data"):
        list(state_blocks(path, 4))


def test_an_encrypted_npz_file_is_refused(tmp_path):
    path = npz_of(tmp_path / "a.npz", npy(MANY))
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    content[6] |= 1
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"a\.npz cannot be read as .npz data: .*encrypted"):
        list(state_blocks(path, 4))


ODD_STATES = [  # of any file of rows
    (None, "'hidden_states' must be a numeric array. Got None"),
    ([1.0, None, 2.0], r"must be a numeric array. Got \[1.0, None, 2.0\]"),
    ([1.0], r"'hidden_states' has shape \(1,\) instead of \(3,\)"),
    ([1.0, 2.0, 3.0, 4.0], r"'hidden_states' has shape \(4,\) instead of \(3,\)"),
    ([], r"'hidden_states' has shape \(0,\) instead of \(3,\)"),
]
ODD_JSON = [  # a column of Parquet is of one type
    (["a", "b", "c"], "must be a numeric array. Got .*'a'"),
    (["1.0", "2", "3"], "must be a numeric array. Got .*'1.0'"),
    ([[1.0, 2.0], [3.0]], "must be a numeric array: .*inhomogeneous"),
    ([1.0, 10**400, 2.0], "must be a numeric array"),
    ({"a": 1.0}, "must be a numeric array. Got {'a': 1.0}"),
]


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [(kind, *case) for kind, case in [*product(["jsonl", "parquet"], ODD_STATES), *product(["jsonl"], ODD_JSON)]],
)
def test_states_that_are_no_numbers_of_one_shape_are_named_by_their_place(tmp_path, kind, wrong, message):
    import pyarrow as pa

    states = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], wrong]
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        write_jsonl(path, [{"hidden_states": state} for state in states])
    else:
        write_parquet(path, hidden_states=pa.array(states, pa.list_(pa.float32())))
    unit = "line" if kind == "jsonl" else "row"
    for attempt in (lambda: list(state_blocks(path, 4)), lambda: read_states(path)):
        with pytest.raises(InvalidInputError, match=rf"a\.{kind}, {unit} 3: .*{message}"):
            attempt()
    blocks = state_blocks(path, 2)
    assert next(blocks).hidden_states.shape == (2, 3)  # what is sound is read before
    with pytest.raises(InvalidInputError, match=rf"{unit} 3"):
        next(blocks)


def test_parquet_of_texts_or_ragged_positions_is_no_numbers(tmp_path):
    for wrong in (["1.0", "2.0"], [["1.0"], ["2.0"]], [{"a": 1.0}, {"a": 2.0}]):
        path = write_parquet(tmp_path / "a.parquet", hidden_states=wrong)
        with pytest.raises(InvalidInputError, match=r"a\.parquet, row 1: 'hidden_states' must be a numeric array"):
            list(state_blocks(path))
    path = write_parquet(tmp_path / "a.parquet", hidden_states=[[[1.0], [2.0]], [[1.0], [2.0, 3.0]], [[1.0], None]])
    with pytest.raises(InvalidInputError, match=r"row 2: 'hidden_states' must be a numeric array: .*inhomogeneous"):
        list(state_blocks(path))


def test_keys_that_come_and_go_are_named_across_blocks(tmp_path):
    for name in ("hidden_states", "labels", "ids", "texts"):
        lines = rows()
        del lines[2][name]
        blocks = state_blocks(write_jsonl(tmp_path / "a.jsonl", lines), 2)
        assert len(next(blocks)) == 2
        with pytest.raises(InvalidInputError, match=rf"a\.jsonl, line 3: '{name}' is missing\."):
            next(blocks)
    for name in ("labels", "ids", "texts", "label", "id", "text"):
        lines = [{"hidden_states": row["hidden_states"]} for row in rows()]
        lines[2][name] = "late"
        blocks = state_blocks(write_jsonl(tmp_path / "a.jsonl", lines), 2)
        assert next(blocks).labels is None
        with pytest.raises(InvalidInputError, match=rf"a\.jsonl, line 3: '{name}' is missing in other lines"):
            next(blocks)


def test_lines_are_counted_with_blank_ones(tmp_path):
    path = tmp_path / "a.jsonl"
    good, other = map(json.dumps, rows()[:2])
    path.write_text(f"\n{good}\n\n{other}\n \n{good[:-5]}\n")
    blocks = state_blocks(path, 1)
    assert [len(next(blocks)) for _ in range(2)] == [1, 1]
    with pytest.raises(InvalidInputError, match=r"a\.jsonl, line 6: not valid JSON"):
        next(blocks)


def test_files_of_rows_without_rows_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n  \n")
    path = write_parquet(tmp_path / "a.parquet", hidden_states=[])
    for attempt in (state_blocks, read_states):
        with pytest.raises(InvalidInputError, match=r"a\.jsonl: no 'hidden_states' found"):
            list(attempt(tmp_path / "a.jsonl"))
        with pytest.raises(InvalidInputError, match=r"a\.parquet is empty"):
            list(attempt(path))


def test_blocks_of_parquet_without_pyarrow_name_the_extra(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", hidden_states=STATES.tolist())
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    for attempt in (lambda: next(state_blocks(path)), lambda: has_states(path)):
        with pytest.raises(ImportError, match=r"pip install 'torchsdm\[report\]'"):
            attempt()


# --- Rows of documents -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_the_keys_of_documents_are_found_too(tmp_path, kind):
    lines = rows(labels="label", ids="id", texts="text")
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        write_parquet(path, **{key: [line[key] for line in lines] for key in lines[0]})
    else:
        write_jsonl(path, lines)
    assert_read(read_states(path))
    first, last = state_blocks(path, 2)
    assert [*first.labels, *last.labels] == LABELS and [*first.ids, *last.ids] == IDS
    assert [*first.texts, *last.texts] == TEXTS


def test_the_plural_goes_before_the_singular(tmp_path):
    lines = [{**row, "label": "other", "id": 0, "text": "other"} for row in rows()]
    assert_read(read_states(write_jsonl(tmp_path / "a.jsonl", lines)))
    columns = {key: [line[key] for line in lines] for key in lines[0]}
    assert_read(read_states(write_parquet(tmp_path / "a.parquet", **columns)))
    del lines[1]["labels"]
    with pytest.raises(InvalidInputError, match=r"line 2: 'labels' is missing\."):
        read_states(write_jsonl(tmp_path / "a.jsonl", lines))
    lines = [{"hidden_states": [1.0], "label": 1}, {"hidden_states": [1.0], "label": 1, "labels": 2}]
    with pytest.raises(InvalidInputError, match=r"line 2: 'labels' is missing in other lines"):
        read_states(write_jsonl(tmp_path / "a.jsonl", lines))


def test_a_singular_is_found_for_its_own_plural_alone(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", rows(labels="label", ids="id", texts="text"))
    for labels in ("stars", "Labels", "s"):
        with pytest.raises(InvalidInputError, match=f"no '{labels}' found"):
            read_states(path, labels=labels)
    read = read_states(path, labels="id")  # what is taken for the labels is not taken for ids as well
    assert list(read.labels) == IDS and read.ids is None and list(read.texts) == TEXTS
    (block,) = state_blocks(path, ids="text")
    assert list(block.ids) == TEXTS and block.texts is None and list(block.labels) == LABELS


def test_one_column_may_be_two_things(tmp_path):
    columns = {"hidden_states": STATES.tolist(), "name": LABELS}
    for path in (
        write_parquet(tmp_path / "a.parquet", **columns),
        write_jsonl(
            tmp_path / "a.jsonl",
            [{"hidden_states": h, "name": y} for h, y in zip(STATES.tolist(), LABELS, strict=True)],
        ),
    ):
        read = read_states(path, labels="name", texts="name")
        assert read.labels == LABELS and read.texts == LABELS and read.ids is None


# --- Whether there are states ----------------------------------------------------------------------------------------


def has_states(path, *column, **options):
    return Source.open(path).holds_states(*column, **options)


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_of_states_have_states(tmp_path, ending):
    path = write(tmp_path, ending)
    assert has_states(path) is True and has_states(str(path)) is True
    by_row = ending not in ARRAY_ENDINGS
    assert has_states(path, "h") is not by_row


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.tsv", "a.csv.gz", "a.parquet"])
def test_files_of_texts_have_no_states(tmp_path, name):
    path = tmp_path / name
    if "jsonl" in name:
        write_jsonl(path, [{"text": "a"}, {"text": "b", "hidden_states": [1]}])
    elif name == "a.parquet":
        write_parquet(path, text=["a", "b"])
    else:
        (gzip.open if name.endswith("gz") else open)(path, "wt").write("hidden_states\ttext\n1\ta\n")
    assert has_states(path) is False


def test_blank_lines_before_the_first_row_do_no_harm(tmp_path):
    (tmp_path / "a.jsonl").write_text('\n \n{"h": [1]}\nnot JSON\n')
    assert has_states(tmp_path / "a.jsonl", "h") and not has_states(tmp_path / "a.jsonl")


def test_where_there_is_nothing_it_is_said(tmp_path):
    for name in ("none.npz", "none.jsonl", "none", "none.csv"):
        with pytest.raises(InvalidInputError, match=rf"There is no file '.*{name}'"):
            has_states(tmp_path / name)
    for name in ("a.npz", "a.safetensors", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.csv", "a.tsv"):
        (tmp_path / name).write_bytes(b"")
        is_binary = name.endswith((".npz", ".safetensors", ".parquet"))  # no rows would still be some bytes
        said = rf"{name} is empty: it is not even" if is_binary else rf"{name} is empty\.$"
        with pytest.raises(InvalidInputError, match=said) as refused:
            has_states(tmp_path / name)
        assert isinstance(refused.value, EmptyInputError) != is_binary
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"\n\n"))
    write_parquet(tmp_path / "a.parquet", hidden_states=[])
    for name in ("a.jsonl.gz", "a.parquet"):
        with pytest.raises(InvalidInputError, match=rf"{name} is empty\.$"):
            has_states(tmp_path / name)


def test_what_holds_neither_states_nor_texts_is_said(tmp_path):
    with pytest.raises(InvalidInputError, match=r"has no files; names that begin with a dot or an underscore do not"):
        has_states(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(
        InvalidInputError, match=r"must end in .npz, .safetensors, .jsonl, .parquet, .csv, .tsv. Got 'a.txt'"
    ):
        has_states(tmp_path / "a.txt")
    for name, message in (("a.jsonl", ", line 1: not"), ("a.parquet", " cannot be read as Parquet: ")):
        (tmp_path / name).write_bytes(b"\xff\xfe junk")
        with pytest.raises(InvalidInputError, match=f"{name}{message}"):
            has_states(tmp_path / name)


# --- Several files ----------------------------------------------------------------------------------------------------


def parts(folder, kind, **changed):
    """Seven rows in three files, one of which is empty; ``changed`` replaces the columns of the last."""
    folder.mkdir()
    columns = {"hidden_states": MANY[:7].tolist(), "ids": list("abcdefg")}
    for name, rows in (("0", slice(0, 3)), ("1", slice(0, 0)), ("2", slice(3, 7))):
        part = {key: values[rows] for key, values in columns.items()} | (changed if name == "2" else {})
        part = {key: values for key, values in part.items() if values is not None}
        if kind == "parquet":
            write_parquet(folder / f"{name}.parquet", **part)
        else:
            lines = [dict(zip(part, row, strict=True)) for row in zip(*part.values(), strict=True)]
            write_jsonl(folder / f"{name}.{kind}", lines)
    (folder / "_SUCCESS").touch()
    return folder


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_the_files_of_a_folder_are_read_as_one(tmp_path, kind):
    folder = parts(tmp_path / "data", kind)
    assert has_states(folder) and has_states(folder / "*", text="text")
    blocks = list(state_blocks(folder, 2))
    assert [len(block) for block in blocks] == [2, 2, 2, 1]  # files do not cut blocks
    np.testing.assert_allclose(joined(blocks, "hidden_states"), MANY[:7], rtol=1e-6)
    assert [name for block in blocks for name in block.ids] == list("abcdefg")
    assert blocks[1].places == [f"0.{kind} {'row' if kind == 'parquet' else 'line'} 3", blocks[1].place(1)]
    assert blocks[1].place(1).startswith(f"2.{kind} ")
    np.testing.assert_array_equal(
        read_states(folder / f"*.{kind}", needs_labels=False).hidden_states, joined(blocks, "hidden_states")
    )


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_bad_rows_are_numbered_over_all_files(tmp_path, kind):
    folder = parts(tmp_path / "data", kind, ids=["d", "e", "a", "e"])
    bad = {}
    (block,) = state_blocks(folder, bad=bad)
    assert block.ids == list("abcde")
    unit = "row" if kind == "parquet" else "line"
    assert {number: (str(row), row.id) for number, row in bad.items()} == {
        5: (f"2.{kind} {unit} 3: duplicate id", "a"),
        6: (f"2.{kind} {unit} 4: duplicate id", "e"),
    }
    with pytest.raises(InvalidInputError, match=rf"data, 2\.{kind} {unit} 3: duplicate id\.$"):
        list(state_blocks(folder))


def test_files_of_states_must_have_the_same_columns(tmp_path):
    for number, (name, changed) in enumerate(
        {
            "ids": {"ids": None},
            "id": {"ids": None, "id": list("defg")},
            "hidden_states": {"hidden_states": None},
        }.items()
    ):
        folder = parts(tmp_path / str(number), "parquet", **changed)
        with pytest.raises(InvalidInputError, match=rf"same columns\. [02].parquet has no column '{name}', but"):
            next(state_blocks(folder, bad={}))


def test_states_and_texts_are_not_mixed(tmp_path):
    for kind in ("jsonl", "parquet"):
        folder = parts(tmp_path / kind, kind, hidden_states=None, text=list("defg"))
        for text in (None, "text"):
            with pytest.raises(InvalidInputError, match=rf"0.{kind} contains states, 2.{kind} texts\.$"):
                has_states(folder, text=text)


def test_a_file_of_states_cut_in_half_is_named_before_the_first_block(tmp_path):
    folder = parts(tmp_path / "data", "parquet")
    path = folder / "2.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    for attempt in (has_states, lambda folder: next(state_blocks(folder, 1)), read_states):
        with pytest.raises(InvalidInputError, match=r"data/2\.parquet cannot be read as Parquet: "):
            attempt(folder)


def test_a_folder_without_rows_is_empty(tmp_path):
    for kind in ("jsonl", "parquet"):
        parts(tmp_path / kind, kind)
        for name in "02":
            (tmp_path / kind / f"{name}.{kind}").unlink()
        with pytest.raises(EmptyInputError, match=rf"{kind} is empty\.$"):
            has_states(tmp_path / kind)


# --- Joining and taking rows -----------------------------------------------------------------------------------------


def test_labelled_states_know_their_length():
    assert len(LabelledStates(STATES, LABELS)) == 3


def test_blocks_joined_are_the_whole():
    whole = make_whole()
    joined = join_states([whole.take(rows) for rows in ([0], [1, 2, 3], [4, 5])])
    for name in ("hidden_states", "labels", "ids", "texts", "label_logits", "logit_labels", "places"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    assert joined.origin is whole.origin
    tensors = join_states([LabelledStates(torch.from_numpy(np.zeros((6, 4))), None)] * 2)
    assert tensors.hidden_states.shape == (12, 4) and tensors.labels is None and tensors.ids is None
    with pytest.raises(InvalidInputError, match="at least one block"):
        join_states([])


def make_whole(**changes):
    states = np.arange(24, dtype=np.float32).reshape(6, 4)
    return LabelledStates(
        states,
        np.array(list("aabbab")),
        list(range(6)),
        [f"t{i}" for i in range(6)],
        **{"label_logits": states[:, :2], "logit_labels": ("b", "a"), "places": [f"line {3 * i}" for i in range(6)]}
        | changes,
    )


def test_blocks_of_different_kinds_are_not_joined():
    with pytest.raises(InvalidInputError, match="one origin and the same label logits"):
        join_states([make_whole(), make_whole(logit_labels=("a", "b"))])
    with pytest.raises(InvalidInputError, match="one origin and the same label logits"):
        join_states([make_whole(origin=make_origin("f00")), make_whole(origin=make_origin("f01"))])


def test_taking_rows_takes_everything_that_is_there():
    whole = make_whole(origin=make_origin("f00"))
    some = whole.take(np.array([4, 1]))
    assert some.ids == [4, 1] and some.texts == ["t4", "t1"] and some.places == ["line 12", "line 3"]
    assert some.origin is whole.origin and some.logit_labels == ("b", "a")
    for name in ("hidden_states", "labels", "label_logits"):
        np.testing.assert_array_equal(getattr(some, name), getattr(whole, name)[[4, 1]])
    bare = LabelledStates(torch.from_numpy(whole.hidden_states), None).take([0])
    assert isinstance(bare.hidden_states, torch.Tensor)
    assert {bare.labels, bare.ids, bare.texts, bare.label_logits, bare.places} == {None}


def test_label_logits_are_read_in_the_order_of_the_classes():
    whole = make_whole()
    np.testing.assert_array_equal(whole.label_logits_of(["a", "b"]), whole.hidden_states[:, [1, 0]])
    np.testing.assert_array_equal(whole.label_logits_of(["b", "a"]), whole.hidden_states[:, :2])
    tensor = make_whole(label_logits=torch.from_numpy(whole.hidden_states[:, :2]), logit_labels=np.array(["b", "a"]))
    assert torch.equal(tensor.label_logits_of(["a", "b"]), torch.from_numpy(whole.hidden_states[:, [1, 0]]))
    with pytest.raises(InvalidInputError, match=r"words for the labels \['b', 'a'\], but the classes are \['a', 'c'\]"):
        whole.label_logits_of(["a", "c"])
    assert make_whole(label_logits=None).label_logits_of(["a", "b"]) is None


def test_label_logits_without_the_labels_of_their_columns_are_refused():
    with pytest.raises(InvalidInputError, match=r"must come with the labels of their columns. Pass logit_labels"):
        make_whole(logit_labels=None)
    with pytest.raises(InvalidInputError, match=r"a column for each of the 3 'logit_labels'. Got shape \(6, 2\)"):
        make_whole(logit_labels=("a", "b", "c"))


def test_a_row_has_a_place():
    assert make_whole().place(2) == "line 6" and make_whole(places=None).place(2) == "row 3"


@pytest.mark.parametrize("size", [None, 2])
def test_rows_of_files_have_their_places(tmp_path, size):
    def places(path):
        blocks = [read_states(path)] if size is None else list(state_blocks(path, size))
        return [place for block in blocks for place in block.places]

    lines = [json.dumps(row) for row in rows()]
    (tmp_path / "a.jsonl").write_text("\n" + lines[0] + "\n\n  \n" + "\n".join(lines[1:]), encoding="utf-8")
    assert places(tmp_path / "a.jsonl") == ["line 2", "line 5", "line 6"]
    write_parquet(tmp_path / "a.parquet", hidden_states=STATES.tolist(), labels=LABELS)
    np.savez(tmp_path / "a.npz", hidden_states=STATES, labels=np.array(LABELS))
    save_file({"hidden_states": STATES, "labels": np.array([1, 0, 1])}, tmp_path / "a.safetensors")
    for name in ("a.parquet", "a.npz", "a.safetensors"):
        assert places(tmp_path / name) == ["row 1", "row 2", "row 3"]


def make_origin(fingerprint):
    return StatesOrigin(
        ModelOrigin(None, None, fingerprint, "float32"),
        PromptOrigin("{document}", (), None, False, {}, "X"),
        PoolingOrigin(("mean",), -1, None, 0, 128),
    )


# --- Bad rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 10])
def test_bad_rows_are_noted_before_the_block_that_follows_them(tmp_path, size):
    good = [{"hidden_states": [1.0, 2.0], "ids": f"g{number}"} for number in range(3)]
    lines = [{"hidden_states": [1.0], "ids": "b0"}, good[0], {"ids": "b2"}, good[1], good[2], {"hidden_states": None}]
    bad = {}
    path = write_jsonl(tmp_path / "a.jsonl", lines)
    n_noted = []
    read = []
    for block in state_blocks(path, size, bad=bad):
        read += block.ids
        n_noted.append(len(bad))
    assert read == ["g0", "g1", "g2"] and n_noted == {1: [1, 2, 2], 2: [2, 3], 10: [3]}[size]
    assert {number: (row.id, str(row)) for number, row in bad.items()} == {
        0: ("b0", "line 1: 'hidden_states' has shape (1,) instead of (2,)"),
        2: ("b2", "line 3: 'hidden_states' is missing"),
        5: (5, "line 6: 'ids' is missing"),
    }


def test_the_width_that_is_wanted_goes_before_the_shape_of_most(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"hidden_states": state} for state in ([1.0], [2.0], [1.0, 2.0])])
    for width, expected in ((None, [0, 1]), (2, [2]), (3, [0, 1])):
        bad = {}
        blocks = list(state_blocks(path, bad=bad, width=width))
        assert sorted({*range(3)} - {*bad}) == expected and sum(map(len, blocks)) == len(expected)


def test_texts_are_told_from_states_by_the_first_line_that_has_either(tmp_path):
    for lines, expected in {
        ("{", '{"id": 1}', '{"hidden_states": [1]}', '{"text": "a"}'): True,
        ("{", '{"id": 1}', '{"text": "a"}', '{"hidden_states": [1]}'): False,
        ("{", '{"id": 1}'): False,
    }.items():
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
        assert has_states(tmp_path / "a.jsonl", text="text") is expected
    (tmp_path / "a.jsonl").write_text("{\n[")
    with pytest.raises(InvalidInputError, match=r"a\.jsonl has no row that can be read. line 1: not valid JSON"):
        has_states(tmp_path / "a.jsonl", text="text")


def test_rows_keep_the_types_of_labels():
    data = LabelledStates(np.zeros((4, 2)), [0, 1, "moon", 1])
    assert data.take([1, 2]).labels.tolist() == [1, "moon"]
    assert data.take([0, 1]).labels.tolist() == [0, 1]
    assert LabelledStates(np.zeros((4, 2)), None).take([1]).labels is None


def test_labels_of_a_few_rows_are_not_dropped_where_bad_rows_are_noted(tmp_path):
    rows = [{"hidden_states": [0.0, 1.0]} for _ in range(5)] + [{"hidden_states": [1.0, 0.0], "label": "a"}]
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (block,) = state_blocks(path, bad={}, width=2)
    assert list(block.labels) == [None] * 5 + ["a"]
