"""``TrainingHistoryDisplay``: what training did, epoch by epoch and round by round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsdm.errors import NotFittedError
from torchsdm.evaluation.displays import _drawing as drawing
from torchsdm.evaluation.displays._drawing import Display, check_type
from torchsdm.training import History
from torchsdm.validation import Array

_PANELS = {  # field -> label of the axis
    "balanced_loss": "balanced loss",
    "balanced_accuracy": "balanced accuracy",
    "mean_similarity": "mean q",
}


@dataclass(eq=False, repr=False)
class TrainingHistoryDisplay(Display):
    """Balanced loss, balanced accuracy and mean similarity q of the training and calibration sets, round by round."""

    rounds: Array
    """Round of every record (E,), counted from 0."""
    epochs: Array
    """Its epoch, counted from 1."""
    train: dict[str, Array]
    calibration: dict[str, Array]
    """``balanced_loss``, ``balanced_accuracy`` and ``mean_similarity`` of each set, (E,)."""
    chosen: int | None
    """Position of the epoch whose model was kept: the one with the smallest calibration loss."""

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any = None, y: Any = None) -> TrainingHistoryDisplay:
        """Take the history of a fitted estimator; X and y are ignored, there for uniformity."""
        fitted = getattr(estimator, "classifier_", estimator)
        if not hasattr(fitted, "history_"):
            raise NotFittedError(f"This {type(estimator).__name__} has no history_: call fit before drawing it.")
        return cls.from_history(fitted.history_)

    @classmethod
    def from_history(cls, history: History) -> TrainingHistoryDisplay:
        """Take the records of a history."""
        caller = f"{cls.__name__}.from_history"
        check_type(history, History, "history", caller, "a History, such as an estimator's history_")

        def values(part: str) -> dict[str, Array]:
            return {name: np.array([getattr(record, f"{part}_{name}") for record in history]) for name in _PANELS}

        return cls(
            rounds=np.array([record.round for record in history], dtype=int),
            epochs=np.array([record.epoch for record in history], dtype=int),
            train=values("train"),
            calibration=values("calibration"),
            chosen=history.records.index(history.best) if len(history) else None,
        )

    def plot(self, ax: Any = None) -> TrainingHistoryDisplay:
        """Draw three panels, one above the other, in a new figure or in place of the given axes."""
        strip, panels = self._panels(ax, (6, 5), len(_PANELS))
        position = np.arange(1, len(self.epochs) + 1)
        starts = np.flatnonzero(np.diff(self.rounds, prepend=-1))  # of rounds
        stops = np.append(starts, len(position))[1:]
        for panel, (name, label) in zip(panels, _PANELS.items(), strict=True):
            for start, stop in zip(starts, stops, strict=True):
                own = slice(start, stop)
                mark = "." if stop - start == 1 else ""
                panel.plot(position[own], self.train[name][own], color=drawing.VERMILLION, linestyle="--", marker=mark)
                panel.plot(position[own], self.calibration[name][own], color=drawing.BLUE, linestyle="-", marker=mark)
            for start in starts[1:]:
                panel.axvline(start + 0.5, color=drawing.GREY, linewidth=0.8, linestyle=":")
            if self.chosen is not None:
                at = position[self.chosen], self.calibration[name][self.chosen]
                panel.plot(*at, "*", color=drawing.BLACK, markersize=10, zorder=3, clip_on=False)
            panel.set_ylabel(label)
        drawing.tidy(*panels)
        for panel in (panels[0], panels[2]):
            panel.set_ylim(bottom=0)
        self._label_epochs(panels, starts, stops)
        self._add_legend(strip)
        return self

    def _label_epochs(self, panels: Any, starts: Array, stops: Array) -> None:
        several = len(starts) > 1
        panels[-1].set_xlabel("epoch, rounds in sequence" if several else "epoch")
        if not len(self.epochs):
            drawing.say(panels[1], "no epochs")
            return
        panels[0].set_xlim(0.5, len(self.epochs) + 0.5)
        panels[0].xaxis.get_major_locator().set_params(integer=True)
        if several and len(starts) <= 12:
            for number, start, stop in zip(self.rounds[starts], starts, stops, strict=True):
                name = f"round {number + 1}" if len(starts) <= 5 else str(number + 1)
                middle = (start + stop + 1) / 2
                above = {"transform": panels[0].get_xaxis_transform(), "ha": "center", "va": "bottom"}
                panels[0].text(middle, 1.0, name, fontsize=drawing.SMALL, **above)

    def _add_legend(self, ax: Any) -> None:
        from matplotlib.lines import Line2D

        handles = [
            Line2D([], [], color=drawing.VERMILLION, linestyle="--", label="training set"),
            Line2D([], [], color=drawing.BLUE, label="calibration set"),
        ]
        if self.chosen is not None:
            of_round = f" of round {self.rounds[self.chosen] + 1}" if len(np.unique(self.rounds)) > 1 else ""
            name = f"chosen: epoch {self.epochs[self.chosen]}{of_round}"
            handles.append(Line2D([], [], color=drawing.BLACK, linestyle="none", marker="*", markersize=10, label=name))
        drawing.legend_above(ax, len(handles), handles=handles)
