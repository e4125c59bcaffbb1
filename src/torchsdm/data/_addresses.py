"""Inputs on other machines: what an address such as s3://bucket/new names, copied here."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from torchsdm.data.source import is_data
from torchsdm.errors import InvalidInputError, MissingExtraError


def fetched(address: str, folder: Path) -> tuple[str, Path]:
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
