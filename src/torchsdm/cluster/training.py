"""The rounds of a fit side by side on a cluster, with the seeds they would have alone: the same model, to the bit.

Each round is a task that sends back, epoch by epoch, what the next epoch would need. The callbacks of this process
(checkpoints, progress, patience) see it as if the epoch had been trained here. So a lost worker costs the epoch it was
at: the round begins again from the last one that came back. No file system needs to be shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchsdm.cluster.backend import Backend, Lost, RayBackend, answer_of, as_backend, check_losses
from torchsdm.training import Callback, Learner, Part, Round, Run, RunningRound, Training, TrainingData, part_of
from torchsdm.validation import Array, as_tensor

# Ray must not begin a lost task again: it knows only the first state. A task waits until we have taken its last epoch.
_STREAMING = {"num_returns": "streaming", "max_retries": 0, "_generator_backpressure_num_objects": 1}


def run_rounds(backend: Backend, caller: str) -> Run | None:
    """How ``train_rounds`` runs the rounds on a backend; None for this process."""
    cluster = None if backend is None else as_backend(backend, caller)
    return None if cluster is None or cluster.spread_training else partial(train_side_by_side, cluster)


def train_side_by_side(
    backend: RayBackend, training: Training, numbers: Sequence[int], callbacks: Sequence[Callback] = ()
) -> list[Round]:
    """Train rounds at the same time, as many as the cluster has room for."""
    rounds = [RunningRound(training, number, callbacks) for number in numbers]
    finished = {one.current.number: one.finish() for one in rounds if one.is_finished}
    if len(finished) < len(rounds):
        ray = backend.connect()
        task = ray.remote(**backend.worker_options(training.settings.device_type), **_STREAMING)(_epochs)
        train = partial(task.remote, ray.put(_Shared.of(training)), backend.n_threads)
        running = [_RemoteRound(ray, train, one) for one in rounds if not one.is_finished]
        try:
            while running:
                ready, _ = ray.wait([one.epochs for one in running], num_returns=1)
                one = next(one for one in running if one.epochs is ready[0])
                one.take()
                if one.round.is_finished:
                    one.end()
                    running.remove(one)
                    finished[one.round.current.number] = one.round.finish()
        finally:
            for one in running:
                one.end()
    return [finished[number] for number in numbers]


class _RemoteRound:
    """A round of this process whose epochs are trained by a task."""

    def __init__(self, ray: Any, train: Callable[..., Any], round: RunningRound) -> None:
        self._ray, self._train, self.round = ray, train, round
        self._state, self._n_losses = round.state, 0
        self._begin()

    def _begin(self) -> None:
        """Train from the last state on; ``epochs`` is the stream of what comes out."""
        current = self.round.current
        self.epochs = self._train(current.number, self._state, current.epoch)

    def take(self) -> None:
        """Take the next epoch; if it is lost, begin again from the one before."""
        try:
            record, self._state = answer_of(self._ray, next(self.epochs))
        except Lost as error:
            current = self.round.current
            self._n_losses += 1
            check_losses(self._n_losses, f"Epoch {current.epoch + 1} of round {current.number + 1}", error)
            self._begin()
        else:
            self._n_losses = 0
            self.round.add(record, _Remote(self._state))

    def end(self) -> None:
        self._ray.cancel(self.epochs)


@dataclass(frozen=True)
class _Remote:
    stored: Mapping[str, Tensor]

    def weights(self) -> Mapping[str, Tensor]:
        return part_of(self.stored, "network")

    def state(self) -> Mapping[str, Tensor]:
        return self.stored


def _epochs(
    shared: _Shared, threads: int, number: int, state: Mapping[str, Tensor], n_done: int
) -> Iterator[tuple[Any, Mapping[str, Tensor]]]:
    """A task: the epochs of a round after the first ``n_done``, each with the state after it."""
    torch.set_num_threads(threads)  # the last bits of training steps can depend on it
    learner = shared.resume(number, state)
    for epoch in range(n_done + 1, shared.training.settings.max_epochs + 1):
        yield learner.epoch(epoch), learner.state()


@dataclass(frozen=True)
class _Shared:
    """What rounds share, with its tensors as arrays: the workers of a node then read one copy of them."""

    training: Training
    arrays: Mapping[str, tuple[Array, torch.dtype, tuple[int, ...]]]

    @classmethod
    def of(cls, training: Training) -> _Shared:
        parts = {"": training.data, "calibration:": training.data.calibration}
        values = {
            f"{of}{name}": one for of, part in parts.items() if part is not None for name, one in vars(part).items()
        }
        tensors = {name: one.cpu().contiguous() for name, one in values.items() if isinstance(one, Tensor)}
        arrays = {
            name: (tensor.flatten().view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape))
            for name, tensor in tensors.items()
        }
        empty = torch.empty(0)
        return cls(replace(training, data=TrainingData(empty, empty)), arrays)

    def resume(self, number: int, state: Mapping[str, Tensor]) -> Learner:
        tensors = {
            name: as_tensor(array, name, "train_rounds").view(dtype).view(shape)
            for name, (array, dtype, shape) in self.arrays.items()
        }
        given = part_of(tensors, "calibration")
        calibration = Part(**given) if given else None
        rows, groups = tensors.get("rows"), tensors.get("groups")
        data = TrainingData(tensors["hidden_states"], tensors["labels"], calibration, rows, groups)
        return replace(self.training, data=data).begin(number, state)
