"""Runs the kernels over tiles: the compiled ones with the rows split among threads, or those in torch operations."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from torchsdm.compilation import is_compiled
from torchsdm.matching._tiles import Columns, Found, Kernels, Rows, Tile
from torchsdm.numerics import full_float32_products

_SHARED_ENTRIES = 1 << 16  # tiles below this are not worth waking threads for
_MANY_PAIRS = 100_000_000  # of queries and support points: torch operations would take longer than the compiler

_READY: set[Any] = (
    set()
)  # kernels that are compiled: to see that in the cache on disk for each query would take too long


class Engine:
    """Runs the kernels over tiles: the compiled ones with the rows split among threads, or torch operations.

    It takes rows, columns and found values as ``native`` makes them. Within its context, products are full float32.
    Who does not say which kernels are wanted, for so many pairs of points, gets the compiled ones on the CPU, unless
    these have yet to be compiled and the work is small.
    """

    def __init__(self, device: torch.device, compiled: bool | None, n_pairs: int = 0) -> None:
        self.device = device
        self.compiled = is_worth_compiling(device, n_pairs) if compiled is None else compiled
        self.kernels = kernels_for(self.compiled)
        self.n_threads = torch.get_num_threads() if self.compiled else 1

    def __enter__(self) -> Engine:
        self.context = ExitStack()
        self.context.enter_context(full_float32_products(self.device))
        self.pool: ThreadPoolExecutor | None = None
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()

    def native(self, values: Any) -> Any:
        """A tuple of tensors as the kernels take it: with arrays if they are compiled."""
        if not self.compiled:
            return values
        return type(values)(*(value.numpy() if isinstance(value, Tensor) else value for value in values))

    def find_first(self, tile: Tile, rows: Rows, columns: Columns, found: Found) -> Tensor:
        """Update nearest point and first non-match; returns the smallest bounds of matches, for ``count_matches``."""
        n_chunks = -(-(tile.stop - tile.start) // tile.chunk)
        match_lows = torch.empty(len(rows.own), n_chunks, dtype=torch.float32, device=self.device)
        self._run(self.kernels.find_first, tile, rows, columns, found, match_lows)
        return match_lows

    def count_matches(self, tile: Tile, rows: Rows, columns: Columns, found: Found, match_lows: Tensor) -> None:
        """Count the matches before the boundaries, which must be final."""
        self._run(self.kernels.count_matches, tile, rows, columns, found, match_lows)

    def find_neighbors(self, tile: Tile, rows: Rows, columns: Columns, found: Found) -> None:
        """Update the nearest k points."""
        self._run(self.kernels.find_neighbors, tile, rows, columns, found)

    def _run(self, kernel: Any, tile: Tile, rows: Rows, columns: Columns, found: Found, *lows: Tensor) -> None:
        """Call the kernel for all rows, at once or split among threads."""
        n = len(rows.own)
        more = (values.numpy() for values in lows) if self.compiled else lows
        arguments = self.native(tile), rows, columns, found, *more
        if self.n_threads == 1 or n * (tile.stop - tile.start) < _SHARED_ENTRIES:
            kernel(*arguments, 0, n)
            return
        share = -(-n // (4 * self.n_threads))  # smaller than a thread's part: the next free thread takes the next share
        shares = iter(range(0, n, share))

        def work() -> None:
            for first in shares:
                kernel(*arguments, first, min(first + share, n))

        if self.pool is None:
            self.pool = self.context.enter_context(
                ThreadPoolExecutor(self.n_threads - 1, initializer=_quieten_idle_threads)
            )
        helpers = [self.pool.submit(work) for _ in range(self.n_threads - 1)]
        work()
        for helper in helpers:
            helper.result()


def _quieten_idle_threads() -> None:
    """Keep the threads of torch's last product from spinning on the cores that the kernels need.

    GNU OpenMP's idle threads spin for about 10 ms, but hardly at all while it manages more threads than there are cores
    (see GOMP_SPINCOUNT in its manual). A parallel operation in this thread gives it its own team, so there are.
    """
    torch.zeros(1 << 17).add_(1.0)


def is_worth_compiling(device: torch.device, n_pairs: int) -> bool:
    """Whether so many pairs are for the compiled kernels: they are there, or the work is worth waiting for them."""
    return device.type == "cpu" and (n_pairs >= _MANY_PAIRS or _are_compiled())


def _are_compiled() -> bool:
    kernels: Any = kernels_for(compiled=True)
    needed = {kernels.find_first, kernels.count_matches, kernels.find_neighbors}
    _READY.update(one for one in needed - _READY if is_compiled(one))
    return needed <= _READY


def kernels_for(compiled: bool) -> Kernels:
    """The compiled kernels, or the same in torch operations."""
    if compiled:
        from torchsdm.matching import _kernels

        return _kernels
    from torchsdm.matching import _tensor_kernels

    return _tensor_kernels
