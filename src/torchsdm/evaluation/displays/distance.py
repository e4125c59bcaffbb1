"""``DistanceDisplay``: whether new inputs are as near to the training examples as the calibration set is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsdm.core import ClassEcdfs, Decisions
from torchsdm.errors import InvalidInputError
from torchsdm.evaluation.displays import _drawing as drawing
from torchsdm.evaluation.displays._drawing import (
    Display,
    check_sdm_decisions,
    check_type,
    decide,
    sdm_classifier,
)
from torchsdm.validation import Array

_MOST_NAMED = 10  # classes that are told apart in the legend
_FAR = 4  # inputs this many times farther than any calibration point make the axis logarithmic


@dataclass(eq=False, repr=False)
class DistanceDisplay(Display):
    """Distances to the nearest training example: of the calibration set class by class, and of new inputs on top.

    The calibration distances are those of points with q > 0, as in the eCDFs behind decisions (Eq. 5); the new inputs
    are therefore shown twice: those with q > 0, which are comparable, and all.

    An input beyond the farthest calibration point of *some* class has d = 0 and is rejected; one beyond the farthest of
    *all* classes is also unlike anything in the calibration set.
    """

    classes: Array
    calibration_distances: tuple[Array, ...]
    """Ascending, for each true class; empty if a class has no calibration point with q > 0."""
    distances: Array
    """Of the inputs (N,), ascending."""
    similar_distances: Array
    """Of the inputs with q > 0, ascending."""
    largest_distance: float
    """Of all calibration points; NaN if there are none."""
    rejection_distance: float
    """Beyond it d = 0: the smallest of the classes' largest; NaN if a class has none, so that d is always 0."""
    share_beyond: float
    """Share of inputs beyond ``largest_distance``; 1 if there is none."""
    share_rejected: float
    """Share of inputs with d = 0: beyond the farthest calibration point of some class."""
    name: str
    """Of the inputs."""

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any = None, *, name: str = "test set") -> DistanceDisplay:
        """Compare inputs with the calibration set of a fitted ``SDMClassifier``; no labels are needed.

        Parameters
        ----------
        estimator : SDMClassifier or SDMTextClassifier
        X
            Inputs.
        y
            Ignored; there for uniformity.
        name : str, default='test set'
            What to call the inputs.
        """
        caller = f"{cls.__name__}.from_estimator"
        classifier = sdm_classifier(estimator, caller)
        decisions = decide(estimator, X, caller)
        return cls.from_predictions(decisions, ecdfs=classifier.model_.calibration.ecdfs, name=name)

    @classmethod
    def from_predictions(
        cls, decisions: Decisions, y: Any = None, *, ecdfs: ClassEcdfs, name: str = "test set"
    ) -> DistanceDisplay:
        """Compare the distances of decisions with eCDFs, such as ``classifier.model_.calibration.ecdfs``."""
        caller = f"{cls.__name__}.from_predictions"
        decisions = check_sdm_decisions(decisions, caller)
        distances = decisions.nearest_distance.astype(np.float64)
        similar = decisions.similarity > 0
        check_type(ecdfs, ClassEcdfs, "ecdfs", caller, "ClassEcdfs")
        if ecdfs.n_classes != len(decisions.classes):
            raise InvalidInputError(
                f"'ecdfs' of {caller} must have the {len(decisions.classes)} classes of the decisions. "
                f"Got {ecdfs.n_classes}."
            )
        known = tuple(values.cpu().numpy() for values in ecdfs.sorted_distances)
        farthest = [float(values[-1]) for values in known if len(values)]
        largest = max(farthest, default=np.nan)
        return cls(
            classes=decisions.classes,
            calibration_distances=known,
            distances=np.sort(distances),
            similar_distances=np.sort(distances[similar]),
            largest_distance=largest,
            rejection_distance=min(farthest) if len(farthest) == len(known) else np.nan,
            share_beyond=float((~(distances <= largest)).mean()),
            share_rejected=float((ecdfs.distance_quantile(distances) == 0).double().mean()),
            name=name,
        )

    def plot(self, ax: Any = None) -> DistanceDisplay:
        """Draw the eCDFs, on the given or new axes, and say how many inputs are beyond the calibration set."""
        ax = self._axes(ax, (6, 4))
        name = drawing.shown(self.name, 60)
        self._plot_calibration(ax)
        if len(self.similar_distances):
            share = len(self.similar_distances) / len(self.distances)
            ax.ecdf(self.similar_distances, color=drawing.BLACK, linewidth=2.4, label=f"{name}, q > 0 ({share:.0%})")
        ax.ecdf(self.distances, color=drawing.BLACK, linewidth=1.6, linestyle=(0, (1, 1)), label=f"{name}, all")
        for at, line, label in (
            (self.largest_distance, "--", "beyond every class"),
            (self.rejection_distance, ":", "beyond some class: d = 0"),
        ):
            if np.isfinite(at):
                ax.axvline(at, color=drawing.GREY, linewidth=1, linestyle=line, label=label)
        self._scale(ax)
        ax.set(ylim=(0, 1.02), xlabel="distance to the nearest training example", ylabel="share at most this far")
        ax.set_title(
            f"{name}, beyond every calibration point: {self.share_beyond:.1%}\n"
            f"beyond every point of some class (d = 0, rejected): {self.share_rejected:.1%}",
            loc="left",
            fontsize=drawing.SMALL + 1,
        )
        drawing.tidy(ax)
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), frameon=False, fontsize=drawing.SMALL)
        return self

    def _plot_calibration(self, ax: Any) -> None:
        if len(self.classes) > _MOST_NAMED:
            together: dict[str, Any] = {"color": drawing.GREY, "linewidth": 0.8, "alpha": 0.6}
            together["label"] = f"each of {len(self.classes)} classes"
            for values in filter(len, self.calibration_distances):
                ax.ecdf(values, **together)
                together["label"] = None
            return
        for position, (label, values) in enumerate(zip(self.classes, self.calibration_distances, strict=True)):
            style = drawing.series_style(position) | {"linewidth": 1.2, "markersize": 4, "markevery": (0.1, 0.2)}
            name = f"class {drawing.shown(label)}"
            if len(values):
                ax.ecdf(values, label=name, **style)
            else:
                ax.plot([], [], label=f"{name}: no points", **style)

    def _scale(self, ax: Any) -> None:
        """A logarithmic axis if inputs are so far away that a linear one would squeeze the eCDFs into a line."""
        values = np.concatenate([*self.calibration_distances, self.distances])
        if self.distances[-1] > _FAR * self.largest_distance > 0:
            positive = values[values > 0]
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter("{x:g}")
            ax.set_xlim(positive.min() / 1.1, values.max() * 1.1)
        else:
            ax.set_xlim(0, 1.03 * values.max() or 1.0)
