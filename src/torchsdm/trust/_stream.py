"""What the watchers of a stream share, guard and spot check: how they stake money, and how they are kept and reset."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.validation import is_storable_text


def reserve(t: int) -> float:
    """r_t, the money not yet on any bet after t steps: 1 before the first, half at most from then on."""
    return 1.0 if t == 0 else 0.5 * (t + 1.0) ** -0.2


def log_stakes(n_before: int, n: int, n_bets: int) -> tuple[list[float], list[float]]:
    """For each of n steps, log(w_t / K), what goes to each of K bets before it, and log r_t, what is left.

    w_t = r_(t-1) - r_t. Number by number, so that no rounding depends on how many steps are asked for.
    """
    reserves = [reserve(t) for t in range(n_before, n_before + n + 1)]
    staked = [math.log((before - after) / n_bets) for before, after in pairwise(reserves)]
    return staked, [math.log(left) for left in reserves[1:]]


def check_reason(reason: Any, caller: str, what: str) -> None:
    """Require a reason for a reset."""
    if not is_storable_text(reason) or not reason.strip():
        raise InvalidInputError(f"'reason' of {caller} must say why the {what} is reset. Got {reason!r}.")


def check_kind(state: Any, kind: str, number: int, where: str) -> None:
    """Require a stored state of one kind, in the format that is read here."""
    if not isinstance(state, dict) or state.get("kind") != kind:
        raise ModelFileError(f"{where} is not a {kind}.")
    if state.get("format") != number:
        raise ModelFileError(f"{where} has format {state.get('format')!r}; this version of torchsdm reads {number}.")
