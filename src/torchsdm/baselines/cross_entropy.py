"""The paper's adaptor baseline: our adaptor trained with plain cross-entropy. And what networks of J rounds share."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

from torchsdm.baselines.softmax import softmax
from torchsdm.core import SOFTMAX_DISTANCE_QUANTILE, SOFTMAX_SIMILARITY, sdm_losses
from torchsdm.errors import InvalidTypeError, NotFittedError, TrainingError
from torchsdm.labels import LabelCodes, count_classes
from torchsdm.matching import DEFAULT_BLOCK_SIZE
from torchsdm.states import LabelledStates
from torchsdm.training import (
    CURRENT,
    CheckpointFiles,
    Learner,
    Part,
    TrainingData,
    TrainingSettings,
    balanced_mean,
    fingerprint,
    resumable_seed,
    round_name,
    split_of_round,
)
from torchsdm.validation import (
    Array,
    ArrayLike,
    RandomState,
    check_choice,
    check_device,
    check_hidden_states,
    check_label_array,
    check_path,
    check_positive,
    check_same_length,
    check_share,
)

Self = TypeVar("Self", bound="RoundsClassifier")


class Round(NamedTuple):
    """A round under way: the network, and what trains its n-th epoch and gives the calibration loss after it."""

    network: Any
    train_epoch: Callable[[int], float]


class FinishedRound(NamedTuple):
    """A finished round: its best epoch, the weights after it, and the calibration loss after each of its epochs."""

    number: int
    best_epoch: int
    losses: list[float]
    weights: dict[str, Tensor]

    @property
    def best_loss(self) -> float:
        """The calibration loss after the best epoch."""
        return self.losses[self.best_epoch - 1]


class RoundCheckpoints(CheckpointFiles):
    """Stores the finished rounds of a fit."""

    def save_round(self, result: FinishedRound, seed: int) -> None:
        """Store a finished round."""
        facts = {
            "number": result.number,
            "best_epoch": result.best_epoch,
            "best_loss": result.best_loss,
            "records": result.losses,
        }
        self.write(round_name(result.number), facts, result.weights, seed)

    def load_round(self, number: int) -> FinishedRound | None:
        """A finished round, if it is stored."""
        stored = self.read(round_name(number))
        if stored is None:
            return None
        facts, weights = stored
        return FinishedRound(facts["number"], facts["best_epoch"], facts["records"], weights)


class RoundsClassifier(ClassifierMixin, BaseEstimator, ABC):
    """A network trained over J rounds, each with its own split and initial weights; the best epoch of all is kept.

    With L_je the loss over the calibration part after epoch e of round j, the weights kept are those of

        argmin_je L_je,

    the earliest where several are equal. It is a ``LogitModel``, so every selective rule can stand on it.
    """

    _width: ClassVar[str] = "n_filters"  # the parameter that is the width of the network

    n_rounds: int
    max_epochs: int
    batch_size: int
    learning_rate: float
    random_state: RandomState
    device: str | None
    standardization: str
    calibration_size: float
    patience: int | None
    checkpoint: str | Path | None

    def fit(
        self: Self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        calibration: LabelledStates | tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Train the rounds and keep the best epoch.

        Parameters
        ----------
        X : (N, D), or (N, positions, D)
            Hidden states, used as float32.
        y : (N,)
            Labels of any type that scikit-learn accepts.
        calibration : LabelledStates or (X, y), optional
            A calibration set of your own; all of X is then trained on. By default each round splits X.
        """
        caller = f"{type(self).__name__}.fit"
        self._check_parameters(caller)
        states, labels = self._check_states(X, y, caller, reset=True)
        classes, class_numbers = count_classes(labels, caller)
        data = TrainingData(states, torch.from_numpy(class_numbers.astype(np.int64)))
        if calibration is not None:
            given_states, given_labels = self._check_states(*_pair(calibration, caller), f"{caller} (calibration)")
            given_numbers = LabelCodes(classes).encode(given_labels, f"{caller} (calibration)")
            data = TrainingData(data.hidden_states, data.labels, given_states, given_numbers)
        self.random_seed_ = self._draw_seed()
        settings, losses = self._settings(len(classes)), np.full((self.n_rounds, self.max_epochs), np.nan)
        store = self._checkpoints(data, classes, settings)
        # Whatever gradient or precision context the caller is in, training is the same.
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(settings.device_type, enabled=False):
            best = min(self._rounds(data, settings, store, losses), key=lambda result: result.best_loss)
            train_part, calibration_part = split_of_round(data, settings, self.random_seed_, best.number)
            network = self._begin(train_part, calibration_part, settings, best.number).network
            network.load_state_dict(best.weights)
        self.classes_ = classes
        self.network_ = network
        self.calibration_losses_, self.best_round_, self.best_epoch_ = losses, best.number, best.best_epoch
        self.training_rows_, self.calibration_rows_ = train_part.rows.numpy(), calibration_part.rows.numpy()
        self._calibration_logits = np.concatenate([self._logits(block) for block in blocks(calibration_part)])
        self._calibration_labels = calibration_part.labels.numpy()
        return self

    def logits(self, X: ArrayLike) -> Array:
        """Logits (N, C), in the order of ``classes_``; those of a row do not depend on the other rows."""
        self._check_is_fitted("logits")
        return self._logits(check_hidden_states(self, X, f"{type(self).__name__}.logits", reset=False))

    def calibration_logits(self) -> tuple[Array, Array]:
        """Logits (M, C) and class numbers (M,) of the calibration part of the round that was kept."""
        self._check_is_fitted("calibration_logits")
        return self._calibration_logits, self._calibration_labels

    def predict(self, X: ArrayLike) -> Array:
        """The label with the largest logit."""
        largest = self.logits(X).argmax(axis=1)
        predictions: Array = self.classes_[largest]
        return predictions

    def predict_proba(self, X: ArrayLike) -> Array:
        """softmax(z) of each input (N, C)."""
        return softmax(self.logits(X))

    @abstractmethod
    def _begin(self, train: Part, calibration: Part, settings: TrainingSettings, number: int) -> Round:
        """Begin a round."""

    @abstractmethod
    def _logits(self, states: Tensor) -> Array:
        """Logits (N, C) of checked states."""

    def _rounds(
        self, data: TrainingData, settings: TrainingSettings, store: RoundCheckpoints | None, losses: Array
    ) -> Iterator[FinishedRound]:
        """Every round, loaded or trained; its calibration losses are also written to ``losses`` (J, epochs)."""
        for number in range(self.n_rounds):
            result = store.load_round(number) if store else None
            if result is None:
                result = self._train_round(data, settings, number)
                if store:
                    store.save_round(result, self.random_seed_)
            losses[number, : len(result.losses)] = result.losses
            yield result

    def _train_round(self, data: TrainingData, settings: TrainingSettings, number: int) -> FinishedRound:
        """Train a round; its best epoch is the earliest where several are equal."""
        parts = split_of_round(data, settings, self.random_seed_, number)
        network, train_epoch = self._begin(*parts, settings, number)
        losses: list[float] = []
        best_epoch, weights = 0, {}
        for epoch in range(1, settings.max_epochs + 1):
            loss = train_epoch(epoch)
            if not np.isfinite(loss):
                raise TrainingError(
                    f"The calibration loss became {loss} in epoch {epoch} of round {number + 1}. Lower "
                    f"learning_rate (now {settings.learning_rate:g})."
                )
            losses.append(loss)
            best_epoch = 1 + int(np.argmin(losses))
            if best_epoch == epoch:
                weights = {name: value.clone() for name, value in network.state_dict().items()}
            if settings.patience is not None and epoch - best_epoch >= settings.patience:
                break
        return FinishedRound(number, best_epoch, losses, weights)

    def _draw_seed(self) -> int:
        return resumable_seed(self.random_state, self.checkpoint, type(self).__name__)

    def _checkpoints(self, data: TrainingData, classes: Array, settings: TrainingSettings) -> RoundCheckpoints | None:
        """The checkpoint directory, where one is wanted, under the fingerprint of data, settings and seed."""
        if self.checkpoint is None:
            return None
        fixed = {**self._identity(settings), "seed": self.random_seed_}
        fixed["data"] = fingerprint(data.hidden_states, classes[data.labels.numpy()])
        if data.calibration_states is not None and data.calibration_labels is not None:
            fixed["calibration"] = fingerprint(data.calibration_states, classes[data.calibration_labels.numpy()])
        digest = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()
        store = RoundCheckpoints(self.checkpoint, digest)
        store.make_directory()  # now, rather than after a round of hours
        store.read(CURRENT)  # of an SDM fit in its first round, which is refused like its finished rounds
        return store

    def _identity(self, settings: TrainingSettings) -> dict[str, Any]:
        """The settings that must be the same for a round to be taken up; the number of rounds may grow."""
        return {"class": type(self).__name__, **dataclasses.asdict(settings), "block_size": None}

    def _settings(self, n_classes: int) -> TrainingSettings:
        return TrainingSettings(
            n_classes=n_classes,
            n_filters=int(getattr(self, self._width)),
            max_epochs=int(self.max_epochs),
            batch_size=int(self.batch_size),
            learning_rate=float(self.learning_rate),
            patience=None if self.patience is None else int(self.patience),
            standardization=self.standardization,
            calibration_size=float(self.calibration_size),
            device="cpu" if self.device is None else str(self.device),
        )

    def _check_parameters(self, caller: str) -> None:
        for name in (self._width, "n_rounds", "max_epochs", "batch_size"):
            check_positive(getattr(self, name), name, caller, integer=True)
        if self.patience is not None:
            check_positive(self.patience, "patience", caller, integer=True)
        check_positive(self.learning_rate, "learning_rate", caller)
        check_choice(self.standardization, ("scalar", "per_dimension"), "standardization", caller)
        check_share(self.calibration_size, "calibration_size", caller)
        if self.checkpoint is not None:
            check_path(self.checkpoint, "checkpoint", caller)
        check_device(self.device, caller)

    def _check_states(self, X: Any, y: Any, caller: str, *, reset: bool = False) -> tuple[Tensor, Array]:
        states = check_hidden_states(self, X, caller, reset=reset)
        labels = check_label_array(y, caller)
        check_same_length(len(states), labels, "y", caller)
        return states, labels

    def _check_is_fitted(self, method: str) -> None:
        if not hasattr(self, "network_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet: call fit before {method}.")


