"""One text and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Document:
    """One text and what is known about it."""

    text: str
    id: Any
    label: Any = None
    answer: str | None = None
    """Another model's answer to the text, if that is what is judged."""
    place: str = ""
    """Where it is in its source: "line 3" of a file, "row 3" of a table or list, counted from 1."""
