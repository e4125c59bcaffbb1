"""How well an estimator selects: the paper's row of a table (section 3.2), and the usual summaries of a selection.

Conventions: *coverage* is the share of inputs admitted; *risk* is the share of admitted inputs that are wrong; a
*score* orders inputs, higher meaning more reliable; inputs with equal scores are admitted together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binom

from torchsdm.core import Decisions, wilson_interval
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import decide_with
from torchsdm.evaluation.strangers import CLASSES, kind_of_labels
from torchsdm.labels import LabelCodes
from torchsdm.validation import Array, check_alpha, check_label_array, check_same_length, check_share


@dataclass(frozen=True)
class Cell:
    """Accuracy of the admitted inputs of a stratum, such as all with one true label."""

    n_total: int
    """Inputs of the stratum, admitted or not."""
    n_admitted: int
    n_correct: int | None
    """Admitted inputs that are right; None where the classes are not known."""
    share: float
    """Admitted inputs of the stratum as a share of all inputs."""
    own_alpha: float | None = None
    """The target accuracy of its class, where classes have targets of their own."""

    def target(self, alpha: float) -> float:
        """The accuracy asked of the stratum: its own, or that of all."""
        return alpha if self.own_alpha is None else self.own_alpha

    @property
    def accuracy(self) -> float | None:
        """Share of admitted inputs that are correct; None if none is admitted, or their classes are not known."""
        return self.n_correct / self.n_admitted if self.n_admitted and self.n_correct is not None else None

    @property
    def is_absent(self) -> bool:
        """Whether the stratum has no inputs at all."""
        return self.n_total == 0

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """Wilson's interval for the accuracy; None if there is no accuracy."""
        if self.n_correct is None or not self.n_admitted:
            return None
        return wilson_interval(self.n_correct, self.n_admitted, level)

    def is_below(self, alpha: float) -> bool:
        """Whether the accuracy is below alpha, or below the target of its class; False if there is none."""
        return self.accuracy is not None and self.accuracy < self.target(alpha)


@dataclass(frozen=True)
class SelectiveAccuracy:
    """The paper's row: accuracy and admitted share by true class, by prediction, and overall."""

    by_class: dict[Any, Cell]
    by_prediction: dict[Any, Cell]
    marginal: Cell
    labels: str = CLASSES
    """What the labels are: 'classes'; 'outside' them, so that every admitted input is a mistake; or there are 'none'.
    Without classes no cell has an accuracy."""

    def holds(self, alpha: float) -> bool:
        """Whether every class, every prediction and the whole are at or above alpha."""
        cells = [*self.by_class.values(), *self.by_prediction.values(), self.marginal]
        return not any(cell.is_below(alpha) for cell in cells)


def selective_accuracy(
    decisions: Decisions, labels: Any, n_unread: int = 0, class_alphas: Sequence[float] = ()
) -> SelectiveAccuracy:
    """Accuracy of admitted inputs, class-conditional for each y, prediction-conditional for each ŷ, and marginal.

    Where no input has a label that is a class, only what is admitted. Inputs that could not be read, ``n_unread`` of
    them, count as rejected: shares are of all inputs. ``class_alphas`` are the target accuracies of the classes, where
    they differ.
    """
    kind = kind_of_labels(labels, decisions.classes)
    n_inputs, n_classes = len(decisions) + n_unread, len(decisions.classes)
    if kind == CLASSES:
        y, y_hat, correct = compare(decisions, labels, "selective_accuracy")
        right = decisions.admitted & correct
    else:
        y_hat = LabelCodes(decisions.classes).encode(decisions.predictions, "selective_accuracy").numpy()
        y, right = np.full(len(y_hat), n_classes), None  # in no class
    targets: Sequence[float | None] = class_alphas or [None] * n_classes

    def cells(stratum: Array) -> dict[Any, Cell]:
        """A cell for each number 0..C-1 that says which stratum an input (N,) is in."""
        total, admitted = _counts(stratum, n_classes), _counts(stratum[decisions.admitted], n_classes)
        correct = [None] * n_classes if right is None else _counts(stratum[right], n_classes)
        rows = zip(decisions.classes.tolist(), total, admitted, correct, targets, strict=True)
        return {label: Cell(n, n_in, n_right, n_in / n_inputs, own) for label, n, n_in, n_right, own in rows}

    n_admitted, n_correct = int(decisions.admitted.sum()), None if right is None else int(right.sum())
    marginal = Cell(n_inputs, n_admitted, n_correct, n_admitted / n_inputs)
    return SelectiveAccuracy(cells(y), cells(y_hat), marginal, kind)


def ordering_score(decisions: Decisions) -> Array:
    """What an estimator orders inputs by: its score, or its confidence if it has none."""
    return decisions.confidence if decisions.score is None else decisions.score


