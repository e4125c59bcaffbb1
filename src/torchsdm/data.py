"""Labelled hidden states: holding, splitting, reading and recognising them."""

from __future__ import annotations

import gzip
import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from torchsdm.errors import InvalidInputError, MissingExtraError, TorchSDMError
from torchsdm.shards import StoredShards
from torchsdm.validation import Array, ArrayLike

_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class LabelledStates:
    """Hidden states with their labels and, where known, ids and texts.

    Attributes
    ----------
    hidden_states : (N, D) or (N, positions, D)
    labels : (N,)
        Of any type that scikit-learn accepts; None where the states have none.
    ids, texts : (N,), optional
    label_logits : (N, C), optional
        What the language model itself says of each label: in the order of the prompt's label words where ``origin``
        knows them, else in the order of the sorted labels.
    origin : mapping, optional
        The language model, prompt and documents that the states were made from.
    """

    hidden_states: ArrayLike
    labels: ArrayLike | None
    ids: Sequence[Any] | Array | None = None
    texts: Sequence[str] | Array | None = None
    label_logits: ArrayLike | None = None
    origin: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.hidden_states)

    def label_logits_of(self, classes: Sequence[Any]) -> ArrayLike | None:
        """The label logits with their columns in the order of classes; None where there are none."""
        if self.label_logits is None or self.origin is None:
            return self.label_logits
        known = [label for label, _ in self.origin["prompt"]["label_words"]]
        if sorted(map(repr, known)) != sorted(map(repr, classes)):
            raise InvalidInputError(
                f"The prompt has words for the labels {known!r}, and the classes are {list(classes)!r}: the language "
                "model's own logits cannot be compared. Give label words for the classes and extract anew."
            )
        order = [known.index(label) for label in classes]
        logits: ArrayLike = (
            self.label_logits[:, order]
            if isinstance(self.label_logits, Tensor)
            else np.asarray(self.label_logits)[:, order]
        )
        return logits

    @property
    def states_origin(self) -> dict[str, Any] | None:
        """The origin but for the documents: what any states must share to be used together."""
        return None if self.origin is None else {key: value for key, value in self.origin.items() if key != "documents"}


