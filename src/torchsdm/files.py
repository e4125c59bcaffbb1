"""Files that are complete or absent: atomic replacement, digests, strict JSON."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TEMPORARY_PREFIX = ".writing-"  #: of unfinished files; the next write removes those that a crash left


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically; readers see the old content or the new."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to; afterwards it replaces the file atomically, or is removed on an error.

    If the path is a link, the file that it points to is replaced.
    """
    path = path.resolve()
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_unfinished(directory: Path) -> None:
    """Remove the unfinished files that a crashed writer left in a directory."""
    for stale in directory.glob(f"{TEMPORARY_PREFIX}*"):
        stale.unlink(missing_ok=True)


def usual_mode(directory: Path) -> int:
    """The mode that a file newly written to a directory has, by the umask; other libraries have ideas of their own."""
    probe = directory / f"{TEMPORARY_PREFIX}mode"
    try:
        with open(probe, "wb") as file:
            return stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    finally:
        probe.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def describe_file(path: Path) -> dict[str, Any]:
    """What a config or manifest records about a file: name, size and digest."""
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": file_digest(path)}


def file_identity(path: Path) -> tuple[int, int] | None:
    """By which a file that is open is told from another that was put at its path; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def is_file_entry(entry: Any) -> bool:
    """Whether an entry describes a file in its own directory; a path elsewhere is not followed."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("file"), str)
        and Path(entry["file"]).name == entry["file"]
        and isinstance(entry.get("bytes"), int)
        and isinstance(entry.get("sha256"), str)
    )


def file_problem(directory: Path, entry: dict[str, Any], *, with_digest: bool) -> str | None:
    """What is wrong with a file that ``describe_file`` described; None if nothing is."""
    path = directory / entry["file"]
    if not path.is_file():
        return f"{path} is missing."
    size = path.stat().st_size
    if size != entry["bytes"]:
        return f"{path} is truncated or damaged: {size} bytes where {entry['bytes']} were written."
    if with_digest and file_digest(path) != entry["sha256"]:
        return f"{path} is damaged: its contents are not what was written."
    return None


def strict_json(value: Any) -> str:
    """JSON without NaN or Infinity literals."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)


def sync_directory(directory: Path) -> None:
    """Make the names of new and renamed files in a directory safe."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
