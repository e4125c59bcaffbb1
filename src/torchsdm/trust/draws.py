"""A number between 0 and 1 drawn from data instead of a generator: the same data give the same number, anywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from torchsdm.validation import Array


def row_digests(rows: Array) -> list[bytes]:
    """SHA-256 of each row of an array (N, ...)."""
    return [hashlib.sha256(row).digest() for row in np.ascontiguousarray(rows)]


def uniform_of(digests: Iterable[bytes]) -> float:
    """A number in (0, 1] from the digests of rows, whatever their order: 53 bits of SHA-256 of the sorted ones.

    Examples
    --------
    >>> one, other = row_digests(np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> uniform_of([one, other]) == uniform_of([other, one]) != uniform_of([one])
    True
    """
    content = hashlib.sha256(b"".join(sorted(digests))).digest()
    return ((int.from_bytes(content[:8], "big") >> 11) + 1) / 2**53
