"""Training with the SDM loss (section 3.1.5).

The first epoch trains with the plain softmax; after every epoch the signals q and d of the training points (against
each other) and of the calibration points are recomputed, and the next epoch trains with them (Eq. 7). The model of the
epoch with the smallest balanced calibration loss is kept.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from torchsdm.core import (
    SOFTMAX_DISTANCE_QUANTILE,
    SOFTMAX_SIMILARITY,
    Adaptor,
    ClassEcdfs,
    make_adaptor,
    sdm_losses,
)
from torchsdm.errors import TrainingError
from torchsdm.matching import Support, SupportSet
from torchsdm.training.data import Part, TrainingSettings, Use, random_generator
from torchsdm.training.history import EpochRecord
from torchsdm.training.learner import Learner, part_of, prefixed


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
        order = torch.from_numpy(
            random_generator(self.seed, self.number, Use.SHUFFLE, epoch).permutation(len(self.train))
        )
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        for batch in order.split(self.settings.batch_size):
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
            raise TrainingError(
                f"The loss became {mean} in epoch {epoch} of round {self.number + 1}. Lower learning_rate "
                f"(now {self.settings.learning_rate:g})."
            )
        return mean


class SDMLearner(AdaptorLearner):
    """A round of SDM training: every epoch but the first trains with the signals of the previous one."""

    record = EpochRecord

    def epoch(self, number: int) -> EpochRecord:
        """Train one epoch, then compute its signals and losses."""
        start = time.perf_counter()
        step_loss = self._steps(number)
        train, calibration = self._evaluate()
        return EpochRecord(
            round=self.number,
            epoch=number,
            step_loss=step_loss,
            **{f"train_{name}": value for name, value in train.items()},
            **{f"calibration_{name}": value for name, value in calibration.items()},
            seconds=time.perf_counter() - start,
        )

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
            raise TrainingError(
                f"The weights of round {self.number + 1} grew beyond float32. Lower learning_rate "
                f"(now {self.settings.learning_rate:g})."
            )
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
