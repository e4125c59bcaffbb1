"""What a user would pick today: thresholds on distances to the training states, and a vote of the nearest ones."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import clone
from sklearn.covariance import LedoitWolf
from torch import Tensor

from torchsdm.arithmetic import canonical_sum, exact_sqrt, invariant_linear
from torchsdm.baselines.base import DecidingClassifier, LogitModel, training_data
from torchsdm.baselines.logistic import TunedLogisticModel
from torchsdm.baselines.softmax import softmax
from torchsdm.core import Decisions
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError, RegionWarning, warn_user
from torchsdm.matching import DEFAULT_BLOCK_SIZE, SupportSet
from torchsdm.training import TrainingSettings, split_of_round
from torchsdm.validation import (
    Array,
    ArrayLike,
    RandomState,
    check_alphas,
    check_hidden_states,
    check_positive,
    check_share,
    draw_seed,
    require_fitted,
)

Self = TypeVar("Self", bound="CalibratedThreshold")


def permissive_threshold(scores: Array, correct: Array, alpha: float) -> float:
    """The smallest score at which the admitted points are right often enough; infinity if there is none.

        min {t : mean(correct_i | score_i >= t) >= alpha}

    The accuracy is that of these very points: nothing is promised about others.
    """
    order = np.argsort(-scores, kind="stable")
    descending = scores[order]
    accuracy = np.cumsum(correct[order]) / np.arange(1, len(order) + 1)
    is_last = np.append(descending[1:] != descending[:-1], True)  # points of equal score are admitted together
    qualified = np.flatnonzero(is_last & (accuracy >= alpha))
    return float(descending[qualified[-1]]) if len(qualified) else np.inf


def keeping_threshold(scores: Array, share: float) -> float:
    """The largest score at which at least the given share of the points is admitted, right or wrong.

    max {t : mean(score_i >= t) >= share}
    """
    n_kept = max(1, math.ceil(round(share * len(scores), 9)))  # 0.55 * 100 is 55.00000000000001
    return float(np.sort(scores)[len(scores) - n_kept])


class CalibratedThreshold(DecidingClassifier):
    """What the estimators of this module share.

    1. ``fit`` splits X as the first round of ``SDMClassifier`` with the same ``random_state`` does, learns from the
       training part, and chooses a threshold for each alpha on the calibration part;
    2. ``decide`` admits if score >= threshold.
    """

    alpha: float | Sequence[float]
    calibration_size: float
    random_state: RandomState

    def fit(
        self: Self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        calibration: LabelledStates | tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Learn from part of the hidden states X (N, D) with labels y (N,), and calibrate on the rest.

        With a ``calibration`` set, LabelledStates or (X, y), learn from all of X and calibrate on that set.
        """
        caller = f"{type(self).__name__}.fit"
        self._check_parameters(caller)
        states = check_hidden_states(self, X, caller, reset=True, pooled=True).float()
        data, self.classes_ = training_data(self, states, y, calibration, caller)
        settings = TrainingSettings(len(self.classes_), calibration_size=float(self.calibration_size))
        self.random_seed_ = draw_seed(self.random_state, type(self).__name__)
        train, held_out = split_of_round(data, settings, self.random_seed_, 0)
        self.training_rows_, self.calibration_rows_ = train.rows.numpy(), held_out.rows.numpy()
        self._learn(train.states(slice(None)), train.labels, caller)
        logits, _, score = self._answer(held_out.states(slice(None)))
        correct = logits.argmax(axis=1) == held_out.labels.numpy()
        self.alphas_ = np.sort(np.array(check_alphas(self.alpha, caller)))
        self.thresholds_ = np.array([self._threshold(score, correct, alpha) for alpha in self.alphas_.tolist()])
        for alpha in self.alphas_[np.isinf(self.thresholds_)].tolist():
            warn_user(
                f"No threshold of {type(self).__name__} reaches an accuracy of {alpha:g} on the calibration part: "
                "nothing will be admitted at this alpha. Add data, or lower alpha.",
                RegionWarning,
            )
        return self

    def decide(self, X: ArrayLike) -> Decisions:
        """Decide on each input: the label, and whether its score reaches the threshold."""
        require_fitted(self, "thresholds_")
        caller = f"{type(self).__name__}.decide"
        states = check_hidden_states(self, X, caller, reset=False, pooled=True).float()
        logits, p, score = self._answer(states)
        admitted_at = score[:, None] >= self.thresholds_  # (N, 1) >= (A,) -> (N, A)
        return Decisions.of_probabilities(self.classes_, self.alphas_.tolist(), logits, p, admitted_at, score=score)

    def _threshold(self, scores: Array, correct: Array, alpha: float) -> float:
        return permissive_threshold(scores, correct, alpha)

    @abstractmethod
    def _learn(self, states: Tensor, labels: Tensor, caller: str) -> None:
        """Learn from float32 states (N, D) and class numbers (N,) of the training part."""

    @abstractmethod
    def _answer(self, states: Tensor) -> tuple[Array, Array, Array]:
        """Logits, probabilities and scores for states (N, D); those of a row do not depend on the other rows."""

    def _check_parameters(self, caller: str) -> None:
        check_alphas(self.alpha, caller)
        check_share(self.calibration_size, "calibration_size", caller)


