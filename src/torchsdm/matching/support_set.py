"""The support set: the exemplars that answers are based on, in memory or in a mapped file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from torchsdm.matching._bounds import CentredPoints
from torchsdm.matching.parts import Part, joined, with_part
from torchsdm.matching.rows import IndexedRows
from torchsdm.matching.search import DEFAULT_BLOCK_SIZE, Match, match, match_self, neighbors
from torchsdm.matching.support import Support, check_exemplars, check_ids, check_labels
from torchsdm.validation import Array, ArrayLike, check_positive, check_shape


class SupportSet(Support):
    """Exemplars with labels and predictions, matched exactly and updatable in place.

    Added points are parts of their own (docs/decisions/0023), so adding does not copy the exemplars that are there. No
    part is ever written to: a shallow copy is a support of its own.

    Parameters
    ----------
    exemplars : (S, M) float32 or float64
        Kept as given (a memory-mapped array stays memory-mapped); other dtypes become float32.
    labels : (S,) integers
        Class numbers. Numbers that no prediction has (out-of-class labels) are allowed: such points match nothing and
        so shorten q.
    predictions : (S,) integers
    ids : (S,), optional
        Names of the points, unique; by default 0, 1, 2, ...
    block_size : int
        Rows of the blocks that a search works on. It bounds memory and does not affect results.
    centre : (M,), optional
        Subtracted from exemplars before float32 products, for accuracy; frozen. By default the mean exemplar.

    Examples
    --------
    >>> support = SupportSet([[0.0], [1.0], [2.0], [9.0]], labels=[0, 0, 1, 1], predictions=[0, 0, 1, 1])
    >>> m = support.match([[0.4]], predictions=[0])
    >>> m.similarity, m.nearest_distance, m.nearest_index
    (tensor([2]), tensor([0.4000], dtype=torch.float64), tensor([0]))
    """

    def __init__(
        self,
        exemplars: ArrayLike,
        labels: ArrayLike,
        predictions: ArrayLike,
        ids: Sequence[Any] | Array | None = None,
        *,
        block_size: int = DEFAULT_BLOCK_SIZE,
        centre: Tensor | None = None,
    ) -> None:
        check_positive(block_size, "block_size", "SupportSet", integer=True)
        self.block_size = block_size
        points = check_exemplars(exemplars, None, "SupportSet")
        if centre is None:
            centre = _mean(points, block_size)
        y, y_hat = check_labels(labels, predictions, points, "SupportSet")
        self._parts: tuple[Part, ...] = (Part(CentredPoints.of(points, centre.to(points.device).double()), y, y_hat),)
        self._ids = None if ids is None else check_ids(ids, len(points), "SupportSet")

    @classmethod
    def restore(
        cls,
        exemplars: Tensor,
        labels: Tensor,
        predictions: Tensor,
        centre: Tensor,
        squared_norms: Tensor,
        *,
        block_size: int = DEFAULT_BLOCK_SIZE,
    ) -> SupportSet:
        """A support from its saved parts. The values are trusted, so that nothing reads all exemplars."""
        support = cls.__new__(cls)
        support.block_size = block_size
        check_shape(exemplars, (len(labels), len(centre)), "exemplars", "SupportSet.restore")
        for name, values in (("predictions", predictions), ("squared_norms", squared_norms)):
            check_shape(values, (len(labels),), name, "SupportSet.restore")
        points = CentredPoints(exemplars.contiguous(), centre, squared_norms)
        support._parts = (Part(points, labels, predictions),)
        return support

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __repr__(self) -> str:
        vouching = sum(int((part.groups >= 0).sum()) for part in self._parts)
        return f"SupportSet({len(self)} exemplars of {self.n_filters} filters, {vouching} correctly predicted)"

    @property
    def exemplars(self) -> Tensor:
        """The exemplars (S, M); after points were added, a copy that joins the parts."""
        return _joined([part.points.points for part in self._parts])

    @property
    def labels(self) -> Tensor:
        """The labels (S,)."""
        return _joined([part.labels for part in self._parts])

    @property
    def predictions(self) -> Tensor:
        """The predictions (S,)."""
        return _joined([part.predictions for part in self._parts])

    @property
    def squared_norms(self) -> Tensor:
        """Each exemplar's squared distance from the centre (S,)."""
        return _joined([part.points.squared_norms for part in self._parts])

    @property
    def parts(self) -> tuple[Part, ...]:
        """The points in parts, as matching takes them."""
        return self._parts

    @property
    def dtype(self) -> torch.dtype:
        """The type of the exemplars."""
        return self._parts[0].points.points.dtype

    @property
    def centre(self) -> Tensor:
        """The frozen centre (M,)."""
        return self._parts[0].points.centre

    @property
    def rows(self) -> IndexedRows:
        """The exemplars with an index, to find equal ones."""
        return IndexedRows([part.points.row_index for part in self._parts])

    def _match(self, queries: Tensor, predictions: Tensor, exclude: Tensor | None, k: int) -> Match:
        return match(queries, predictions, self._parts, exclude, self.block_size, k=k)

    def match_self(self) -> Match:
        """Every support point against all the others: the training pass."""
        return match_self(self._parts, self.block_size)

    def _neighbors(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return neighbors(queries, self._parts, k, self.block_size)

    def _add(self, exemplars: Tensor, labels: Tensor, predictions: Tensor) -> None:
        added = Part(CentredPoints.of(exemplars, self.centre), labels, predictions, start=len(self))
        self._parts = with_part(self._parts, added, joined)

    def _remove(self, indices: Tensor) -> None:
        keep = torch.ones(len(self), dtype=torch.bool, device=self.device)
        keep[indices] = False
        masks = keep.split([len(part) for part in self._parts])
        left = [
            part if bool(mask.all()) else part.where(mask)
            for part, mask in zip(self._parts, masks, strict=True)
            if bool(mask.any())
        ]
        starts = accumulate(map(len, left), initial=0)
        self._parts = tuple(replace(part, start=start) for part, start in zip(left, starts, strict=False))

    def _relabel(self, indices: Tensor, labels: Tensor) -> None:
        changed = self.labels.clone()
        changed[indices] = labels
        of_parts = changed.split([len(part) for part in self._parts])
        self._parts = tuple(replace(part, labels=own) for part, own in zip(self._parts, of_parts, strict=True))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors one after the other; a single one as it is, without a copy."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _mean(points: Tensor, block_size: int) -> Tensor:
    total = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
    for start in range(0, len(points), block_size):
        total += points[start : start + block_size].double().sum(dim=0)
    return total / len(points)
