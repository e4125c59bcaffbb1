"""Rules with a tested promise: scores certified as ``SDMClassifier`` certifies its own, and risk control by MAPIE."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar

import numpy as np

from torchsdm.baselines.base import DecidingClassifier, SelectiveClassifier
from torchsdm.baselines.softmax import softmax
from torchsdm.core import Decisions, Target, smallest
from torchsdm.errors import InvalidInputError, RegionWarning, import_extra, warn_user
from torchsdm.labels import LabelCodes
from torchsdm.trust import ScoredSample, certify
from torchsdm.validation import Array, ArrayLike, check_choice, check_label_array, check_share, require_fitted

Self = TypeVar("Self", bound="CertifiedScore")

SCORES = ("odds", "energy", "own")  #: that ``CertifiedScore`` can set thresholds on


@dataclass(eq=False, repr=False)
class CertifiedScore(DecidingClassifier):
    """A fitted estimator whose answers are admitted by a certificate on one of its scores.

    1. ``fit`` takes the estimator's decisions on a calibration and a certification sample, finds thresholds on the
       first and certifies them on the second (``torchsdm.trust.certify``);
    2. ``decide`` admits an input whose score reaches the threshold of its predicted class.

    The promise is for this rule alone. Whoever chooses among several by their results on one certification sample has
    the promise of none.

    Parameters
    ----------
    estimator : fitted, with ``decide``
    score : {'odds', 'energy', 'own'}
        What thresholds are set on:

        - 'odds': log(p_ŷ / (1 - p_ŷ)), which orders inputs as the largest probability does but is not rounded to 1;
        - 'energy': log sum_c exp(z_c), the negative free energy (Liu et al., 2020);
        - 'own': the ``score`` of the estimator's decisions, such as minus a distance.
    alpha, delta, control
        As in ``SDMClassifier``.
    families : (C,), optional
        As in ``torchsdm.trust.certify``.

    Attributes
    ----------
    certificate_ : Certificate
        The rule with its promise; where nothing could be certified it admits nothing.
    """

    estimator: Any
    score: str = "odds"
    alpha: Target = 0.95
    _: KW_ONLY
    delta: float = 0.1
    control: str = "groups"
    families: Array | None = None

    def fit(
        self: Self,
        calibration: tuple[Decisions, ArrayLike],
        certification: tuple[Decisions, ArrayLike],
        *,
        n_errors: int = 0,
    ) -> Self:
        """Certify the score with the estimator's decisions on two samples, each with its true labels.

        Nothing that shaped the estimator may have seen the certification sample; ``n_errors`` is as in ``certify``.
        """
        check_choice(self.score, SCORES, "score", "CertifiedScore")
        classes = calibration[0].classes
        self.certificate_ = certify(
            self._sample(*calibration),
            self._sample(*certification),
            len(classes),
            alpha=self.alpha,
            delta=self.delta,
            control=self.control,
            families=self.families,
            n_errors=n_errors,
            advice=False,
        )
        self.fitted_model_, self.classes_ = self.estimator, classes
        return self

    def decide(self, X: ArrayLike) -> Decisions:
        """Decide on each input: the estimator's label, and whether the certified rule admits it."""
        require_fitted(self, "certificate_")
        return self.applied(self.estimator.decide(X))

    def applied(self, answers: Decisions) -> Decisions:
        """The same for what the estimator decided on inputs, so that several scores of it need not ask it again."""
        require_fitted(self, "certificate_")
        score = self._score(answers)
        admitted = self.certificate_.admits(answers.logits.argmax(axis=1), score, np.isfinite(score))
        alphas, logits, probabilities = [smallest(self.alpha)], answers.logits, answers.probabilities
        return Decisions.of_probabilities(
            answers.classes, alphas, logits, probabilities, admitted[:, None], score=score
        )

    def _sample(self, answers: Decisions, y: ArrayLike) -> ScoredSample:
        labels = check_label_array(y, "CertifiedScore.fit", len(answers))
        numbers = LabelCodes(answers.classes).encode(labels, "CertifiedScore.fit").numpy()
        score = self._score(answers)
        return ScoredSample(numbers, answers.logits.argmax(axis=1), score, np.isfinite(score))

    def _score(self, answers: Decisions) -> Array:
        if self.score == "odds":
            return log_odds(answers.probabilities, answers.logits.argmax(axis=1))
        if self.score == "energy":
            return negative_energy(answers.logits)
        if answers.score is None:
            kind = type(self.estimator).__name__
            raise InvalidInputError(
                f"'score' of CertifiedScore must be 'odds' or 'energy': {kind} has no score of its own. Got 'own'."
            )
        return answers.score


def log_odds(probabilities: Array, predictions: Array) -> Array:
    """``log(p_yhat / sum_{c != yhat} p_c)`` (N,) of probabilities (N, C) and predicted class numbers (N,).

    Summing the others keeps what 1 - p_yhat would round away. Where all of them are 0, they count as the smallest
    normal float64.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    is_predicted = np.arange(p.shape[1]) == predictions[:, None]  # (N, C)
    tiny = np.finfo(np.float64).tiny
    p_yhat, others = (np.where(chosen, p, 0.0).sum(axis=1) for chosen in (is_predicted, ~is_predicted))
    return np.log(np.maximum(p_yhat, tiny)) - np.log(np.maximum(others, tiny))


def negative_energy(logits: Array) -> Array:
    """``log sum_c exp(z_c)`` (N,) of logits (N, C), in float64."""
    z = np.ascontiguousarray(logits, dtype=np.float64)
    largest = z.max(axis=1)
    return largest + np.log(np.exp(z - largest[:, None]).sum(axis=1))


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
        check_share(self.confidence_level, "confidence_level", name)
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
    mapie = import_extra("mapie.risk_control", "baselines", "RiskControlledAbstention")

    class Holm(mapie.FWERBonferroniHolm):  # type: ignore[name-defined]
        """Holm's correction. If nothing is admitted, MAPIE's p-value is NaN, which would end the test; 1 is right."""

        def run(self, p_values: Array, delta: float) -> Any:
            return super().run(np.where(np.isnan(p_values), 1.0, p_values), delta)

    return mapie.BinaryClassificationController(
        predict_function=lambda confidence: np.column_stack([1 - confidence, confidence]),
        risk="precision",
        target_level=alpha,
        confidence_level=confidence_level,
        best_predict_param_choice="recall",
        list_predict_params=CANDIDATES,
        fwer_method=Holm(),
    )
