"""The ledger of looks that the command keeps beside its cache, so that a second training knows of the first.

A file of JSON lines: of each look its question and delta, of looks and of audits the keys of rows, 8 bytes each; no
texts. Lines are appended under a lock, so several processes can keep it. What cannot be read or written is not counted,
and one warning says so.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from torchsdm.errors import CertificateWarning, warn_user
from torchsdm.files import file_identity, parse_json, replace_file
from torchsdm.hidden_states import cache_directory
from torchsdm.trust import Ledger, Look, keep_ledger
from torchsdm.validation import Array

_MOST_BYTES = 1 << 26  # of the file; beyond that the older half is dropped
_PATIENCE = 10.0  # seconds to wait for other processes


def keep_ledger_in_cache() -> None:
    """Have this process count looks in the cache folder (``TORCHSDM_CACHE``)."""
    keep_ledger(LedgerFile(cache_directory() / "ledger.jsonl"))


class LedgerFile(Ledger):
    """A ledger in a file, which other processes may keep, too."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self._file_lock = path, FileLock(f"{path}.lock", timeout=_PATIENCE)
        self._read: tuple[tuple[int, int] | None, int] = (None, 0)  # which file, and how much of it
        self._has_warned = False

    def spent(self, keys: Array) -> dict[str, float]:
        """As for any ledger, with what is in the file by now."""
        self._catch_up()
        return super().spent(keys)

    def inspected(self, keys: Array) -> Array:
        """As for any ledger, with what is in the file by now."""
        self._catch_up()
        return super().inspected(keys)

    def ask(self, look: Look, known: Mapping[str, float] | None = None) -> dict[str, float]:
        """As for any ledger; of two processes that ask at once, the second knows of the first."""
        with self._locked():
            return super().ask(look, known)

    def add(self, look: Look) -> bool:
        """Enter a look, also into the file."""
        is_new = super().add(look)
        if is_new:
            self._append({"question": look.question, "delta": look.delta}, look.keys)
        return is_new

    def inspect(self, keys: Array) -> None:
        """Enter inspected rows, also into the file."""
        super().inspect(keys)
        self._append({"inspected": True}, keys)

    def _append(self, entry: dict[str, Any], keys: Array) -> None:
        content = base64.b64encode(np.ascontiguousarray(keys, dtype="<u8").tobytes()).decode()
        line = json.dumps({**entry, "n_keys": keys.shape[1], "keys": content}).encode() + b"\n"
        with self._locked():
            try:
                if self.path.is_file() and self.path.stat().st_size > _MOST_BYTES:
                    older_and_newer = self.path.read_bytes()
                    replace_file(self.path, older_and_newer[older_and_newer.index(b"\n", _MOST_BYTES // 2) + 1 :])
                with open(self.path, "a+b") as file:
                    if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                        line = b"\n" + line  # a line that was cut off stays the only one that is lost
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
            except (OSError, ValueError) as error:
                self._warn(f"cannot be written: {error}")

    def _catch_up(self) -> None:
        """Take in the lines that others have written."""
        (which, start), n_bad = self._read, 0
        try:
            identity = file_identity(self.path)
            if identity is None:
                return
            with open(self.path, "rb") as file:
                if which != identity or start > file.seek(0, os.SEEK_END):
                    start = 0  # another file was put in its place
                file.seek(start)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError as error:
            self._warn(f"cannot be read: {error}")
            return
        self._read = identity, start + len(whole) + len(newline)
        for line in filter(None, whole.split(b"\n")):
            try:
                self._take(parse_json(line))
            except (ValueError, TypeError, KeyError, AttributeError):
                n_bad += 1
        if n_bad:
            self._warn(f"is damaged: {n_bad} of its lines cannot be read")

    def _take(self, entry: Any) -> None:
        content = base64.b64decode(entry["keys"], validate=True)
        keys = np.frombuffer(content, dtype="<u8").astype(np.uint64).reshape(-1, int(entry["n_keys"]))
        if entry.get("inspected"):
            super().inspect(keys)
        elif isinstance(entry["question"], str) and 0 < float(entry["delta"]) < 1:
            super().add(Look(keys, entry["question"], float(entry["delta"])))
        else:
            raise ValueError("no look")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others from writing; if that is impossible, go on without."""
        is_held = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file_lock.acquire()
            is_held = True
        except (OSError, Timeout) as error:
            self._warn(f"cannot be written: {error}")
        try:
            yield
        finally:
            if is_held:
                self._file_lock.release()

    def _warn(self, what: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_user(
                f"The ledger of looks {self.path} {what}. Certificates that other commands made on the same rows may "
                "not be counted. Move it away, or set TORCHSDM_CACHE to a folder that can be written.",
                CertificateWarning,
            )
