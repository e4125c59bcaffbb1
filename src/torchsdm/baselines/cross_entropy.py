"""The paper's adaptor baseline, our adaptor trained with plain cross-entropy, and what networks of J rounds share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

from torchsdm.baselines.base import training_data
from torchsdm.baselines.softmax import softmax
from torchsdm.cluster import Backend, run_rounds
from torchsdm.core import SOFTMAX_DISTANCE_QUANTILE, SOFTMAX_SIMILARITY, sdm_losses
from torchsdm.data import LabelledStates
from torchsdm.estimators import check_training, training_settings
from torchsdm.training import (
    AdaptorLearner,
    Learner,
    Training,
    balanced_mean,
    best_round,
    fingerprint,
    seed_of_fit,
    train_rounds,
)
from torchsdm.validation import Array, ArrayLike, RandomState, check_hidden_states, require_fitted

Self = TypeVar("Self", bound="RoundsClassifier")


@dataclass(eq=False, repr=False)
class RoundsClassifier(ClassifierMixin, BaseEstimator, ABC):
    """A network trained over J rounds, each with its own split and initial weights; keeps the best epoch of all.

    With L_je the loss over the calibration part after epoch e of round j, the weights kept are those of

        argmin_je L_je,

    the earliest if several are equal. It is a ``LogitModel``, so every selective rule can use it.
    """

    _width: ClassVar[str] = "n_filters"  # the parameter that sets the width of the network

    _: KW_ONLY
    standardization: str = "scalar"
    calibration_size: float = 0.5
    patience: int | None = None
    checkpoint: str | Path | None = None
    verbose: bool = False
    backend: Backend = None

    def fit(
        self: Self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        calibration: LabelledStates | tuple[ArrayLike, ArrayLike] | None = None,
        *,
        seed: int | None = None,
    ) -> Self:
        """Train the rounds and keep the best epoch.

        Parameters
        ----------
        X : (N, D), or (N, positions, D)
            Hidden states, used as float32.
        y : (N,)
            Labels of any type that scikit-learn accepts.
        calibration : LabelledStates or (X, y), optional
            Your own calibration set; training then uses all of X. By default each round splits X.
        seed : int, optional
            The seed itself, such as another estimator's ``random_seed_``, instead of one drawn from ``random_state``:
            estimators with the same seed have the same splits.
        """
        caller = f"{type(self).__name__}.fit"
        self._check_parameters(caller)
        states = check_hidden_states(self, X, caller, reset=True)
        data, classes = training_data(self, states, y, calibration, caller)
        identity = ""
        if self.checkpoint is not None:  # the same numbers under other labels are different data
            identity = data.fingerprint_of_parts(fingerprint(data.hidden_states, classes[data.labels.numpy()]))
        own: Any = self  # its first parameters are those of the subclass
        self.random_seed_ = seed_of_fit(seed, own.random_state, self.checkpoint, type(self).__name__)
        learner_type, options = self._learner()
        settings = training_settings(self, len(classes), self._width)
        training = Training(learner_type, data, settings, self.random_seed_, options)
        rounds = train_rounds(
            training,
            own.n_rounds,
            checkpoint=self.checkpoint,
            data_fingerprint=identity,
            verbose=self.verbose,
            run=run_rounds(self.backend, caller),
        )
        best = best_round(rounds)
        learner: Any = training.begin(best.number)
        learner.network.load_state_dict(best.best_weights)
        self.classes_, self.network_ = classes, learner.network
        self.best_round_, self.best_epoch_ = best.number, best.best_epoch
        self.calibration_losses_ = np.full((own.n_rounds, own.max_epochs), np.nan)
        for one in rounds:
            self.calibration_losses_[one.number, : one.epoch] = one.losses
        self.training_rows_, self.calibration_rows_ = learner.train.rows.numpy(), learner.calibration.rows.numpy()
        self._calibration_logits = np.concatenate([self._logits(block) for block in learner.calibration.blocks()])
        self._calibration_labels = learner.calibration.labels.numpy()
        return self

    def logits(self, X: ArrayLike) -> Array:
        """Logits (N, C), in the order of ``classes_``; a row's logits do not depend on the other rows."""
        require_fitted(self, "network_", "logits")
        return self._logits(check_hidden_states(self, X, f"{type(self).__name__}.logits", reset=False))

    def calibration_logits(self) -> tuple[Array, Array]:
        """Logits (M, C) and class numbers (M,) of the best round's calibration part."""
        require_fitted(self, "network_", "calibration_logits")
        return self._calibration_logits, self._calibration_labels

    def predict(self, X: ArrayLike) -> Array:
        """The label with the largest logit."""
        largest = self.logits(X).argmax(axis=1)
        return self.classes_[largest]

    def predict_proba(self, X: ArrayLike) -> Array:
        """softmax(z) of each input (N, C)."""
        return softmax(self.logits(X))

    @abstractmethod
    def _learner(self) -> tuple[type[Learner], dict[str, Any]]:
        """What trains a round, and what it takes beside the settings that all learners have."""

    @abstractmethod
    def _logits(self, states: Tensor) -> Array:
        """Logits (N, C) of checked states."""

    def _check_parameters(self, caller: str) -> None:
        check_training(self, caller, self._width)


