"""Loops in C, compiled when the package was built, for what neither torch nor numpy does in one pass.

There is a library for every processor, and others for those with more vector instructions; ``library`` loads the best.
All give the same bits, and so does the Python that takes their place if the package was built without a compiler. The
environment variable ``TORCHSDM_LOOPS`` names another one of ``LEVELS``, or ``none``.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

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
        if hasattr(argument, "data_ptr"):  # a tensor; torch is not imported here
            return ctypes.c_void_p(argument.data_ptr())
        if isinstance(argument, np.ndarray):
            return ctypes.c_void_p(argument.ctypes.data)
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


def library() -> ctypes.CDLL | None:
    """The compiled loops; None if the package was built without a compiler, or they are not wanted."""
    return _load(loops_in_use())


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
    """Whether there are compiled loops."""
    return library() is not None


def call(name: str, *arguments: Any) -> None:
    """Call a function of the library that returns 0, or another number if it had no memory; other threads go on.

    Tensors and arrays, which must be contiguous, are passed as pointers.
    """
    if getattr(library(), name)(*arguments) != 0:
        raise MemoryError(f"No memory for '{name}' of the compiled loops.")


def _path(name: str) -> Path:
    return Path(__file__).with_name(f"_loops-{name}.library")


@cache
def _load(name: str) -> ctypes.CDLL | None:
    try:
        loaded = ctypes.CDLL(str(_path(name)))
    except OSError:  # not there, or for another kind of machine
        return None
    loaded.sources.restype = ctypes.c_char_p
    if loaded.sources().decode() != _build.source_digest():
        _LOGGER.warning("%s was compiled from other sources and is not used: sdm doctor --compile.", _path(name))
        return None
    for function, arguments in _FUNCTIONS.items():
        getattr(loaded, function).argtypes = [_KINDS[kind] for kind in arguments]
    return loaded