def risk_coverage_curve(score: Array, correct: Array) -> tuple[Array, Array]:
    """Coverage and risk when inputs are admitted from the highest score down, one step per distinct score."""
    score, correct = _check_score(score, "risk_coverage_curve"), np.asarray(correct, dtype=bool)
    if len(score) == 0 or len(score) != len(correct):
        raise InvalidInputError(
            f"'score' and 'correct' of risk_coverage_curve must have the same length, above 0. Got {len(score)} and "
            f"{len(correct)}."
        )
    order = np.argsort(-score, kind="stable")
    n_admitted = np.arange(1, len(score) + 1)
    n_wrong = np.cumsum(~correct[order])
    is_last = np.append(np.diff(score[order]) != 0, True)  # of inputs with equal scores
    return n_admitted[is_last] / len(score), n_wrong[is_last] / n_admitted[is_last]


def aurc(score: Array, correct: Array) -> float:
    """Area under the risk-coverage curve: the mean over inputs of the risk at which each is first admitted.

    A discrete sum in steps of 1/N, not a trapezoid; inputs with equal scores all count with the risk of their step.
    """
    coverage, risk = risk_coverage_curve(score, correct)
    return float((risk * np.diff(coverage, prepend=0.0)).sum())


def excess_aurc(score: Array, correct: Array) -> float:
    """E-AURC: AURC minus that of a score that puts every correct input before every wrong one."""
    n, n_wrong = len(correct), int((~np.asarray(correct, dtype=bool)).sum())
    best = sum(k / (n - n_wrong + k) for k in range(1, n_wrong + 1)) / n
    return max(0.0, aurc(score, correct) - best)  # rounding may go below 0


def coverage_at_accuracy(score: Array, correct: Array, alpha: float) -> float:
    """The largest coverage at which the risk is at most 1 − alpha, known only in hindsight; 0 if there is none."""
    coverage, risk = risk_coverage_curve(score, correct)
    return float(coverage[risk <= 1 - alpha + 1e-12].max(initial=0.0))


def ood_auroc(score_in: Array, score_out: Array) -> float:
    """Probability that an in-distribution input scores higher than an outside one; ties count half."""
    from sklearn.metrics import roc_auc_score

    inside, outside = _in_and_out(score_in, score_out, "ood_auroc")
    is_in = np.repeat([1, 0], [len(inside), len(outside)])
    return float(roc_auc_score(is_in, np.concatenate([inside, outside])))


def ood_fpr_at_95(score_in: Array, score_out: Array) -> float:
    """Share of outside inputs that pass the threshold that 95 % of in-distribution inputs reach."""
    inside, outside = _in_and_out(score_in, score_out, "ood_fpr_at_95")
    threshold = np.sort(inside)[int(np.floor(0.05 * len(inside)))]  # at least 95 % reach it
    return float((outside >= threshold).mean())


@dataclass(frozen=True)
class ReliabilityBins:
    """Confidence against accuracy in bins of equal width; empty bins are left out."""

    edges: Array
    """(B, 2)"""
    confidence: Array
    """Mean confidence of each bin (B,)."""
    accuracy: Array
    counts: Array


def reliability_bins(confidence: Array, correct: Array, n_bins: int = 15) -> ReliabilityBins:
    """Bins ((b − 1)/B, b/B]; the first includes its lower edge."""
    confidence, correct = _check_score(confidence, "reliability_bins"), np.asarray(correct, dtype=bool)
    if len(confidence) == 0:
        raise InvalidInputError("'confidence' of reliability_bins must not be empty.")
    number = np.clip(np.ceil(confidence * n_bins).astype(int) - 1, 0, n_bins - 1)
    present = np.unique(number)
    return ReliabilityBins(
        np.stack([present / n_bins, (present + 1) / n_bins], axis=1),
        np.array([confidence[number == b].mean() for b in present]),
        np.array([correct[number == b].mean() for b in present]),
        np.array([(number == b).sum() for b in present]),
    )


def expected_calibration_error(confidence: Array, correct: Array, n_bins: int = 15) -> float:
    """ECE of the predicted label: Σ n_b/N · |accuracy_b − confidence_b| over bins of equal width."""
    bins = reliability_bins(confidence, correct, n_bins)
    return float((bins.counts / bins.counts.sum() * np.abs(bins.accuracy - bins.confidence)).sum())


def top_label_calibration(decisions: Decisions, labels: Any, alpha: float) -> dict[Any, Cell]:
    """The paper's Quantity I: for each prediction, accuracy of confidences in the single bin [alpha, 1]."""
    compare(decisions, labels, "top_label_calibration")
    return selective_accuracy(replace(decisions, admitted=decisions.confidence >= alpha), labels).by_prediction


