"""``CertifiedClassifier``: any scikit-learn classifier with probabilities, behind a certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from torchsdm.core import Decisions
from torchsdm.errors import InvalidInputError, NotFittedError, warn_user
from torchsdm.settings import AUTO, CONTROLS
from torchsdm.trust.certificate import Certificate, ScoredSample, certify
from torchsdm.trust.lanes import CERTIFIED, REVIEW, TRUSTED
from torchsdm.validation import Array, RandomState, check_alpha, check_choice, check_label_array, check_share
from torchsdm.wording import REASONS

Self = TypeVar("Self", bound="CertifiedClassifier")
Score = Callable[[Any, Any], Array]
_NOT_BY_CLASS = ("predictions", "all")  # controls without groups of true classes, under which a label may be unknown


class CertifiedClassifier(ClassifierMixin, BaseEstimator):
    """A classifier that admits an answer only where its accuracy was certified on data that nothing else saw.

    1. ``fit`` draws a calibration and a certification part at random, and fits the estimator on the rest;
    2. finds a path of thresholds on calibration and walks it on certification (``torchsdm.trust.certify``);
    3. ``decide`` answers every input with a label, and whether it is admitted;
    4. ``recertify`` repeats the second step with new labelled data.

    Parameters
    ----------
    estimator : classifier with ``predict_proba``
        Cloned and fitted; or, with ``prefit=True``, used as it is.
    alpha : float, default=0.95
        Accuracy to promise among admitted answers, in (0.5, 1).
    delta : float, default=0.1
        Probability with which the promise may fail.
    control : {'groups', 'pooled', 'predictions', 'all', 'auto'}
        What it covers: every class and every prediction; the same, but those with too few points only pooled; every
        prediction; or all admitted answers together. 'auto' is the strongest of them that will probably be certified,
        by the calibration part alone; ``certificate_.control`` says which.
    calibration_size, certification_size : float, default=0.25
        Shares of the data held out for each.
    score_function : callable(estimator, X) -> (N,), optional
        What thresholds are set on; the higher, the more reliable. By default the largest probability.
    eligibility : callable(estimator, X) -> (N,) bool, optional
        Inputs that may be admitted at all, such as those near enough to the training data. By default all.
    prefit : bool, default=False
        Whether the estimator is fitted already; X and y of ``fit`` must then be data that it never saw.
    random_state : int, RandomState or None
        Draws the parts.

    Attributes
    ----------
    certificate_ : Certificate
        The rule and its promise; ``certificate_.holds_for()`` says it in one sentence.
    estimator_ : the fitted classifier
    classes_ : (C,)

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = make_blobs(4000, centers=[[0, 0], [2, 2]], random_state=0)
    >>> clf = CertifiedClassifier(LogisticRegression(), alpha=0.95, random_state=0).fit(X, y)
    >>> clf.certificate_.found
    True
    >>> bool(clf.decide(X[:100]).admitted.any())
    True
    """

    def __init__(
        self,
        estimator: Any,
        alpha: float = 0.95,
        *,
        delta: float = 0.1,
        control: str = "groups",
        calibration_size: float = 0.25,
        certification_size: float = 0.25,
        score_function: Score | None = None,
        eligibility: Score | None = None,
        prefit: bool = False,
        random_state: RandomState = None,
    ) -> None:
        self.estimator = estimator
        self.alpha = alpha
        self.delta = delta
        self.control = control
        self.calibration_size = calibration_size
        self.certification_size = certification_size
        self.score_function = score_function
        self.eligibility = eligibility
        self.prefit = prefit
        self.random_state = random_state

    def fit(self: Self, X: Any, y: Any) -> Self:
        """Fit the estimator on part of the data, and certify it on the rest."""
        from sklearn.model_selection import train_test_split

        caller = "CertifiedClassifier.fit"
        check_alpha(self.alpha, caller)
        for name in ("delta", "calibration_size", "certification_size"):
            check_share(getattr(self, name), name, caller)
        check_choice(self.control, (*CONTROLS, AUTO), "control", caller)
        labels = check_label_array(y, caller)
        rest = float(self.calibration_size) + float(self.certification_size)
        if rest >= 1 and not self.prefit:
            raise InvalidInputError(
                f"'calibration_size' and 'certification_size' of {caller} must leave something to train on. Got "
                f"{self.calibration_size:g} and {self.certification_size:g}."
            )
        held_out: Any = (X, labels)
        estimator = self.estimator
        if not self.prefit:
            X_train, X_rest, y_train, y_rest = train_test_split(
                X, labels, test_size=rest, random_state=self.random_state
            )
            estimator = clone(self.estimator).fit(X_train, y_train)
            held_out = (X_rest, y_rest)
        share = float(self.certification_size) / rest
        X_cal, X_cert, y_cal, y_cert = train_test_split(*held_out, test_size=share, random_state=self.random_state)
        scorer = _Scorer(estimator, np.asarray(estimator.classes_), self.score_function, self.eligibility)
        calibration = scorer.sample(X_cal, y_cal, caller)
        certification = scorer.sample(X_cert, y_cert, caller, unknown=self.control in _NOT_BY_CLASS)
        self._certify(scorer, calibration, certification, float(self.alpha))
        self.estimator_, self.classes_, self._scorer = estimator, scorer.classes, scorer
        return self

    def recertify(self: Self, X: Any = None, y: Any = None, *, alpha: float | None = None) -> Self:
        """Certify again: with new labelled data, or on the same sample for another alpha.

        A second certificate on one sample is a second chance to be wrong; ``certificate_.looks`` and ``delta_spent``
        count, and a warning says so. The alpha must not be chosen by what an earlier certificate found.
        """
        caller = "CertifiedClassifier.recertify"
        self._check_is_fitted("recertify")
        wanted = self.certificate_.alpha if alpha is None else check_alpha(alpha, caller)
        certification = self._certification
        if X is not None:
            labels = check_label_array(y, caller)
            certification = self._scorer.sample(X, labels, caller, unknown=self.control in _NOT_BY_CLASS)
        self._certify(self._scorer, self._calibration, certification, wanted)
        return self

    def decide(self, X: Any) -> Decisions:
        """Decide on each input: the label, and whether the certified rule admits it."""
        self._check_is_fitted("decide")
        probabilities, predictions, score, eligible = self._scorer.scored(X)
        certified = self.certificate_.admits(predictions, score, eligible)
        trusted = self.certificate_.trusts(predictions, score, eligible)
        admitted = certified | trusted
        logits = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
        decisions = Decisions.of_probabilities(
            self.classes_, [self.certificate_.alpha], logits, probabilities, admitted[:, None], score=score
        )
        identity = self.certificate_.identity if self.certificate_.is_any else None
        return replace(
            decisions,
            certified=certified,
            certificate=np.full(len(admitted), identity, dtype=object),
            lane=np.select([trusted, certified], [TRUSTED, CERTIFIED], REVIEW),
            reason=np.array(self._reasons(predictions, score, eligible, trusted), dtype=object),
        )

    def _reasons(self, predictions: Array, score: Array, eligible: Array, trusted: Array) -> list[str]:
        """How each answer stands to the certified rule."""
        labels = self.classes_.tolist()
        rows = zip(predictions.tolist(), score.tolist(), eligible.tolist(), trusted.tolist(), strict=True)
        return [
            self.certificate_.reason(c, value, labels[c], is_trusted=is_trusted, score_name="score")
            if is_eligible
            else REASONS["ineligible"]
            for c, value, is_eligible, is_trusted in rows
        ]

    def predict(self, X: Any) -> Array:
        """The predicted label of each input, admitted or not; ``decide`` says which may be acted on."""
        return self.decide(X).predictions

    def predict_proba(self, X: Any) -> Array:
        """The estimator's probabilities (N, C)."""
        self._check_is_fitted("predict_proba")
        return self._scorer.scored(X)[0]

    def _certify(self, scorer: _Scorer, calibration: ScoredSample, certification: ScoredSample, alpha: float) -> None:
        """Certify, and take over the result only if all went well."""
        spent: dict[str, list[float]] = getattr(self, "_spent", {})  # deltas by sample; a refit does not forget them
        before = spent.get(certification.digest(), [])
        certificate = certify(
            calibration,
            certification,
            len(scorer.classes),
            alpha=alpha,
            delta=float(self.delta),
            control=self.control,
            looks=len(before) + 1,
            delta_spent=sum(before),
        )
        self.certificate_: Certificate = certificate
        self._calibration, self._certification = calibration, certification
        self._spent = {**spent, certification.digest(): [*before, float(self.delta)]}
        warning = certificate.warning(scorer.classes.tolist())
        if warning is not None:
            warn_user(warning)

    def _check_is_fitted(self, method: str) -> None:
        if not hasattr(self, "certificate_"):
            raise NotFittedError(f"This CertifiedClassifier is not fitted yet: call fit before {method}.")


