"""Reading, splitting and recognising labelled states."""

from __future__ import annotations

import gzip
import json
import sys
import warnings

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from torchsdm import LabelledStates, SDMClassifier, data, read_states
from torchsdm.data import fingerprint, stratified_split
from torchsdm.errors import InvalidInputError, SDMWarning, TorchSDMError

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
        SDMClassifier(alpha=0.6, n_filters=4, n_rounds=1, max_epochs=1, random_state=0) for _ in range(2)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SDMWarning)
        classifier.fit(states.hidden_states, states.labels, ids=states.ids)
        again.fit(insects.X[:60], insects.y[:60])
    assert np.array_equal(classifier.decide(insects.fresh).logits, again.decide(insects.fresh).logits)


# --- Broken files ----------------------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"'path' of read_states must be a file. Got '.*none.npz'"):
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
    with pytest.raises(InvalidInputError, match=r"line 2: 'texts' is missing in an earlier line"):
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


# --- Splits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.5, 0.3, 0.01, 0.99])
def test_a_split_divides_every_class_alike(share):
    labels = np.repeat([0, 1, 2, 3], [100, 7, 2, 3])
    labels = np.random.default_rng(1).permutation(labels)
    train, calibration = stratified_split(labels, share, np.random.default_rng(0))
    assert sorted([*train, *calibration]) == list(range(len(labels)))
    assert (np.diff(train) > 0).all() and (np.diff(calibration) > 0).all()
    for c in range(4):
        n, chosen = (labels == c).sum(), (labels[calibration] == c).sum()
        assert 1 <= chosen <= n - 1
        # its share within one point, but for the point that each part must have and that the next class makes up for
        assert abs(chosen - share * n) <= 1.5
    if share == 0.5:
        assert len(calibration) == 56


def test_a_split_carries_what_rounding_leaves_over():
    # three of each class, one half: 1.5 each. 2 of the first, then 1, then 2, ...
    labels = np.repeat(np.arange(6), 3)
    _, calibration = stratified_split(labels, 0.5, np.random.default_rng(0))
    assert np.bincount(labels[calibration]).tolist() == [2, 1, 2, 1, 2, 1]


def test_a_split_follows_its_generator():
    labels = np.repeat([0, 1], 50)
    first, again, other = (stratified_split(labels, 0.5, np.random.default_rng(seed))[1] for seed in (3, 3, 4))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    counts = np.zeros(100)
    for seed in range(400):
        counts[stratified_split(labels, 0.5, np.random.default_rng(seed))[1]] += 1
    assert abs(counts / 400 - 0.5).max() < 0.12  # every row is chosen half of the time: five standard deviations


# --- Fingerprints ----------------------------------------------------------------------------------------------------


def test_a_fingerprint_knows_states_labels_and_shape():
    states, labels = torch.arange(24, dtype=torch.float32).reshape(6, 4), np.array(list("ababab"))
    own = fingerprint(states, labels)
    assert len(own) == 64 and own == fingerprint(states.clone(), labels.copy())
    assert own == fingerprint(states.double(), labels)  # states are used as float32
    changed = states.clone()
    changed[5, 3] = 23 + 2.0**-19  # one unit in the last place
    others = [
        fingerprint(changed, labels),
        fingerprint(states, np.array(list("ababaa"))),
        fingerprint(states.reshape(6, 2, 2), labels),
        fingerprint(states.flip(0), labels),
        fingerprint(states.T.contiguous().reshape(6, 4), labels),
        fingerprint(states, np.array(["ab", "a", "b", "a", "b", ""])),
    ]
    assert len({own, *others}) == 7


def test_a_fingerprint_of_many_rows_sees_the_last(monkeypatch):
    states, labels = torch.randn(50, 2), np.arange(50) % 2
    own = fingerprint(states, labels)
    monkeypatch.setattr(data, "_BLOCK_ROWS", 7)
    assert fingerprint(states, labels) == own
    assert fingerprint(states.T.contiguous().T, labels) == own  # another layout in memory
    states[49, 1] += 1
    assert fingerprint(states, labels) != own


def test_labelled_states_know_their_length():
    assert len(LabelledStates(STATES, LABELS)) == 3
