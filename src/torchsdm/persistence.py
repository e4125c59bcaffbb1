"""A model as a directory: one ``config.json`` that names every other file.

Files are written under names that carry their digest, then ``config.json`` is replaced in one step, then files that no
config names any more are removed. Whenever the writer dies, the directory holds the old model or the new one, whole.
There is no pickle: tensors are safetensors (memory-mapped on loading), the support's metadata is SQLite (one row can be
read without the rest), everything else is strict JSON.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.validation import Array

FORMAT = "torchsdm"
FORMAT_VERSION = 1
CONFIG_NAME = "config.json"
CARD_NAME = "README.md"
_TEMPORARY_PREFIX = ".writing-"

ExampleRow = tuple[Any, Any, "str | None"]  # id, label, text


@dataclass(frozen=True)
class StoredModel:
    """A directory that :func:`write_model` made, checked on opening; tensors are memory-mapped when asked for."""

    directory: Path
    config: dict[str, Any]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of one file, backed by the file."""
        path = self.path(name)
        try:
            with safe_open(path, framework="pt") as archive:
                return {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelFileError(f"{path} is damaged and cannot be read: {error}. Save the model again.") from error

    def path(self, name: str) -> Path:
        """The file that a name stands for."""
        return self.directory / str(self.config["files"][name]["file"])


def write_model(
    directory: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Mapping[str, Tensor]],
    tables: Mapping[str, Iterable[ExampleRow]],
    card: str,
) -> None:
    """Write a model so that a crash at any moment leaves the old model or the new one.

    ``config`` must be strict JSON; each of ``tensors`` becomes a safetensors file, each of ``tables`` an SQLite file.
    """
    directory = Path(directory)
    old_files: set[str] = set()
    if (directory / CONFIG_NAME).exists():
        old_files = {str(entry["file"]) for entry in _read_config(directory)["files"].values()}
    elif directory.exists() and not directory.is_dir():
        raise ModelFileError(f"{directory} is a file; a model needs a directory.")
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob(f"{_TEMPORARY_PREFIX}*"):
        stale.unlink(missing_ok=True)

    files: dict[str, dict[str, Any]] = {}
    for name, content in tensors.items():
        temporary = directory / f"{_TEMPORARY_PREFIX}{name}.safetensors"
        save_file({key: tensor.contiguous() for key, tensor in content.items()}, temporary)
        files[name] = _settle(temporary, name)
    for name, rows in tables.items():
        temporary = directory / f"{_TEMPORARY_PREFIX}{name}.sqlite"
        _write_table(temporary, rows)
        files[name] = _settle(temporary, name)

    full = {"format": FORMAT, "format_version": FORMAT_VERSION, **config, "files": files}
    replace_file(directory / CONFIG_NAME, (strict_json(full) + "\n").encode())
    replace_file(directory / CARD_NAME, card.encode())
    for unused in old_files - {entry["file"] for entry in files.values()}:
        try:
            (directory / unused).unlink(missing_ok=True)
        except PermissionError:  # a system that cannot remove mapped files; the next save tries again
            continue


def open_model(directory: str | Path, kind: str, *, verify: bool = True) -> StoredModel:
    """Open a model directory, checking format, kind, and every file's presence and size; with ``verify`` its digest."""
    directory = Path(directory)
    if not directory.is_dir():
        raise ModelFileError(f"{directory} is not a directory. Give the path that the model was saved to.")
    config = _read_config(directory)
    if config.get("kind") != kind:
        raise ModelFileError(f"{directory / CONFIG_NAME} describes a {config.get('kind')!r}, not a {kind!r}.")
    for entry in config["files"].values():
        path = directory / entry["file"]
        if not path.is_file():
            raise ModelFileError(f"{path} is missing. The model is incomplete: save or download it again.")
        if path.stat().st_size != entry["bytes"]:
            raise ModelFileError(
                f"{path} is truncated or damaged: {path.stat().st_size} bytes where {entry['bytes']} were written."
            )
        if verify and _digest(path) != entry["sha256"]:
            raise ModelFileError(f"{path} is damaged: its contents are not what was written. Save the model again.")
    return StoredModel(directory, config)


