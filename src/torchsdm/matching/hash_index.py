"""Finding equals by their hashes: one sorted array, however long the things themselves are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from torchsdm.validation import Array


class HashIndex:
    """Where things are, by their hashes (N,), 16 bytes for each. Equal hashes are only a hint: ``find`` compares.

    Examples
    --------
    >>> words, wanted = ["blue", "red", "red", "tan"], ["red", "tin"]
    >>> index = HashIndex(np.array([len(word) for word in words]))
    >>> index.find(np.array([3, 3]), lambda rows, places: [wanted[r] == words[p] for r, p in zip(rows, places)])
    {0: 2}
    """

    def __init__(self, hashes: Array) -> None:
        self.order = np.argsort(hashes, kind="stable")
        self.hashes = hashes[self.order]

    def find(self, hashes: Array, is_equal: Callable[[Array, Array], Array | Sequence[bool]]) -> dict[int, int]:
        """Which of the wanted things are here, each with its last place.

        ``is_equal`` compares the wanted things at some rows with those at as many places here.
        """
        found: dict[int, int] = {}
        at = np.searchsorted(self.hashes, hashes, side="right") - 1
        rows = np.arange(len(hashes))
        while True:
            rows = rows[at[rows] >= 0]
            rows = rows[self.hashes[at[rows]] == hashes[rows]]
            if len(rows) == 0:
                return found
            places = self.order[at[rows]]
            equal = np.asarray(is_equal(rows, places), dtype=bool)
            found |= dict(zip(rows[equal].tolist(), places[equal].tolist(), strict=True))
            at[rows] -= 1
            rows = rows[~equal]
