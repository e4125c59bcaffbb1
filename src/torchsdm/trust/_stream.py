"""What the watchers of a stream share, guard and spot check: how they stake money, and how they are kept and reset."""

from __future__ import annotations

import math
from typing import Any

from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.validation import is_storable_text


def reserve(t: int) -> float:
    """r_t, the money not yet on any bet after t steps: 1 before the first, half at most from then on."""
    return 1.0 if t == 0 else 0.5 * (t + 1.0) ** -0.2


def log_stake(t: int, n_bets: int) -> float:
    """log(w_t / K), the money that goes from the reserve to each of K bets before step t, w_t = r_(t-1) - r_t."""
    return math.log((reserve(t - 1) - reserve(t)) / n_bets)


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
