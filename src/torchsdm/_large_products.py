"""Large float32 products on the CPU, by whichever library multiplies faster here.

torch and numpy come with different libraries (usually MKL and OpenBLAS), and which of them is faster depends on the
processor. So the first large products of a process are divided between the two and timed, and the faster library gets
all others. Their last bits differ, so this is only for products whose bits nobody relies on.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

_LARGE = 1 << 29  # multiplications; so many take some milliseconds
_FEWEST_ROWS = 128  # of both factors: products of fewer are limited by memory
_TRIALS = 4  # of each library

Multiply = Callable[[Tensor, Tensor, Tensor], object]


def multiply_into(out: Tensor, a: Tensor, b: Tensor) -> None:
    """``a @ b.T`` (n, m) into ``out``, for float32 ``a`` (n, k) and ``b`` (m, k); with torch's number of threads."""
    n_multiplications = len(a) * len(b) * a.shape[1]
    is_large = n_multiplications >= _LARGE and min(len(a), len(b)) >= _FEWEST_ROWS
    if len(a) == 1:
        torch.mv(b, a[0], out=out[0])
    elif is_large and out.device.type == "cpu" and _one_blas_thread.is_possible:
        _contest(torch.get_num_threads(), len(a).bit_length()).multiply(out, a, b, n_multiplications)
    else:
        _by_torch(out, a, b)


def _by_torch(out: Tensor, a: Tensor, b: Tensor) -> None:
    torch.mm(a, b.T, out=out)


def _by_numpy(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Each thread multiplies its share of the rows, so that numpy's own threads need not be woken, and do not spin."""
    n_threads = torch.get_num_threads()
    shares = [np.array_split(tensor.numpy(), n_threads) for tensor in (a, out)]
    columns = b.numpy().T

    def multiply(rows: np.ndarray, products: np.ndarray) -> None:
        np.matmul(rows, columns, out=products)

    with _one_blas_thread():
        if n_threads == 1:
            multiply(*(share[0] for share in shares))
            return
        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(multiply, *shares))


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
        return max(self.rates, key=lambda one: statistics.median(self.rates[one]))


@cache
def _contest(n_threads: int, magnitude: int) -> _Contest:
    """The contest with so many threads, for numbers of rows of this magnitude: few rows may suit another library."""
    return _Contest()


class _OneBlasThread:
    """Context in which a product of numpy uses the thread that asks for it and no other.

    The setting belongs to the whole process, so it counts who needs it and restores it when the last one is done.
    """

    def __init__(self) -> None:
        self.lock, self.users = threading.Lock(), 0
        self.controller = ThreadpoolController().select(user_api="blas")

    @property
    def is_possible(self) -> bool:
        """Whether numpy's library has such a setting."""
        return len(self.controller) > 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self.lock:
            if self.users == 0:
                self.limiter = self.controller.limit(limits=1)
            self.users += 1
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if self.users == 0:
                    self.limiter.restore_original_limits()


_one_blas_thread = _OneBlasThread()
