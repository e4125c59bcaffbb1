"""Checkpoints of training: the last finished epoch on disk, so that an interrupted fit goes on with identical results.

A directory holds ``current.safetensors`` (the running round after its last finished epoch) and one
``round-NNN.safetensors`` per finished round. Each file is replaced in one step, so a kill at any moment leaves a usable
state. Every file carries the fingerprint of data and settings; another fit is refused, not mixed in. The networks of
``torchsdm.baselines`` store finished rounds only.
"""

from __future__ import annotations

import json
import numbers
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from torchsdm.errors import CheckpointError
from torchsdm.files import replace_file
from torchsdm.training.history import EpochRecord
from torchsdm.training.round import RoundResult, RoundState
from torchsdm.validation import RandomState, draw_seed

CURRENT = "current.safetensors"  #: the round that is running
_FACTS = {"fingerprint", "seed", "number", "best_epoch", "best_loss", "records"}


class CheckpointFiles:
    """The checkpoint directory of one fit: files of facts and tensors, under the fingerprint of data and settings."""

    def __init__(self, directory: str | Path, fingerprint: str) -> None:
        self.directory = Path(directory)
        self.fingerprint = fingerprint

    @staticmethod
    def stored_seed(directory: str | Path) -> int | None:
        """The seed of the fit that a directory belongs to, where it holds one."""
        for name in (CURRENT, round_name(0)):
            if (path := Path(directory) / name).exists():
                return int(_read(path)[0]["seed"])
        return None

    def make_directory(self) -> None:
        """Make the directory, or say that it cannot be one."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.directory} cannot be used as a checkpoint directory: {error}.") from error

    def write(self, name: str, facts: dict[str, Any], tensors: dict[str, Tensor], seed: int) -> None:
        """Write a file in one step."""
        self.make_directory()
        header = {"fingerprint": self.fingerprint, "seed": seed, **facts}
        tensors = {key: tensor.clone() for key, tensor in tensors.items()}  # safetensors refuses shared memory
        replace_file(self.directory / name, save(tensors, {"facts": json.dumps(header)}))

    def read(self, name: str) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Facts and tensors of a file, None where there is none; that of another fit is refused."""
        path = self.directory / name
        if not path.exists():
            return None
        facts, tensors = _read(path)
        if facts.get("fingerprint") != self.fingerprint:
            raise CheckpointError(
                f"{path} belongs to a fit on other data or with other settings. Use another checkpoint directory, or "
                "remove this one to start anew."
            )
        return facts, tensors


def resumable_seed(random_state: RandomState, directory: str | Path | None, name: str) -> int:
    """A seed from ``random_state``; one that is no number would give another seed to a fit that is resumed."""
    if directory is not None and not isinstance(random_state, numbers.Integral):
        stored = CheckpointFiles.stored_seed(directory)
        if stored is not None:
            return stored
    return draw_seed(random_state, name)


class Checkpoints(CheckpointFiles):
    """Stores the rounds of an SDM fit: the running one after every epoch, and the best model of finished ones."""

    def save_epoch(self, state: RoundState, seed: int) -> None:
        """Store the running round after a finished epoch."""
        facts = {
            "number": state.number,
            "epoch": state.epoch,
            "best_epoch": state.best_epoch,
            "best_loss": state.best_loss,
            "records": [asdict(record) for record in state.records],
        }
        tensors = {
            "similarity": state.similarity,
            "distance_quantile": state.distance_quantile,
            **_prefixed("adaptor", state.adaptor),
            **_prefixed("best", state.best_adaptor),
            **_prefixed("optimizer", state.optimizer),
        }
        self.write(CURRENT, facts, tensors, seed)

    def save_round(self, result: RoundResult, seed: int) -> None:
        """Store the best model of a finished round."""
        facts = {
            "number": result.number,
            "best_epoch": result.best_epoch,
            "best_loss": result.best_loss,
            "records": [asdict(record) for record in result.records],
        }
        self.write(round_name(result.number), facts, _prefixed("adaptor", result.adaptor), seed)

    def load_round(self, number: int) -> RoundResult | None:
        """The best model of a finished round, if that round is finished."""
        stored = self.read(round_name(number))
        if stored is None:
            return None
        facts, tensors = stored
        return RoundResult(
            facts["number"], facts["best_epoch"], facts["best_loss"], _part(tensors, "adaptor"), _records(facts)
        )

    def load_epoch(self, number: int) -> RoundState | None:
        """The state of a round after its last finished epoch, if that round had begun."""
        stored = self.read(CURRENT)
        if stored is None or stored[0]["number"] != number:
            return None
        facts, tensors = stored
        return RoundState(
            number=number,
            epoch=facts["epoch"],
            adaptor=_part(tensors, "adaptor"),
            optimizer=_part(tensors, "optimizer"),
            similarity=tensors["similarity"],
            distance_quantile=tensors["distance_quantile"],
            best_epoch=facts["best_epoch"],
            best_loss=facts["best_loss"],
            best_adaptor=_part(tensors, "best"),
            records=list(_records(facts)),
        )


def round_name(number: int) -> str:
    """The file of a finished round."""
    return f"round-{number:03d}.safetensors"


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as archive:
            facts = json.loads((archive.metadata() or {})["facts"])
            if not isinstance(facts, dict) or not facts.keys() >= _FACTS:
                raise ValueError("it does not hold what a checkpoint holds")
            tensors = {key: archive.get_tensor(key).clone() for key in archive.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}). Remove it to start that round anew.") from error
    return facts, tensors


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}:{name}": tensor for name, tensor in tensors.items()}


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{prefix}:"): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}:")
    }


def _records(facts: dict[str, Any]) -> tuple[EpochRecord, ...]:
    return tuple(EpochRecord(**record) for record in facts["records"])
