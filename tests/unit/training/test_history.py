"""The record of training: saved, read back, drawn."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys

import pytest

from torchsdm import History
from torchsdm.errors import InvalidInputError, MissingExtraError, TorchSDMError
from torchsdm.training.history import EpochRecord

NAMES = [field.name for field in dataclasses.fields(EpochRecord)]


def record(number, epoch, loss):
    values = {name: (i + 1) / 8 + epoch for i, name in enumerate(NAMES)}
    return EpochRecord(**{**values, "round": number, "epoch": epoch, "calibration_balanced_loss": loss})


@pytest.fixture
def history():
    losses = {(0, 1): 0.9, (0, 2): 0.5, (0, 3): 0.7, (1, 1): 0.8, (1, 2): 0.25, (1, 3): 0.25}
    return History(record(*place, loss) for place, loss in losses.items())


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


def test_plot_draws_each_round_and_the_chosen_epoch(history):
    plt = pytest.importorskip("matplotlib.pyplot")
    figure, ax = plt.subplots()
    assert history.plot(ax=ax) is ax
    lines = [(line.get_xdata().tolist(), line.get_ydata().tolist(), line.get_linestyle()) for line in ax.lines]
    train = [r.train_balanced_loss for r in history]
    assert lines[0] == ([1, 2, 3], train[:3], "--") and lines[2] == ([1, 2, 3], train[3:], "--")
    assert lines[1] == ([1, 2, 3], [0.9, 0.5, 0.7], "-") and lines[3] == ([1, 2, 3], [0.8, 0.25, 0.25], "-")
    assert [list(values) for values in lines[4][:2]] == [[2], [0.25]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["train", "calibration", "chosen"]
    assert ax.get_ylabel() == "balanced loss"
    plt.close(figure)


def test_plot_of_another_metric(history):
    plt = pytest.importorskip("matplotlib.pyplot")
    ax = history.plot("mean_similarity")
    assert ax.lines[1].get_ydata().tolist() == [r.calibration_mean_similarity for r in history.records[:3]]
    assert ax.lines[-1].get_ydata()[0] == history.best.calibration_mean_similarity
    plt.close(ax.figure)
    ax = History().plot()
    assert len(ax.lines) == 0
    plt.close(ax.figure)


def test_an_unknown_metric_is_refused_with_the_known_ones(history):
    with pytest.raises(
        InvalidInputError, match=r"'metric' of History.plot must be one of .*marginal_loss.* Got 'loss'"
    ):
        history.plot("loss")


def test_an_empty_history_has_no_best():
    with pytest.raises(TorchSDMError):
        _ = History().best


@pytest.mark.parametrize(
    ("package", "call"), [("pandas", lambda h: h.to_pandas()), ("matplotlib.pyplot", lambda h: h.plot())]
)
def test_a_missing_extra_gives_the_pip_line(history, monkeypatch, package, call):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingExtraError, match=r"needs \w+, which is not installed. Run: pip install 'torchsdm\[report\]'"
    ):
        call(history)
