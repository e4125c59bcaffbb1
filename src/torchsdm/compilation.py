"""How loops are compiled: decorators around numba's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """Compile on the first call; the machine code is kept beside the source or in the user's cache, if that can be."""
    return _compiled(function, fastmath=False)


def compiled_in_any_order(function: Callable[..., Any]) -> Any:
    """The same where sums may be taken in any order."""
    return _compiled(function, fastmath={"reassoc", "contract"})


def helper(function: Callable[..., Any]) -> Any:
    """The same for what only compiled functions call."""
    options: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # these halve the time to compile
    return njit(nogil=True, **options)(function)


def _compiled(function: Callable[..., Any], fastmath: Any) -> Any:
    try:
        return njit(nogil=True, cache=True, fastmath=fastmath)(function)
    except RuntimeError:  # no place to keep it
        return njit(nogil=True, fastmath=fastmath)(function)
