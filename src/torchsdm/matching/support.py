"""The support set: the exemplars that answers are based on, and searches over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.matching._bounds import CentredPoints
from torchsdm.matching._parts import Part, joined
from torchsdm.matching.rows import IndexedRows
from torchsdm.matching.search import DEFAULT_BLOCK_SIZE, Match, match, match_self, neighbors
from torchsdm.parts import with_part
from torchsdm.validation import (
    Array,
    ArrayLike,
    as_float_tensor,
    as_integer_tensor,
    as_list,
    as_tensor,
    check_finite,
    check_positive,
    check_shape,
    is_storable_id,
)

_LARGEST_CLASS = torch.iinfo(torch.int32).max
UNLABELLED = -1  #: by convention a missing label, so it cannot be an out-of-class label


class SupportSet:
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
        points = self._check_exemplars(exemplars, None, "SupportSet")
        if centre is None:
            centre = _mean(points, block_size)
        y, y_hat = _check_labels(labels, predictions, points, "SupportSet")
        self._parts: tuple[Part, ...] = (Part(CentredPoints.of(points, centre.to(points.device).double()), y, y_hat),)
        self._ids: Array | Callable[[], Sequence[Any]] | None = (
            None if ids is None else check_ids(ids, len(points), "SupportSet")
        )

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
        check_shape(predictions, (len(labels),), "predictions", "SupportSet.restore")
        check_shape(squared_norms, (len(labels),), "squared_norms", "SupportSet.restore")
        points = CentredPoints(exemplars.contiguous(), centre, squared_norms)
        support._parts = (Part(points, labels, predictions),)
        support._ids = None
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
    def n_filters(self) -> int:
        """M, the width of an exemplar."""
        return self.centre.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the exemplars are."""
        return self._parts[0].labels.device

    @property
    def ids(self) -> Array:
        """The names of the points (S,); 0, 1, 2, ... if none were given."""
        if self._ids is None:
            return _object_array(range(len(self)))
        return _object_array(self._ids()) if callable(self._ids) else self._ids

    def named_by(self, ids: Callable[[], Sequence[Any]]) -> None:
        """Get the names of the points from a function: a model keeps them with the texts, so that they live once."""
        self._ids = ids

    @property
    def centre(self) -> Tensor:
        """The frozen centre (M,)."""
        return self._parts[0].points.centre

    @property
    def rows(self) -> IndexedRows:
        """The exemplars with an index, to find equal ones."""
        return IndexedRows([part.points.row_index for part in self._parts])

    def match(
        self, exemplars: ArrayLike, predictions: ArrayLike, exclude: ArrayLike | None = None, *, k: int = 0
    ) -> Match:
        """Similarity q, nearest distance and nearest index of each exemplar (Eq. 4).

        ``exclude`` gives for each query its own support index, or -1 if the query is not in the support. Duplicates
        of an excluded point stay. With ``k``, the k nearest support points are returned too, from the same products.
        """
        self._check_k(k, "SupportSet.match", zero=True)
        queries = self._check_exemplars(exemplars, self.n_filters, "SupportSet.match")
        y_hat = as_integer_tensor(predictions, "predictions", "SupportSet.match").to(queries.device)
        check_shape(y_hat, (len(queries),), "predictions", "SupportSet.match")
        _check_class_numbers(y_hat, "SupportSet.match")
        own = None
        if exclude is not None:
            own = as_integer_tensor(exclude, "exclude", "SupportSet.match").to(queries.device)
            check_shape(own, (len(queries),), "exclude", "SupportSet.match")
            if len(own) and not -1 <= int(own.min()) <= int(own.max()) < len(self):
                raise InvalidInputError(
                    f"'exclude' of SupportSet.match must be in -1..{len(self) - 1}. "
                    f"Got {int(own.min())}..{int(own.max())}."
                )
        return match(queries, y_hat, self._parts, own, self.block_size, k=k)

    def match_self(self) -> Match:
        """Every support point against all the others: the training pass."""
        return match_self(self._parts, self.block_size)

    def neighbors(self, exemplars: ArrayLike, k: int) -> tuple[Tensor, Tensor]:
        """The k nearest support points: distances (N, k) float64 and indices (N, k), nearest first, ties by index."""
        self._check_k(k, "SupportSet.neighbors")
        queries = self._check_exemplars(exemplars, self.n_filters, "SupportSet.neighbors")
        return neighbors(queries, self._parts, k, self.block_size)

    def add(
        self,
        exemplars: ArrayLike,
        labels: ArrayLike,
        predictions: ArrayLike,
        ids: Sequence[Any] | Array | None = None,
    ) -> SupportSet:
        """Append points, in place. Without ids, numbering continues from the largest number in use."""
        caller = "SupportSet.add"
        new = self._check_exemplars(exemplars, self.n_filters, caller).to(self._parts[0].points.points.dtype)
        y, y_hat = _check_labels(labels, predictions, new, caller)
        all_ids = self._ids
        if not callable(self._ids) and (ids is not None or self._ids is not None):
            all_ids = check_ids(
                [*self.ids, *(next_ids(self.ids, len(new)) if ids is None else as_list(ids, "ids", caller))],
                len(self) + len(new),
                caller,
            )
        if len(new):
            added = Part(CentredPoints.of(new, self.centre), y, y_hat, start=len(self))
            self._parts = with_part(self._parts, added, joined)
        self._ids = all_ids
        return self

    def remove(self, indices: ArrayLike) -> SupportSet:
        """Drop points by support index, in place; later points move up."""
        gone = self._check_indices(indices, "SupportSet.remove")
        keep = torch.ones(len(self), dtype=torch.bool, device=self.device)
        keep[gone] = False
        if not bool(keep.any()):
            raise InvalidInputError("'indices' of SupportSet.remove must leave at least one point. Got all of them.")
        if not callable(self._ids):
            self._ids = self.ids[keep.cpu().numpy()]
        masks = keep.split([len(part) for part in self._parts])
        left = [
            part if bool(mask.all()) else part.where(mask)
            for part, mask in zip(self._parts, masks, strict=True)
            if bool(mask.any())
        ]
        starts = accumulate(map(len, left), initial=0)
        self._parts = tuple(replace(part, start=start) for part, start in zip(left, starts, strict=False))
        return self

    def relabel(self, indices: ArrayLike, labels: ArrayLike) -> SupportSet:
        """Give points new labels, in place; labels outside the classes are allowed."""
        chosen = self._check_indices(indices, "SupportSet.relabel")
        y = as_integer_tensor(labels, "labels", "SupportSet.relabel").to(self.device)
        check_shape(y, (len(chosen),), "labels", "SupportSet.relabel")
        _refuse_unlabelled(y, "SupportSet.relabel")
        changed = self.labels.clone()
        changed[chosen] = y
        of_parts = changed.split([len(part) for part in self._parts])
        self._parts = tuple(replace(part, labels=own) for part, own in zip(self._parts, of_parts, strict=True))
        return self

    def _check_exemplars(self, exemplars: ArrayLike, width: int | None, caller: str) -> Tensor:
        tensor = as_float_tensor(exemplars, "exemplars", caller)
        check_shape(tensor, (None, width), "exemplars", caller)
        if width is None and (len(tensor) == 0 or tensor.shape[1] == 0):
            raise InvalidInputError(f"'exemplars' of {caller} must not be empty. Got shape {tuple(tensor.shape)}.")
        check_finite(tensor, "exemplars", caller)
        tensor = tensor.detach().contiguous()
        return tensor if width is None else tensor.to(self.device)

    def _check_k(self, k: int, caller: str, *, zero: bool = False) -> None:
        check_positive(k, "k", caller, integer=True, zero=zero)
        if k > len(self):
            raise InvalidInputError(f"'k' of {caller} must be at most {len(self)}, the size of the support. Got {k}.")

    def _check_indices(self, indices: ArrayLike, caller: str) -> Tensor:
        tensor = as_tensor(indices, "indices", caller)
        if tensor.dtype == torch.bool:
            raise InvalidTypeError(
                f"'indices' of {caller} must be integer indices. Got a boolean mask; use its nonzero()."
            )
        tensor = as_integer_tensor(tensor, "indices", caller).reshape(-1).to(self.device)
        if len(tensor) and not 0 <= int(tensor.min()) <= int(tensor.max()) < len(self):
            raise InvalidInputError(
                f"'indices' of {caller} must be in 0..{len(self) - 1}. Got {int(tensor.min())}..{int(tensor.max())}."
            )
        return tensor


