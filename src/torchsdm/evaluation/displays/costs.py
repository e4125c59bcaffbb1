"""``CostDisplay``: what each alpha would admit, and what it would cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.estimators import SDMClassifier, SDMTextClassifier
from torchsdm.evaluation.displays import _drawing as drawing
from torchsdm.evaluation.displays._drawing import Display
from torchsdm.trust import AlphaChoice, AlphaCurve, Certificate
from torchsdm.validation import Array


@dataclass(eq=False, repr=False)
class CostDisplay(Display):
    """Share admitted, errors and expected cost per input for each alpha, estimated on calibration.

    Where the model has a certificate, its alpha and the share of the certification sample that it admits are marked:
    the one point that was tested.

    Attributes
    ----------
    alphas, admitted_share, error_share, chance : (A,)
        The curve: admitted inputs, and admitted and wrong ones, as shares of all; and the chance of a certificate.
    costs : (A,) or None
        Expected cost per input; None without prices.
    choice : AlphaChoice or None
        With prices: the alpha of least cost, and what reviewing or admitting everything costs.
    certified : (float, float) or None
        alpha of the certificate and the share that it admits of the certification sample.
    ax_, axes_, figure_
        What ``plot`` drew on: the frame, and in it the panels of the shares and, with prices, of the costs.
    """

    alphas: Array
    admitted_share: Array
    error_share: Array
    chance: Array
    costs: Array | None = None
    choice: AlphaChoice | None = None
    certified: tuple[float, float] | None = None

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, cost_error: float | Mapping[Any, float] | None = None, cost_review: float | None = None
    ) -> CostDisplay:
        """Compute the curve of a fitted classifier, which is not changed; prices are those of ``choose_alpha``."""
        caller = f"{cls.__name__}.from_estimator"
        classifier = estimator.classifier_ if isinstance(estimator, SDMTextClassifier) else estimator
        if not isinstance(classifier, SDMClassifier):
            raise InvalidTypeError(
                f"'estimator' of {caller} must be an SDMClassifier or SDMTextClassifier. Got "
                f"{type(classifier).__name__}, which has no alpha to choose."
            )
        if (cost_error is None) != (cost_review is None):
            raise InvalidInputError(f"{caller} takes 'cost_error' and 'cost_review' together. Got only one.")
        certificate = classifier.lane_rule_.certificate
        if cost_error is None or cost_review is None:
            return cls.from_curve(classifier.alpha_curve(), certificate)
        return cls.from_curve(classifier.choose_alpha(cost_error=cost_error, cost_review=cost_review), certificate)

    @classmethod
    def from_curve(cls, curve: AlphaCurve | AlphaChoice, certificate: Certificate | None = None) -> CostDisplay:
        """Draw a curve, or a choice with its prices, and mark what was certified."""
        choice = curve if isinstance(curve, AlphaChoice) else None
        points = curve.curve.points if isinstance(curve, AlphaChoice) else curve.points
        certified = None
        if certificate is not None and certificate.found:
            certified = certificate.alpha, certificate.n_admitted / certificate.n_certification
        return cls(
            alphas=np.array([point.alpha for point in points]),
            admitted_share=np.array([point.admitted_share for point in points]),
            error_share=np.array([sum(point.class_errors) for point in points]),
            chance=np.array([point.chance for point in points]),
            costs=None if choice is None else np.array(choice.costs),
            choice=choice,
            certified=certified,
        )

    def plot(self, ax: Any = None) -> CostDisplay:
        """Draw the shares and, with prices, the cost below them, in a new figure or in place of the given axes."""
        n_panels = 1 if self.choice is None else 2
        strip, panels = self._panels(ax, (6, 2.6 + 2.4 * (n_panels - 1)), n_panels)
        self._plot_shares(panels[0])
        if self.choice is not None:
            self._plot_costs(panels[1], self.choice)
        drawing.tidy(*panels)
        panels[-1].set_xlabel("α, the accuracy to promise")
        drawing.legend_above(strip, 2, panels)
        return self

    def _plot_shares(self, ax: Any) -> None:
        ax.plot(self.alphas, self.admitted_share, "-", color=drawing.GREEN, label="admitted, expected")
        ax.plot(self.alphas, self.error_share, "--", color=drawing.VERMILLION, label="admitted and wrong, expected")
        if self.certified is not None:
            marker = {"marker": "D", "color": drawing.BLACK, "linestyle": "none", "markersize": 6}
            ax.plot(*self.certified, **marker, label="certified now: admitted of the certification set")
        ax.set_ylim(-0.02, 1.02)
        ax.set_ylabel("share of all inputs")

    def _plot_costs(self, ax: Any, choice: AlphaChoice) -> None:
        costs = np.asarray(self.costs)
        review, everything = choice.cost_of_reviewing_everything, choice.cost_of_admitting_everything
        likely = np.array([point.is_likely for point in choice.curve.points])
        ax.plot(self.alphas, np.where(likely, costs, np.nan), "-", color=drawing.BLUE, label="cost of the rule")
        ax.plot(self.alphas, costs, ":", color=drawing.BLUE, linewidth=1, label="the same, probably not certified")
        ax.axhline(review, color=drawing.GREY, linewidth=1, linestyle="--", label=f"review everything: {review:.3g}")
        label = f"act on every answer: about {everything:.3g}"
        ax.axhline(everything, color=drawing.ORANGE, linewidth=1, linestyle="-.", label=label)
        if choice.best is not None:
            label = f"α = {choice.best.alpha:g}: about {choice.expected_cost:.3g}"
            marker = {"color": drawing.BLUE, "markeredgecolor": drawing.BLACK, "markersize": 7}
            ax.plot(choice.best.alpha, choice.expected_cost, "o", label=label, **marker)
        ax.set_ylim(0, 1.08 * max(costs.max(), min(everything, 2 * costs.max()), review))
        ax.set_ylabel("cost per input")
