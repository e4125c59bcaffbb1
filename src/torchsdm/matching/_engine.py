"""Runs the kernels over tiles: the compiled ones with the rows split among threads, or those in torch operations.

The compiled kernels (CPU) are in ``arithmetic/tiles.c``. ``_tensor_kernels`` does the same in torch operations, for
other devices and for packages without compiled loops; the answers are the same bit for bit.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Literal

import torch
from torch import Tensor

from torchsdm.arithmetic import call, full_float32_products, in_shares
from torchsdm.matching import _tensor_kernels
from torchsdm.matching._tiles import Found, Rows, SupportColumns, Tile, work_in_c

KernelKind = Literal["coarse", "compiled", "torch"]
"""The compiled kernels, with a first filter in bfloat16 or without it, or the same in torch operations."""

_SHARED_ENTRIES = 1 << 16  # tiles below this are not worth waking threads for


class Engine:
    """Runs one kind of kernels. Within its context, products are full float32."""

    def __init__(self, device: torch.device, kind: KernelKind) -> None:
        self.device = device
        self.compiled, self.coarse = kind != "torch", kind == "coarse"

    def __enter__(self) -> Engine:
        self.context = ExitStack()
        self.context.enter_context(full_float32_products(self.device))
        self.pool: ThreadPoolExecutor | None = None
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()

    def find_first(self, tile: Tile, rows: Rows, columns: SupportColumns, found: Found) -> Tensor:
        """Update nearest point and first non-match; returns the smallest bounds of matches, for ``count_matches``."""
        n_chunks = -(-(tile.stop - tile.start) // tile.chunk)
        match_lows = torch.empty(len(rows.own), n_chunks, dtype=torch.float32, device=self.device)
        self._run("find_first", tile, rows, columns, found, match_lows)
        return match_lows

    def count_matches(self, tile: Tile, rows: Rows, columns: SupportColumns, found: Found, match_lows: Tensor) -> None:
        """Count the matches before the boundaries, which must be final."""
        self._run("count_matches", tile, rows, columns, found, match_lows)

    def find_neighbors(self, tile: Tile, rows: Rows, columns: SupportColumns, found: Found) -> None:
        """Update the nearest k points."""
        self._run("find_neighbors", tile, rows, columns, found)

    def _run(self, kernel: str, tile: Tile, rows: Rows, columns: SupportColumns, found: Found, *lows: Tensor) -> None:
        """Call the kernel for all rows, at once or split among threads."""
        if not self.compiled:
            getattr(_tensor_kernels, kernel)(tile, rows, columns, found, *lows)
            return
        n, n_threads = len(rows.own), torch.get_num_threads()
        work = work_in_c(tile, rows, columns, found)
        if n_threads == 1 or n * (tile.stop - tile.start) < _SHARED_ENTRIES:
            call(kernel, *work, *lows, 0, n)
            return
        if self.pool is None and not self.coarse:  # torch multiplies
            quiet = ThreadPoolExecutor(n_threads - 1, initializer=_quieten_idle_threads)
            self.pool = self.context.enter_context(quiet)
        share = -(-n // (4 * n_threads))
        in_shares(lambda begin, end: call(kernel, *work, *lows, begin, end), n, share, self.pool)


def _quieten_idle_threads() -> None:
    """Keep the threads of torch's last product from spinning on the cores that the kernels need.

    GNU OpenMP's idle threads spin for about 10 ms, but hardly at all while it manages more threads than there are cores
    (see GOMP_SPINCOUNT in its manual). A parallel operation in this thread gives it its own team, so there are.
    """
    torch.zeros(1 << 17).add_(1.0)