def _check_labels(labels: ArrayLike, predictions: ArrayLike, points: Tensor, caller: str) -> tuple[Tensor, Tensor]:
    y = as_integer_tensor(labels, "labels", caller).to(points.device)
    y_hat = as_integer_tensor(predictions, "predictions", caller).to(points.device)
    check_shape(y, (len(points),), "labels", caller)
    check_shape(y_hat, (len(points),), "predictions", caller)
    _refuse_unlabelled(y, caller)
    _check_class_numbers(y_hat, caller)
    return y, y_hat


def _check_class_numbers(predictions: Tensor, caller: str) -> None:
    if len(predictions) and not 0 <= int(predictions.min()) <= int(predictions.max()) <= _LARGEST_CLASS:
        strange = predictions[(predictions < 0) | (predictions > _LARGEST_CLASS)][0]
        raise InvalidInputError(f"'predictions' of {caller} must be class numbers from 0. Got {int(strange)}.")


def _refuse_unlabelled(labels: Tensor, caller: str) -> None:
    if bool((labels == UNLABELLED).any()):
        raise InvalidInputError(
            f"'labels' of {caller} must be known. Got {UNLABELLED} (unlabelled); leave such points out, or give them "
            "an out-of-class label."
        )


def check_ids(ids: Sequence[Any] | Array, n: int, caller: str) -> Array:
    """Names of n points: unique strings or integers, as an object array."""
    names = as_list(ids, "ids", caller)
    if len(names) != n:
        raise InvalidInputError(f"'ids' of {caller} must name each of {n} points. Got {len(names)} names.")
    strange = [name for name in names if not is_storable_id(name)]
    if strange:
        raise InvalidTypeError(f"'ids' of {caller} must be strings or 64-bit integers. Got {strange[0]!r}.")
    if len(set(names)) != n:
        seen: set[Any] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidInputError(f"'ids' of {caller} must be unique. Got {twice!r} more than once.")
    return _object_array(names)


def next_ids(ids: Iterable[Any], n: int) -> list[int]:
    """Numbers for n new points, continuing from the largest number in use."""
    first = max((name for name in ids if isinstance(name, int)), default=-1) + 1
    return list(range(first, first + n))


def _object_array(values: Sequence[Any]) -> Array:
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors one after the other; a single one as it is, without a copy."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _mean(points: Tensor, block_size: int) -> Tensor:
    total = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
    for start in range(0, len(points), block_size):
        total += points[start : start + block_size].double().sum(dim=0)
    return total / len(points)
