"""A model as a directory: one ``config.json`` that names every other file.

Files are written under names that contain their digest, then ``config.json`` is replaced atomically, then files that
it no longer names are removed. Whenever the writer dies, the directory has the complete old model or the new one.
There is no pickle: tensors are safetensors (memory-mapped on loading), the support's metadata is SQLite (one row can be
read without the rest), everything else is strict JSON.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.files import (
    TEMPORARY_PREFIX,
    describe_file,
    file_digest,
    file_problem,
    is_file_entry,
    parse_json,
    remove_unfinished,
    replace_file,
    strict_json,
    usual_mode,
)
from torchsdm.validation import Array

FORMAT = "torchsdm"
FORMAT_VERSION = 3  #: 2 added the certificate and its set, 3 changes of the three sets; all are still read
WITH_LOG = 4  #: of a directory with a log of changes, which earlier versions must not read without it
CONFIG_NAME = "config.json"
CARD_NAME = "README.md"
_DATA_FILE = re.compile(r"[a-z0-9-]+-[0-9a-f]{12}\.(safetensors|sqlite)")
_READ_ATTEMPTS = 20
_USUAL_WIDTH = 4096  # bytes of an array's element, which may be wider than its longest label
EXAMPLES_TABLE = "CREATE TABLE examples (position INTEGER PRIMARY KEY, id, label, text TEXT)"
EXAMPLES_INDEX = "CREATE INDEX examples_by_id ON examples (id)"
VERIFIED_BYTES = 1 << 26  #: files up to this size have their digest checked on opening unless asked otherwise

T = TypeVar("T")
ExampleRow = tuple[Any, Any, "str | None"]  # id, label, text


@dataclass(frozen=True)
class StoredModel:
    """A directory that ``write_model`` wrote, checked on opening; tensors are memory-mapped on request."""

    directory: Path
    config: dict[str, Any]
    files: dict[str, Path]
    """Where each of its files is."""


def mapped_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that ``write_model`` wrote, backed by the file."""
    try:
        with safe_open(path, framework="pt") as archive:
            return {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged and cannot be read: {error}. Save the model again.") from error


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
    try:
        old_card = read_config(directory, checked=False).get("card_sha256") if holds_model(directory) else None
        directory.mkdir(parents=True, exist_ok=True)
        remove_unfinished(directory)
        mode = usual_mode(directory)  # one for all files: safetensors and SQLite would each choose their own

        files: dict[str, dict[str, Any]] = {}
        for name, content in tensors.items():
            temporary = directory / f"{TEMPORARY_PREFIX}{name}.safetensors"
            save_file({key: tensor.contiguous() for key, tensor in content.items()}, temporary)
            files[name] = _settle(temporary, name, mode)
        for name, rows in tables.items():
            temporary = directory / f"{TEMPORARY_PREFIX}{name}.sqlite"
            _write_table(temporary, rows)
            files[name] = _settle(temporary, name, mode)

        _write_config(directory, {**config, "files": files, "card_sha256": hashlib.sha256(card.encode()).hexdigest()})
        card_path = directory / CARD_NAME
        if not card_path.exists() or file_digest(card_path) == old_card:  # a card that someone wrote or edited stays
            replace_file(card_path, card.encode())
        in_use = {entry["file"] for entry in files.values()}
        for path in directory.iterdir():
            if _DATA_FILE.fullmatch(path.name) and path.name not in in_use:
                try:
                    path.unlink(missing_ok=True)
                except PermissionError:  # a system that cannot remove mapped files; the next save tries again
                    continue
    except ModelFileError:
        raise
    except OSError as error:
        raise ModelFileError(f"{directory} cannot be written: {error}.") from error


def _write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Replace the config, which commits all that it says."""
    version = FORMAT_VERSION if config.get("changes") is None else WITH_LOG
    full = {"format": FORMAT, **config, "format_version": version}
    full["sha256"] = _config_digest(full)
    replace_file(directory / CONFIG_NAME, (strict_json(full) + "\n").encode())


def name_log(directory: Path, changes: Mapping[str, Any]) -> None:
    """Say in the config of a model that it has a log of changes."""
    _write_config(directory, {**read_config(directory), "changes": dict(changes)})


def holds_model(directory: str | Path) -> bool:
    """Whether there is a model in a directory, which saving would replace.

    A directory that saving must not touch raises: one with a config or other files that are not a model's. Hidden
    files, a README and what an interrupted save left do not count.
    """
    directory = Path(directory)
    if (directory / CONFIG_NAME).exists():
        read_config(directory, checked=False)
        return True
    if directory.exists() and not directory.is_dir():
        raise ModelFileError(f"{directory} is a file; a model needs a directory.")
    names = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    foreign = [name for name in names if not (name.startswith(".") or name == CARD_NAME or _DATA_FILE.fullmatch(name))]
    if foreign:
        raise ModelFileError(
            f"{directory} contains something other than a model, such as {foreign[0]!r}; left untouched. Choose a new "
            "or empty directory."
        )
    return False


def read_model(
    directory: str | Path, kinds: Collection[str], restore: Callable[[StoredModel], T], *, verify: bool | None = None
) -> T:
    """Open a directory of a model of some kinds and restore it; retry if another is saved there meanwhile.

    Every file's presence and size is checked, and the digest of files up to 64 MB; with ``verify=True`` of all files,
    with False of none.
    """
    for _ in range(_READ_ATTEMPTS):
        before = config_mark(Path(directory))
        try:
            home = Path(directory).resolve()
            if not home.is_dir():
                raise ModelFileError(f"{home} is not a directory. Give the path that the model was saved to.")
            config = read_config(home)
            if config.get("kind") not in kinds:
                wanted = " or ".join(map(repr, kinds))
                raise ModelFileError(f"{home / CONFIG_NAME} describes a {config.get('kind')!r}, not a {wanted}.")
            for entry in config["files"].values():
                is_checked = entry["bytes"] <= VERIFIED_BYTES if verify is None else verify
                problem = file_problem(home, entry, with_digest=is_checked)
                if problem is not None:
                    raise ModelFileError(f"{problem} The model is incomplete: save or download it again.")
            files = {name: home / str(entry["file"]) for name, entry in config["files"].items()}
            return restore(StoredModel(home, config, files))
        except (ModelFileError, FileNotFoundError):  # or a file that went when another model was saved
            if before == config_mark(Path(directory)):
                raise
    raise ModelFileError(f"{directory} was replaced {_READ_ATTEMPTS} times while it was read. Try again later.")


def config_mark(directory: Path) -> tuple[int, ...] | None:
    """By which a config that was replaced is noticed without reading it; None if there is none."""
    try:
        found = (directory / CONFIG_NAME).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def number_or_none(value: float) -> float | None:
    """JSON has no infinity: an infinite number is written as null."""
    return value if math.isfinite(value) else None


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
    """The reverse of ``label_values_to_json``."""
    values, dtype = stored["values"], np.dtype(stored["dtype"])
    longest = max((len(value) for value in values if isinstance(value, str)), default=0)
    is_wide = dtype.itemsize > max(8, 4 * longest, _USUAL_WIDTH)
    if dtype.kind not in "OUbiuf" or is_wide or not all(isinstance(value, str | int | float) for value in values):
        raise ValueError(f"labels of type {stored['dtype']!r}, such as {values[:3]!r}, are none that are stored")
    array = np.empty(len(values), dtype=dtype)
    array[:] = values
    return array


def _settle(temporary: Path, name: str, mode: int) -> dict[str, Any]:
    """Give a finished file its mode and its final name, and describe it for the config."""
    os.chmod(temporary, mode)
    with open(temporary, "rb+") as file:
        os.fsync(file.fileno())
    entry = describe_file(temporary)
    final = temporary.with_name(f"{name}-{entry['sha256'][:12]}{temporary.suffix}")
    os.replace(temporary, final)
    return {**entry, "file": final.name}


def read_config(directory: Path, *, checked: bool = True) -> dict[str, Any]:
    """The config of a model directory; unless it is checked, its version may differ and its values may be damaged."""
    path = directory / CONFIG_NAME
    if path.exists() and not path.is_file():  # a device, say, that has no end
        raise ModelFileError(f"{path} is not a file.")
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelFileError(f"{path} is missing: {directory} contains no torchsdm model.") from error
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error}.") from error
    except ValueError as error:
        raise ModelFileError(f"{path} is damaged: {error}. Delete it if you do not need its model.") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ModelFileError(f"{path} is not a torchsdm config; left untouched.")
    if not checked:
        return config
    version, files = config.get("format_version"), config.get("files")
    if not isinstance(version, int) or version > WITH_LOG:
        raise ModelFileError(
            f"{path} has format version {version!r}; this torchsdm reads up to {WITH_LOG}. Upgrade torchsdm."
        )
    if config.get("sha256") != _config_digest(config):
        raise ModelFileError(f"{path} is damaged: its contents are not what was written. Save the model again.")
    if not isinstance(files, dict) or not all(is_file_entry(entry) for entry in files.values()):
        raise ModelFileError(f"{path} is damaged: its list of files cannot be read.")
    return config


def _config_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 of everything in a config but this digest itself."""
    rest = {name: value for name, value in config.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _write_table(path: Path, rows: Iterable[ExampleRow]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute(EXAMPLES_TABLE)
        connection.executemany(
            "INSERT INTO examples VALUES (?, ?, ?, ?)", ((position, *row) for position, row in enumerate(rows))
        )
        connection.execute(EXAMPLES_INDEX)
        connection.commit()
