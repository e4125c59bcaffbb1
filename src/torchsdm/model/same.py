"""Which points are the same: equal rows, or equal texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from torchsdm.matching import DEFAULT_BLOCK_SIZE
from torchsdm.model.examples import Examples

Set = tuple[Tensor, Examples]
"""Rows (N, ...), states or exemplars, and the ids and texts of their points."""


def same_points(points: Set, known: Set, *, by_text: bool) -> dict[int, int]:
    """Positions of points that are among the known ones, each with a position there.

    A point is the same if its row is, as float32, or ``by_text`` its text. The text counts for states that were made
    from texts: their last bits depend on the batch.
    """
    same = dict(_same_rows(points[0], known[0]))
    return {**same, **dict(_same_texts(points[1], known[1]))} if by_text else same


def _same_rows(rows: Tensor, known: Tensor) -> Iterator[tuple[int, int]]:
    """Pairs of equal rows. Only rows whose first number occurs among the others are read whole."""
    rows, known = rows.flatten(1), known.flatten(1)
    here, there = rows[:, 0].float().cpu(), known[:, 0].float().cpu()
    own = torch.nonzero(torch.isin(here, there)).squeeze(1)
    others = torch.nonzero(torch.isin(there, here)).squeeze(1)
    place = dict(zip(_digests(known, others), others.tolist(), strict=True))
    for row, digest in zip(own.tolist(), _digests(rows, own), strict=True):
        if digest in place:
            yield row, place[digest]


def _digests(rows: Tensor, chosen: Tensor) -> Iterator[bytes]:
    for part in chosen.split(DEFAULT_BLOCK_SIZE):
        for row in rows[part.to(rows.device)].to("cpu", torch.float32).numpy():
            yield hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def _same_texts(examples: Examples, known: Examples) -> Iterator[tuple[int, int]]:
    """Pairs of equal texts."""
    place = {text: number for number, text in enumerate(known.all()[1]) if text is not None}
    for row, text in enumerate(examples.all()[1]):
        if text is not None and text in place:
            yield row, place[text]
