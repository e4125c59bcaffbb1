"""The training history, epoch by epoch, to inspect and to save."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torchsdm.errors import InvalidInputError, import_extra


@dataclass(frozen=True)
class EpochRecord:
    """One finished epoch of one round. Balanced means averaged over classes, marginal over points."""

    round: int
    epoch: int
    step_loss: float
    """Mean loss of the epoch's training steps, with the signals of the previous epoch."""
    train_balanced_loss: float
    train_marginal_loss: float
    train_balanced_accuracy: float
    train_marginal_accuracy: float
    train_mean_similarity: float
    train_median_distance: float
    calibration_balanced_loss: float
    """The model with the smallest value over all epochs and rounds is kept."""
    calibration_marginal_loss: float
    calibration_balanced_accuracy: float
    calibration_marginal_accuracy: float
    calibration_mean_similarity: float
    calibration_median_distance: float
    seconds: float

    @property
    def loss(self) -> float:
        """What decides which epoch is kept."""
        return self.calibration_balanced_loss


@dataclass(frozen=True)
class LossRecord:
    """One finished epoch of one round of a network for which only the calibration loss is measured."""

    round: int
    epoch: int
    calibration_loss: float
    seconds: float

    @property
    def loss(self) -> float:
        """What decides which epoch is kept."""
        return self.calibration_loss


@dataclass(frozen=True)
class History:
    """The records of all rounds, in order."""

    records: tuple[EpochRecord, ...] = ()

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[EpochRecord]:
        return iter(self.records)

    def __getitem__(self, position: int) -> EpochRecord:
        return self.records[position]

    @property
    def best(self) -> EpochRecord:
        """The record of the model that was chosen."""
        if not self.records:
            raise InvalidInputError("An empty history has no best epoch.")
        return min(self.records, key=lambda record: record.calibration_balanced_loss)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per epoch."""
        return [asdict(record) for record in self.records]

    def to_pandas(self) -> Any:
        """One row per epoch."""
        pd = import_extra("pandas", "report", "History.to_pandas")
        return pd.DataFrame(self.to_dicts(), columns=[field.name for field in fields(EpochRecord)])

    def save(self, path: str | Path) -> None:
        """Write the records to a ``.csv`` or ``.json`` file."""
        path = Path(path)
        if path.suffix == ".json":
            path.write_text(json.dumps(self.to_dicts(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        elif path.suffix == ".csv":
            with path.open("w", encoding="utf-8") as file:
                writer = csv.DictWriter(file, [field.name for field in fields(EpochRecord)], lineterminator="\n")
                writer.writeheader()
                writer.writerows(self.to_dicts())
        else:
            raise InvalidInputError(f"'path' of History.save must end in .csv or .json. Got {path.name!r}.")
