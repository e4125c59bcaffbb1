"""What every support is: points with labels, predictions and names that can be searched and changed.

``Support`` checks what it is given and keeps the names. Where the points are and who searches them is left to its
kinds: ``SupportSet`` has them in memory or in a mapped file, ``torchsdm.cluster.ShardedSupport`` on several machines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.matching._bounds import CentredPoints, Part, joined
from torchsdm.matching.mutual import match_self
from torchsdm.matching.rows import IndexedRows, with_part
from torchsdm.matching.search import DEFAULT_BLOCK_SIZE, Match, match
from torchsdm.validation import (
    Array,
    ArrayLike,
    as_list,
    as_tensor,
    check_finite,
    check_positive,
    check_range,
    check_shape,
    is_storable_id,
)

_LARGEST_CLASS = torch.iinfo(torch.int32).max
UNLABELLED = -1  #: by convention a missing label, so it cannot be an out-of-class label
Self = TypeVar("Self", bound="Support")


class Support(ABC):
    """Exemplars with labels and predictions that queries are matched against, updatable in place.

    An update replaces what the support refers to and writes to nothing: a shallow copy is a support of its own.
    """

    _ids: Array | Callable[[], Sequence[Any]] | None = None

    @abstractmethod
    def __len__(self) -> int:
        """The number of points, S."""

    @property
    @abstractmethod
    def exemplars(self) -> Tensor:
        """The exemplars (S, M)."""

    @property
    @abstractmethod
    def labels(self) -> Tensor:
        """The labels (S,)."""

    @property
    @abstractmethod
    def predictions(self) -> Tensor:
        """The predictions (S,)."""

    @property
    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Each exemplar's squared distance from the centre (S,)."""

    @property
    @abstractmethod
    def centre(self) -> Tensor:
        """The frozen centre (M,)."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of the exemplars."""

    @property
    def device(self) -> torch.device:
        """Where queries and answers are."""
        return self.centre.device

    @property
    @abstractmethod
    def rows(self) -> IndexedRows:
        """The exemplars with an index, to find equal ones."""

    @property
    def n_filters(self) -> int:
        """M, the width of an exemplar."""
        return self.centre.shape[0]

    @property
    def ids(self) -> Array:
        """The names of the points (S,); 0, 1, 2, ... if none were given."""
        if self._ids is None:
            return _object_array(range(len(self)))
        return _object_array(self._ids()) if callable(self._ids) else self._ids

    def named_by(self, ids: Callable[[], Sequence[Any]]) -> None:
        """Get the names of the points from a function: a model keeps them with the texts, so that they live once."""
        self._ids = ids

    def match(
        self, exemplars: ArrayLike, predictions: ArrayLike, exclude: ArrayLike | None = None, *, k: int = 0
    ) -> Match:
        """Similarity q, nearest distance and nearest index of each exemplar (Eq. 4).

        ``exclude`` gives for each query its own support index, or -1 if the query is not in the support. Duplicates
        of an excluded point stay. With ``k``, the k nearest support points are returned too, from the same products.
        """
        caller = f"{type(self).__name__}.match"
        self._check_k(k, caller, zero=True)
        queries = check_exemplars(exemplars, caller, self.centre)
        n = (len(queries),)
        y_hat = as_tensor(predictions, "predictions", caller, kind="integer", shape=n, like=queries)
        check_range(y_hat, 0, _LARGEST_CLASS, "predictions", caller)
        own = None
        if exclude is not None:
            own = as_tensor(exclude, "exclude", caller, kind="integer", shape=n, like=queries)
            check_range(own, -1, len(self) - 1, "exclude", caller)
        return self._match(queries, y_hat, own, k)

    @abstractmethod
    def match_self(self) -> Match:
        """Every support point against all the others: the training pass."""

    def neighbors(self, exemplars: ArrayLike, k: int) -> tuple[Tensor, Tensor]:
        """The k nearest support points: distances (N, k) float64 and indices (N, k), nearest first, ties by index."""
        caller = f"{type(self).__name__}.neighbors"
        self._check_k(k, caller)
        found = self._match(check_exemplars(exemplars, caller, self.centre), None, None, k)
        return found.neighbor_distances, found.neighbor_indices

    def add(
        self: Self,
        exemplars: ArrayLike,
        labels: ArrayLike,
        predictions: ArrayLike,
        ids: Sequence[Any] | Array | None = None,
    ) -> Self:
        """Append points, in place. Without ids, numbering continues from the largest number in use."""
        caller = f"{type(self).__name__}.add"
        new = check_exemplars(exemplars, caller, self.centre).to(self.dtype)
        y, y_hat = check_labels(labels, predictions, new, caller)
        all_ids = self._ids
        if not callable(self._ids) and (ids is not None or self._ids is not None):
            all_ids = check_ids(
                [*self.ids, *(next_ids(self.ids, len(new)) if ids is None else as_list(ids, "ids", caller))],
                len(self) + len(new),
                caller,
            )
        if len(new):
            self._add(new, y, y_hat)
        self._ids = all_ids
        return self

    def remove(self: Self, indices: ArrayLike) -> Self:
        """Drop points by support index, in place; later points move up."""
        caller = f"{type(self).__name__}.remove"
        gone = torch.unique(self._check_indices(indices, caller))
        if len(gone) == len(self):
            raise InvalidInputError(f"'indices' of {caller} must leave at least one point. Got all of them.")
        if not callable(self._ids):
            self._ids = np.delete(self.ids, gone.cpu().numpy())
        self._remove(gone)
        return self

    def relabel(self: Self, indices: ArrayLike, labels: ArrayLike) -> Self:
        """Give points new labels, in place; labels outside the classes are allowed."""
        caller = f"{type(self).__name__}.relabel"
        chosen = self._check_indices(indices, caller)
        y = as_tensor(labels, "labels", caller, kind="integer", shape=(len(chosen),), like=chosen)
        _refuse_unlabelled(y, caller)
        self._relabel(chosen, y)
        return self

    # --- What each kind does with input that is checked --------------------------------------------------------------

    @abstractmethod
    def _match(self, queries: Tensor, predictions: Tensor | None, exclude: Tensor | None, k: int) -> Match:
        """Without predictions, the k nearest points alone."""

    @abstractmethod
    def _add(self, exemplars: Tensor, labels: Tensor, predictions: Tensor) -> None: ...

    @abstractmethod
    def _remove(self, indices: Tensor) -> None:
        """The indices are sorted, each there once."""

    @abstractmethod
    def _relabel(self, indices: Tensor, labels: Tensor) -> None: ...

    # --- Checks ------------------------------------------------------------------------------------------------------

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
        tensor = as_tensor(tensor, "indices", caller, kind="integer").reshape(-1).to(self.device)
        check_range(tensor, 0, len(self) - 1, "indices", caller)
        return tensor


