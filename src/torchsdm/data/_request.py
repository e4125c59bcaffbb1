"""What to read from a file of states."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TypeAlias

from torchsdm.data.document import BadRows
from torchsdm.data.source import Source
from torchsdm.errors import InvalidInputError, Remedy

Names: TypeAlias = tuple[str, str, str, str]
"""The names of states, labels, ids and texts."""
USUAL_NAMES: Names = ("hidden_states", "labels", "ids", "texts")
_SINGULAR = {"labels": "label", "ids": "id", "texts": "text"}  # as in rows of documents


@dataclass(frozen=True)
class Request:
    """What to read from an input."""

    source: Source
    size: int | None
    """Rows per block; None for all rows in one."""
    names: Names
    bad: BadRows | None = None
    """Where rows that cannot be used are noted; None: they are errors."""
    width: int | None = None
    """The width of the states that are wanted, if it is known."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns of states and ids, without which rows cannot be used or told apart."""
        states, _, ids, _ = self.names
        return states, ids, _SINGULAR.get(ids, ids)

    def keys(self, present: Container[str]) -> tuple[str | None, ...]:
        """The key under which each name is present; None if it is not."""
        singular = {name: key for name, key in _SINGULAR.items() if key not in self.names}
        candidates = ((name, singular.get(name, name)) for name in self.names)
        return tuple(next((key for key in keys if key in present), None) for keys in candidates)

    def missing(self, name: str) -> InvalidInputError:
        """The error for something that is not in the file."""
        return InvalidInputError(f"{self.source.name}: no {name!r} found.", remedy=Remedy.NAME_ARRAYS)
