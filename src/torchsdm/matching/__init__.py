"""Exact search: which support points are nearest, and how many of them agree before the first that does not (Eq. 4).

``search`` says how; ``tests/plain_matching.py`` does the same in a few lines by sorting, and both must agree.
"""

from torchsdm.matching._bounds import CentredPoints, Part
from torchsdm.matching._tiles import Found
from torchsdm.matching.rows import HashIndex, IndexedRows, RowIndex, with_part
from torchsdm.matching.search import DEFAULT_BLOCK_SIZE, Match, Search, match, rows_at_once
from torchsdm.matching.support import Support, SupportSet, check_ids, next_ids

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "CentredPoints",
    "Found",
    "HashIndex",
    "IndexedRows",
    "Match",
    "Part",
    "RowIndex",
    "Search",
    "Support",
    "SupportSet",
    "check_ids",
    "match",
    "next_ids",
    "rows_at_once",
    "with_part",
]
