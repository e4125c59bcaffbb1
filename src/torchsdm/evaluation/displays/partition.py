"""``PartitionDisplay``: where the inputs of each class are, and which part of that plane is admitted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchsdm.core import Decisions, HighReliabilityRegion
from torchsdm.errors import InvalidInputError
from torchsdm.evaluation.displays import _drawing as drawing
from torchsdm.evaluation.displays._drawing import (
    Display,
    check_sdm_decisions,
    check_type,
    compare,
    decide,
    sdm_classifier,
    some_rows,
)
from torchsdm.validation import Array, check_alpha, check_positive

_N_BINS = 20
_NEAREST_ONE = 1e-5  # confidences closer to 1 than this cannot be told apart
_CONFIDENCE_TICKS = (0.5, 0.9, 0.99, 0.999, 0.9999, 1.0)


@dataclass(eq=False, repr=False)
class PartitionDisplay(Display):
    """Rescaled similarity q' against confidence, one panel per true class, with the high-reliability region.

    A panel shades the area where predictions of *its* class are admitted: q' at least q'_min, confidence at least psi
    of the class (Eq. 9). A wrong prediction is of another class and has that class's threshold, so it may be admitted
    outside the shaded area or rejected inside it; wrong ones that are admitted have their own marker.
    """

    rescaled_similarity: Array
    confidence: Array
    labels: Array
    """True class numbers (N,)."""
    correct: Array
    admitted: Array
    classes: Array
    alpha: float
    min_rescaled_similarity: float
    """q'_min; infinite if there is no region."""
    thresholds: Array
    """psi (C,)."""
    similarity_edges: Array
    """Bins of q' (B + 1,): one around 0, then a logarithmic scale from 1; there is no q' between 0 and 1."""
    similarity_counts: Array
    """Correct and wrong points of each class in each bin, (C, 2, B)."""
    confidence_edges: Array
    confidence_counts: Array
    """The same for the confidence; the bins are narrower near 1."""
    drawn_: Any = field(init=False)
    """Rows of the points that ``plot`` drew."""

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, *, alpha: float | None = None) -> PartitionDisplay:
        """Decide on labelled inputs and compare with the region of a fitted ``SDMClassifier``.

        Parameters
        ----------
        estimator : SDMClassifier or SDMTextClassifier
        X, y
            Inputs and their true labels.
        alpha : float, optional
            Which region to draw, if there are several; by default that of the first alpha.
        """
        caller = f"{cls.__name__}.from_estimator"
        regions = sdm_classifier(estimator, caller).regions_
        value = regions[0].alpha if alpha is None else check_alpha(alpha, caller)
        fitting = [region for region in regions if abs(region.alpha - value) < 1e-9]
        if not fitting:
            known = ", ".join(f"{region.alpha:g}" for region in regions)
            raise InvalidInputError(
                f"'alpha' of {caller} must be one of the estimator's own, {known}. Got {value:g}; call recalibrate "
                "first."
            )
        return cls.from_predictions(decide(estimator, X, caller), y, region=fitting[0])

    @classmethod
    def from_predictions(cls, decisions: Decisions, y: Any, *, region: HighReliabilityRegion) -> PartitionDisplay:
        """Compare decisions with a region, such as ``classifier.region_``."""
        caller = f"{cls.__name__}.from_predictions"
        compared = compare(decisions, y, caller)
        q_rescaled = check_sdm_decisions(decisions, caller).rescaled_similarity
        n_classes = len(decisions.classes)
        check_type(
            region, HighReliabilityRegion, "region", caller, "a HighReliabilityRegion, such as classifier.region_"
        )
        if len(region.thresholds) != n_classes:
            raise InvalidInputError(
                f"'region' of {caller} must have the {n_classes} classes of the decisions. "
                f"Got {len(region.thresholds)}."
            )
        # Bins for 0, for the empty stretch up to 1, and from 1 to the largest value on a logarithmic scale.
        logarithmic = np.geomspace(1.0, max(10.0, float(q_rescaled.max())), _N_BINS - 1)
        similarity_edges = np.concatenate([[-0.5, 0.5], logarithmic])
        confidence_edges = _from_scale(np.linspace(0, _to_scale(1.0), _N_BINS + 1))
        confidence_edges[[0, -1]] = 0, 1
        groups = [
            [(compared.labels == c) & (compared.correct == right) for right in (True, False)] for c in range(n_classes)
        ]

        def counts(values: Array, edges: Array) -> Array:
            return np.array([[np.histogram(values[rows], edges)[0] for rows in pair] for pair in groups])

        return cls(
            rescaled_similarity=q_rescaled,
            confidence=decisions.confidence,
            labels=compared.labels,
            correct=compared.correct,
            admitted=region.admits(q_rescaled, compared.predictions, decisions.confidence).numpy(),
            classes=decisions.classes,
            alpha=region.alpha,
            min_rescaled_similarity=region.min_rescaled_similarity,
            thresholds=region.thresholds.cpu().numpy(),
            similarity_edges=similarity_edges,
            similarity_counts=counts(q_rescaled, similarity_edges),
            confidence_edges=confidence_edges,
            confidence_counts=counts(decisions.confidence, confidence_edges),
        )

    def plot(self, ax: Any = None, *, max_points: int = 5000) -> PartitionDisplay:
        """Draw one panel per class, in a new figure or in place of the given axes.

        Parameters
        ----------
        ax : matplotlib axes, optional
        max_points : int, default=5000
            Points drawn, over all panels. If there are more, this many are drawn uniformly at random, always the same
            ones; histograms and numbers include all.
        """
        check_positive(max_points, "max_points", f"{type(self).__name__}.plot", integer=True)
        n_classes = len(self.classes)
        n_columns = n_classes if n_classes <= 3 else math.ceil(math.sqrt(n_classes))
        n_rows = math.ceil(n_classes / n_columns)
        size = max(6, 2.5 * n_columns), max(4, 2.4 * n_rows + 0.8)
        strip, grid = self._panels(ax, size, n_rows, n_columns, share="xy")
        self.axes_, unused = np.split(grid, [n_classes])
        self.drawn_ = some_rows(len(self.labels), max_points)
        for c, panel in enumerate(self.axes_):
            self._plot_class(panel, c)
            if c % n_columns == 0:
                panel.set_ylabel("confidence")
            if c + n_columns >= n_classes:
                panel.set_xlabel("q′, rescaled similarity")
                panel.tick_params(labelbottom=True)
            drawing.tidy(panel)
        for panel in unused:
            panel.remove()
        self._add_caption(strip)
        return self

    def _plot_class(self, panel: Any, c: int) -> None:
        right_end = 1.2 * self.similarity_edges[-1]
        if math.isfinite(self.min_rescaled_similarity):
            x, psi = self.min_rescaled_similarity, self.thresholds[c]
            panel.fill_between([x, max(right_end, 2 * x)], psi, 1, color=drawing.PALE, linewidth=0, zorder=0)
            panel.axvline(x, color=drawing.GREY, linewidth=1, linestyle="--", zorder=1)
            panel.axhline(psi, color=drawing.GREY, linewidth=1, linestyle=":", zorder=1)
            right_end = max(right_end, 2 * x)
        rows = self.drawn_[self.labels[self.drawn_] == c]
        correct, admitted = self.correct[rows], self.admitted[rows]
        for style, chosen in zip(_POINTS, (correct, ~correct & ~admitted, ~correct & admitted), strict=True):
            points = rows[chosen]
            values = self.rescaled_similarity[points], self.confidence[points]
            panel.plot(*values, linestyle="none", rasterized=True, **style)
        n_correct, n_wrong = self.similarity_counts[c].sum(axis=1)
        if n_correct + n_wrong == 0:
            drawing.say(panel, "no inputs", fontsize=drawing.SMALL)
        panel.set_xscale("symlog", linthresh=1, linscale=0.5)
        panel.xaxis.set_major_formatter("{x:,g}")
        panel.set_xlim(-0.5, right_end)
        panel.set_yscale("function", functions=(_to_scale, _from_scale))
        panel.set_yticks(_CONFIDENCE_TICKS, [f"{tick:g}" for tick in _CONFIDENCE_TICKS])
        panel.set_ylim(*_from_scale(np.array([0.0, 1.04 * _to_scale(1.0)])))
        self._plot_histograms(panel, c)

    def _plot_histograms(self, panel: Any, c: int) -> None:
        """Above and next to a panel: shares of the class's correct and wrong points, each adding up to 1."""
        above = panel.inset_axes((0, 1.02, 1, 0.16), sharex=panel)
        beside = panel.inset_axes((1.02, 0, 0.14, 1), sharey=panel)
        sides = (
            (above, self.similarity_edges, self.similarity_counts[c], "vertical"),
            (beside, self.confidence_edges, self.confidence_counts[c], "horizontal"),
        )
        for side, edges, counts, orientation in sides:
            correct, wrong = (own / max(own.sum(), 1) for own in counts)
            side.stairs(correct, edges, orientation=orientation, fill=True, color=drawing.SKY_BLUE)
            if wrong.any():
                side.stairs(wrong, edges, orientation=orientation, color=drawing.VERMILLION, linewidth=1.2)
            side.axis("off")
        n_correct, n_wrong = self.similarity_counts[c].sum(axis=1)
        title = f"class {drawing.shown(self.classes[c])}: {n_correct:,} correct, {n_wrong:,} wrong"
        above.set_title(title, fontsize=drawing.SMALL, pad=2)

    def _add_caption(self, ax: Any) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        n_admitted, n = int(self.admitted.sum()), len(self.labels)
        if math.isfinite(self.min_rescaled_similarity):
            n_wrong = int((self.admitted & ~self.correct).sum())
            caption = (
                f"Region at α = {self.alpha:g}: {n_admitted:,} of {n:,} inputs admitted, {n_wrong:,} of them wrong"
            )
        else:
            caption = f"No region at α = {self.alpha:g}: nothing is admitted"
        if len(self.drawn_) < n:
            caption += f"\n{len(self.drawn_):,} of {n:,} points drawn; numbers and histograms include all"
        handles: list[Any] = [Line2D([], [], linestyle="none", **style) for style in _POINTS]
        handles += [
            Patch(color=drawing.SKY_BLUE, label="correct, share per bin"),
            Patch(facecolor="none", edgecolor=drawing.VERMILLION, linewidth=1.2, label="wrong, share per bin"),
        ]
        if math.isfinite(self.min_rescaled_similarity):
            edge: dict[str, Any] = {"color": drawing.GREY, "linewidth": 1}
            handles += [
                Line2D([], [], linestyle="--", label=f"q′ min = {self.min_rescaled_similarity:.3g}", **edge),
                Line2D([], [], linestyle=":", label="ψ of the class", **edge),
                Patch(color=drawing.PALE, label="region of the class"),
            ]
        drawing.legend_above(ax, 3, handles=handles, title=caption)


