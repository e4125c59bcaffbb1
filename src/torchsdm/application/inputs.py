"""Read texts or states from files or standard input, and check them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from torch import Tensor

from torchsdm.columns import Columns
from torchsdm.data import BadRow, BadRows, DataFiles, Documents, LabelledStates, is_data, is_states_folder
from torchsdm.errors import EmptyInputError, InvalidInputError, MissingExtraError, Remedy
from torchsdm.validation import is_storable_id
from torchsdm.wording import shortened

STANDARD_INPUT = "-"


def checked(
    block: LabelledStates,
    path: Path,
    columns: Columns,
    *,
    needs_labels: bool,
    numbers: Sequence[int] = (),
    bad: BadRows | None = None,
) -> LabelledStates:
    """Check a block: its states must be finite, with one plain label and one plain id per row.

    A row with other states or another id is an error; if ``bad`` is given, it is left out and noted there instead.
    """
    for what, column, values in (("labels", columns.label, block.labels), ("ids", columns.id, block.ids)):
        if values is None and column is not None:
            raise InvalidInputError(f"{path} has no {column!r} for the {what}.")
        if getattr(values, "ndim", 1) != 1:
            raise InvalidInputError(f"{path}: {what} must have one value per row. Got more.")
    if needs_labels and block.labels is None:
        raise InvalidInputError(f"{path} has no labels.", remedy=Remedy.NAME_LABELS)
    states = block.hidden_states if isinstance(block.hidden_states, Tensor) else np.asarray(block.hidden_states)
    is_real = not states.is_complex() if isinstance(states, Tensor) else states.dtype.kind in "fiub"
    if not is_real or states.ndim not in (2, 3):
        raise InvalidInputError(
            f"{path}: states must be rows of numbers. Got {states.dtype} of shape {tuple(states.shape)}."
        )
    with np.errstate(over="ignore"):  # values beyond float32 count as infinite
        finite = np.isfinite(
            states.float().numpy() if isinstance(states, Tensor) else states.astype(np.float32, copy=False)
        )
    ids = block.ids.tolist() if isinstance(block.ids, (np.ndarray, Tensor)) else block.ids
    labels: Any = block.labels if needs_labels else None
    block, kept = replace(block, ids=ids), []
    for row, is_finite in enumerate(map(np.all, finite)):
        problem = None if is_finite else "the states contain NaN or infinity"
        has_id = ids is None or is_storable_id(ids[row])
        if problem is None and ids is not None and not has_id:
            problem = f"an id must be text or an integer. Got {shortened(repr(ids[row]))}"
        if problem is not None and bad is not None:
            name = ids[row] if ids is not None and has_id else numbers[row]
            bad[numbers[row]] = BadRow(numbers[row], block.place(row), problem, name)
            continue
        if problem is None and labels is not None and labels[row] is None:
            problem = "no label"
        if problem is not None:
            raise InvalidInputError(f"{path}, {block.place(row)}: {problem}.")
        kept.append(row)
    return block if len(kept) == len(block) else block.take(kept)


def named_and_checked(
    block: LabelledStates,
    path: Path,
    columns: Columns,
    *,
    needs_labels: bool,
    numbers: Sequence[int],
    bad: BadRows | None,
) -> LabelledStates:
    """A block that is ``checked``; rows without ids are numbered."""
    whole = block if block.ids is not None or columns.id is not None else replace(block, ids=list(numbers))
    return checked(whole, path, columns, needs_labels=needs_labels, numbers=numbers, bad=bad)


def nothing_to_decide_on(path: Path, bad: BadRows | None) -> InvalidInputError:
    """The error for an input without any row that can be decided on."""
    if not bad:
        return EmptyInputError(f"{path} is empty.")
    return InvalidInputError(f"{path} has no row that can be decided on. {next(iter(bad.values()))}.")


def open_documents(
    path: Path, columns: Columns, *, with_labels: bool, problems: str = "raise", with_answers: bool = False
) -> Documents:
    """The texts of a file, all checked before the first is used; with their answers if those are needed."""
    return Documents(
        path,
        text=columns.text,
        label=columns.label if columns.label is not None or with_labels else False,
        id=columns.id,
        answer="answer" if columns.answer is None and with_answers else columns.answer,
        problems=problems,
        repeated="keep",
    )


def check_output_place(output: Path, source: str) -> None:
    """Refuse an output in a folder of which every file is input."""
    folder = Path(source)
    if folder.is_dir() and not is_states_folder(folder) and folder.resolve() in output.resolve().parents:
        raise InvalidInputError(f"{output} is in {source}, where it would be read as input. Write it elsewhere.")


@contextmanager
def readable(source: str) -> Iterator[Path]:
    """The path of an input: a file, a folder, or a pattern of files.

    Standard input, as JSON lines, and what an address names are copied to a temporary folder first.
    """
    if source != STANDARD_INPUT and "://" not in source:
        DataFiles.find(Path(source))  # says if there is nothing
        yield Path(source)
        return
    with tempfile.TemporaryDirectory(prefix="sdm-") as folder:
        if source == STANDARD_INPUT:
            name, path = "standard input", Path(folder) / "standard-input.jsonl"
            with open(path, "wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        else:
            name, path = _fetched(source, Path(folder))
        try:
            yield path
        except InvalidInputError as error:
            error.args = (error.what.replace(str(path), name),)
            raise


def _fetched(address: str, folder: Path) -> tuple[str, Path]:
    """Copy what an address names: the file, or the folder that the files come from, and where it is now."""
    root, pattern = _split_pattern(address)
    try:
        filesystem, start = _filesystem(root.rstrip("/"))
        kind = filesystem.info(start)["type"]  # an error if it cannot be reached, which the calls below pass over
        if not pattern and not address.endswith("/") and kind == "file":
            path = folder / root.rpartition("/")[2]
            filesystem.get_file(start, str(path))
            return root, path
        found = filesystem.glob(f"{start}/{pattern}", detail=True) if pattern else filesystem.find(start, detail=True)
        for file, details in found.items():
            name = PurePosixPath(file).relative_to(start)
            if details["type"] == "file" and is_data(name):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                filesystem.get_file(file, str(folder / name))
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, FileNotFoundError) and error.__cause__ is None:
            raise InvalidInputError(f"There is no file {address!r}.") from error
        raise InvalidInputError(f"{address} cannot be read: {error.__cause__ or error}.") from error
    if not any(folder.iterdir()):
        raise InvalidInputError(f"{address} names no files; names that begin with a dot or an underscore do not count.")
    return root.rstrip("/"), folder


def _split_pattern(address: str) -> tuple[str, str]:
    """An address up to the first part with a wildcard, and the rest; a question mark is none, it begins a query."""
    parts = address.split("/")
    n_fixed = next((number for number, part in enumerate(parts) if "*" in part or "[" in part), len(parts))
    return "/".join(parts[:n_fixed]), "/".join(parts[n_fixed:])


def _filesystem(address: str) -> tuple[Any, str]:
    """The filesystem of an address such as s3://bucket/new, as Ray Data finds it: Arrow's, or else fsspec's."""
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.fs import FileSystem
    except ImportError as error:
        raise MissingExtraError("pyarrow", "report", f"Reading {address}") from error
    import fsspec
    from fsspec.implementations.arrow import ArrowFSWrapper

    try:
        filesystem, path = FileSystem.from_uri(address)
    except ArrowInvalid:  # a scheme that Arrow does not know
        found: tuple[Any, str] = fsspec.url_to_fs(address)
        return found
    return ArrowFSWrapper(filesystem), path