@dataclass(frozen=True)
class _Scorer:
    """A fitted estimator with what thresholds are set on."""

    estimator: Any
    classes: Array
    score_function: Score | None
    eligibility: Score | None

    def scored(self, X: Any) -> tuple[Array, Array, Array, Array]:
        """Probabilities (N, C), predicted class numbers, scores, and which inputs may be admitted."""
        probabilities = np.asarray(self.estimator.predict_proba(X), dtype=np.float64)
        score = probabilities.max(axis=1)
        if self.score_function is not None:
            score = np.asarray(self.score_function(self.estimator, X), dtype=np.float64)
        eligible = np.isfinite(score)
        if self.eligibility is not None:
            eligible = eligible & np.asarray(self.eligibility(self.estimator, X), dtype=bool)
        return probabilities, probabilities.argmax(axis=1), score, eligible

    def sample(self, X: Any, labels: Array, caller: str, *, unknown: bool = False) -> ScoredSample:
        """Labelled points; labels that the estimator does not know are errors (-1), or refused."""
        number = {label: c for c, label in enumerate(self.classes.tolist())}
        unseen = [label for label in labels.tolist() if label not in number]
        if unseen and not unknown:
            raise InvalidInputError(
                f"'y' of {caller} must contain only labels that the estimator knows. Got {unseen[0]!r}, which none of "
                "its training points has. Add examples of that class to the training data."
            )
        _, predictions, score, eligible = self.scored(X)
        return ScoredSample(
            np.array([number.get(label, -1) for label in labels.tolist()], dtype=np.int64), predictions, score, eligible
        )
