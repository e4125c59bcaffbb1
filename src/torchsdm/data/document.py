"""Where a row is in its source, one text and what is known about it, one row that cannot be used and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


class Place(str):
    """Where a row is in a file, such as "line 3", or "part-2.jsonl line 3" of several files."""

    __slots__ = ("line",)
    line: int
    """The line of a file of texts, the row of a table or of arrays, counted from 1."""

    @classmethod
    def of(cls, words: str, line: int) -> Place:
        """The place that some words name."""
        place = cls(words)
        place.line = line
        return place

    def within(self, file: str) -> Place:
        """The same place with the name of its file, where the input has several."""
        return self.of(f"{file} {self}", self.line)


@dataclass(frozen=True)
class Document:
    """One text and what is known about it."""

    text: str
    id: Any
    label: Any = None
    answer: str | None = None
    """Another model's answer to the text, if that is what is judged."""
    place: str = ""
    """Where it is in its source: "line 3" of a file, "row 3" of a table or list, counted from 1. That of a file is a
    ``Place``."""
    number: int = 0
    """Its position among the rows of its source, counted from 0."""


@dataclass(frozen=True)
class BadRow:
    """A row of an input that cannot be decided on: it is rejected, with the reason."""

    number: int
    """Its position among the rows of the input, counted from 0."""
    place: str
    """Where it is, such as "line 3"; empty for an input in memory."""
    problem: str
    """What is wrong with it, in words."""
    id: Any
    """Its id; its number if it has none that can be used."""

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}" if self.place else self.problem


BadRows: TypeAlias = dict[int, BadRow]  #: by their numbers, as they are found
