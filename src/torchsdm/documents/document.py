"""One text and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Document:
    """One text and what is known of it."""

    text: str
    id: Any
    label: Any = None
    answer: str | None = None
    """What another model answered to the text, where that is what is judged."""
    place: str = ""
    """Where it stands in its source: "line 3" of a file, "row 3" of a table or list, counted from 1."""
