"""The learner of one round, and the state of a round after its last finished epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from torchsdm.matching import Support
from torchsdm.training.data import Part, TrainingSettings
from torchsdm.training.history import EpochRecord, LossRecord

Spread: TypeAlias = "Callable[[Support], Support]"
"""Puts the points of a support elsewhere, such as on several machines; its answers stay the same."""


class Trained(Protocol):
    """What is known after an epoch: that of a ``Learner``, here or elsewhere."""

    def weights(self) -> Mapping[str, Tensor]:
        """The network's weights, on the CPU."""
        ...

    def state(self) -> Mapping[str, Tensor]:
        """Everything the next epoch needs, on the CPU."""
        ...


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

    @abstractmethod
    def epoch(self, number: int) -> Any:
        """Train an epoch, counted from 1, and return its record, whose ``loss`` decides which is best."""

    def weights(self) -> dict[str, Tensor]:
        """A copy of the network's weights, on the CPU."""
        return _copy(self.network.state_dict())

    def state(self) -> dict[str, Tensor]:
        """Everything the next epoch needs, on the CPU."""
        moments = self.optimizer.state_dict()["state"]
        return {
            **prefixed("network", self.weights()),
            **prefixed(
                "optimizer",
                _copy({f"{index}.{key}": value for index, one in moments.items() for key, value in one.items()}),
            ),
        }

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

    def after(self, record: Any, learner: Trained) -> Round:
        """The round with one more epoch."""
        is_best = not self.records or record.loss < self.best_loss
        return Round(self.number, (*self.records, record), learner.weights() if is_best else self.best_weights)


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


def _copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
