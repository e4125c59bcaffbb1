"""Batches of sequences by token budget, with little padding."""

from __future__ import annotations

from collections.abc import Sequence

MAX_PADDING = 0.1  #: the largest share of a batch that may be padding


def batches_by_length(lengths: Sequence[int], budget: int, max_padding: float = MAX_PADDING) -> list[list[int]]:
    """Divide sequences of given lengths into batches of positions, longest first.

    A batch, padded to its longest sequence, has at most ``budget`` tokens (one sequence always fits) and at most a
    share ``max_padding`` of padding. The same lengths give the same batches.

    Examples
    --------
    >>> batches_by_length([3, 10, 9, 3], budget=20)
    [[1, 2], [0, 3]]
    """
    order = sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))
    batches: list[list[int]] = []
    n_real = longest = 0
    for position in order:
        length = lengths[position]
        padded = (len(batches[-1]) + 1) * longest if batches else 0
        if not batches or padded > budget or padded - n_real - length > max_padding * padded:
            batches.append([])
            n_real, longest = 0, length
        batches[-1].append(position)
        n_real += length
    return batches
