"""Exact search: which support points are nearest, and how many of them agree before the first that does not (Eq. 4).

``search`` says how; ``plain`` does the same in a few lines by sorting, and the fast path is tested against it.
"""

from torchsdm.matching.rows import IndexedRows, RowIndex
from torchsdm.matching.search import DEFAULT_BLOCK_SIZE, NO_POINT, Match
from torchsdm.matching.support import SupportSet, check_ids, next_ids

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "NO_POINT",
    "IndexedRows",
    "Match",
    "RowIndex",
    "SupportSet",
    "check_ids",
    "next_ids",
]
