"""Large float32 products on the CPU, by whichever library multiplies faster here.

torch and numpy come with different libraries (usually MKL and OpenBLAS), and which of them is faster depends on the
processor. So the first large products of a process are divided between the two and timed, and the faster library gets
all others. Their last bits differ, so this is only for products whose bits nobody relies on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

_LARGE = 1 << 28  # multiplications; this many take a few milliseconds
_FEWEST_ROWS = 128  # of both factors: products of fewer are limited by memory
_TRIALS = 4  # of each library; its best one counts

Multiply = Callable[[Tensor, Tensor, Tensor], object]


def multiply_into(out: Tensor, a: Tensor, b: Tensor) -> None:
    """``a @ b.T`` (n, m) into ``out``, for float32 ``a`` (n, k) and ``b`` (m, k)."""
    n_multiplications = len(a) * len(b) * a.shape[1]
    is_large = n_multiplications >= _LARGE and min(len(a), len(b)) >= _FEWEST_ROWS
    n_threads = torch.get_num_threads()
    if len(a) == 1:
        torch.mv(b, a[0], out=out[0])
    elif is_large and out.device.type == "cpu" and _numpy_uses(n_threads):
        _contest(n_threads, len(a).bit_length()).multiply(out, a, b, n_multiplications)
    else:
        _by_torch(out, a, b)


def _by_torch(out: Tensor, a: Tensor, b: Tensor) -> None:
    torch.mm(a, b.T, out=out)


def _by_numpy(out: Tensor, a: Tensor, b: Tensor) -> None:
    np.matmul(a.numpy(), b.numpy().T, out=out.numpy())


class _Contest:
    """Gives products to each library in turn until both were timed often enough, then to the faster one."""

    def __init__(self) -> None:
        self.rates: dict[Multiply, list[float]] = {_by_torch: [], _by_numpy: []}

    def multiply(self, out: Tensor, a: Tensor, b: Tensor, n_multiplications: int) -> None:
        """``a @ b.T`` into ``out``."""
        library = self.next()
        start = time.perf_counter()
        library(out, a, b)
        if len(self.rates[library]) < _TRIALS:
            self.rates[library].append(n_multiplications / (time.perf_counter() - start))

    def next(self) -> Multiply:
        """The library with the fewest trials, or the faster one if there were enough."""
        library = min(self.rates, key=lambda one: len(self.rates[one]))
        if len(self.rates[library]) < _TRIALS:
            return library
        return max(self.rates, key=lambda one: max(self.rates[one]))


@cache
def _contest(n_threads: int, magnitude: int) -> _Contest:
    """The contest with so many threads, for numbers of rows of this magnitude: few rows may suit another library."""
    return _Contest()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def _numpy_uses(n_threads: int) -> bool:
    """Whether numpy's products use as many threads as the user allows torch."""
    found = [library.num_threads for library in _controller().lib_controllers if library.user_api == "blas"]
    return bool(found) and set(found) == {n_threads}
