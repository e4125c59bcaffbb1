"""``AlphaDisplay``: how much other alphas would admit, and how accurately."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsdm.core import Decisions, HighReliabilityRegion, SDMDecisions
from torchsdm.errors import InvalidTypeError, RegionWarning
from torchsdm.evaluation.displays import _drawing as drawing
from torchsdm.evaluation.displays._drawing import Display
from torchsdm.evaluation.displays._inputs import Compared, check_sdm_decisions, compare, decide
from torchsdm.validation import Array

DEFAULT_ALPHAS = tuple(round(0.6 + 0.01 * step, 2) for step in range(40))  #: 0.6, 0.61, ..., 0.99


@dataclass(eq=False, repr=False)
class AlphaDisplay(Display):
    """Accuracy of admitted inputs, and the share admitted, for each of a range of alphas.

    For SDM, admitted by the paper's region of each alpha; a certificate has one alpha.
    A smaller alpha need not admit more: it never raises q'_min, but takes psi at a higher quantile (Algorithm 1).
    Choosing alpha by this plot uses up the labelled inputs: they no longer tell how it will do on new ones.

    Attributes
    ----------
    alphas : (A,)
        Ascending.
    admitted_share : (A,)
        Share of all inputs that is admitted.
    marginal_accuracy : (A,)
        Share of admitted inputs that are correct; NaN where nothing is admitted.
    class_accuracy : (A, C)
        The same for each true class; NaN where nothing of the class is admitted.
    lowest_class_accuracy : (A,)
        The smallest over the classes with admitted inputs; NaN where nothing is admitted.
    classes : (C,)
    ax_, axes_, figure_
        What ``plot`` drew on: the frame, and in it the panels of the accuracies and of the admitted share.
    """

    alphas: Array
    admitted_share: Array
    marginal_accuracy: Array
    class_accuracy: Array
    lowest_class_accuracy: Array
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
        return cls._of(decisions.alphas, decisions.admitted_at, compared, decisions.classes)

    @classmethod
    def from_regions(cls, decisions: SDMDecisions, y: Any, *, regions: Sequence[HighReliabilityRegion]) -> AlphaDisplay:
        """Compare regions of several alphas, found on the calibration set that the decisions were made with."""
        caller = f"{cls.__name__}.from_regions"
        compared = compare(decisions, y, caller)
        q_rescaled, confidence = check_sdm_decisions(decisions, caller).rescaled_similarity, decisions.confidence
        ordered = sorted(regions, key=lambda region: region.alpha)
        admits = [region.admits(q_rescaled, compared.predictions, confidence).numpy() for region in ordered]
        admitted_at = np.stack(admits, axis=1)  # (N, A)
        return cls._of(np.array([region.alpha for region in ordered]), admitted_at, compared, decisions.classes)

    @classmethod
    def _of(cls, alphas: Array, admitted_at: Array, compared: Compared, classes: Array) -> AlphaDisplay:
        """The shares and accuracies of what each alpha admits, (N, A)."""
        n_admitted, n_correct = (
            np.array([np.bincount(compared.labels[chosen], minlength=len(classes)) for chosen in rows.T])  # (A, C)
            for rows in (admitted_at, admitted_at & compared.correct[:, None])
        )
        class_accuracy = _share(n_correct, n_admitted)
        lowest = np.where(n_admitted > 0, class_accuracy, np.inf).min(axis=1)
        return cls(
            alphas=alphas,
            admitted_share=admitted_at.mean(axis=0),
            marginal_accuracy=_share(n_correct.sum(axis=1), n_admitted.sum(axis=1)),
            class_accuracy=class_accuracy,
            lowest_class_accuracy=np.where(np.isfinite(lowest), lowest, np.nan),
            classes=classes,
        )

    def plot(self, ax: Any = None) -> AlphaDisplay:
        """Draw the accuracies and below them the admitted share, in a new figure or in place of the given axes."""
        strip, panels = self._panels(ax, (6, 4.5), 2, height_ratios=(3, 2))
        self._plot_accuracy(panels[0])
        self._plot_share(panels[1])
        drawing.tidy(*panels)
        drawing.legend_above(strip, 3, panels[:1])
        return self

    @property
    def _markers(self) -> dict[str, Any]:
        return {"markevery": max(1, len(self.alphas) // 10)}

    def _plot_accuracy(self, ax: Any) -> None:
        lowest = {"color": drawing.VERMILLION, "markersize": 8, "markerfacecolor": "none", **self._markers}
        ax.plot(self.alphas, self.lowest_class_accuracy, "s--", label="lowest of any class", **lowest)
        every = {"color": drawing.BLUE, "markersize": 4, **self._markers}
        ax.plot(self.alphas, self.marginal_accuracy, "o-", label="all admitted", **every)
        ends = np.array([self.alphas[0], self.alphas[-1]])
        ax.plot(ends, ends, color=drawing.GREY, linewidth=1, linestyle=":", label="target: accuracy = α")
        if np.isnan(self.marginal_accuracy).all():
            drawing.say(ax, "nothing admitted at any α", height=0.9)
        ax.set_ylim(max(-0.02, np.nanmin([*self.lowest_class_accuracy, self.alphas[0]]) - 0.05), 1.02)
        ax.set_ylabel("accuracy of admitted")

    def _plot_share(self, ax: Any) -> None:
        ax.plot(self.alphas, self.admitted_share, "^-", color=drawing.GREEN, markersize=5, **self._markers)
        ax.set_ylim(-0.02, 1.02)
        ax.set_xlabel("α, the target accuracy")
        ax.set_ylabel("share admitted")


def _share(part: Array, whole: Array) -> Array:
    """part / whole, NaN where whole is 0."""
    shares: Array = np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)
    return shares