@dataclass(eq=False, repr=False)
class DistanceThreshold(CalibratedThreshold):
    """A distance threshold on top of a model's predictions."""

    alpha: float | Sequence[float] = 0.95
    model: LogitModel | None = None
    calibration_size: float = 0.5
    random_state: RandomState = None
    _: KW_ONLY
    keep: float | None = None

    def _check_parameters(self, caller: str) -> None:
        super()._check_parameters(caller)
        if self.keep is not None:
            check_positive(self.keep, "keep", caller)
            if self.keep > 1:
                raise InvalidInputError(
                    f"'keep' of {caller} must be in (0, 1]. Got {self.keep!r}; it is a share of the calibration part."
                )

    def _threshold(self, scores: Array, correct: Array, alpha: float) -> float:
        if self.keep is not None:
            return keeping_threshold(scores, self.keep)
        return super()._threshold(scores, correct, alpha)

    def _learn(self, states: Tensor, labels: Tensor, caller: str) -> None:
        """Fit the model; subclasses then learn the reference that distances are measured from."""
        model: Any = self.model
        if model is None or not hasattr(model, "classes_"):
            model = TunedLogisticModel() if model is None else clone(model, safe=False)
            model.fit(states.numpy(), self.classes_[labels.numpy()])
        if not np.array_equal(model.classes_, self.classes_):
            raise InvalidInputError(
                f"'model' of {caller} must know the classes of y, {self.classes_.tolist()}. "
                f"Got {model.classes_.tolist()}."
            )
        self.fitted_model_ = model

    def _answer(self, states: Tensor) -> tuple[Array, Array, Array]:
        logits = np.asarray(self.fitted_model_.logits(states.numpy()), dtype=np.float64)
        return logits, softmax(logits), -self._distance(states).numpy()

    @abstractmethod
    def _distance(self, states: Tensor) -> Tensor:
        """Distances (N,)."""


class MahalanobisThreshold(DistanceThreshold):
    """Admits inputs near the mean of some class, in the metric of the covariance that all classes share.

    With the class means mu_c and the covariance S of the training states around them (Lee et al., 2018), with Ledoit
    and Wolf's shrinkage, the score is

        -min_c sqrt((h - mu_c)' S^-1 (h - mu_c)).

    Parameters
    ----------
    alpha : float or sequence of float, default=0.95
        Accuracy of the admitted calibration points, in (0.5, 1].
    model : LogitModel or None
        The model that predicts. By default a multinomial logistic regression on standardised states, its penalty
        chosen by cross-validation. An unfitted model is fitted on the training part. A fitted one is used as is; it
        should not have been trained on the calibration part, or that part flatters it.
    calibration_size : float, default=0.5
        Share of X that the threshold is chosen on.
    random_state : int, RandomState, Generator or None
        Seed of the split.
    keep : float or None
        Choose the threshold that keeps this share of the calibration part, right or wrong, as in the literature on
        out-of-distribution inputs (0.95 there); alpha then has no effect. By default (None) the threshold is the most
        permissive one at which the accuracy of admitted points reaches alpha (``permissive_threshold``).
    """

    def _learn(self, states: Tensor, labels: Tensor, caller: str) -> None:
        super()._learn(states, labels, caller)
        h = states.double()
        means = torch.stack([h[labels == c].mean(dim=0) for c in range(len(self.classes_))])  # (C, D)
        estimate = LedoitWolf(store_precision=False, assume_centered=True).fit((h - means[labels]).numpy())
        self.covariance_ = estimate.covariance_
        try:  # S = L L', so that (h - mu)' S^-1 (h - mu) = |L^-1 (h - mu)|^2
            factor = torch.from_numpy(np.linalg.cholesky(self.covariance_))
        except np.linalg.LinAlgError as error:
            raise InvalidInputError(
                f"'X' of {caller} must vary within classes. Got states whose covariance cannot be inverted."
            ) from error
        self.means_ = means.numpy()
        self._centre = means.mean(dim=0)
        self._whitening = torch.linalg.solve_triangular(factor, torch.eye(len(factor), dtype=h.dtype), upper=False)
        numbers = torch.arange(len(means))
        self._means = SupportSet(self._whiten(means), numbers, numbers)

    def _distance(self, states: Tensor) -> Tensor:
        return self._means.neighbors(self._whiten(states), 1)[0][:, 0]

    def _whiten(self, states: Tensor) -> Tensor:
        """L^-1 (h - centre), the same bits for a row in any batch."""
        no_bias = torch.zeros(len(self._centre), dtype=torch.float64)
        blocks = (block.double() - self._centre for block in states.split(DEFAULT_BLOCK_SIZE))
        return torch.cat([invariant_linear(block, self._whitening, no_bias) for block in blocks])


