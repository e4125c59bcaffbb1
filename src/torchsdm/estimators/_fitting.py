"""The stages of a fit: checked data, trained rounds, and the model built from a round."""

from __future__ import annotations

from dataclasses import dataclass

from torchsdm.core import restore_adaptor
from torchsdm.model import Examples, Points, SDMModel
from torchsdm.states import StatesOrigin
from torchsdm.training import Round, Training, TrainingData
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


@dataclass(frozen=True)
class Trained:
    """The result of training: the rounds, and the model of each."""

    data: FitData
    training: Training
    rounds: list[Round]
    alphas: tuple[float, ...]
    min_class_count: int

    def rows_of(self, one: Round) -> tuple[Array, Array]:
        """The rows that a round was trained and calibrated on."""
        train, calibration = self.training.parts(one.number)
        return train.rows.numpy(), calibration.rows.numpy()

    def model_of(self, one: Round) -> SDMModel:
        """The model of a round, with its support and calibration set in batch-invariant arithmetic."""
        settings, data = self.training.settings, self.data
        train, calibration = self.training.parts(one.number)
        adaptor = restore_adaptor(
            settings.adaptor,
            train.hidden_states.shape[-1],
            settings.n_classes,
            settings.n_filters,
            one.best_weights,
        )
        return SDMModel.build(
            adaptor.to(settings.device),
            Points(train.blocks(), train.labels, data.examples.take(train.rows.tolist())),
            Points(calibration.blocks(), calibration.labels, data.calibration_examples.take(calibration.rows.tolist())),
            data.classes,
            self.alphas,
            min_class_count=self.min_class_count,
            block_size=settings.block_size,
        )