class CrossEntropyClassifier(RoundsClassifier):
    """The paper's CNN adaptor baseline: the adaptor of ``SDMClassifier``, trained with plain cross-entropy.

    Everything but the loss is as in ``SDMClassifier``: with the same ``random_state`` the rounds have the same splits,
    initial weights and order of batches. Kept is the epoch of all rounds with the lowest balanced cross-entropy over
    the calibration part,

        L = 1/C sum_c  mean_{i : y_i = c}  -log softmax(z_i)_c.

    Parameters
    ----------
    n_filters : int, default=1000
        M, the width of the adaptor.
    n_rounds, max_epochs : int, default=10, 200
        J rounds of as many epochs.
    batch_size, learning_rate : int, float, default=50, 1e-5
        Of Adam, without weight decay.
    random_state : int, RandomState, Generator or None
        The same number gives the same model, to the bit.
    device : str, optional
        A torch device; the CPU by default.
    standardization : {'scalar', 'per_dimension'}
        Whether states are standardised by one mean and deviation, as in the paper, or by those of each dimension.
    calibration_size : float, default=0.5
        Share of X that each round sets aside.
    patience : int, optional
        Epochs without a better calibration loss after which a round ends; by default none ends early.
    checkpoint : path or None
        A directory in which training leaves the best epoch of every finished round. An interrupted ``fit`` called again
        with the same data and settings goes on after the last finished round, with identical results.

    Attributes
    ----------
    network_ : ExemplarAdaptor
    calibration_losses_ : (J, epochs)
        Of each epoch; NaN for those that patience spared.
    best_round_, best_epoch_ : int
        Rounds are counted from 0, epochs from 1.
    training_rows_, calibration_rows_ : arrays
        The parts of the best round, as rows of X (or of the calibration set given).
    """

    def __init__(
        self,
        n_filters: int = 1000,
        n_rounds: int = 10,
        max_epochs: int = 200,
        batch_size: int = 50,
        learning_rate: float = 1e-5,
        random_state: RandomState = None,
        device: str | None = None,
        *,
        standardization: str = "scalar",
        calibration_size: float = 0.5,
        patience: int | None = None,
        checkpoint: str | Path | None = None,
    ) -> None:
        self.n_filters = n_filters
        self.n_rounds = n_rounds
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.device = device
        self.standardization = standardization
        self.calibration_size = calibration_size
        self.patience = patience
        self.checkpoint = checkpoint

    def _begin(self, train: Part, calibration: Part, settings: TrainingSettings, number: int) -> Round:
        learner = CrossEntropyLearner(train, calibration, settings, self.random_seed_, number)
        return Round(learner.adaptor, learner.train_epoch)

    def _logits(self, states: Tensor) -> Array:
        logits: Array = self.network_.encode(states)[1].cpu().numpy()
        return logits


