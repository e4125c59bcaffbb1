"""What is to be read of a file of states."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from torchsdm.errors import InvalidInputError, Remedy

_SINGULAR = {"labels": "label", "ids": "id", "texts": "text"}  # as rows of documents have them


@dataclass(frozen=True)
class Request:
    """What of a file is to be read."""

    path: Path
    size: int | None
    """Rows of a block; None for all rows in one."""
    names: tuple[str, ...]
    """Of states, labels, ids and texts."""

    def keys(self, present: Container[str]) -> tuple[str | None, ...]:
        """By which of the keys that are present each name is found; None where by none."""
        singular = {name: key for name, key in _SINGULAR.items() if key not in self.names}
        candidates = ((name, singular.get(name, name)) for name in self.names)
        return tuple(next((key for key in keys if key in present), None) for keys in candidates)

    def missing(self, name: str) -> InvalidInputError:
        """The error that something is not in the file."""
        return InvalidInputError(f"{self.path}: no {name!r} found.", remedy=Remedy.NAME_ARRAYS)