class StoredExamples:
    """Ids and texts of a support in an SQLite file, read a row at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self, positions: Iterable[int]) -> list[tuple[Any, str | None]]:
        """(id, text) at the given positions."""
        with closing(self._connect()) as connection:
            query = "SELECT id, text FROM examples WHERE position = ?"
            return [connection.execute(query, (int(p),)).fetchone() for p in positions]

    def all(self) -> tuple[list[Any], list[str | None]]:
        """All ids and texts."""
        with closing(self._connect()) as connection:
            rows = connection.execute("SELECT id, text FROM examples ORDER BY position").fetchall()
        return [row[0] for row in rows], [row[1] for row in rows]

    def positions(self, ids: Iterable[Any]) -> list[int | None]:
        """The positions of the given ids, None where unknown."""
        with closing(self._connect()) as connection:
            query = "SELECT position FROM examples WHERE id = ?"
            found = [connection.execute(query, (name,)).fetchone() for name in ids]
        return [None if row is None else int(row[0]) for row in found]

    def _connect(self) -> sqlite3.Connection:
        if not self.path.is_file():
            raise ModelFileError(f"{self.path} is missing: the model was moved or removed after loading.")
        return sqlite3.connect(f"file:{quote(str(self.path.resolve()))}?mode=ro&immutable=1", uri=True)


def strict_json(value: Any) -> str:
    """JSON without NaN or Infinity literals."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)


def number_or_none(value: float) -> float | None:
    """JSON has no infinity: an infinite number is written as null."""
    return value if math.isfinite(value) else None


def number_or_infinity(value: float | None) -> float:
    """The reverse of :func:`number_or_none`."""
    return math.inf if value is None else float(value)


def label_values_to_json(values: Array, name: str) -> dict[str, Any]:
    """Labels with their dtype; only strings, numbers and booleans can be stored."""
    items = values.tolist()
    strange = next((item for item in items if not isinstance(item, (str, int, float, bool))), None)
    if strange is not None:
        raise InvalidInputError(
            f"'{name}' must be strings, numbers or booleans to be saved. Got {type(strange).__name__} {strange!r}."
        )
    return {"dtype": "object" if values.dtype == object else values.dtype.str, "values": items}


def label_values_from_json(stored: Mapping[str, Any]) -> Array:
    """The reverse of :func:`label_values_to_json`."""
    array = np.empty(len(stored["values"]), dtype=np.dtype(stored["dtype"]))
    array[:] = stored["values"]
    return array


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file in one step; readers see the old content or the new."""
    temporary = path.with_name(f"{_TEMPORARY_PREFIX}{path.name}")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync_directory(path.parent)


def _settle(temporary: Path, name: str) -> dict[str, Any]:
    """Give a finished file its lasting name, and describe it for the config."""
    with open(temporary, "rb+") as file:
        os.fsync(file.fileno())
    digest = _digest(temporary)
    final = temporary.with_name(f"{name}-{digest[:12]}{temporary.suffix}")
    size = temporary.stat().st_size
    os.replace(temporary, final)
    return {"file": final.name, "bytes": size, "sha256": digest}


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG_NAME
    try:
        config = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError as error:
        raise ModelFileError(f"{path} is missing: {directory} holds no torchsdm model.") from error
    except (json.JSONDecodeError, UnicodeDecodeError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged: {error}.") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ModelFileError(f"{path} belongs to something else than torchsdm; it is left alone.")
    version = config.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format version {version!r}; this torchsdm reads up to {FORMAT_VERSION}. Upgrade torchsdm."
        )
    files = config.get("files")
    if not isinstance(files, dict) or not all(_is_file_entry(entry) for entry in files.values()):
        raise ModelFileError(f"{path} is damaged: its list of files cannot be read.")
    return config


def _is_file_entry(entry: Any) -> bool:
    """Whether a config entry names a plain file beside it; a path elsewhere is not followed."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("file"), str)
        and Path(entry["file"]).name == entry["file"]
        and isinstance(entry.get("bytes"), int)
        and isinstance(entry.get("sha256"), str)
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _write_table(path: Path, rows: Iterable[ExampleRow]) -> None:
    def numbered() -> Iterator[tuple[int, Any, Any, str | None]]:
        for position, (name, label, text) in enumerate(rows):
            yield position, name, label, text

    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("CREATE TABLE examples (position INTEGER PRIMARY KEY, id, label, text TEXT)")
        connection.executemany("INSERT INTO examples VALUES (?, ?, ?, ?)", numbered())
        connection.execute("CREATE INDEX examples_by_id ON examples (id)")
        connection.commit()
