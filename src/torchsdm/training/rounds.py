"""The J rounds of a fit: one loop over rounds and epochs for every network trained here.

Each round has its own split and initial weights; all randomness comes from (seed, round, epoch). The model of the epoch
with the smallest calibration loss is kept. Checkpoints and the progress bar plug in as callbacks.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchsdm.training.callbacks import Callback, Checkpointing, ProgressBar
from torchsdm.training.data import Part, TrainingData, TrainingSettings, split_of_round
from torchsdm.training.learner import Learner, Round, Spread


@dataclass(frozen=True)
class Training:
    """What the rounds of a fit share."""

    learner: type[Learner]
    data: TrainingData
    settings: TrainingSettings
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the learner."""
    spread: Spread | None = None
    """Where the support of a round is put to be matched; by default it stays here. Results do not depend on it."""

    def parts(self, number: int) -> tuple[Part, Part]:
        """The training and the calibration part of a round; the same for every learner with the same seed."""
        return split_of_round(self.data, self.settings, self.seed, number)

    def begin(self, number: int, state: Mapping[str, Tensor] | None = None) -> Learner:
        """The learner of a round before its first epoch, or after the epoch that left a state."""
        with _plain_torch(self.settings.device_type):
            learner = self.learner(*self.parts(number), self.settings, self.seed, number, **self.options)
        learner.spread = self.spread
        if state:
            learner.restore(state)
        return learner

    def fingerprint(self, data_fingerprint: str) -> str:
        """A hash of what must be the same to resume a checkpoint; the block size does not affect results."""
        settings = dataclasses.asdict(self.settings)
        if self.settings.class_weights is None:
            del settings["class_weights"]  # checkpoints from before there were any can be resumed
        fixed = {
            **settings,
            "block_size": None,
            "learner": self.learner.__name__,
            "options": dict(self.options),
            "seed": self.seed,
            "data": data_fingerprint,
        }
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


Run: TypeAlias = "Callable[[Training, Sequence[int], Sequence[Callback]], list[Round]]"
"""How rounds are trained if not one after the other in this process, such as side by side on a cluster."""


def train_rounds(
    training: Training,
    n_rounds: int,
    *,
    checkpoint: str | Path | None = None,
    data_fingerprint: str = "",
    verbose: bool = False,
    run: Run | None = None,
) -> list[Round]:
    """Train J rounds; with a checkpoint directory, resume what an interrupted call left there.

    ``verbose`` shows a progress bar on a terminal, and nothing in a pipe. ``run`` says how; by default one round after
    the other.
    """
    callbacks: list[Callback] = []
    if checkpoint is not None:
        fingerprint = training.fingerprint(data_fingerprint)
        callbacks.append(Checkpointing(checkpoint, fingerprint, training.seed, training.learner.record))
    if verbose:
        callbacks.append(ProgressBar(n_rounds, training.settings.max_epochs))
    with ExitStack() as stack:
        for callback in callbacks:
            stack.callback(callback.end)
        if run is not None:
            return run(training, range(n_rounds), callbacks)
        return [train_round(training, number, callbacks) for number in range(n_rounds)]


def train_round(training: Training, number: int, callbacks: Sequence[Callback] = ()) -> Round:
    """Train one round, from the start or from what a callback restores."""
    running = RunningRound(training, number, callbacks)
    if not running.is_finished:
        with _plain_torch(training.settings.device_type):
            learner = training.begin(number, running.state)
            while not running.is_finished:
                running.add(learner.epoch(running.current.epoch + 1), learner.state())
    return running.finish()


class RunningRound:
    """A round while it is trained, here or elsewhere: its epochs so far, and the callbacks that watch it.

    1. ``current`` and ``state`` are those of the start, or what a callback restores;
    2. until ``is_finished``, somebody trains the next epoch from there and ``add`` takes what came out;
    3. ``finish`` returns the round.
    """

    def __init__(self, training: Training, number: int, callbacks: Sequence[Callback]) -> None:
        self._settings, self._callbacks = training.settings, callbacks
        restored = (callback.restore(number) for callback in self._callbacks)
        nothing: tuple[Round, Mapping[str, Tensor]] = (Round(number), {})
        self.current, self.state = next((one for one in restored if one is not None), nothing)
        for callback in self._callbacks:
            callback.begin_round(self.current)

    @property
    def is_finished(self) -> bool:
        """Whether no further epoch is wanted: after the last, or too many without a smaller calibration loss."""
        current, patience = self.current, self._settings.patience
        is_spent = patience is not None and current.epoch > 0 and current.epoch - current.best_epoch >= patience
        return is_spent or current.epoch >= self._settings.max_epochs

    def add(self, record: Any, state: Mapping[str, Tensor]) -> None:
        """Take the record of the next epoch, and the state it left its learner in."""
        if not math.isfinite(record.loss):
            raise self._settings.divergence(
                f"The calibration loss became {record.loss} in epoch {record.epoch} of round {self.current.number + 1}."
            )
        self.current = self.current.after(record, state)
        for callback in self._callbacks:
            callback.after_epoch(self.current, state)

    def finish(self) -> Round:
        """The finished round."""
        for callback in self._callbacks:
            callback.after_round(self.current)
        return self.current


@contextmanager
def _plain_torch(device_type: str) -> Iterator[None]:
    """Train the same way in any gradient or precision context of the caller."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device_type, enabled=False):
        yield
