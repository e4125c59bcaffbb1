"""The record of training: kept, saved, read back."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys

import pytest

from torchsdm.errors import InvalidInputError, MissingExtraError, TorchSDMError
from torchsdm.training import History
from torchsdm.training.history import EpochRecord

NAMES = [field.name for field in dataclasses.fields(EpochRecord)]


def record(number, epoch, loss):
    values = {name: (i + 1) / 8 + epoch for i, name in enumerate(NAMES)}
    return EpochRecord(**{**values, "round": number, "epoch": epoch, "calibration_balanced_loss": loss})


@pytest.fixture
def history():
    losses = {(0, 1): 0.9, (0, 2): 0.5, (0, 3): 0.7, (1, 1): 0.8, (1, 2): 0.25, (1, 3): 0.25}
    return History(tuple(record(*place, loss) for place, loss in losses.items()))


def test_records_keep_their_order(history):
    assert len(history) == 6
    assert [(r.round, r.epoch) for r in history] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    assert history[0].epoch == 1 and history[-1].round == 1


def test_the_best_is_the_first_of_the_smallest_calibration_loss(history):
    assert (history.best.round, history.best.epoch) == (1, 2)


def test_dictionaries_hold_every_field(history):
    rows = history.to_dicts()
    assert [EpochRecord(**row) for row in rows] == list(history)


def test_table(history):
    table = history.to_pandas()
    assert list(table.columns) == NAMES
    assert table["calibration_balanced_loss"].tolist() == [0.9, 0.5, 0.7, 0.8, 0.25, 0.25]
    assert table["epoch"].tolist() == [1, 2, 3, 1, 2, 3]
    assert list(History().to_pandas().columns) == NAMES


def test_json_can_be_read_back(history, tmp_path):
    history.save(tmp_path / "history.json")
    rows = json.loads((tmp_path / "history.json").read_text())
    assert [EpochRecord(**row) for row in rows] == list(history)


def test_csv_can_be_read_back(history, tmp_path):
    history.save(str(tmp_path / "history.csv"))
    with open(tmp_path / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == NAMES
    for row, expected in zip(rows, history, strict=True):
        assert {name: float(value) for name, value in row.items()} == dataclasses.asdict(expected)


def test_another_ending_is_refused(history, tmp_path):
    with pytest.raises(InvalidInputError, match=r"'path' of History.save must end in .csv or .json. Got 'history.txt'"):
        history.save(tmp_path / "history.txt")
    assert not (tmp_path / "history.txt").exists()


def test_an_empty_history_has_no_best():
    with pytest.raises(TorchSDMError):
        _ = History().best


def test_a_missing_extra_gives_the_pip_line(history, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        MissingExtraError, match=r"needs pandas, which is not installed. Run: pip install 'torchsdm\[report\]'"
    ):
        history.to_pandas()
