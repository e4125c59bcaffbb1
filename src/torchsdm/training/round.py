"""Training: one learning round, J rounds, and the choice of the model (section 3.1.5).

One round: the first epoch trains with the plain softmax; after every epoch the signals q and d of the training points
(against each other) and of the calibration points are computed anew, and the next epoch trains with them (Eq. 7). The
model of the epoch with the lowest balanced calibration loss is kept. J rounds, each with its own split and initial
weights, give J such models; the best of them is chosen.

Randomness comes from (seed, round, epoch) alone, so a round can be taken up at any epoch and gives the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchsdm.core import SOFTMAX_DISTANCE_QUANTILE, SOFTMAX_SIMILARITY, ClassEcdfs, Signals, make_adaptor, sdm_losses
from torchsdm.errors import TrainingError
from torchsdm.matching import SupportSet
from torchsdm.training.data import (
    Part,
    TrainingData,
    TrainingSettings,
    Use,
    random_generator,
    split_of_round,
)
from torchsdm.training.history import EpochRecord


@dataclass
class RoundState:
    """Everything that a round needs to go on after a finished epoch."""

    number: int
    epoch: int
    adaptor: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    similarity: Tensor
    distance_quantile: Tensor
    best_epoch: int
    best_loss: float
    best_adaptor: dict[str, Tensor]
    records: list[EpochRecord]

    def is_finished(self, settings: TrainingSettings) -> bool:
        """Whether the round has no further epoch to do."""
        out_of_patience = settings.patience is not None and self.epoch - self.best_epoch >= settings.patience
        return self.epoch >= settings.max_epochs or out_of_patience


@dataclass(frozen=True)
class RoundResult:
    """The best model of a finished round."""

    number: int
    best_epoch: int
    best_loss: float
    adaptor: dict[str, Tensor]
    records: tuple[EpochRecord, ...]


def train_round(
    data: TrainingData,
    settings: TrainingSettings,
    seed: int,
    number: int,
    state: RoundState | None = None,
    after_epoch: Callable[[RoundState], None] | None = None,
) -> RoundResult:
    """One learning round, from its beginning or from a state that an interrupted one left."""
    train, calibration = split_of_round(data, settings, seed, number)
    # Whatever gradient or precision context the caller is in, training is the same.
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(settings.device_type, enabled=False):
        learner = Learner(train, calibration, settings, seed, number)
        if state is not None:
            learner.restore(state)
        while state is None or not state.is_finished(settings):
            state = learner.epoch(state)
            if after_epoch is not None:
                after_epoch(state)
    return RoundResult(number, state.best_epoch, state.best_loss, state.best_adaptor, tuple(state.records))


def best_round(results: Sequence[RoundResult]) -> RoundResult:
    """The round with the lowest balanced calibration loss; the earlier one where two are equal."""
    return min(results, key=lambda result: result.best_loss)


class Learner:
    """The moving parts of one round."""

    def __init__(self, train: Part, calibration: Part, settings: TrainingSettings, seed: int, number: int) -> None:
        self.train, self.calibration, self.settings = train, calibration, settings
        self.seed, self.number = seed, number
        self.device = torch.device(settings.device)
        weight_seed = int(random_generator(seed, number, Use.WEIGHTS).integers(2**63))
        self.adaptor = make_adaptor(
            settings.adaptor,
            train.hidden_states.shape[-1],
            settings.n_classes,
            settings.n_filters,
            torch.Generator().manual_seed(weight_seed),
        )
        per_dimension = settings.standardization == "per_dimension"
        self.adaptor.standardise(train.hidden_states, train.rows, per_dimension=per_dimension)
        self.adaptor.to(self.device)
        self.optimizer = torch.optim.Adam(self.adaptor.parameters(), lr=settings.learning_rate, fused=True)
        self.train_labels, self.calibration_labels = train.labels.to(self.device), calibration.labels.to(self.device)

    def restore(self, state: RoundState) -> None:
        """Take over weights and optimiser of a finished epoch."""
        self.adaptor.load_state_dict(state.adaptor)
        for name, parameter in self.adaptor.named_parameters():
            self.optimizer.state[parameter] = {
                key: state.optimizer[f"{name}.{key}"].clone() for key in ("step", "exp_avg", "exp_avg_sq")
            }

    def epoch(self, before: RoundState | None) -> RoundState:
        """Train one epoch, then compute the signals and losses that follow from it."""
        start = time.perf_counter()
        number = 1 if before is None else before.epoch + 1
        if before is None:  # the softmax epoch
            similarity = torch.full((len(self.train),), SOFTMAX_SIMILARITY, dtype=torch.float64)
            distance_quantile = torch.full((len(self.train),), SOFTMAX_DISTANCE_QUANTILE, dtype=torch.float64)
        else:
            similarity, distance_quantile = before.similarity, before.distance_quantile
        step_loss = self._steps(number, similarity.to(self.device), distance_quantile.to(self.device))
        train, calibration = self._evaluate()
        record = EpochRecord(
            round=self.number,
            epoch=number,
            step_loss=step_loss,
            **{f"train_{name}": value for name, value in train.summary.items()},
            **{f"calibration_{name}": value for name, value in calibration.summary.items()},
            seconds=time.perf_counter() - start,
        )
        loss = record.calibration_balanced_loss
        weights = _copy(self.adaptor.state_dict())
        is_best = before is None or loss < before.best_loss
        return RoundState(
            number=self.number,
            epoch=number,
            adaptor=weights,
            optimizer=_copy(
                {
                    f"{name}.{key}": value
                    for name, parameter in self.adaptor.named_parameters()
                    for key, value in self.optimizer.state[parameter].items()
                }
            ),
            similarity=train.signals.similarity.cpu(),
            distance_quantile=train.signals.distance_quantile.cpu(),
            best_epoch=number if is_best or before is None else before.best_epoch,
            best_loss=loss if is_best or before is None else before.best_loss,
            best_adaptor=weights if is_best or before is None else before.best_adaptor,
            records=[*(before.records if before is not None else ()), record],
        )

    def _steps(self, epoch: int, similarity: Tensor, distance_quantile: Tensor) -> float:
        order = torch.from_numpy(
            random_generator(self.seed, self.number, Use.SHUFFLE, epoch).permutation(len(self.train))
        )
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        for batch in order.split(self.settings.batch_size):
            hidden_states = self.train.states(batch).to(self.device)
            batch = batch.to(self.device)
            _, logits = self.adaptor(hidden_states)
            loss = sdm_losses(logits, self.train_labels[batch], similarity[batch], distance_quantile[batch]).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.detach() * len(batch)
        mean = float(total) / len(self.train)
        if not np.isfinite(mean):
            raise TrainingError(
                f"The loss became {mean} in epoch {epoch} of round {self.number + 1}. Lower learning_rate "
                f"(now {self.settings.learning_rate:g})."
            )
        return mean

    @torch.no_grad()
    def _evaluate(self) -> tuple[_Evaluation, _Evaluation]:
        """Signals and losses of the training part against itself and of the calibration part against it."""
        (exemplars, logits), (calibration_exemplars, calibration_logits) = self._forward()
        support = SupportSet(exemplars, self.train_labels, logits.argmax(dim=1), block_size=self.settings.block_size)
        matches = support.match_self(), support.match(calibration_exemplars, calibration_logits.argmax(dim=1))
        evaluations = []
        for match, z, labels in zip(
            matches, (logits, calibration_logits), (self.train_labels, self.calibration_labels), strict=True
        ):
            ecdfs = ClassEcdfs.fit(
                match.nearest_distance, match.similarity, labels, self.settings.n_classes, warn=False
            )
            evaluations.append(
                _Evaluation(Signals.of(match, ecdfs, skip_empty=True), z.double(), labels, self.settings.n_classes)
            )
        return evaluations[0], evaluations[1]

    def _forward(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Exemplars and logits of both parts; where these are rows of the same states, from one pass in their order."""
        everything = self.adaptor.evaluate(self.train.hidden_states)
        train = everything[0][self.train.rows], everything[1][self.train.rows]
        if self.calibration.hidden_states is not self.train.hidden_states:
            everything = self.adaptor.evaluate(self.calibration.hidden_states)
        calibration = everything[0][self.calibration.rows], everything[1][self.calibration.rows]
        if not all(bool(torch.isfinite(values).all()) for values in (*train, *calibration)):
            raise TrainingError(
                f"The weights of round {self.number + 1} grew beyond float32. Lower learning_rate "
                f"(now {self.settings.learning_rate:g})."
            )
        return train, calibration


@dataclass(frozen=True)
class _Evaluation:
    signals: Signals
    logits: Tensor
    labels: Tensor
    n_classes: int

    @property
    def summary(self) -> dict[str, float]:
        losses = sdm_losses(self.logits, self.labels, self.signals.similarity, self.signals.distance_quantile)
        correct = (self.logits.argmax(dim=1) == self.labels).double()
        return {
            "balanced_loss": balanced_mean(losses, self.labels, self.n_classes),
            "marginal_loss": float(losses.mean()),
            "balanced_accuracy": balanced_mean(correct, self.labels, self.n_classes),
            "marginal_accuracy": float(correct.mean()),
            "mean_similarity": float(self.signals.similarity.double().mean()),
            "median_distance": float(self.signals.nearest_distance.median()),
        }


def balanced_mean(values: Tensor, labels: Tensor, n_classes: int) -> float:
    """The mean over classes of the mean within each; classes without points do not count."""
    means = [values[labels == c].mean() for c in range(n_classes) if bool((labels == c).any())]
    return float(torch.stack(means).mean())


def _copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