def stratified_split(labels: Array, calibration_size: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Row numbers of a training and a calibration part, each class divided alike, at least one point of it in each.

    Rows come back ascending. What rounding leaves over in one class is made up for in the next.
    """
    calibration: list[Array] = []
    carry = 0.0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        wanted = len(rows) * calibration_size + carry
        rounded = int(np.floor(wanted + 0.5))
        carry = wanted - rounded
        calibration.append(rows[: min(max(1, rounded), len(rows) - 1)])
    chosen = np.sort(np.concatenate(calibration))
    return np.setdiff1d(np.arange(len(labels)), chosen, assume_unique=True), chosen


def fingerprint(hidden_states: Tensor, labels: Array) -> str:
    """SHA-256 of states and labels, by which a model knows the data it was trained on."""
    digest = hashlib.sha256(f"{tuple(hidden_states.shape)}".encode())
    for start in range(0, len(hidden_states), _BLOCK_ROWS):
        block = hidden_states[start : start + _BLOCK_ROWS].to("cpu", torch.float32).contiguous()
        digest.update(block.numpy().tobytes())
    digest.update("\0".join(repr(label) for label in labels.tolist()).encode())  # repr tells 2 from '2'
    return digest.hexdigest()


def read_states(
    path: str | Path,
    *,
    states: str = "hidden_states",
    labels: str = "labels",
    ids: str = "ids",
    texts: str = "texts",
) -> LabelledStates:
    """Read labelled hidden states from an NPZ, safetensors, JSONL (also ``.gz``) or Parquet file, or from shards.

    Parameters
    ----------
    path : path
        A file, or a directory that ``HiddenStateExtractor.extract_to`` or ``sdm embed`` wrote.
    states, labels, ids, texts : str
        Names of the arrays, columns or keys of a file. ids and texts may be absent.
    """
    path = Path(path)
    if path.is_dir():
        return _read_shards(path)
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    kind = suffixes[-1] if suffixes else ""
    if not path.is_file():
        raise InvalidInputError(f"'path' of read_states must be a file. Got {str(path)!r}, which is not there.")
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    if kind not in readers:
        raise InvalidInputError(f"'path' of read_states must end in {', '.join(readers)}. Got {path.name!r}.")
    try:
        columns = readers[kind](path, (states, labels, ids, texts))
    except TorchSDMError:
        raise
    except (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile, SafetensorError) as error:
        reason = "it holds Python objects, which are not read" if "pickle" in str(error) else str(error)
        raise InvalidInputError(f"{path} cannot be read as {kind} data: {reason}.") from error
    for name in (states, labels):
        if name not in columns:
            raise InvalidInputError(
                f"{path}: no {name!r} found. Name the right one in read_states(states=..., labels=...)."
            )
    return LabelledStates(columns[states], columns[labels], columns.get(ids), columns.get(texts))


def _read_shards(directory: Path) -> LabelledStates:
    shards = StoredShards.open(directory, verify=True)
    shards.check_complete()
    tensors = shards.tensors()
    rows = list(shards.examples())
    labels = [row["label"] for row in rows if "label" in row]
    return LabelledStates(
        tensors["hidden_states"],
        np.array(labels) if labels else None,
        [row["id"] for row in rows],
        [row["text"] for row in rows] if all("text" in row for row in rows) else None,
        tensors.get("label_logits"),
        shards.manifest["origin"],
    )


def _read_npz(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in names if name in archive.files}


def _read_safetensors(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    with safe_open(path, framework="pt") as archive:
        present = set(archive.keys())
        return {name: archive.get_tensor(name) for name in names if name in present}


def _read_jsonl(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {}
    for n_rows, (number, row) in enumerate(json_lines(path), start=1):
        for name in names:
            if name in row:
                columns.setdefault(name, []).append(row[name])
                if name == names[0] and np.shape(row[name]) != np.shape(columns[name][0]):
                    raise InvalidInputError(
                        f"{path}, line {number}: {name!r} has shape {np.shape(row[name])} where the first line has "
                        f"{np.shape(columns[name][0])}."
                    )
                if len(columns[name]) != n_rows:
                    raise InvalidInputError(f"{path}, line {number}: {name!r} is missing in an earlier line.")
            elif name in columns:
                raise InvalidInputError(f"{path}, line {number}: {name!r} is missing.")
    return dict(columns)


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a text file in UTF-8, which may be compressed; what cannot be read is said with its line."""
    number = 0
    try:
        with _open(path)(path, "rt", encoding="utf-8-sig", newline="") as lines:
            for number, line in enumerate(lines, start=1):  # noqa: B007  (said below)
                yield line
    except UnicodeDecodeError as error:
        place = _first_undecodable_line(path)
        raise InvalidInputError(f"{path}, line {place}: not UTF-8 ({error.reason}).") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInputError(f"{path} cannot be read beyond line {number}: {error}.") from error


def _open(path: Path) -> Any:
    return gzip.open if path.suffix == ".gz" else open


def _first_undecodable_line(path: Path) -> int:
    """A decoder looks ahead, so that the line in which it fails has to be looked for."""
    with _open(path)(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file, which may be compressed, with their line numbers from 1."""
    for number, line in enumerate(text_lines(path), start=1):
        if line.strip():
            yield number, _json_object(line, f"{path}, line {number}")


def _json_object(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"{place}: not valid JSON ({error.msg}).") from error
    except (ValueError, RecursionError) as error:  # a number or a nesting beyond what Python takes
        raise InvalidInputError(f"{place}: not usable as JSON ({error}).") from error
    if not isinstance(row, dict):
        raise InvalidInputError(f"{place}: expected a JSON object. Got {type(row).__name__}.")
    return row


def _read_parquet(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError("pyarrow", "report", "Reading Parquet") from error
    present = set(pq.read_schema(path).names)
    table = pq.read_table(path, columns=[name for name in names if name in present])
    columns: dict[str, Any] = {name: table[name].to_pylist() for name in table.column_names}
    if names[0] in columns:
        columns[names[0]] = np.asarray(columns[names[0]], dtype=np.float32)
    return columns
