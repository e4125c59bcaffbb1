"""Abstention with a guarantee: Learn then Test (Angelopoulos et al., 2021) by MAPIE."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsdm.baselines.base import SelectiveClassifier
from torchsdm.baselines.softmax import softmax
from torchsdm.core import Decisions
from torchsdm.errors import InvalidInputError, MissingExtraError, RegionWarning, warn_user
from torchsdm.validation import Array, check_positive

#: Confidences to try as thresholds: ten per power of ten of 1 - confidence, from everything down to 1e-6.
CANDIDATES = 1 - 10.0 ** (-np.arange(61) / 10)


@dataclass(eq=False, repr=False)
class RiskControlledAbstention(SelectiveClassifier):
    """Admits if ``softmax(z)_yhat >= t``, with t chosen to control the accuracy of admitted points.

    MAPIE's ``BinaryClassificationController`` gets the problem "is the prediction right?", to which the classifier says
    yes by admitting. The precision of that answer is the accuracy of admitted points, for any number of classes. t is
    the candidate that admits the most right predictions among those for which MAPIE's test rejects "the accuracy is
    below alpha", corrected for multiple tests (Holm).

    **Controlled**: with probability at least ``confidence_level`` over calibration sets,

        P(yhat = y | admitted) >= alpha,

    if calibration points and inputs are independent and identically distributed, and the calibration set had no part in
    the model. **Not controlled**: the accuracy of each class, of each predicted class, or near one input; anything
    under a change of distribution; several alphas at once (each holds on its own). ``SDMClassifier``,
    ``CrossEntropyClassifier`` and ``VBLLClassifier`` choose their epoch on the calibration set, so for their logits the
    promise holds only approximately; for a strict one pass the logits of points that they have not seen, with
    ``model=None``.

    Parameters
    ----------
    alpha : float or sequence of float, default=0.95
        Target accuracy of admitted points, in (0.5, 1); no finite sample shows an accuracy of 1.
    model : LogitModel or None
        The model that gives the logits; with None, X is logits already.
    confidence_level : float, default=0.9
        In (0, 1).

    Attributes
    ----------
    thresholds_ : (A,)
        t for each alpha, ascending; infinite, admitting nothing, if no candidate passes.
    """

    confidence_level: float = 0.9

    def _calibrate(self, logits: Array, labels: Array) -> None:
        name = type(self).__name__
        check_positive(self.confidence_level, "confidence_level", name)
        if self.confidence_level >= 1:
            raise InvalidInputError(f"'confidence_level' of {name} must be in (0, 1). Got {self.confidence_level!r}.")
        if self.alphas_[-1] == 1:
            raise InvalidInputError(
                f"'alpha' of {name} must be in (0.5, 1). Got 1.0; no finite sample shows an accuracy of 1."
            )
        confidence, correct = softmax(logits).max(axis=1), logits.argmax(axis=1) == labels
        self.thresholds_ = np.array([self._threshold(confidence, correct, alpha) for alpha in self.alphas_.tolist()])
        for alpha in self.alphas_[np.isinf(self.thresholds_)].tolist():
            warn_user(
                f"No threshold of {name} controls the accuracy at {alpha:g} with confidence {self.confidence_level:g}: "
                "nothing will be admitted at this alpha. Add calibration points, or lower one of the two.",
                RegionWarning,
            )

    def _threshold(self, confidence: Array, correct: Array, alpha: float) -> float:
        controller = _controller(alpha, float(self.confidence_level))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # MAPIE's that nothing was found; the caller warns
            controller.calibrate(confidence, correct.astype(int))
        return np.inf if controller.best_predict_param is None else float(controller.best_predict_param)

    def _decide(self, logits: Array) -> Decisions:
        probabilities = softmax(logits)
        admitted_at = probabilities.max(axis=1)[:, None] >= self.thresholds_  # (N, 1) >= (A,) -> (N, A)
        return Decisions.of_probabilities(self.classes_, self.alphas_.tolist(), logits, probabilities, admitted_at)


def _controller(alpha: float, confidence_level: float) -> Any:
    """MAPIE's controller of the precision of "the prediction is right", said if the confidence is high enough."""
    try:
        from mapie.risk_control import BinaryClassificationController, FWERBonferroniHolm
    except ImportError as error:
        raise MissingExtraError("mapie", "baselines", "RiskControlledAbstention") from error

    class Holm(FWERBonferroniHolm):
        """Holm's correction. If nothing is admitted, MAPIE's p-value is NaN, which would end the test; 1 is right."""

        def run(self, p_values: Array, delta: float) -> Any:
            return super().run(np.where(np.isnan(p_values), 1.0, p_values), delta)

    return BinaryClassificationController(
        predict_function=lambda confidence: np.column_stack([1 - confidence, confidence]),
        risk="precision",
        target_level=alpha,
        confidence_level=confidence_level,
        best_predict_param_choice="recall",
        list_predict_params=CANDIDATES,
        fwer_method=Holm(),
    )