def rejection_confusion(decisions: Decisions, labels: Any) -> dict[str, int]:
    """Counts of ``admitted_correct``, ``admitted_wrong``, ``rejected_correct`` and ``rejected_wrong`` predictions."""
    correct = compare(decisions, labels, "rejection_confusion").correct
    chosen = {"admitted": decisions.admitted, "rejected": ~decisions.admitted}
    right = {"correct": correct, "wrong": ~correct}
    return {f"{a}_{b}": int((chosen[a] & right[b]).sum()) for a in chosen for b in right}


def possible_label_errors(decisions: Decisions, labels: Any) -> Array:
    """Rows that are admitted but disagree with their given label, the most confident first: check the label."""
    rows = np.flatnonzero(decisions.admitted & ~compare(decisions, labels, "possible_label_errors").correct)
    return rows.take(np.argsort(-ordering_score(decisions)[rows], kind="stable"))


class Compared(NamedTuple):
    """Decisions compared with the truth, in class numbers (N,)."""

    labels: Array
    predictions: Array
    correct: Array


def compare(decisions: Decisions, labels: Any, caller: str, name: str = "labels") -> Compared:
    """Compare decisions with true labels; all must be classes, because any other would count as a mistake."""
    truth = check_label_array(labels, caller)
    check_same_length(len(decisions), truth, name, caller)
    if len(truth) == 0:
        raise InvalidInputError(f"'labels' of {caller} must not be empty.")
    codes = LabelCodes(decisions.classes)
    y, y_hat = (codes.encode(values, caller).numpy() for values in (truth, decisions.predictions))
    return Compared(y, y_hat, y == y_hat)


def _counts(numbers: Array, n_classes: int) -> list[int]:
    """How often each number 0..C-1 occurs: one pass, for any number of classes."""
    return [int(n) for n in np.bincount(numbers, minlength=n_classes)[:n_classes]]


def _check_score(score: Any, caller: str) -> Array:
    values = np.asarray(score, dtype=np.float64)
    if not np.isfinite(values).all():
        raise InvalidInputError(f"'score' of {caller} must be finite. Got NaN or infinity.")
    return values


def _in_and_out(score_in: Array, score_out: Array, caller: str) -> tuple[Array, Array]:
    if len(score_in) == 0 or len(score_out) == 0:
        raise InvalidInputError(f"{caller} needs scores of both kinds. Got {len(score_in)} and {len(score_out)}.")
    return _check_score(score_in, caller), _check_score(score_out, caller)


@dataclass(frozen=True)
class AdmittedShareScorer:
    """``scoring=`` of ``GridSearchCV`` or ``cross_val_score``: how much is admitted at an accuracy that holds.

    With n inputs of a fold, a of them admitted and k of those wrong, the score is

        a / n               unless the errors are too many for alpha: P(Binomial(a, 1 - alpha) >= k) < level,
        (a - k) / a - alpha  if they are, below 0: the accuracy that is missing.

    So every setting that holds alpha comes before every one that does not, and admitting nothing (0) lies between. A
    rule that is right alpha of the time fails with probability below ``level`` in a fold, where a plain comparison
    would fail it in about half of them.

    It is for choosing settings. The same folds cannot also show how good the chosen ones are: that takes other data,
    or the certificate of the chosen model.

    Parameters
    ----------
    alpha : float, default=0.9
        Accuracy that admitted answers must have, all together; in (0.5, 1].
    level : float, default=0.05
        Probability below which that many errors are too many.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.model_selection import cross_val_score
    >>> from torchsdm import CertifiedClassifier
    >>> X, y = make_blobs(3000, centers=[[0, 0], [2, 2]], random_state=0)
    >>> clf = CertifiedClassifier(LogisticRegression(), alpha=0.95, random_state=0)
    >>> scores = cross_val_score(clf, X, y, scoring=AdmittedShareScorer(alpha=0.95), cv=3)
    >>> bool(scores.min() > 0.5)
    True
    """

    alpha: float = 0.9
    level: float = 0.05

    def __post_init__(self) -> None:
        check_alpha(self.alpha, "AdmittedShareScorer")
        check_share(self.level, "level", "AdmittedShareScorer")

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        """The score of a fitted estimator that ``decide_with`` takes; a label that it does not know is an error."""
        decisions = decide_with(estimator, X)
        labels = check_label_array(y, "AdmittedShareScorer")
        check_same_length(len(decisions), labels, "y", "AdmittedShareScorer")
        n_admitted = int(decisions.admitted.sum())
        n_wrong = int(np.sum(decisions.admitted & (decisions.predictions != labels)))
        if n_admitted and binom.sf(n_wrong - 1, n_admitted, 1 - self.alpha) < self.level:
            return (n_admitted - n_wrong) / n_admitted - self.alpha
        return n_admitted / len(labels)
