"""Which points are the same: equal rows, or equal texts."""

from __future__ import annotations

from torch import Tensor

from torchsdm.matching import IndexedRows
from torchsdm.model.examples import Examples

Set = tuple[Tensor | IndexedRows, Examples]
"""Rows (N, ...), states or exemplars, and the ids and texts of their points."""


def same_points(points: Set, known: Set, *, by_text: bool) -> dict[int, int]:
    """Positions of points that are among the known ones, each with a position there.

    A point is the same if its row is, as float32, or ``by_text`` its text. The text counts for states that were made
    from texts: their last bits depend on the batch.
    """
    same = IndexedRows.of(known[0]).find(IndexedRows.of(points[0]))
    return {**same, **_same_texts(points[1], known[1])} if by_text else same


def _same_texts(examples: Examples, known: Examples) -> dict[int, int]:
    given = {row: text for row, text in enumerate(examples.all()[1]) if text is not None}
    places = known.positions_of_texts(list(given.values()))
    return {row: place for row, place in zip(given, places, strict=True) if place is not None}
