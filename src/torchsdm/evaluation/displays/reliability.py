"""``ReliabilityDisplay``: whether an answer is right as often as its confidence says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsdm.core import Decisions, wilson_interval
from torchsdm.evaluation.displays import _drawing as drawing
from torchsdm.evaluation.displays._drawing import Display, compare, decide
from torchsdm.evaluation.metrics import reliability_bins
from torchsdm.validation import Array, check_alpha, check_positive, check_share


@dataclass(eq=False, repr=False)
class ReliabilityDisplay(Display):
    """Accuracy against confidence in bins of equal width, and in the single bin [alpha, 1] that matters most."""

    edges: Array
    """The bins that contain inputs, (B, 2), each open on the left."""
    confidence: Array
    """Mean confidence of each bin (B,)."""
    accuracy: Array
    """Share of its predictions that are correct."""
    accuracy_lower: Array
    accuracy_upper: Array
    """Wilson's interval."""
    counts: Array
    """Inputs of each bin."""
    alpha: float
    top_confidence: float
    top_accuracy: float
    top_accuracy_lower: float
    top_accuracy_upper: float
    """The same for inputs with a confidence of at least alpha; NaN if there are none."""
    top_count: int
    level: float
    """Of the intervals."""

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, n_bins: int = 10, alpha: float | None = None, level: float = 0.95
    ) -> ReliabilityDisplay:
        """Compute the bins of an estimator's confidence on labelled inputs.

        Parameters
        ----------
        estimator
            With a method ``decide``.
        X, y
            Inputs and their true labels.
        n_bins : int, default=10
            Bins between 0 and 1.
        alpha : float, optional
            Start of the single bin [alpha, 1]; by default the smallest alpha of the estimator.
        level : float, default=0.95
            Of Wilson's intervals.
        """
        decisions = decide(estimator, X, f"{cls.__name__}.from_estimator")
        return cls.from_predictions(decisions, y, n_bins=n_bins, alpha=alpha, level=level)

    @classmethod
    def from_predictions(
        cls, decisions: Decisions, y: Any, *, n_bins: int = 10, alpha: float | None = None, level: float = 0.95
    ) -> ReliabilityDisplay:
        """Compute the bins of decisions' confidence; see ``from_estimator``."""
        caller = f"{cls.__name__}.from_predictions"
        correct = compare(decisions, y, caller).correct
        check_positive(n_bins, "n_bins", caller, integer=True)
        check_share(level, "level", caller)
        alpha = float(decisions.alphas[0]) if alpha is None else check_alpha(alpha, caller)
        bins = reliability_bins(decisions.confidence, correct, n_bins)
        n_correct = np.rint(bins.accuracy * bins.counts).astype(int)
        intervals = [wilson_interval(int(k), int(n), level) for k, n in zip(n_correct, bins.counts, strict=True)]
        lower, upper = np.array(intervals).T
        in_top = decisions.confidence >= alpha
        n_top = int(in_top.sum())
        top_lower, top_upper = wilson_interval(int(correct[in_top].sum()), n_top, level) if n_top else (np.nan, np.nan)
        return cls(
            edges=bins.edges,
            confidence=bins.confidence,
            accuracy=bins.accuracy,
            accuracy_lower=lower,
            accuracy_upper=upper,
            counts=bins.counts,
            alpha=alpha,
            top_confidence=float(decisions.confidence[in_top].mean()) if n_top else np.nan,
            top_accuracy=float(correct[in_top].mean()) if n_top else np.nan,
            top_accuracy_lower=top_lower,
            top_accuracy_upper=top_upper,
            top_count=n_top,
            level=float(level),
        )

    def plot(self, ax: Any = None) -> ReliabilityDisplay:
        """Draw accuracy against confidence and below it the counts, in a new figure or in place of the given axes."""
        strip, panels = self._panels(ax, (6, 4.5), 2, height_ratios=(3, 1))
        self._plot_accuracy(panels[0])
        left, right = self.edges.T
        style = {"color": drawing.BLUE, "edgecolor": "white", "linewidth": 0.8}
        panels[1].bar(left, self.counts, right - left, align="edge", **style)
        panels[1].set_yscale("log")
        panels[1].set(ylim=(0.7, 2 * max(self.counts.max(), 5)), xlabel="confidence", ylabel="inputs")
        for panel in panels:
            panel.axvspan(self.alpha, 1, color=drawing.PALE, linewidth=0, zorder=0)
            panel.set_xlim(0, 1)
        drawing.tidy(*panels)
        drawing.legend_above(strip, 1, panels[:1])
        return self

    def _plot_accuracy(self, ax: Any) -> None:
        ax.plot([0, 1], [0, 1], color=drawing.GREY, linewidth=1, linestyle="--", label="accuracy = confidence")
        width = self.edges[0, 1] - self.edges[0, 0]
        bars = _around(self.accuracy, self.accuracy_lower, self.accuracy_upper)
        style = {"color": drawing.BLUE, "linewidth": 1.2, "markersize": 5, "capsize": 3}
        label = f"bin of width {width:.2g} (with {self.level:.0%} interval)"
        ax.errorbar(self.confidence, self.accuracy, bars, fmt="o-", label=label, **style)
        label = f"[{self.alpha:g}, 1]: no inputs this confident"
        if self.top_count:
            interval = f"{self.top_accuracy_lower:.3f} to {self.top_accuracy_upper:.3f}"
            label = f"[{self.alpha:g}, 1]: accuracy {self.top_accuracy:.3f} ({interval}), {self.top_count:,} inputs"
            bars = _around(self.top_accuracy, self.top_accuracy_lower, self.top_accuracy_upper)
            middle, half = (self.alpha + 1) / 2, (1 - self.alpha) / 2
            style = {"color": drawing.VERMILLION, "markeredgecolor": drawing.BLACK, "markersize": 7, "capsize": 4}
            ax.errorbar([middle], [self.top_accuracy], bars, half, fmt="D", zorder=3, label=label, **style)
        else:
            ax.plot([], [], " ", label=label)
        ax.set(ylim=(-0.02, 1.04), ylabel="accuracy")


def _around(value: Any, lower: Any, upper: Any) -> Array:
    """Lengths (2, n) of error bars; never negative, even if rounding puts a value outside its interval."""
    return np.maximum(np.array([np.atleast_1d(value - lower), np.atleast_1d(upper - value)]), 0)
