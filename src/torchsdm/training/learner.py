"""The learners of a round, and the state of a round after its last finished epoch.

Training with the SDM loss (section 3.1.5): the first epoch trains with the plain softmax; after every epoch the signals
q and d of the training points (against each other) and of the calibration points are recomputed, and the next epoch
trains with them (Eq. 7). The model of the epoch with the smallest balanced calibration loss is kept.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from torchsdm.core import (
    SOFTMAX_DISTANCE_QUANTILE,
    SOFTMAX_SIMILARITY,
    Adaptor,
    ClassEcdfs,
    make_adaptor,
    sdm_losses,
)
from torchsdm.matching import Support, SupportSet
from torchsdm.training.data import Part, TrainingSettings, Use, random_generator
from torchsdm.training.history import EpochRecord, LossRecord

Spread: TypeAlias = "Callable[[Support], Support]"
"""Puts the points of a support elsewhere, such as on several machines; its answers stay the same."""


class Learner(ABC):
    """The moving parts of one round: a network, its optimiser, and how to train it for an epoch.

    The order of an epoch and the initial weights depend only on (seed, round, epoch), so a learner that is restored
    after any epoch continues with the same bits.
    """

    record: ClassVar[type[EpochRecord] | type[LossRecord]] = LossRecord
    """What ``epoch`` returns."""
    network: nn.Module
    optimizer: torch.optim.Optimizer
    spread: Spread | None = None
    """Where the support that every epoch matches is put, if not here."""

    def __init__(self, train: Part, calibration: Part, settings: TrainingSettings, seed: int, number: int) -> None:
        self.train, self.calibration, self.settings = train, calibration, settings
        self.seed, self.number = seed, number
        self.device = torch.device(settings.device)

    def epoch(self, number: int) -> Any:
        """Train an epoch, counted from 1, and return its record, whose ``loss`` decides which is best."""
        start = time.perf_counter()
        measured = self._train(number)
        return self.record(round=self.number, epoch=number, **measured, seconds=time.perf_counter() - start)

    @abstractmethod
    def _train(self, epoch: int) -> dict[str, Any]:
        """Train an epoch; what was measured after it, by the names of its record."""

    def batches(self, epoch: int, use: Use = Use.SHUFFLE) -> Iterator[Tensor]:
        """Positions in the training part, in the random order of an epoch, a batch at a time."""
        order = random_generator(self.seed, self.number, use, epoch).permutation(len(self.train))
        yield from torch.from_numpy(order).split(self.settings.batch_size)

    def state(self) -> dict[str, Tensor]:
        """A copy of everything the next epoch needs, on the CPU."""
        moments = self.optimizer.state_dict()["state"]
        flat = {f"{index}.{key}": value for index, one in moments.items() for key, value in one.items()}
        tensors = {**prefixed("network", self.network.state_dict()), **prefixed("optimizer", flat)}
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what ``state`` returned after an epoch."""
        self.network.load_state_dict(part_of(state, "network"))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in part_of(state, "optimizer").items():
            index, _, key = name.partition(".")
            moments.setdefault(int(index), {})[key] = tensor.clone()
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})