@dataclass(eq=False, repr=False)
class NearestNeighborThreshold(DistanceThreshold):
    """Admits inputs with training states near them (Sun et al., 2022).

    With all states scaled to length 1, the score is minus the Euclidean distance to the k-th nearest training state,

        -|h / |h| - h_(k) / |h_(k)||.

    Parameters
    ----------
    alpha, model, calibration_size, random_state, keep
        As in ``MahalanobisThreshold``.
    n_neighbors : int, default=10
        k. Sun et al. use 50 for 50,000 training points.
    """

    _: KW_ONLY
    n_neighbors: int = 10

    def _learn(self, states: Tensor, labels: Tensor, caller: str) -> None:
        super()._learn(states, labels, caller)
        self._support = _directions(states, labels, self.n_neighbors, caller)

    def _distance(self, states: Tensor) -> Tensor:
        return self._support.neighbors(_normalise(states), self.n_neighbors)[0][:, -1]


@dataclass(eq=False, repr=False)
class CosineNeighborVote(CalibratedThreshold):
    """The k training states nearest by cosine vote; inputs that they agree on are admitted.

    With n_c votes for class c, of k votes and C classes, the prediction is the class with the most votes (the first in
    a tie), the score is its share n_yhat / k, and the probabilities are smoothed so that none is 0,

        p_c = (n_c + 1) / (k + C);

    the logits are their logarithms.

    Parameters
    ----------
    alpha, calibration_size, random_state
        As in ``MahalanobisThreshold``.
    n_neighbors : int, default=10
        k. Equally near states count in the order of X.
    """

    alpha: float | Sequence[float] = 0.95
    n_neighbors: int = 10
    calibration_size: float = 0.5
    random_state: RandomState = None

    def _learn(self, states: Tensor, labels: Tensor, caller: str) -> None:
        self._support = _directions(states, labels, self.n_neighbors, caller)

    def _answer(self, states: Tensor) -> tuple[Array, Array, Array]:
        k, n_classes = self.n_neighbors, len(self.classes_)
        nearest = self._support.neighbors(_normalise(states), k)[1]  # (N, k); near in angle is near on the sphere
        labels = self._support.labels[nearest]  # (N, k)
        counts = torch.zeros(len(states), n_classes, dtype=torch.int64)
        votes = counts.scatter_add_(1, labels, torch.ones_like(labels)).numpy()  # (N, C)
        probabilities = (votes + 1) / (k + n_classes)
        return np.log(probabilities), probabilities, votes.max(axis=1) / k


def _directions(states: Tensor, labels: Tensor, n_neighbors: int, caller: str) -> SupportSet:
    """The training states scaled to length 1, for exact search."""
    check_positive(n_neighbors, "n_neighbors", caller, integer=True)
    if n_neighbors > len(states):
        raise InvalidInputError(
            f"'n_neighbors' of {caller} must be at most the number of training points, {len(states)}. "
            f"Got {n_neighbors!r}; lower it, or calibration_size."
        )
    return SupportSet(_normalise(states), labels, labels)


def _normalise(states: Tensor) -> Tensor:
    """h / |h|, in float64 rounded to float32; a state of zeros stays as is."""
    directions = []
    for block in states.split(DEFAULT_BLOCK_SIZE):
        length = exact_sqrt(canonical_sum(block.double().square()))
        directions.append((block.double() / length.where(length > 0, 1.0).unsqueeze(1)).float())
    return torch.cat(directions)
