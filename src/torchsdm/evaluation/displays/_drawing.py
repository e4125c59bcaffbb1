"""What the displays share: checks of decisions and labels, axes, legends, and colours that also differ in greyscale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchsdm.core import Decisions, SDMDecisions
from torchsdm.errors import InvalidInputError, InvalidTypeError, NotFittedError, import_extra
from torchsdm.estimators import SDMClassifier, SDMEnsemble, SDMTextClassifier
from torchsdm.evaluation import metrics
from torchsdm.evaluation.metrics import Compared
from torchsdm.validation import Array
from torchsdm.wording import shortened


def compare(decisions: Any, y: Any, caller: str) -> Compared:
    """Compare decisions on at least one input with true labels, all of which must be classes of the decisions."""
    check_decisions(decisions, caller)
    return metrics.compare(decisions, y, caller, "y")


def some_rows(n: int, most: int) -> Array:
    """Row numbers to draw: all, or as many as a plot can show, drawn at random and always the same."""
    return np.arange(n) if n <= most else np.sort(np.random.default_rng(0).choice(n, most, replace=False))


def check_type(value: Any, kind: type, name: str, caller: str, what: str) -> None:
    if not isinstance(value, kind):
        raise InvalidTypeError(f"'{name}' of {caller} must be {what}. Got {type(value).__name__}.")


def check_decisions(decisions: Any, caller: str) -> None:
    check_type(decisions, Decisions, "decisions", caller, "Decisions, as returned by decide")
    if len(decisions) == 0:
        raise InvalidInputError(f"'decisions' of {caller} must have at least one input. Got none.")


def check_sdm_decisions(decisions: Decisions, caller: str) -> SDMDecisions:
    """Require the decisions of an SDM estimator, which have its signals, on at least one input."""
    check_decisions(decisions, caller)
    if not isinstance(decisions, SDMDecisions):
        raise InvalidInputError(
            f"'decisions' of {caller} must be from an SDM estimator. Got decisions without signals."
        )
    return decisions


def decide(estimator: Any, X: Any, caller: str) -> Decisions:
    if not callable(getattr(estimator, "decide", None)):
        raise InvalidTypeError(
            f"'estimator' of {caller} must be a torchsdm estimator, with a method decide. "
            f"Got {type(estimator).__name__}."
        )
    return estimator.decide(X)


def sdm_classifier(estimator: Any, caller: str) -> SDMClassifier:
    """The classifier, with one calibration set, that an estimator is based on."""
    inner = getattr(estimator, "classifier_", estimator)
    if isinstance(inner, SDMClassifier):
        return inner
    if isinstance(inner, SDMTextClassifier):
        raise NotFittedError(f"This SDMTextClassifier is not fitted yet: call fit before {caller}.")
    reason = type(inner).__name__
    if isinstance(inner, SDMEnsemble):
        reason += ", which has one calibration set per round; draw a single round with from_predictions"
    raise InvalidTypeError(
        f"'estimator' of {caller} must be a fitted SDMClassifier or SDMTextClassifier. Got {reason}."
    )


# The palette of Okabe and Ito, which colour-blind readers can tell apart, without yellow, which vanishes on white.
BLACK = "#000000"
GREY = "#6e6e6e"
PALE = "#e3e3e3"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
SKY_BLUE = "#56B4E9"
ORANGE = "#E69F00"

SMALL = 8  # points; no text is smaller
NORMAL = 9

_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, SKY_BLUE, ORANGE)
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # their number is coprime to the colours', so pairs repeat late


@dataclass(eq=False, repr=False)
class Display:
    """Arrays, and how they are drawn; the fields here are what ``plot`` drew on."""

    ax_: Any = field(init=False)
    axes_: Any = field(init=False)
    figure_: Any = field(init=False)

    def _axes(self, ax: Any, size: tuple[float, float]) -> Any:
        """The given axes, or those of a new figure of a size in inches, with room for labels and legends."""
        caller = f"{type(self).__name__}.plot"
        plt = import_extra("matplotlib.pyplot", "report", caller)
        if ax is None:
            _, ax = plt.subplots(figsize=size, layout="constrained")
        check_type(ax, plt.Axes, "ax", caller, "matplotlib axes or None")
        self.ax_, self.figure_ = ax, ax.figure
        return ax

    def _panels(
        self,
        ax: Any,
        size: tuple[float, float],
        n_rows: int,
        n_columns: int = 1,
        *,
        height_ratios: Sequence[float] | None = None,
        share: str = "x",
    ) -> tuple[Any, Any]:
        """A strip for the legend and, below it, panels in the order of rows, in place of the given or new axes."""
        from matplotlib.gridspec import GridSpec

        ax = self._axes(ax, size)
        ax.set_axis_off()
        cell = ax.get_subplotspec()
        heights: dict[str, Any] = {"height_ratios": (1, 1000)}  # the strip has no height: its legend is above it
        if cell is None:  # axes that were placed by hand
            x0, y0, x1, y1 = ax.get_position().extents
            frame: Any = GridSpec(2, 1, figure=ax.figure, left=x0, bottom=y0, right=x1, top=y1, **heights)
        else:
            frame = cell.subgridspec(2, 1, **heights)
        strip = ax.figure.add_subplot(frame[0])
        strip.set_axis_off()
        grid = frame[1].subgridspec(n_rows, n_columns, height_ratios=height_ratios)
        self.axes_ = grid.subplots(squeeze=False, sharex="x" in share, sharey="y" in share).ravel()
        return strip, self.axes_


def series_style(position: int) -> dict[str, Any]:
    """Colour, line and marker of the n-th series; any two of the first 84 differ."""
    return {
        "color": _COLOURS[position % len(_COLOURS)],
        "linestyle": _LINES[position % len(_LINES)],
        "marker": _MARKERS[position % len(_MARKERS)],
    }


def legend_above(
    ax: Any, n_columns: int, panels: Sequence[Any] = (), *, handles: Any = None, title: str | None = None
) -> None:
    """A legend above the axes, where it covers nothing: of what is drawn in panels, or of the given handles."""
    drawn = [handle for panel in panels for handle in panel.get_legend_handles_labels()[0]]
    ax.legend(
        handles=drawn if handles is None else handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        borderaxespad=0.3,
        ncols=n_columns,
        frameon=False,
        fontsize=SMALL,
        title=title,
        title_fontsize=NORMAL,
        alignment="left",
    )


def tidy(*axes: Any) -> None:
    """Remove the frame lines that have no scale, and set the font size of the ticks."""
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=SMALL)
        for label in (ax.xaxis.label, ax.yaxis.label):
            label.set_fontsize(NORMAL)


def say(ax: Any, text: str, *, height: float = 0.5, **options: Any) -> None:
    """A text in the middle of the axes."""
    ax.text(0.5, height, text, transform=ax.transAxes, ha="center", va="center", **options)


def shown(label: Any, longest: int = 18) -> str:
    """The name of a class in a plot."""
    return shortened(str(label), longest).replace("$", "\\$")  # otherwise matplotlib would typeset it as mathematics
