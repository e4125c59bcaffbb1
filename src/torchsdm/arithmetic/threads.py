"""Work in blocks that fit in memory, or in shares by as many threads as torch uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache

import torch


def blocks(n: int, width: int, n_elements: int) -> Iterator[slice]:
    """Slices of n rows of a width that have at most so many elements, or a single row."""
    size = max(1, n_elements // max(1, width))
    return (slice(start, start + size) for start in range(0, n, size))


def in_shares(work: Callable[[int, int], None], n: int, share: int, helpers: ThreadPoolExecutor | None = None) -> None:
    """Do work from 0 to n in shares, by as many threads as torch uses; the next free thread takes the next share.

    It should release the interpreter lock.
    """
    shares = iter(range(0, n, share))

    def take_shares() -> None:
        for first in shares:
            work(first, min(first + share, n))

    n_helpers = min(torch.get_num_threads(), -(-n // share)) - 1
    if n_helpers < 1:
        take_shares()
        return
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