class CrossEntropyLearner(Learner):
    """Our own learner, of which every epoch is the softmax epoch: with q = e - 2 and d = 1, Eq. 7 is cross-entropy."""

    def train_epoch(self, number: int) -> float:
        """Train an epoch; the balanced cross-entropy over the calibration part after it."""
        similarity = torch.full((len(self.train),), SOFTMAX_SIMILARITY, dtype=torch.float64, device=self.device)
        self._steps(number, similarity, torch.full_like(similarity, SOFTMAX_DISTANCE_QUANTILE))
        logits = torch.cat([self.adaptor.evaluate(block)[1] for block in blocks(self.calibration)]).double()
        losses = sdm_losses(logits, self.calibration_labels, SOFTMAX_SIMILARITY, SOFTMAX_DISTANCE_QUANTILE)
        return balanced_mean(losses, self.calibration_labels, self.settings.n_classes)


def blocks(part: Part) -> Iterator[Tensor]:
    """The hidden states of a part, a block of rows at a time."""
    return (part.states(positions) for positions in torch.arange(len(part)).split(DEFAULT_BLOCK_SIZE))


def _pair(calibration: Any, caller: str) -> tuple[Any, Any]:
    if isinstance(calibration, LabelledStates):
        return calibration.hidden_states, calibration.labels
    if not isinstance(calibration, (tuple, list)) or len(calibration) != 2:
        raise InvalidTypeError(
            f"'calibration' of {caller} must be LabelledStates or (X, y). Got {type(calibration).__name__}."
        )
    return calibration[0], calibration[1]
