"""Values of points class by class, by sorting once: the cost does not grow with the number of classes."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def rows_by_class(labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
    """The rows of each class 0..C-1, ascending; rows with any other label (N,) are left out."""
    order = torch.argsort(labels, stable=True)
    ends = torch.searchsorted(labels[order], torch.arange(n_classes + 1, device=labels.device)).tolist()
    return tuple(order[start:stop] for start, stop in itertools.pairwise(ends))


def sorted_by_class(values: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
    """The values (N,) of each class 0..C-1, ascending."""
    ascending, order = values.sort()
    return tuple(ascending[rows] for rows in rows_by_class(labels[order], n_classes))
