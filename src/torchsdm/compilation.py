"""Compiled loops: decorators around numba's, and a message to the user who waits for them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import event

_LOGGER = logging.getLogger(__name__)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile on the first call; cache the machine code next to the source or in the user's cache, if possible."""
    return _compiled(function, fastmath=False)


def compiled_in_any_order(function: Callable[..., Any]) -> Any:
    """The same, but sums may be taken in any order."""
    return _compiled(function, fastmath={"reassoc", "contract"})


def helper(function: Callable[..., Any]) -> Any:
    """The same for functions that only compiled functions call."""
    options: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # these halve the time to compile
    return njit(nogil=True, **options)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """The same for functions so short that a call would take longer: their code is put in the place of each call."""
    return njit(nogil=True, inline="always")(function)


def is_compiled(loop: Any) -> bool:
    """Whether calling a loop need not compile it: this process has done so, or the cache has its machine code.

    An entry of the cache that is of another processor is taken for ours; then the call compiles it after all.
    """
    if loop.signatures:
        return True
    folder, source = loop.stats.cache_path, Path(loop.py_func.__code__.co_filename)
    if folder is None:
        return False
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    entries = Path(folder).glob(f"{source.stem}.{loop.py_func.__qualname__}-*.{python}*.nbi")
    return any(entry.stat().st_mtime >= source.stat().st_mtime for entry in entries)


def _compiled(function: Callable[..., Any], fastmath: Any) -> Any:
    try:
        return njit(nogil=True, cache=True, fastmath=fastmath)(function)
    except RuntimeError:  # nowhere to cache it
        _ANNOUNCEMENT.how_often = "in every process, because no cache folder is writable (set NUMBA_CACHE_DIR)"
        return njit(nogil=True, fastmath=fastmath)(function)


class _Announcement(event.Listener):
    """Explains the wait, once, when one of our loops is compiled rather than read from the cache."""

    is_due = True
    how_often = "once per installation"

    def on_start(self, event: event.Event) -> None:
        if self.is_due and event.data["dispatcher"].py_func.__module__.startswith("torchsdm."):
            self.is_due = False
            _LOGGER.info("Compiling the matching kernels, %s: about ten seconds.", self.how_often)

    def on_end(self, event: event.Event) -> None:
        pass


_ANNOUNCEMENT = _Announcement()
event.register("numba:compile", _ANNOUNCEMENT)  # type: ignore[no-untyped-call]
