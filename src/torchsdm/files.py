"""Files that are complete or absent: atomic replacement, one writer of a folder, digests, strict JSON."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from torchsdm.errors import CheckpointError, TorchSDMError

LOCK_NAME = ".lock"  #: of the file that a folder's only writer holds
TEMPORARY_PREFIX = ".writing-"  #: of unfinished files; the next write removes those that a crash left


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically; readers see the old content or the new. A link is replaced, never followed."""
    with _replacing(path) as temporary, open(temporary, "xb") as file:
        file.write(content)


def link_in(folder: Path) -> Path | None:
    """A symbolic link where files are about to be written: the folder itself, or something in it; None if none is."""
    paths = [folder, *(folder.iterdir() if folder.is_dir() else ())]
    return next((path for path in paths if path.is_symlink()), None)


def whole_file(path: Path) -> AbstractContextManager[Path]:
    """A path to write to; afterwards it replaces the file atomically, or is removed on an error.

    If the path is a link, the file that it points to is replaced.
    """
    return _replacing(path.resolve())


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A path to write to; whatever a crash, or a stranger, left there is removed: a link is not followed."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def writing_to(folder: Path, remedy: str = "") -> Iterator[None]:
    """Name a folder in what goes wrong when it is written."""
    try:
        yield
    except TorchSDMError:  # some are OSErrors, too
        raise
    except Timeout as error:
        raise CheckpointError(f"{folder} is being written by another process.") from error
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error}.{remedy}") from error


def only_writer(folder: Path) -> AbstractContextManager[Any]:
    """Lock a folder, which is created if missing, for one writer; the system releases it if we are killed."""
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / LOCK_NAME).acquire(timeout=0)


def remove_unfinished(directory: Path) -> None:
    """Remove the unfinished files that a crashed writer left in a directory."""
    for stale in directory.glob(f"{TEMPORARY_PREFIX}*"):
        stale.unlink(missing_ok=True)


def usual_mode(directory: Path) -> int:
    """The mode that a file newly written to a directory has, by the umask; other libraries have ideas of their own."""
    probe = directory / f"{TEMPORARY_PREFIX}mode"
    probe.unlink(missing_ok=True)
    try:
        with open(probe, "xb") as file:
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
    """What tells an open file from another that was put at its path; None if there is none."""
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
    try:
        size = path.stat().st_size if path.is_file() else None
        is_damaged = size == entry["bytes"] and with_digest and file_digest(path) != entry["sha256"]
    except FileNotFoundError:  # another save removed it just now
        size, is_damaged = None, False
    if size is None:
        return f"{path} is missing."
    if size != entry["bytes"]:
        return f"{path} is truncated or damaged: {size} bytes where {entry['bytes']} were written."
    return f"{path} is damaged: its contents are not what was written." if is_damaged else None


def parse_json(text: str | bytes) -> Any:
    """A value from JSON that can be written again; anything else, NaN and half characters too, is a ValueError."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        return value
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


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


def login_name() -> str:
    """The name of the user, for the record of who changed a model."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user that the system has no name for
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "unknown"
