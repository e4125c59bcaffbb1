"""Work in shares, by as many threads as torch uses: for loops that release the interpreter lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch


def in_shares(work: Callable[[int, int], None], n: int, share: int, helpers: ThreadPoolExecutor | None = None) -> None:
    """Do work from 0 to n in shares, by as many threads as torch uses; the next free thread takes the next share."""
    shares = iter(range(0, n, share))

    def take_shares() -> None:
        for first in shares:
            work(first, min(first + share, n))

    n_helpers = min(torch.get_num_threads(), -(-n // share)) - 1
    if n_helpers < 1:
        take_shares()
        return
    pool = helpers or _helpers(os.getpid(), n_helpers)
    tasks = [pool.submit(take_shares) for _ in range(n_helpers)]
    take_shares()
    for task in tasks:
        task.result()


@cache
def _helpers(process: int, n: int) -> ThreadPoolExecutor:
    """Threads that wait for work; a child process has none of its parent's."""
    return ThreadPoolExecutor(n, thread_name_prefix="torchsdm-matching")