_POINTS: tuple[dict[str, Any], ...] = (
    {"label": "correct", "marker": "o", "markersize": 3, "color": drawing.BLUE, "alpha": 0.5, "markeredgewidth": 0},
    {"label": "wrong, rejected", "marker": "x", "markersize": 5, "color": drawing.VERMILLION, "markeredgewidth": 1.2},
    {"label": "wrong, admitted", "marker": "X", "markersize": 7.5, "color": drawing.VERMILLION, "markeredgewidth": 1}
    | {"markeredgecolor": drawing.BLACK, "zorder": 3},
)


def _to_scale(confidence: Any) -> Any:
    """-log10(1 - p), which puts 0.9, 0.99 and 0.999 at equal steps, but finite at 1 and a straight line beyond."""
    missing = np.maximum(1 - np.asarray(confidence, dtype=np.float64), 0) + _NEAREST_ONE
    beyond = np.maximum(np.asarray(confidence, dtype=np.float64) - 1, 0) / (_NEAREST_ONE * math.log(10))
    return beyond - np.log10(missing)


def _from_scale(position: Any) -> Any:
    """The inverse of ``_to_scale``."""
    end = -math.log10(_NEAREST_ONE)
    position = np.asarray(position, dtype=np.float64)
    within = 1 + _NEAREST_ONE - 10.0 ** -np.minimum(position, end)
    return within + np.maximum(position - end, 0) * _NEAREST_ONE * math.log(10)
