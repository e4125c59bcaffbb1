"""``RiskCoverageDisplay``: how many answers are wrong when only the N best are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsdm.core import Decisions
from torchsdm.errors import InvalidInputError
from torchsdm.evaluation.displays import _drawing as drawing
from torchsdm.evaluation.displays._drawing import Display, compare, decide
from torchsdm.evaluation.metrics import ordering_score, risk_coverage_curve
from torchsdm.validation import Array, check_alpha

_STEADY = 0.05  # below this coverage, a risk is based on too few inputs to scale the axis


@dataclass(frozen=True)
class RiskCoverageCurve:
    """Risk against coverage of one estimator, and its operating point."""

    name: str
    coverage: Array
    """Share of inputs with a score at least as high, ascending; one entry per distinct score."""
    risk: Array
    """Share of their predictions that are wrong."""
    admitted_share: float
    admitted_risk: float
    """Share of admitted predictions that are wrong; NaN if nothing is admitted."""


@dataclass(eq=False, repr=False)
class RiskCoverageDisplay(Display):
    """Selective risk against coverage, of one estimator or several.

    Inputs are answered from the highest score down (``Decisions.score``, or the confidence if there is none), those
    with equal scores together. The marker is the set that the estimator admits. It is off the curve if admission is not
    a threshold on the score, as for SDM. The area under the steps is ``torchsdm.evaluation.metrics.aurc``.
    """

    curves: tuple[RiskCoverageCurve, ...]
    alpha: float
    """The target accuracy; the target risk is 1 - alpha."""

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, alpha: float | None = None, name: str | None = None
    ) -> RiskCoverageDisplay:
        """Compute the curves of an estimator, or of a mapping from names to estimators, on labelled inputs.

        Parameters
        ----------
        estimator : estimator, or mapping of str to estimator
            With a method ``decide``.
        X, y
            Inputs and their true labels.
        alpha : float, optional
            The target accuracy whose admitted set is marked; by default the smallest of the estimators'.
        name : str, optional
            Name of a single estimator; by default its class name.
        """
        caller = f"{cls.__name__}.from_estimator"
        if not isinstance(estimator, Mapping):
            estimator, name = {type(estimator).__name__ if name is None else name: estimator}, None
        decisions = {key: decide(one, X, caller) for key, one in estimator.items()}
        return cls.from_predictions(decisions, y, alpha=alpha, name=name)

    @classmethod
    def from_predictions(
        cls,
        decisions: Decisions | Mapping[str, Decisions],
        y: Any,
        *,
        alpha: float | None = None,
        name: str | None = None,
    ) -> RiskCoverageDisplay:
        """Compute the curves of decisions, or of a mapping from names to decisions on the same inputs."""
        caller = f"{cls.__name__}.from_predictions"
        if not isinstance(decisions, Mapping):
            several = {"answers" if name is None else name: decisions}
        elif name is not None:
            raise InvalidInputError(f"'name' of {caller} must be None if a mapping gives the names. Got {name!r}.")
        elif not decisions:
            raise InvalidInputError(f"'decisions' of {caller} must have those of at least one estimator. Got none.")
        else:
            several = dict(decisions)
        curves, alphas = [], []
        for key, one in several.items():
            correct = compare(one, y, caller).correct
            coverage, risk = risk_coverage_curve(ordering_score(one), correct)
            at = one.at(float(one.alphas[0]) if alpha is None else check_alpha(alpha, caller))
            admitted_risk = float((~correct[at.admitted]).mean()) if at.admitted.any() else np.nan
            curves.append(RiskCoverageCurve(str(key), coverage, risk, float(at.admitted.mean()), admitted_risk))
            alphas.append(float(at.alphas[0]))
        if len(set(alphas)) > 1:
            got = ", ".join(f"{target:g}" for target in alphas)
            raise InvalidInputError(f"'alpha' of {caller} must be given if estimators have different ones. Got {got}.")
        return cls(tuple(curves), alphas[0])

    def plot(self, ax: Any = None) -> RiskCoverageDisplay:
        """Draw the curves, the admitted sets and the target risk, on the given or new axes."""
        height = 4 + 0.17 * max(0, len(self.curves) - 3)  # each has a line in the legend
        ax = self._axes(ax, (6, height))
        highest = 1 - self.alpha
        for position, curve in enumerate(self.curves):
            style = drawing.series_style(position)
            marker = style.pop("marker")
            x, y = np.append(0.0, curve.coverage), np.append(curve.risk[0], curve.risk)
            name = drawing.shown(curve.name, 80)
            if np.isnan(curve.admitted_risk):
                label, marker = f"{name}: nothing admitted", None
            else:
                label = f"{name}: {curve.admitted_share:.1%} admitted (marker), {curve.admitted_risk:.1%} of them wrong"
            ax.plot(x, y, drawstyle="steps-pre", linewidth=1.6, **style)
            ax.plot([], [], label=label, marker=marker, markeredgecolor=drawing.BLACK, markersize=8, **style)
            if marker is not None:
                point = {"marker": marker, "markersize": 9, "markeredgecolor": drawing.BLACK, "color": style["color"]}
                ax.plot(curve.admitted_share, curve.admitted_risk, linestyle="none", zorder=3, clip_on=False, **point)
            steady = curve.risk[curve.coverage >= _STEADY]
            highest = max(highest, steady.max(), np.nan_to_num(curve.admitted_risk))
        target = f"target risk 1 − α = {1 - self.alpha:.3g}"
        ax.axhline(1 - self.alpha, color=drawing.GREY, linewidth=1, linestyle=(0, (1, 1)), label=target)
        ax.set(xlim=(0, 1), ylim=(0, min(1.0, 1.08 * highest) if highest > 0 else 0.05))
        ax.set_xlabel("coverage: share of inputs answered, highest score first")
        ax.set_ylabel("risk: error rate of answered inputs")
        drawing.tidy(ax)
        drawing.legend_above(ax, 1, [ax])
        return self
