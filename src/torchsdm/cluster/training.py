"""The rounds of a fit side by side on a cluster, with the seeds they would have alone: the same model, to the bit.

Each round is an actor that is asked for one epoch after the other. What an epoch leaves behind comes back to this
process, where the callbacks (checkpoints, progress, patience) see it as if the epoch had been trained here. So a lost
worker costs at most the epoch it was at, and no file system needs to be shared.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchsdm.cluster._losses import Lost, answer_of, check_losses
from torchsdm.cluster.backend import Backend, RayBackend, as_backend
from torchsdm.training import Callback, Learner, Round, Run, RunningRound, Training, part_of
from torchsdm.validation import Array


def run_rounds(backend: Backend, caller: str) -> Run | None:
    """How ``train_rounds`` runs the rounds on a backend; None for this process."""
    cluster = as_backend(backend, caller)
    return None if cluster is None else partial(train_side_by_side, cluster)


def train_side_by_side(
    backend: RayBackend, training: Training, numbers: Sequence[int], callbacks: Sequence[Callback] = ()
) -> list[Round]:
    """Train rounds at the same time, as many as the cluster has room for."""
    rounds = [RunningRound(training, number, callbacks) for number in numbers]
    finished = {one.current.number: one.finish() for one in rounds if one.is_finished}
    if len(finished) < len(rounds):
        ray = backend.connect()
        options = backend.worker_options(training.settings.device_type)
        worker = ray.remote(**options)(_RoundWorker)
        shared, threads = ray.put(_Shared.of(training)), backend.n_threads
        remote = [
            _RemoteRound(ray, partial(worker.remote, shared, threads), one) for one in rounds if not one.is_finished
        ]
        try:
            asked = {one.ask(): one for one in remote}
            while asked:
                ready, _ = ray.wait(list(asked), num_returns=1)
                one = asked.pop(ready[0])
                if one.take(ready[0]):
                    asked[one.ask()] = one
                else:
                    finished[one.running.current.number] = one.running.finish()
        finally:
            for one in remote:
                one.end()
    return [finished[number] for number in numbers]


class _RemoteRound:
    """A round of this process whose epochs are trained by a worker."""

    def __init__(self, ray: Any, start: Any, running: RunningRound) -> None:
        self._ray, self._start, self.running = ray, start, running
        self._state: Mapping[str, Tensor] = running.state
        self._worker: Any = None
        self._n_losses = 0

    def ask(self) -> Any:
        """Ask for the next epoch; a new worker begins from the last state."""
        current = self.running.current
        if self._worker is None:
            self._worker = self._start(current.number, self._state)
        return self._worker.epoch.remote(current.epoch + 1)

    def take(self, reference: Any) -> bool:
        """Take what was asked for, or note that it was lost; whether there is more to ask for."""
        try:
            record, self._state = answer_of(self._ray, reference)
        except Lost as error:
            self._n_losses += 1
            current = self.running.current
            check_losses(self._n_losses, f"Epoch {current.epoch + 1} of round {current.number + 1}", error)
            self.end()
            return True
        self._n_losses = 0
        self.running.add(record, _Remote(self._state))
        if self.running.is_finished:
            self.end()
        return not self.running.is_finished

    def end(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._ray.kill(self._worker)
            self._worker = None


@dataclass(frozen=True)
class _Remote:
    """What came back from a learner elsewhere."""

    stored: Mapping[str, Tensor]

    def weights(self) -> Mapping[str, Tensor]:
        return part_of(self.stored, "network")

    def state(self) -> Mapping[str, Tensor]:
        return self.stored


class _RoundWorker:
    """An actor: the learner of one round."""

    def __init__(self, shared: _Shared, threads: int, number: int, state: Mapping[str, Tensor]) -> None:
        torch.set_num_threads(threads)  # the last bits of training steps can depend on it
        self._begin = partial(shared.resume, number, state)  # what fails there fails as the first epoch
        self._learner: Learner | None = None

    def epoch(self, number: int) -> tuple[Any, Mapping[str, Tensor]]:
        if self._learner is None:
            self._learner = self._begin()
        return self._learner.epoch(number), self._learner.state()


@dataclass(frozen=True)
class _Shared:
    """What rounds share, with its tensors as arrays: the workers of a node then read one copy of them."""

    training: Training
    arrays: Mapping[str, tuple[Array, torch.dtype, tuple[int, ...]]]

    @classmethod
    def of(cls, training: Training) -> _Shared:
        values = {one.name: getattr(training.data, one.name) for one in fields(training.data)}
        tensors = {name: value.cpu().contiguous() for name, value in values.items() if value is not None}
        arrays = {
            name: (tensor.flatten().view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape))
            for name, tensor in tensors.items()
        }
        empty = torch.empty(0)
        return cls(replace(training, data=type(training.data)(empty, empty)), arrays)

    def resume(self, number: int, state: Mapping[str, Tensor]) -> Learner:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the arrays are read-only, and training only reads them
            data = {
                name: torch.from_numpy(array).view(dtype).view(shape)
                for name, (array, dtype, shape) in self.arrays.items()
            }
        return replace(self.training, data=type(self.training.data)(**data)).resume(number, state)
