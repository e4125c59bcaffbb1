"""The J rounds of a fit: one loop over rounds and epochs for every network trained here.

Each round has its own split and initial weights; all randomness comes from (seed, round, epoch). The model of the epoch
with the smallest calibration loss is kept. Patience, checkpoints and the progress bar plug in as callbacks.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torchsdm.errors import TrainingError
from torchsdm.training.callbacks import Callback, Patience, ProgressBar
from torchsdm.training.checkpoint import Checkpointing
from torchsdm.training.data import Part, TrainingData, TrainingSettings, split_of_round
from torchsdm.training.learner import Learner, Round


@dataclass(frozen=True)
class Training:
    """What the rounds of a fit share."""

    learner: type[Learner]
    data: TrainingData
    settings: TrainingSettings
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the learner."""

    def parts(self, number: int) -> tuple[Part, Part]:
        """The training and the calibration part of a round; the same for every learner with the same seed."""
        return split_of_round(self.data, self.settings, self.seed, number)

    def begin(self, number: int) -> Learner:
        """The learner of a round before its first epoch."""
        with _plain_torch(self.settings.device_type):
            return self.learner(*self.parts(number), self.settings, self.seed, number, **self.options)

    def fingerprint(self, data_fingerprint: str) -> str:
        """A hash of what must be the same to resume a checkpoint; the block size does not affect results."""
        fixed = {
            **dataclasses.asdict(self.settings),
            "block_size": None,
            "learner": self.learner.__name__,
            "options": dict(self.options),
            "seed": self.seed,
            "data": data_fingerprint,
        }
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def train_rounds(
    training: Training,
    n_rounds: int,
    *,
    checkpoint: str | Path | None = None,
    data_fingerprint: str = "",
    verbose: bool = False,
) -> list[Round]:
    """Train J rounds; with a checkpoint directory, resume what an interrupted call left there.

    ``verbose`` shows a progress bar on a terminal, and nothing in a pipe.
    """
    callbacks: list[Callback] = []
    if checkpoint is not None:
        fingerprint = training.fingerprint(data_fingerprint)
        callbacks.append(Checkpointing(checkpoint, fingerprint, training.seed, training.learner.record))
    if verbose:
        callbacks.append(ProgressBar(n_rounds, training.settings.max_epochs))
    with ExitStack() as stack:
        for callback in callbacks:
            callback.start()
            stack.callback(callback.end)
        return [train_round(training, number, callbacks) for number in range(n_rounds)]


def train_round(training: Training, number: int, callbacks: Sequence[Callback] = ()) -> Round:
    """Train one round, from the start or from what a callback restores."""
    settings = training.settings
    if settings.patience is not None:
        callbacks = [Patience(settings.patience), *callbacks]

    def is_finished(current: Round) -> bool:
        return current.epoch >= settings.max_epochs or any(callback.is_finished(current) for callback in callbacks)

    restored = (callback.restore(number) for callback in callbacks)
    current, state = next((one for one in restored if one is not None), (Round(number), {}))
    for callback in callbacks:
        callback.begin_round(current)
    if not is_finished(current):
        with _plain_torch(settings.device_type):
            learner = training.begin(number)
            if state:
                learner.restore(state)
            while not is_finished(current):
                record = learner.epoch(current.epoch + 1)
                if not math.isfinite(record.loss):
                    raise TrainingError(
                        f"The calibration loss became {record.loss} in epoch {record.epoch} of round {number + 1}. "
                        f"Lower learning_rate (now {settings.learning_rate:g})."
                    )
                current = current.after(record, learner)
                for callback in callbacks:
                    callback.after_epoch(current, learner)
    for callback in callbacks:
        callback.after_round(current)
    return current


@contextmanager
def _plain_torch(device_type: str) -> Iterator[None]:
    """Train the same way in any gradient or precision context of the caller."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device_type, enabled=False):
        yield