def check_exemplars(exemplars: ArrayLike, caller: str, like: Tensor | None = None) -> Tensor:
    """Exemplars (N, M), finite and contiguous: as wide as a centre (M,) and where it is, or at least one number."""
    width = None if like is None else len(like)
    tensor = as_tensor(exemplars, "exemplars", caller, kind="real", shape=(None, width), like=like)
    if like is None and tensor.numel() == 0:
        raise InvalidInputError(f"'exemplars' of {caller} must not be empty. Got shape {tuple(tensor.shape)}.")
    check_finite(tensor, "exemplars", caller)
    return tensor.detach().contiguous()


def check_labels(labels: ArrayLike, predictions: ArrayLike, points: Tensor, caller: str) -> tuple[Tensor, Tensor]:
    """Labels and predictions (N,) of points."""
    y = as_tensor(labels, "labels", caller, kind="integer", shape=(len(points),), like=points)
    y_hat = as_tensor(predictions, "predictions", caller, kind="integer", shape=(len(points),), like=points)
    _refuse_unlabelled(y, caller)
    check_range(y_hat, 0, _LARGEST_CLASS, "predictions", caller)
    return y, y_hat


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
        points = check_exemplars(exemplars, "SupportSet")
        if centre is None:
            centre = _mean(points, block_size)
        y, y_hat = check_labels(labels, predictions, points, "SupportSet")
        self.parts: tuple[Part, ...] = (Part(CentredPoints.of(points, centre.to(points.device).double()), y, y_hat),)
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
        support.parts = (Part(points, labels, predictions),)
        return support

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __repr__(self) -> str:
        vouching = sum(int((part.groups >= 0).sum()) for part in self.parts)
        return f"SupportSet({len(self)} exemplars of {self.n_filters} filters, {vouching} correctly predicted)"

    @property
    def exemplars(self) -> Tensor:
        """The exemplars (S, M); after points were added, a copy that joins the parts."""
        return _joined([part.points.points for part in self.parts])

    @property
    def labels(self) -> Tensor:
        """The labels (S,)."""
        return _joined([part.labels for part in self.parts])

    @property
    def predictions(self) -> Tensor:
        """The predictions (S,)."""
        return _joined([part.predictions for part in self.parts])

    @property
    def squared_norms(self) -> Tensor:
        """Each exemplar's squared distance from the centre (S,)."""
        return _joined([part.points.squared_norms for part in self.parts])

    @property
    def dtype(self) -> torch.dtype:
        """The type of the exemplars."""
        return self.parts[0].points.points.dtype

    @property
    def centre(self) -> Tensor:
        """The frozen centre (M,)."""
        return self.parts[0].points.centre

    @property
    def rows(self) -> IndexedRows:
        """The exemplars with an index, to find equal ones."""
        return IndexedRows([part.points.row_index for part in self.parts])

    def _match(self, queries: Tensor, predictions: Tensor | None, exclude: Tensor | None, k: int) -> Match:
        return match(queries, predictions, self.parts, exclude, self.block_size, k=k)

    def match_self(self) -> Match:
        """Every support point against all the others: the training pass."""
        return match_self(self.parts, self.block_size)

    def _add(self, exemplars: Tensor, labels: Tensor, predictions: Tensor) -> None:
        added = Part(CentredPoints.of(exemplars, self.centre), labels, predictions, start=len(self))
        self.parts = with_part(self.parts, added, joined)

    def _remove(self, indices: Tensor) -> None:
        keep = torch.ones(len(self), dtype=torch.bool, device=self.device)
        keep[indices] = False
        masks = keep.split([len(part) for part in self.parts])
        left = [
            part if bool(mask.all()) else part.where(mask)
            for part, mask in zip(self.parts, masks, strict=True)
            if bool(mask.any())
        ]
        starts = accumulate(map(len, left), initial=0)
        self.parts = tuple(replace(part, start=start) for part, start in zip(left, starts, strict=False))

    def _relabel(self, indices: Tensor, labels: Tensor) -> None:
        changed = self.labels.clone()
        changed[indices] = labels
        of_parts = changed.split([len(part) for part in self.parts])
        self.parts = tuple(replace(part, labels=own) for part, own in zip(self.parts, of_parts, strict=True))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors one after the other; a single one as it is, without a copy."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _mean(points: Tensor, block_size: int) -> Tensor:
    total = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
    for start in range(0, len(points), block_size):
        total += points[start : start + block_size].double().sum(dim=0)
    return total / len(points)
