"""Support, calibration set and certification set are kept apart: who judges must not have learned."""

from __future__ import annotations

from collections.abc import Mapping

from torchsdm.errors import DataWarning, InvalidInputError, OverlapWarning, Remedy, warn_user
from torchsdm.matching import IndexedRows
from torchsdm.model import CERTIFICATION, Set, same_points

FEW = 0.05  #: up to this share of the smaller set, points in common pass as natural duplicates, with a warning


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

    An id that is in use is always refused. So are points that are the same (``same_points``), but a few of those among
    many are natural duplicates: they pass with a warning. ``is_repeated_kept`` lets all of them pass, but no more than
    a few of the certification set: a certificate would test what was learned from it.
    """
    points, names = (IndexedRows.of(points[0]), points[1]), points[1].ids()
    for where, known in sets.items():
        clash = [name for name, place in zip(names, known[1].positions(names), strict=True) if place is not None]
        if clash:
            raise InvalidInputError(f"'ids' of {caller} must be new. Got {clash[0]!r}, which is in the {where} set.")
        is_kept = is_repeated_kept and where != CERTIFICATION
        same = {} if is_kept else same_points(points, known, by_text=by_text)
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
            OverlapWarning if CERTIFICATION in (to, where) else DataWarning,
        )
