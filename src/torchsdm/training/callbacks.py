"""Callbacks of the loop over rounds and epochs: a progress bar, and checkpoints, so that an interrupted fit resumes.

A checkpoint has the last finished epoch on disk, and the fit resumes with identical results. Its directory has one
``current-NNN.safetensors`` per running round, after its last finished epoch, and one ``round-NNN.safetensors`` per
finished round. Each file is replaced atomically, so a kill at any moment leaves a usable state. Every file has the
fingerprint of data, settings and learner; a checkpoint of another fit is refused.
"""

from __future__ import annotations

import hashlib
import json
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor
from tqdm.auto import tqdm

from torchsdm.errors import CheckpointError, InvalidInputError
from torchsdm.files import remove_unfinished, replace_file
from torchsdm.settings import check_fields
from torchsdm.training.history import EpochRecord, LossRecord
from torchsdm.training.learner import Round, part_of, prefixed
from torchsdm.validation import RandomState, check_positive, draw_seed


class Callback:
    """Called by ``train_rounds`` at fixed points. Methods do nothing unless a subclass overrides them."""

    def restore(self, number: int) -> tuple[Round, Mapping[str, Tensor]] | None:
        """A round that an interrupted fit left behind, and the state of its learner (empty if it is finished)."""
        return None

    def begin_round(self, current: Round) -> None:
        """A round begins, or resumes after its last epoch before an interruption."""

    def after_epoch(self, current: Round, state: Mapping[str, Tensor]) -> None:
        """An epoch is finished, which left its learner in this state."""

    def after_round(self, finished: Round) -> None:
        """A round is finished, now or before an interruption."""

    def end(self) -> None:
        """Training is over, whether it succeeded or failed."""


class ProgressBar(Callback):
    """A bar of the epochs of all rounds on a terminal; nothing in a pipe."""

    def __init__(self, n_rounds: int, max_epochs: int) -> None:
        self.n_rounds, self.max_epochs = n_rounds, max_epochs
        self._bar = tqdm(total=n_rounds * max_epochs, unit="epoch", disable=None)

    def begin_round(self, current: Round) -> None:
        """Skip the epochs that were trained before an interruption."""
        self._skip(current.epoch)

    def after_epoch(self, current: Round, state: Mapping[str, Tensor]) -> None:
        """Show the epoch and its losses."""
        record = current.records[-1]
        shown = {"loss": f"{record.loss:.4f}", "best": f"{current.best_loss:.4f}"}
        if isinstance(record, EpochRecord):
            shown["accuracy"] = f"{record.calibration_balanced_accuracy:.3f}"
        self._bar.set_description(f"round {current.number + 1}/{self.n_rounds}", refresh=False)
        self._bar.set_postfix(**shown, refresh=False)
        self._bar.update()

    def after_round(self, finished: Round) -> None:
        """Skip the epochs that patience spared."""
        self._skip(self.max_epochs - finished.epoch)

    def end(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()

    def _skip(self, n: int) -> None:
        """Move on by n without work: rate and remaining time are those of the work done now."""
        if not self._bar.disable:
            self._bar.n += n
            self._bar.last_print_n += n
            self._bar.initial += n  # the rate is (n - initial) / elapsed
            self._bar.refresh()


_FINISHED, _RUNNING = "round-{:03d}.safetensors", "current-{:03d}.safetensors"
_CURRENT = "current.safetensors"  # the running round, where earlier versions stored it
_FACTS = {"fingerprint": str, "seed": int, "number": int, "records": list}  # of every file
_FORMAT = 3  # of the files; 1 stored SDM's epochs and the baselines' rounds separately
_WITHOUT_DIGEST = 2  # still read


class Checkpointing(Callback):
    """Stores the running round after every epoch, and the best weights of finished rounds."""

    def __init__(
        self, directory: str | Path, fingerprint: str, seed: int, record: type[EpochRecord] | type[LossRecord]
    ) -> None:
        self.directory, self.fingerprint, self.seed, self.record = Path(directory), fingerprint, seed, record
        try:  # now rather than after the first epoch
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.directory} cannot be used as a checkpoint directory: {error}.") from error

    def restore(self, number: int) -> tuple[Round, Mapping[str, Tensor]] | None:
        """A finished round with its best weights, or the running one with the state of its learner."""
        for name in (_FINISHED.format(number), _RUNNING.format(number), _CURRENT):
            stored = self._read(self.directory / name)
            if stored is not None and stored[0].number == number:
                return stored
        return None

    def after_epoch(self, current: Round, state: Mapping[str, Tensor]) -> None:
        """Store the running round."""
        self._write(self.directory / _RUNNING.format(current.number), current, state)

    def after_round(self, finished: Round) -> None:
        """Store a round that has just finished."""
        path = self.directory / _FINISHED.format(finished.number)
        if not path.exists():
            self._write(path, finished, {})
        (self.directory / _RUNNING.format(finished.number)).unlink(missing_ok=True)

    def _write(self, path: Path, current: Round, state: Mapping[str, Tensor]) -> None:
        facts = {
            "format": _FORMAT,
            "fingerprint": self.fingerprint,
            "seed": self.seed,
            "number": current.number,
            "records": [asdict(record) for record in current.records],
        }
        tensors = {**prefixed("best", current.best_weights), **prefixed("learner", state)}
        facts["sha256"] = _digest(facts, tensors)
        arrays = {key: tensor.detach().cpu().numpy() for key, tensor in tensors.items()}  # as tensors, ten times slower
        try:
            replace_file(path, save(arrays, {"facts": json.dumps(facts)}))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error}.") from error

    def _read(self, path: Path) -> tuple[Round, Mapping[str, Tensor]] | None:
        if not path.exists():
            return None
        facts, tensors = _read(path)
        if facts["fingerprint"] != self.fingerprint:
            raise CheckpointError(
                f"{path} belongs to a fit on other data or with other settings. Use another checkpoint directory, or "
                "remove this one to start over."
            )
        try:
            records = tuple(check_fields(self.record(**record)) for record in facts["records"])
        except TypeError as error:
            raise _damaged(path, error) from error
        return Round(facts["number"], records, part_of(tensors, "best")), part_of(tensors, "learner")


