"""The stages of a fit: checked data, trained rounds, and the model built from a round."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsdm.core import Signals, Target, restore_adaptor
from torchsdm.data import StatesOrigin
from torchsdm.matching import DEFAULT_BLOCK_SIZE
from torchsdm.model import Examples, Points, SDMModel
from torchsdm.training import (
    EpochRecord,
    Part,
    Round,
    Training,
    TrainingData,
    TrainingSettings,
    epoch_summary,
    fingerprint,
    initial_adaptor,
    solve_linear,
)
from torchsdm.validation import Array


@dataclass(frozen=True)
class FitData:
    """The checked input of a fit."""

    points: TrainingData
    classes: Array
    examples: Examples
    calibration_examples: Examples
    """Those of the given calibration set, or the same as ``examples``."""
    fingerprint: str
    """Of the states and labels that each round trains on, or splits."""
    states_origin: StatesOrigin | None
    certification: Points | None = None
    """Labelled points that nothing but the certificate sees: given, or held out of X."""
    n_given_back: int = 0
    """Points that were drawn to be held out, but are needed to train."""
    background: Background | None = None

    @property
    def n_rows(self) -> int:
        """The rows of X; in ``points``, background examples that are trained on come after them."""
        n_trained = 0 if self.background is None or not self.background.is_trained else len(self.background.states)
        return len(self.points.labels) - n_trained

    @property
    def n_trained_classes(self) -> int:
        """The classes that the adaptor is trained on."""
        return len(self.classes) + (self.background is not None and self.background.is_trained)

    @property
    def fingerprint_of_parts(self) -> str:
        """Of everything that training sees, to resume by."""
        background = "" if self.background is None else self.background.fingerprint
        return self.points.fingerprint_of_parts(self.fingerprint + background)

    def with_background(self, background: Background) -> FitData:
        """The same with background examples; those that are trained on get the class number after the classes."""
        if not background.is_trained:
            return replace(self, background=background)
        points, n_rows = self.points, len(self.points.labels)
        new_rows = torch.arange(n_rows, n_rows + len(background.states))
        trained = replace(
            points,
            hidden_states=torch.cat([points.hidden_states, background.states.to(points.hidden_states.dtype)]),
            labels=torch.cat([points.labels, background.labels(len(self.classes))]),
            rows=None if points.rows is None else torch.cat([points.rows, new_rows]),
        )
        examples = self.examples.with_added(background.examples)
        is_split = self.calibration_examples is self.examples
        return replace(
            self,
            points=trained,
            examples=examples,
            calibration_examples=examples if is_split else self.calibration_examples,
            background=background,
        )


@dataclass(frozen=True)
class Background:
    """Examples of what belongs to no class."""

    states: Tensor
    examples: Examples
    is_trained: bool
    """Whether the adaptor learns to tell them from the classes, or they are put into the support afterwards."""

    def labels(self, n_classes: int) -> Tensor:
        """Their class number, once for each."""
        return torch.full((len(self.states),), n_classes, dtype=torch.int64)

    @property
    def fingerprint(self) -> str:
        """Of the states and of what they are for."""
        return fingerprint(self.states, self.labels(int(self.is_trained)).numpy())


@dataclass(frozen=True)
class Trained:
    """The result of training: the rounds, and the model of each."""

    data: FitData
    training: Training
    rounds: list[Round]
    alphas: tuple[Target, ...]
    min_class_count: int

    def rows_of(self, one: Round) -> tuple[Array, Array]:
        """The rows that a round was trained and calibrated on."""
        train, calibration = self.training.parts(one.number)
        rows = train.rows.numpy(), calibration.rows.numpy()
        if self.data.points.calibration_states is not None:
            return rows[0][rows[0] < self.data.n_rows], rows[1]
        return rows[0][rows[0] < self.data.n_rows], rows[1][rows[1] < self.data.n_rows]

    def model_of(self, one: Round) -> SDMModel:
        """The model of a round, with its support and calibration set in batch-invariant arithmetic."""
        settings, data = self.training.settings, self.data
        n_classes = len(data.classes)
        train, calibration = _background_to_support(*self.training.parts(one.number), n_classes)
        adaptor = restore_adaptor(
            settings.adaptor,
            train.hidden_states.shape[-1],
            settings.n_classes,
            settings.n_filters,
            one.best_weights,
        )
        return SDMModel.build(
            adaptor.to(settings.device),
            _with_exemplars(
                Points(train.blocks(), train.labels, data.examples.take(train.rows.tolist())),
                data.background,
                n_classes,
            ),
            Points(calibration.blocks(), calibration.labels, data.calibration_examples.take(calibration.rows.tolist())),
            data.classes,
            self.alphas,
            min_class_count=self.min_class_count,
            block_size=settings.block_size,
        )


@dataclass(frozen=True)
class Solved:
    """The result of linear training: a model that all usable points are the support of, and that they calibrate."""

    data: FitData
    settings: TrainingSettings
    seed: int
    alphas: tuple[Target, ...]
    min_class_count: int

    @property
    def rows(self) -> tuple[Array, Array]:
        """The rows that it was trained and calibrated on."""
        points, given = self.data.points, self.data.points.given_calibration
        trained = points.usable.rows.numpy()
        trained = trained[trained < self.data.n_rows]
        return trained, trained if given is None else given.rows.numpy()

    def model(self) -> tuple[SDMModel, EpochRecord]:
        """The model, and a record of what it came to, as one epoch."""
        start = time.perf_counter()
        data, settings = self.data, self.settings
        train, given = data.points.usable, data.points.given_calibration
        adaptor = initial_adaptor(train, settings, self.seed)
        solution = solve_linear(train, adaptor, settings, self.seed)
        solution.put_into(adaptor, train)
        examples = data.examples.take(train.rows.tolist())
        model = SDMModel.build(
            adaptor.to(settings.device),
            _with_exemplars(Points(train.blocks(), train.labels, examples), data.background, len(data.classes)),
            None if given is None else Points(given.blocks(), given.labels, data.calibration_examples),
            data.classes,
            self.alphas,
            out_of_fold=solution.out_of_fold,
            min_class_count=self.min_class_count,
            block_size=settings.block_size,
        )
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
