"""Matching in a few lines, by sorting: what ``torchsdm.matching.search`` is tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsdm.arithmetic import pair_distances
from torchsdm.matching.search import NO_POINT, Match


def match_plain(
    queries: Tensor, predictions: Tensor, support: Tensor, groups: Tensor, exclude: Tensor | None = None
) -> Match:
    """The plain version of ``match``: sort everything, count until the first non-match."""
    similarity, nearest_distance, nearest_index = [], [], []
    for row in range(len(queries)):
        own = NO_POINT if exclude is None else int(exclude[row])
        distance, index = _sorted_plain(queries[row], support, own)
        is_match = groups[index] == predictions[row]
        similarity.append(int(is_match.to(torch.int64).cumprod(dim=0).sum()))
        nearest_distance.append(float(distance[0]) if len(index) else torch.inf)
        nearest_index.append(int(index[0]) if len(index) else NO_POINT)
    return Match(
        torch.tensor(similarity, dtype=torch.int64),
        torch.tensor(nearest_distance, dtype=torch.float64),
        torch.tensor(nearest_index, dtype=torch.int64),
    )


def neighbors_plain(query: Tensor, support: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The plain version of ``neighbors`` for one query (M,): sort, take k."""
    distance, index = _sorted_plain(query, support, NO_POINT)
    return distance[:k], index[:k]


def _sorted_plain(query: Tensor, support: Tensor, own: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(len(support))
    index = index[index != own]
    distance = pair_distances(query[None], support, torch.zeros_like(index), index)
    order = torch.sort(distance, stable=True).indices  # stable: ties stay in index order
    return distance[order], index[order]
