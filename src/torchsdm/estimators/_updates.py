"""Updates without training: recalibrating, and adding, removing and relabelling exemplars (appendix A.6)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torchsdm.errors import InvalidInputError
from torchsdm.estimators._fitted import FittedState, check_examples
from torchsdm.matching import next_ids
from torchsdm.model import SDMModel
from torchsdm.validation import (
    Array,
    ArrayLike,
    as_list,
    check_alphas,
    check_hidden_states,
    check_positive,
    check_same_length,
)

Self = TypeVar("Self", bound="Updatable")


class Updatable(FittedState):
    """Methods that change the support or region of a fitted estimator; a failed call changes nothing."""

    def recalibrate(
        self: Self, alpha: float | Sequence[float] | None = None, *, min_class_count: int | None = None
    ) -> Self:
        """Recompute the region, for another alpha or after updates, without training.

        After updates of the support, the calibration points are matched against it again and the eCDFs recomputed.
        """
        self._check_is_fitted("recalibrate")
        caller = f"{type(self).__name__}.recalibrate"
        current = self.models_[0].calibration
        alphas = tuple(r.alpha for r in current.regions) if alpha is None else check_alphas(alpha, caller)
        count = current.min_class_count if min_class_count is None else min_class_count
        check_positive(count, "min_class_count", caller, integer=True, zero=True)
        with self._updated_models() as models:
            for model in models:
                model.recalibrate(alphas, count)
        return self

    def add_exemplars(
        self: Self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        ids: Sequence[Any] | Array | None = None,
        texts: Sequence[str] | Array | None = None,
    ) -> Self:
        """Add labelled points to the support.

        Labels outside the classes are allowed: inputs near them lose similarity. Weights, eCDFs and region
        stay as they are until ``recalibrate``.
        """
        self._check_is_fitted("add_exemplars")
        caller = f"{type(self).__name__}.add_exemplars"
        states = check_hidden_states(self, X, caller, reset=False)
        labels = as_list(y, "y", caller)
        check_same_length(len(states), labels, "y", caller)
        known = {name for model in self.models_ for name in model.known_ids()}
        examples = check_examples(next_ids(known, len(states)) if ids is None else ids, texts, len(states), caller)
        clash = known.intersection(examples.ids())
        if clash:
            raise InvalidInputError(f"'ids' of {caller} must be new. Got {next(iter(clash))!r}, which is in use.")
        codes = self._codes.extended(labels, caller)
        numbers = codes.encode_with_outside(labels, caller)
        with self._updated_models() as models:
            for model in models:
                model.add(states, numbers, examples)
            self._codes = codes
        return self

    def remove_exemplars(self: Self, ids: Sequence[Any] | Array) -> Self:
        """Remove points from the support, by id; in an ensemble, from every round that has them in its support."""
        self._check_is_fitted("remove_exemplars")
        names = as_list(ids, "ids", f"{type(self).__name__}.remove_exemplars")
        with self._updated_models() as models:
            for model, positions, _ in self._located(models, names, "remove_exemplars"):
                if positions:
                    model.remove(positions)
        return self

    def relabel_exemplars(self: Self, ids: Sequence[Any] | Array, y: ArrayLike) -> Self:
        """Relabel points of the support, by id; labels outside the classes are allowed."""
        self._check_is_fitted("relabel_exemplars")
        caller = f"{type(self).__name__}.relabel_exemplars"
        names, labels = as_list(ids, "ids", caller), as_list(y, "y", caller)
        check_same_length(len(names), labels, "y", caller)
        codes = self._codes.extended(labels, caller)
        numbers = codes.encode_with_outside(labels, caller)
        with self._updated_models() as models:
            for model, positions, chosen in self._located(models, names, "relabel_exemplars"):
                if positions:
                    model.relabel(positions, numbers[chosen])
            self._codes = codes
        return self

    def _located(
        self, models: Sequence[SDMModel], ids: list[Any], method: str
    ) -> Iterator[tuple[SDMModel, list[int], list[int]]]:
        """Each model with the support positions of the ids it has, and which of the ids those are."""
        found = [model.examples.positions(ids) for model in models]
        for number, name in enumerate(ids):
            if all(positions[number] is None for positions in found):
                raise InvalidInputError(
                    f"'ids' of {type(self).__name__}.{method} must name points of the support. Got {name!r}, which "
                    "is not one (calibration points are not part of the support)."
                )
        for model, positions in zip(models, found, strict=True):
            chosen = [number for number, position in enumerate(positions) if position is not None]
            yield model, [position for position in positions if position is not None], chosen

    @contextmanager
    def _updated_models(self) -> Iterator[tuple[SDMModel, ...]]:
        """Copies of the models to change; they replace the models only if all goes well.

        A copy is cheap: updates replace tensors, they do not write into them.
        """
        models = tuple(copy.copy(model) for model in self.models_)
        for model in models:
            model.support = copy.copy(model.support)
        with self._unchanged_on_error():
            yield models
            self.models_ = models