@dataclass(eq=False, repr=False)
class CrossEntropyClassifier(RoundsClassifier):
    """The paper's CNN adaptor baseline: the adaptor of ``SDMClassifier``, trained with plain cross-entropy.

    Everything but the loss is as in ``SDMClassifier``: with the same ``random_state``, or the same ``seed`` given to
    ``fit``, the rounds have the same splits, initial weights and order of batches. Training keeps the epoch of all
    rounds with the lowest balanced cross-entropy over the calibration part,

        L = 1/C sum_c  mean_{i : y_i = c}  -log softmax(z_i)_c.

    Parameters
    ----------
    n_filters : int, default=1000
        M, the width of the adaptor.
    n_rounds, max_epochs : int, default=10, 200
        J rounds, and the most epochs in each.
    batch_size, learning_rate : int, float, default=50, 1e-5
        Of Adam, without weight decay.
    random_state : int, RandomState, Generator or None
        The same seed gives the same model, to the bit.
    standardization : {'scalar', 'per_dimension'}
        Whether states are standardised by one mean and deviation, as in the paper, or by those of each dimension.
    patience : int, optional
        Epochs without a better calibration loss after which a round ends; by default none ends early.
    device, calibration_size, checkpoint, verbose, backend
        As in ``SDMClassifier``, with ``training='sdm'``.

    Attributes
    ----------
    network_ : ExemplarAdaptor
    calibration_losses_ : (J, epochs)
        After each epoch; NaN for epochs that patience skipped.
    best_round_, best_epoch_ : int
        Rounds are counted from 0, epochs from 1.
    training_rows_, calibration_rows_ : arrays
        The parts of the best round, as rows of X (or of the calibration set given).
    """

    n_filters: int = 1000
    n_rounds: int = 10
    max_epochs: int = 200
    batch_size: int = 50
    learning_rate: float = 1e-5
    random_state: RandomState = None
    device: str | None = None

    def _learner(self) -> tuple[type[Learner], dict[str, Any]]:
        return CrossEntropyLearner, {}

    def _logits(self, states: Tensor) -> Array:
        return self.network_.encode_exactly(states)[1].cpu().numpy()


class CrossEntropyLearner(AdaptorLearner):
    """SDM's learner with every epoch a softmax epoch: its signals stay q = e - 2 and d = 1."""

    def _train(self, epoch: int) -> dict[str, Any]:
        """Train an epoch, and measure the balanced cross-entropy over the calibration part after it."""
        self._steps(epoch)
        blocks = [self.network.encode_quickly(block)[1] for block in self.calibration.blocks()]
        losses = sdm_losses(
            torch.cat(blocks).double(), self.calibration_labels, SOFTMAX_SIMILARITY, SOFTMAX_DISTANCE_QUANTILE
        )
        return {"calibration_loss": balanced_mean(losses, self.calibration_labels, self.settings.n_classes)}
