"""``CertifiedClassifier``: any scikit-learn classifier with probabilities, behind a certificate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import has_fit_parameter

from torchsdm.core import Decisions, linked, one_of_each
from torchsdm.errors import InvalidInputError, NotFittedError, warn_user
from torchsdm.settings import AUTO, CONTROLS
from torchsdm.trust.certificate import Certificate, ScoredSample, certify
from torchsdm.trust.keys import keys_of
from torchsdm.trust.lanes import CERTIFIED, REVIEW, TRUSTED
from torchsdm.trust.ledger import Look, current_ledger
from torchsdm.validation import (
    Array,
    RandomState,
    check_alpha,
    check_choice,
    check_groups,
    check_label_array,
    check_share,
)
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
        Cloned and fitted; or, with ``prefit=True``, used as it is. A ``Pipeline`` whose steps learn from labels, such
        as ``SelectKBest``, belongs here as a whole: then no step sees the rows that it is certified on.
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

    def fit(self: Self, X: Any, y: Any, *, groups: Any = None) -> Self:
        """Fit the estimator on part of the data, and certify it on the rest.

        Rows of a group, if ``groups`` (N,) are given, fall into one part, and so do copies of a row; of those that are
        held out, one of each is certified with. An estimator that takes ``groups`` gets its own.
        """
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
        keys = keys_of(X)
        named = None if groups is None else check_groups(groups, len(labels), caller)
        together = _belonging_together(keys, named)
        held_out = np.arange(len(labels) if together is None else together.max() + 1)  # groups, or rows that are alone

        def rows_of(chosen: Array) -> Array:
            return chosen if together is None else np.flatnonzero(np.isin(together, chosen))

        estimator = self.estimator
        if not self.prefit:
            train, held_out = train_test_split(held_out, test_size=rest, random_state=self.random_state)
            estimator = _fitted(self.estimator, X, labels, rows_of(train), named)
        share = float(self.certification_size) / rest
        calibrating, certifying = map(
            rows_of, train_test_split(held_out, test_size=share, random_state=self.random_state)
        )
        scorer = _Scorer(estimator, np.asarray(estimator.classes_), self.score_function, self.eligibility)
        calibration = scorer.sample(_safe_indexing(X, calibrating), labels[calibrating], caller)
        sample = self._sample(scorer, X, labels, certifying, keys, together, caller)
        self._certify(scorer, calibration, sample, float(self.alpha))
        self.estimator_, self.classes_, self._scorer = estimator, scorer.classes, scorer
        return self

    def recertify(self: Self, X: Any = None, y: Any = None, *, groups: Any = None, alpha: float | None = None) -> Self:
        """Certify again: with new labelled data, or on the same sample for another alpha.

        A second certificate on one sample is a second chance to be wrong; ``certificate_.looks`` and ``delta_spent``
        count, and a warning says so. Samples are known again by their rows, whichever estimator was certified with
        them before (``torchsdm.trust.Ledger``). The alpha must not be chosen by what an earlier certificate found.
        """
        caller = "CertifiedClassifier.recertify"
        self._check_is_fitted("recertify")
        wanted = self.certificate_.alpha if alpha is None else check_alpha(alpha, caller)
        sample = self._certification
        if X is not None:
            labels, keys = check_label_array(y, caller), keys_of(X)
            named = None if groups is None else check_groups(groups, len(labels), caller)
            rows, together = np.arange(len(labels)), _belonging_together(keys, named)
            sample = self._sample(self._scorer, X, labels, rows, keys, together, caller)
        self._certify(self._scorer, self._calibration, sample, wanted)
        return self

    def _sample(
        self, scorer: _Scorer, X: Any, labels: Array, rows: Array, keys: Array, together: Array | None, caller: str
    ) -> _Sample:
        """Rows to certify with, one of each group."""
        tested = rows
        if together is not None:
            seed = check_random_state(self.random_state).randint(2**31)
            tested = rows[one_of_each(together[rows], np.random.default_rng(seed))]
        scored = scorer.sample(_safe_indexing(X, tested), labels[tested], caller, unknown=self.control in _NOT_BY_CLASS)
        n_inspected = int(current_ledger().inspected(keys[tested]).sum())
        return _Sample(scored, keys[tested], len(rows) - len(tested), n_inspected)

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

    def _certify(self, scorer: _Scorer, calibration: ScoredSample, sample: _Sample, alpha: float) -> None:
        """Certify, and take over the result only if all went well."""
        ledger, looks = current_ledger(), getattr(self, "_looks", ())
        for look in looks:  # of another process, if this was pickled
            ledger.add(look)
        asked: dict[str, Any] = {"alpha": alpha, "delta": float(self.delta), "control": self.control}
        certificate = certify(calibration, sample.scored, len(scorer.classes), **asked)
        question = [calibration.digest(), sample.scored.digest(), {**asked, "control": certificate.control}]
        look = Look(sample.keys, hashlib.sha256(json.dumps(question).encode()).hexdigest(), certificate.delta)
        before = ledger.ask(look)
        certificate = replace(
            certificate,
            looks=len(before) + 1,
            delta_spent=sum(before.values()) + certificate.delta,
            n_corrected=sample.n_inspected,
            n_left_out=sample.n_left_out,
        )
        self.certificate_: Certificate = certificate
        self._calibration, self._certification, self._looks = calibration, sample, (*looks, look)
        warning = certificate.warning(scorer.classes.tolist())
        if warning is not None:
            warn_user(warning)

    def _check_is_fitted(self, method: str) -> None:
        if not hasattr(self, "certificate_"):
            raise NotFittedError(f"This CertifiedClassifier is not fitted yet: call fit before {method}.")


@dataclass(frozen=True)
class _Sample:
    """A certification sample."""

    scored: ScoredSample
    keys: Array
    n_left_out: int
    n_inspected: int
    """Rows whose labels an audit looked at: as good as corrected."""


def _belonging_together(keys: Array, named: Array | None) -> Array | None:
    """The group of each row (N,), copies included; None if each row is alone, or all are copies of one."""
    together = linked([*keys.T, *([] if named is None else [named])])
    return None if together is None or together.max() == 0 else together


def _fitted(estimator: Any, X: Any, labels: Array, rows: Array, groups: Array | None) -> Any:
    """A clone that is fitted on some rows, and on their groups, if it, or the end of a pipeline, takes any."""
    estimator = clone(estimator)
    last = estimator.steps[-1] if isinstance(estimator, Pipeline) else ("", estimator)
    prefix = f"{last[0]}__" if last[0] else ""
    more = {}
    if groups is not None and hasattr(last[1], "fit") and has_fit_parameter(last[1], "groups"):
        more[f"{prefix}groups"] = groups[rows]
    return estimator.fit(_safe_indexing(X, rows), labels[rows], **more)


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
