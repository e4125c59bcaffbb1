"""``AlphaDisplay``: how much other alphas would admit, and how accurately; ``CostDisplay``: at what cost."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torchsdm.core import Decisions, HighReliabilityRegion, SDMDecisions
from torchsdm.errors import InvalidInputError, InvalidTypeError, RegionWarning
from torchsdm.estimators import SDMClassifier, SDMTextClassifier
from torchsdm.evaluation.displays import _drawing as drawing
from torchsdm.evaluation.displays._drawing import Display, check_sdm_decisions, compare, decide
from torchsdm.trust import AlphaChoice, AlphaCurve, Certificate
from torchsdm.validation import Array

DEFAULT_ALPHAS = tuple(round(0.6 + 0.01 * step, 2) for step in range(40))  #: 0.6, 0.61, ..., 0.99


@dataclass(eq=False, repr=False)
class AlphaDisplay(Display):
    """Accuracy of admitted inputs, and the share admitted, for each of a range of alphas.

    For SDM, admitted by the paper's region of each alpha; a certificate has one alpha.
    A smaller alpha need not admit more: it never raises q'_min, but takes psi at a higher quantile (Algorithm 1).
    Choosing alpha by this plot uses up the labelled inputs: they no longer tell how it will do on new ones.
    """

    alphas: Array
    """Ascending (A,)."""
    admitted_share: Array
    """Share of all inputs that is admitted (A,)."""
    marginal_accuracy: Array
    """Share of admitted inputs that are correct (A,); NaN where nothing is admitted."""
    class_accuracy: Array
    """The same for each true class, (A, C); NaN where nothing of the class is admitted."""
    lowest_class_accuracy: Array
    """The smallest over the classes with admitted inputs (A,); NaN where nothing is admitted."""
    classes: Array

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, alphas: float | Sequence[float] | Array = DEFAULT_ALPHAS
    ) -> AlphaDisplay:
        """Recalibrate a copy of an estimator for every alpha and decide on labelled inputs; nothing is trained.

        Parameters
        ----------
        estimator : SDMClassifier, SDMEnsemble or SDMTextClassifier
            Fitted; not changed. For other estimators, fit with several alphas and use ``from_predictions``.
        X, y
            Inputs and their true labels.
        alphas : sequence of float, default=0.6, 0.61, ..., 0.99
            In (0.5, 1]. Alphas without a region admit nothing.
        """
        caller = f"{cls.__name__}.from_estimator"
        if not callable(getattr(estimator, "recalibrate", None)):
            raise InvalidTypeError(
                f"'estimator' of {caller} must have a method recalibrate, as SDM estimators do. Got "
                f"{type(estimator).__name__}; fit it with several alphas and use from_predictions."
            )
        other = inner = copy.copy(estimator)
        if hasattr(other, "classifier_"):  # a text classifier: only its inner classifier changes
            other.classifier_ = inner = copy.copy(other.classifier_)
        inner.certificate_ = None  # regions are drawn; another certificate would only cost a delta
        with warnings.catch_warnings():  # the plot shows which alphas have no region
            warnings.simplefilter("ignore", RegionWarning)
            other.recalibrate(alphas)
        return cls.from_predictions(decide(other, X, caller), y)

    @classmethod
    def from_predictions(cls, decisions: Decisions, y: Any) -> AlphaDisplay:
        """Compare the alphas that decisions were made for, such as those of ``SDMClassifier(alpha=(0.9, 0.95))``."""
        compared = compare(decisions, y, f"{cls.__name__}.from_predictions")
        admitted_at = decisions.admitted_at  # (N, A)
        n_admitted, n_correct = (
            np.array([np.bincount(compared.labels[chosen], minlength=len(decisions.classes)) for chosen in rows.T])
            for rows in (admitted_at, admitted_at & compared.correct[:, None])
        )  # (A, C)
        class_accuracy = _share(n_correct, n_admitted)
        lowest = np.where(n_admitted > 0, class_accuracy, np.inf).min(axis=1)
        return cls(
            alphas=decisions.alphas,
            admitted_share=admitted_at.mean(axis=0),
            marginal_accuracy=_share(n_correct.sum(axis=1), n_admitted.sum(axis=1)),
            class_accuracy=class_accuracy,
            lowest_class_accuracy=np.where(np.isfinite(lowest), lowest, np.nan),
            classes=decisions.classes,
        )

    @classmethod
    def from_regions(cls, decisions: SDMDecisions, y: Any, *, regions: Sequence[HighReliabilityRegion]) -> AlphaDisplay:
        """Compare regions of several alphas, found on the calibration set that the decisions were made with."""
        caller = f"{cls.__name__}.from_regions"
        y_hat = compare(decisions, y, caller).predictions
        q_rescaled, confidence = check_sdm_decisions(decisions, caller).rescaled_similarity, decisions.confidence
        ordered = sorted(regions, key=lambda region: region.alpha)
        admits = [region.admits(q_rescaled, y_hat, confidence).numpy() for region in ordered]
        alphas = np.array([region.alpha for region in ordered])
        return cls.from_predictions(replace(decisions, alphas=alphas, admitted_at=np.stack(admits, axis=1)), y)

    def plot(self, ax: Any = None) -> AlphaDisplay:
        """Draw the accuracies and below them the admitted share, in a new figure or in place of the given axes."""
        strip, panels = self._panels(ax, (6, 4.5), 2, height_ratios=(3, 2))
        accuracy, share = panels
        every = max(1, len(self.alphas) // 10)
        style = {"color": drawing.VERMILLION, "markersize": 8, "markerfacecolor": "none", "markevery": every}
        accuracy.plot(self.alphas, self.lowest_class_accuracy, "s--", label="lowest of any class", **style)
        style = {"color": drawing.BLUE, "markersize": 4, "markevery": every}
        accuracy.plot(self.alphas, self.marginal_accuracy, "o-", label="all admitted", **style)
        ends = self.alphas[[0, -1]]
        accuracy.plot(ends, ends, color=drawing.GREY, linewidth=1, linestyle=":", label="target: accuracy = α")
        if np.isnan(self.marginal_accuracy).all():
            drawing.say(accuracy, "nothing admitted at any α", height=0.9)
        lowest = np.nanmin([*self.lowest_class_accuracy, self.alphas[0]])
        accuracy.set(ylim=(max(-0.02, lowest - 0.05), 1.02), ylabel="accuracy of admitted")
        share.plot(self.alphas, self.admitted_share, "^-", color=drawing.GREEN, markersize=5, markevery=every)
        share.set(ylim=(-0.02, 1.02), xlabel="α, the target accuracy", ylabel="share admitted")
        drawing.tidy(*panels)
        drawing.legend_above(strip, 3, panels[:1])
        return self


def _share(part: Array, whole: Array) -> Array:
    """part / whole, NaN where whole is 0."""
    return np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)


@dataclass(eq=False, repr=False)
class CostDisplay(Display):
    """Share admitted, errors and expected cost per input for each alpha, estimated on calibration.

    Where the model has a certificate, its alpha and the share of the certification sample that it admits are marked:
    the one point that was tested.
    """

    alphas: Array
    admitted_share: Array
    error_share: Array
    """Admitted inputs, and admitted and wrong ones, as shares of all (A,)."""
    chance: Array
    """The chance of a certificate (A,)."""
    costs: Array | None = None
    """Expected cost per input (A,); None without prices."""
    choice: AlphaChoice | None = None
    """With prices: the alpha of least cost, and what reviewing or admitting everything costs."""
    certified: tuple[float, float] | None = None
    """alpha of the certificate and the share that it admits of the certification sample."""

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
        choice, points = (curve, curve.curve.points) if isinstance(curve, AlphaChoice) else (None, curve.points)
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
        strip, panels = self._panels(ax, (6, 2.6), 1) if self.choice is None else self._panels(ax, (6, 5.0), 2)
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
        ax.set(ylim=(-0.02, 1.02), ylabel="share of all inputs")

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
        ax.set(ylim=(0, 1.08 * max(costs.max(), min(everything, 2 * costs.max()), review)), ylabel="cost per input")
