"""Support, calibration set and certification set are kept apart: who judges must not have learned."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from torchsdm.errors import CertificateWarning, DataWarning, InvalidInputError, Remedy, warn_user
from torchsdm.matching import DEFAULT_BLOCK_SIZE
from torchsdm.model import CERTIFICATION, Examples

FEW = 0.05  #: up to this share of the smaller set, points in common pass as natural duplicates, with a warning

Set = tuple[Tensor, Examples]
"""Rows (N, ...), states or exemplars, and the ids and texts of their points."""


def keep_apart(
    points: Set,
    sets: Mapping[str, Set],
    caller: str,
    *,
    to: str,
    by_text: bool,
    is_repeated_kept: bool = False,
    remedy: Remedy | None = None,
) -> None:
    """Refuse points for a set that are in one of the sets already.

    An id that is in use is always refused. A point is also the same if its row is, or ``by_text`` its text, for states
    that were made from texts: their last bits depend on the batch. A few of those among many are natural duplicates:
    they pass with a warning. ``is_repeated_kept`` lets all of them pass, but no more than a few of the certification
    set: a certificate would test what was learned from it.
    """
    for where, known in sets.items():
        names = points[1].ids()
        clash = [name for name, place in zip(names, known[1].positions(names), strict=True) if place is not None]
        if clash:
            raise InvalidInputError(f"'ids' of {caller} must be new. Got {clash[0]!r}, which is in the {where} set.")
        is_kept = is_repeated_kept and where != CERTIFICATION
        same = {} if is_kept else dict(_same_rows(points[0], known[0]))
        if by_text and not is_kept:
            same |= dict(_same_texts(points[1], known[1]))
        if not same:
            continue
        n, row = len(points[0]), min(same)
        ((name, _),) = known[1].rows([same[row]])
        found = (
            f"Already in the {where} set: {len(same)} of the {n} points that {caller} got for the {to} set; row {row} "
            f"equals point {name!r}."
        )
        if len(same) > FEW * (len(known[0]) if is_repeated_kept else min(n, len(known[0]))):
            reason = "A point in two sets, or twice in one, vouches for itself: leave such points out."
            raise InvalidInputError(f"{found} {reason}", remedy=None if is_repeated_kept else remedy)
        warn_user(
            f"{found} If that is no natural duplicate, leave it out.",
            CertificateWarning if CERTIFICATION in (to, where) else DataWarning,
        )


def _same_rows(rows: Tensor, known: Tensor) -> Iterator[tuple[int, int]]:
    """Pairs of equal rows, as float32. Only rows whose first number occurs among the others are read whole."""
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