@dataclass(frozen=True)
class Round:
    """A round after its last finished epoch: what was measured, and the weights of its best epoch."""

    number: int
    records: tuple[Any, ...] = ()
    best_weights: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The number of finished epochs."""
        return len(self.records)

    @property
    def losses(self) -> list[float]:
        """The calibration loss after each epoch."""
        return [record.loss for record in self.records]

    @property
    def best_epoch(self) -> int:
        """The epoch with the smallest calibration loss, counted from 1; the earliest if tied."""
        return 1 + self.losses.index(self.best_loss)

    @property
    def best_loss(self) -> float:
        """The calibration loss after the best epoch."""
        return min(self.losses)

    def after(self, record: Any, state: Mapping[str, Tensor]) -> Round:
        """The round with one more epoch, after which its learner had this state."""
        is_best = not self.records or record.loss < self.best_loss
        return Round(self.number, (*self.records, record), part_of(state, "network") if is_best else self.best_weights)


def best_round(rounds: Iterable[Round]) -> Round:
    """The round with the smallest calibration loss; the earliest if tied."""
    return min(rounds, key=lambda one: one.best_loss)


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under names that begin with ``prefix:``."""
    return {f"{prefix}:{name}": tensor for name, tensor in tensors.items()}


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix:``, without it."""
    start = f"{prefix}:"
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def initial_adaptor(train: Part, settings: TrainingSettings, seed: int, number: int = 0) -> Adaptor:
    """The adaptor that a round begins with: random weights of its own, standardised as its training points are."""
    weight_seed = int(random_generator(seed, number, Use.WEIGHTS).integers(2**63))
    adaptor = make_adaptor(
        settings.adaptor,
        train.hidden_states.shape[-1],
        settings.n_classes,
        settings.n_filters,
        torch.Generator().manual_seed(weight_seed),
    )
    adaptor.standardise(train.hidden_states, train.rows, per_dimension=settings.standardization == "per_dimension")
    return adaptor


class AdaptorLearner(Learner):
    """An adaptor trained by Adam on the loss of Eq. 7; subclasses choose the signals."""

    network: Adaptor

    def __init__(self, train: Part, calibration: Part, settings: TrainingSettings, seed: int, number: int) -> None:
        super().__init__(train, calibration, settings, seed, number)
        self.network = initial_adaptor(train, settings, seed, number)
        self.network.to(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), settings.learning_rate, fused=True)
        self.train_labels, self.calibration_labels = train.labels.to(self.device), calibration.labels.to(self.device)
        self.weights_of_classes: Tensor | None = None
        if settings.class_weights is not None:
            self.weights_of_classes = torch.tensor(settings.class_weights, dtype=torch.float32, device=self.device)
        # The softmax: with these signals, Eq. 7 is cross-entropy.
        self.similarity = torch.full((len(train),), SOFTMAX_SIMILARITY, dtype=torch.float64)
        self.distance_quantile = torch.full((len(train),), SOFTMAX_DISTANCE_QUANTILE, dtype=torch.float64)

    def _steps(self, epoch: int) -> float:
        """One pass over the training part with the current signals; the mean loss of its steps."""
        similarity, distance_quantile = self.similarity.to(self.device), self.distance_quantile.to(self.device)
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        for batch in self.batches(epoch):
            hidden_states = self.train.states(batch).to(self.device)
            batch = batch.to(self.device)
            _, logits = self.network(hidden_states)
            labels = self.train_labels[batch]
            losses = sdm_losses(logits, labels, similarity[batch], distance_quantile[batch])
            if self.weights_of_classes is not None:
                losses = losses * self.weights_of_classes[labels]
            loss = losses.mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.detach() * len(batch)
        mean = float(total) / len(self.train)
        if not np.isfinite(mean):
            raise self.settings.divergence(f"The loss became {mean} in epoch {epoch} of round {self.number + 1}.")
        return mean


class SDMLearner(AdaptorLearner):
    """A round of SDM training: every epoch but the first trains with the signals of the previous one."""

    record = EpochRecord

    def _train(self, epoch: int) -> dict[str, Any]:
        step_loss = self._steps(epoch)
        summaries = zip(("train", "calibration"), self._evaluate(), strict=True)
        of_parts = {f"{part}_{name}": value for part, summary in summaries for name, value in summary.items()}
        return {"step_loss": step_loss, **of_parts}

    def state(self) -> dict[str, Tensor]:
        """Weights, moments, and the signals that the next epoch trains with."""
        signals = {"similarity": self.similarity, "distance_quantile": self.distance_quantile}
        return {**super().state(), **prefixed("signals", signals)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what ``state`` returned after an epoch."""
        super().restore(state)
        signals = part_of(state, "signals")
        self.similarity, self.distance_quantile = signals["similarity"], signals["distance_quantile"]

    @torch.no_grad()
    def _evaluate(self) -> tuple[dict[str, float], dict[str, float]]:
        """Summaries of the training part against itself, whose signals the next epoch uses, and of calibration."""
        (exemplars, logits), (calibration_exemplars, calibration_logits) = self._forward()
        support: Support = SupportSet(
            exemplars, self.train_labels, logits.argmax(dim=1), block_size=self.settings.block_size
        )
        if self.spread is not None:
            support = self.spread(support)
        match = support.match_self()
        d, train = epoch_summary(logits, self.train_labels, match.similarity, match.nearest_distance)
        self.similarity, self.distance_quantile = match.similarity.cpu(), d.cpu()
        match = support.match(calibration_exemplars, calibration_logits.argmax(dim=1))
        signals = match.similarity, match.nearest_distance
        return train, epoch_summary(calibration_logits, self.calibration_labels, *signals)[1]

    def _forward(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Exemplars and logits of both parts; in one pass if both are rows of the same states."""
        everything = self.network.encode_quickly(self.train.hidden_states)
        train = everything[0][self.train.rows], everything[1][self.train.rows]
        if self.calibration.hidden_states is not self.train.hidden_states:
            everything = self.network.encode_quickly(self.calibration.hidden_states)
        calibration = everything[0][self.calibration.rows], everything[1][self.calibration.rows]
        if not all(bool(torch.isfinite(values).all()) for values in (*train, *calibration)):
            raise self.settings.divergence(f"The weights of round {self.number + 1} grew beyond float32.")
        return train, calibration


def epoch_summary(
    logits: Tensor, labels: Tensor, similarity: Tensor, nearest_distance: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """d among the points themselves; losses, accuracies and signals, as an ``EpochRecord`` has them of either part."""
    n_classes, logits = logits.shape[1], logits.double()
    ecdfs = ClassEcdfs.fit(nearest_distance, similarity, labels, n_classes, warn=False)
    d = ecdfs.distance_quantile(nearest_distance, pool_small=True)
    losses = sdm_losses(logits, labels, similarity, d)
    correct = (logits.argmax(dim=1) == labels).double()
    return d, {
        "balanced_loss": balanced_mean(losses, labels, n_classes),
        "marginal_loss": float(losses.mean()),
        "balanced_accuracy": balanced_mean(correct, labels, n_classes),
        "marginal_accuracy": float(correct.mean()),
        "mean_similarity": float(similarity.double().mean()),
        "median_distance": float(nearest_distance.median()),
    }


def balanced_mean(values: Tensor, labels: Tensor, n_classes: int) -> float:
    """The mean over classes of the mean within each; classes without points do not count."""
    means = [values[labels == c].mean() for c in range(n_classes) if bool((labels == c).any())]
    return float(torch.stack(means).mean())
