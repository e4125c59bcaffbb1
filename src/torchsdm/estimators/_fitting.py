"""From the data of a fit to models: of a round, or of the linear solution."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsdm.core import Adaptor, Signals, Target, restore_adaptor
from torchsdm.estimators._data import Background, FitData
from torchsdm.matching import DEFAULT_BLOCK_SIZE
from torchsdm.model import Points, SDMModel
from torchsdm.training import (
    EpochRecord,
    Part,
    Round,
    Training,
    TrainingSettings,
    epoch_summary,
    initial_adaptor,
    solve_linear,
)
from torchsdm.validation import Array

_FILTERS_PER_CLASS = 2  # at least, in linear training: one for its logit, and one beside it


@dataclass(frozen=True)
class ModelBuilder:
    """Data and settings of a fit, of which every model of it is built."""

    data: FitData
    settings: TrainingSettings
    seed: int
    alphas: tuple[Target, ...]
    min_class_count: int

    def of_round(self, one: Round, training: Training) -> SDMModel:
        """The model of a round, with its support and calibration set in batch-invariant arithmetic."""
        settings, data = self.settings, self.data
        train, calibration = _background_to_support(*training.parts(one.number), len(data.classes))
        width = train.hidden_states.shape[-1]
        adaptor = restore_adaptor(settings.adaptor, width, settings.n_classes, settings.n_filters, one.best_weights)
        calibrating = data.calibration_examples.take(calibration.rows.tolist())
        return self._build(adaptor, train, Points(calibration.blocks(), calibration.labels, calibrating))

    def rows_of_round(self, one: Round, training: Training) -> tuple[Array, Array]:
        """The rows of X, or of the given calibration set, that a round was trained and calibrated on."""
        train, calibration = training.parts(one.number)
        is_given = self.data.points.calibration_states is not None
        return self._own(train.rows), calibration.rows.numpy() if is_given else self._own(calibration.rows)

    def linear(self) -> tuple[SDMModel, EpochRecord]:
        """The model of the linear solution, and a record of what it came to, as one epoch.

        All usable points are its support, and they calibrate it unless a calibration set is given.
        """
        start = time.perf_counter()
        data, n_least = self.data, _FILTERS_PER_CLASS * self.settings.n_classes
        settings = replace(self.settings, n_filters=max(self.settings.n_filters, n_least))
        train, given = data.points.usable, data.points.given_calibration
        adaptor = initial_adaptor(train, settings, self.seed)
        solution = solve_linear(train, adaptor, settings, self.seed)
        solution.put_into(adaptor, train)
        calibrating = None if given is None else Points(given.blocks(), given.labels, data.calibration_examples)
        model = self._build(adaptor, train, calibrating, solution.out_of_fold)
        known = model.calibration
        d = known.ecdfs.distance_quantile(known.nearest_distance, pool_small=True)
        signals = Signals(known.similarity, known.nearest_distance, torch.empty(0), d)
        summary = epoch_summary(signals, known.logits.double(), known.labels, len(data.classes))
        return model, EpochRecord(
            round=0,
            epoch=1,
            step_loss=solution.loss,
            **{f"{part}_{name}": value for part in ("train", "calibration") for name, value in summary.items()},
            seconds=time.perf_counter() - start,
        )

    def rows_of_linear(self) -> tuple[Array, Array]:
        """The rows that the linear solution was trained and calibrated on."""
        points, given = self.data.points, self.data.points.given_calibration
        trained = self._own(points.usable.rows)
        return trained, trained if given is None else given.rows.numpy()

    def _own(self, rows: Tensor) -> Array:
        """Those of X: background examples that are trained on come after them."""
        own: Array = rows.numpy()
        return own[own < self.data.n_rows]

    def _build(
        self, adaptor: Adaptor, train: Part, calibration: Points | None, out_of_fold: Tensor | None = None
    ) -> SDMModel:
        data, settings = self.data, self.settings
        points = Points(train.blocks(), train.labels, data.examples.take(train.rows.tolist()))
        return SDMModel.build(
            adaptor.to(settings.device),
            _with_exemplars(points, data.background, len(data.classes)),
            calibration,
            data.classes,
            self.alphas,
            out_of_fold=out_of_fold,
            min_class_count=self.min_class_count,
            block_size=settings.block_size,
        )


def _background_to_support(train: Part, calibration: Part, n_classes: int) -> tuple[Part, Part]:
    """A round's parts once it is trained: background examples that it was judged by go to the support, too.

    Calibration is about the classes alone: eCDFs, region and certificate speak of inputs that belong.
    """
    is_background = calibration.labels == n_classes
    if not bool(is_background.any()):
        return train, calibration
    kept = Part(calibration.hidden_states, calibration.labels[~is_background], calibration.rows[~is_background])
    labels = torch.cat([train.labels, calibration.labels[is_background]])
    rows = torch.cat([train.rows, calibration.rows[is_background]])
    return Part(train.hidden_states, labels, rows), kept


def _with_exemplars(training: Points, background: Background | None, n_classes: int) -> Points:
    """The training points, with background examples that were not trained on."""
    if background is None or background.is_trained:
        return training
    return Points(
        [*training.state_blocks, *background.states.split(DEFAULT_BLOCK_SIZE)],
        torch.cat([training.labels, background.labels(n_classes)]),
        training.examples.with_added(background.examples),
    )