def seed_of_fit(seed: int | None, random_state: RandomState, checkpoint: str | Path | None, name: str) -> int:
    """The seed of a fit: the one given, that of the fit to resume, or one drawn from ``random_state``.

    A ``random_state`` that is not a number would give a resumed fit a different seed.
    """
    if seed is not None:
        check_positive(seed, "seed", f"{name}.fit", integer=True, zero=True)
        if seed >= 2**63:
            raise InvalidInputError(f"'seed' of {name}.fit must be below 2**63. Got {seed!r}.")
        return int(seed)
    if checkpoint is not None and not isinstance(random_state, numbers.Integral):
        stored = stored_seed(checkpoint)
        if stored is not None:
            return stored
    return draw_seed(random_state, name)


def stored_seed(directory: str | Path) -> int | None:
    """The seed of the fit that a checkpoint directory belongs to; None if it is empty."""
    path = next(_files(Path(directory)), None)
    return None if path is None else int(_read(path)[0]["seed"])


def stored_epochs(directory: str | Path) -> int:
    """How many epochs, over all rounds, a checkpoint directory has."""
    n_epochs: dict[int, int] = {}
    for path in _files(Path(directory)):
        facts, _ = _read(path)  # a round may be there twice
        n_epochs[facts["number"]] = max(n_epochs.get(facts["number"], 0), len(facts["records"]))
    return sum(n_epochs.values())


def remove_checkpoint(directory: str | Path) -> None:
    """Remove the files of a checkpoint directory, and the directory unless it has others."""
    directory = Path(directory)
    remove_unfinished(directory)
    for path in list(_files(directory)):
        path.unlink(missing_ok=True)
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()


def _files(directory: Path) -> Iterator[Path]:
    """The files of a checkpoint, those of running rounds first."""
    for pattern in ("current*.safetensors", "round-*.safetensors"):
        yield from sorted(directory.glob(pattern))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as archive:
            facts = json.loads((archive.metadata() or {})["facts"])
            if not isinstance(facts, dict) or any(type(facts.get(name)) is not kind for name, kind in _FACTS.items()):
                raise ValueError("it is not a checkpoint")
            if facts.get("format") not in (_WITHOUT_DIGEST, _FORMAT):
                raise CheckpointError(
                    f"{path} was written by another version of torchsdm. Use another checkpoint directory, or remove "
                    "this one to start over."
                )
            tensors = {key: archive.get_tensor(key).clone() for key in archive.keys()}  # noqa: SIM118
            if facts["format"] == _FORMAT and facts["sha256"] != _digest(facts, tensors):
                raise ValueError("its contents are not what was written")
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    return facts, tensors


def _digest(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of everything in a file but this digest itself: damage must not train on, to other numbers."""
    digest = hashlib.sha256(json.dumps({**facts, "sha256": None}, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(flat.numpy().data)
    return digest.hexdigest()


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} is damaged ({error}). Remove it to train that round again.")
