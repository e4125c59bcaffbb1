"""Loops in C, compiled when the package was built, for what neither torch nor numpy does in one pass.

Work is done in blocks that fit in memory (``blocks``), and in shares by as many threads as torch uses (``in_shares``).

There is a library for every processor, and others for those with more vector instructions; the best is loaded. All
give the same bits, and so does the Python that takes their place if the package was built without a compiler. The
environment variable ``TORCHSDM_LOOPS`` names another one of ``LEVELS``, or ``none``.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchsdm.arithmetic import _build
from torchsdm.errors import InvalidInputError

LEVELS = ("base", "v3", "v4", "v4-bf16")
"""The libraries, from the one that every processor can run; v3 and v4 are levels of x86-64, bf16 is bfloat16."""
_NONE = "none"
_LOGGER = logging.getLogger(__name__)


class _Pointer:
    """A tensor, an array or a structure by reference; a number is refused, which ctypes would take for an address."""

    @staticmethod
    def from_param(argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            return ctypes.c_void_p(argument.data_ptr())
        if isinstance(argument, np.ndarray):
            return ctypes.c_void_p(argument.ctypes.data)
        if isinstance(argument, ctypes.Structure):
            return ctypes.byref(argument)
        if isinstance(argument, int):
            raise TypeError("a number instead of a pointer")
        return ctypes.c_void_p.from_param(argument)


_KINDS: dict[str, Any] = {"p": _Pointer, "i": ctypes.c_int64, "d": ctypes.c_double}
_FUNCTIONS = {  # the arguments of each; all return an int
    "level": "",
    "count_earlier": "pipp",
    "play": "piiipidpp",
    "centred_products": "ppppii",
    "query_bounds": "pppppppii",
    "coarse_points": "ppdpipii",
    "coarse_queries": "ppppipppii",
    "row_hashes": "ppipii",
    "best_candidates": "pppipiip",
    "has_coarse_products": "",
    "coarse_products": "pipiipiii",
    "products_and_norms": "pipiippii",
    "find_first": "pppppii",
    "count_matches": "pppppii",
    "find_neighbors": "ppppii",
}


@cache
def loops_in_use() -> str:
    """Which library is in use, by its name in ``LEVELS``, or ``none``."""
    wanted = os.environ.get("TORCHSDM_LOOPS", "")
    if wanted and wanted not in (*LEVELS, _NONE):
        raise InvalidInputError(f"TORCHSDM_LOOPS must be one of {', '.join((*LEVELS, _NONE))}. Got {wanted!r}.")
    base = _load(LEVELS[0])
    if base is None or wanted == _NONE:
        return _NONE
    possible = [name for name in LEVELS[: base.level() + 1] if _load(name) is not None]
    if wanted and wanted not in possible:
        raise InvalidInputError(f"TORCHSDM_LOOPS must be one of {', '.join(possible)} here. Got {wanted!r}.")
    return wanted or possible[-1]


def has_loops() -> bool:
    """Whether there are compiled loops; not if the package was built without a compiler, or they are not wanted."""
    return loops_in_use() != _NONE


def has_coarse_products() -> bool:
    """Whether they have products of bfloat16, which the processor must have, too."""
    loaded = _load(loops_in_use())
    return loaded is not None and bool(loaded.has_coarse_products())


def call(name: str, *arguments: Any) -> None:
    """Call a function of the library that returns 0, or another number if it had no memory; other threads go on.

    Tensors and arrays, which must be contiguous, and structures are passed as pointers.
    """
    if getattr(_load(loops_in_use()), name)(*arguments) != 0:
        raise MemoryError(f"No memory for '{name}' of the compiled loops.")


@cache
def _load(name: str) -> ctypes.CDLL | None:
    path = Path(__file__).with_name(f"_loops-{name}.library")
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError:  # not there, or for another kind of machine
        return None
    loaded.sources.restype = ctypes.c_char_p
    if loaded.sources().decode() != _build.source_digest():
        _LOGGER.warning("%s was compiled from other sources and is not used: sdm doctor --compile.", path)
        return None
    for function, arguments in _FUNCTIONS.items():
        getattr(loaded, function).argtypes = [_KINDS[kind] for kind in arguments]
    return loaded


def blocks(n: int, width: int, n_elements: int) -> Iterator[slice]:
    """Slices of n rows of a width that have at most so many elements, or a single row."""
    size = max(1, n_elements // max(1, width))
    return (slice(start, start + size) for start in range(0, n, size))


def in_shares(work: Callable[[int, int], None], n: int, share: int, helpers: ThreadPoolExecutor | None = None) -> None:
    """Do work from 0 to n in shares, by as many threads as torch uses; the next free thread takes the next share.

    It should release the interpreter lock.
    """
    n_helpers = min(torch.get_num_threads(), -(-n // share)) - 1
    if n_helpers < 1:
        work(0, n)
        return
    shares = iter(range(0, n, share))

    def take_shares() -> None:
        for first in shares:
            work(first, min(first + share, n))

    pool = helpers or _helpers(os.getpid(), torch.get_num_threads() - 1)
    tasks: list[Future[None]] = []
    with suppress(RuntimeError):  # there are no new tasks while the interpreter ends
        tasks += (pool.submit(take_shares) for _ in range(n_helpers))
    try:
        take_shares()
    finally:
        for _ in shares:  # after an error, nothing more is begun
            pass
        errors = [task.exception() for task in tasks if not task.cancel()]  # who has not begun need not be waited for
    for error in errors:
        if error is not None:
            raise error


@cache
def _helpers(process: int, n: int) -> ThreadPoolExecutor:
    """Threads that wait for work; a child process has none of its parent's."""
    return ThreadPoolExecutor(n, thread_name_prefix="torchsdm-matching")
