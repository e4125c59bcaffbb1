"""The signals of a point: similarity q, and the distance quantile d from class-wise eCDFs (Eq. 5).

Also what rests on them: effective sample sizes and bands around d by the DKW formula (appendix A.5), and familiarity.
The bands are a heuristic, not DKW bands: n counts calibration points with a smaller q', which are not the points of the
distance eCDF, and so nothing is known of their coverage.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.errors import EmptyClassWarning, InvalidInputError, warn_user
from torchsdm.validation import Array, ArrayLike, as_tensor, check_alpha


@dataclass(frozen=True)
class ClassEcdfs:
    """Sorted nearest distances of each true class, over the points with q > 0.

    Points with q = 0 are left out, as in the paper; misclassified ones stay. A class without points makes every
    distance quantile 0: nothing is known about its distances, so nothing can be called near.
    """

    sorted_distances: tuple[Tensor, ...]
    """One float64 tensor per class, ascending."""

    @classmethod
    def fit(
        cls,
        nearest_distance: ArrayLike,
        similarity: ArrayLike,
        labels: ArrayLike,
        n_classes: int,
        *,
        class_names: Sequence[Any] | None = None,
        warn: bool = True,
    ) -> ClassEcdfs:
        """Collect the distances (N,) by true label (N,), where similarity (N,) is positive.

        A class left without points is named in an ``EmptyClassWarning`` unless ``warn`` is false.
        """
        caller = "ClassEcdfs.fit"
        distance = as_tensor(nearest_distance, "nearest_distance", caller, shape=(None,)).double()
        n = (len(distance),)
        q = as_tensor(similarity, "similarity", caller, shape=n, like=distance)
        y = as_tensor(labels, "labels", caller, kind="integer", shape=n, like=distance)
        if bool(torch.isnan(distance).any()) or bool((distance < 0).any()):
            raise InvalidInputError(f"'nearest_distance' of {caller} must be distances. Got NaN or negative values.")
        in_distribution = q > 0
        ecdfs = cls(sorted_by_class(distance[in_distribution], y[in_distribution], n_classes))
        if warn and (warning := ecdfs.warning(class_names)) is not None:
            warn_user(warning)
        return ecdfs

    @property
    def n_classes(self) -> int:
        """The number of classes."""
        return len(self.sorted_distances)

    @property
    def empty_classes(self) -> list[int]:
        """Classes without points."""
        return [c for c, distances in enumerate(self.sorted_distances) if len(distances) == 0]

    def warning(self, class_names: Sequence[Any] | None = None) -> EmptyClassWarning | None:
        """What a user should know about classes without points; None if there are none."""
        if not self.empty_classes:
            return None
        names = [repr(c if class_names is None else class_names[c]) for c in self.empty_classes]
        return EmptyClassWarning(
            f"No calibration point with q > 0 for class {', '.join(names)}: every distance quantile is 0 and "
            "nothing can be admitted. More data for the class or longer training may help."
        )

    def distance_quantile(self, nearest_distance: ArrayLike, *, pool_small: bool = False) -> Tensor:
        """Distance quantile d (Eq. 5): ``min over classes c of 1 - #{x in c : x < d_nearest} / n_c``, float64.

        A distance of 0 gives 1, one beyond the largest of *some* class gives 0. A class without points gives 0 for
        everything. With ``pool_small``, the classes that have fewer points than there are classes share one eCDF, and
        without any point it is left out of the minimum. That is for training, where d = 0 makes a gradient 0: a class
        that is not yet predicted, or one of many small ones, could never be learned (docs/decisions/0010).
        """
        distance = as_tensor(nearest_distance, "nearest_distance", "ClassEcdfs.distance_quantile").double().contiguous()
        known = self.sorted_distances
        if pool_small:
            small = [distances for distances in known if 0 < len(distances) < self.n_classes]
            known = tuple(distances for distances in known if len(distances) >= self.n_classes)
            known += (torch.cat(small).sort().values,) if small else ()
        quantile = torch.ones_like(distance)
        for distances in known:
            if len(distances) == 0:
                return torch.zeros_like(distance)
            quantile = torch.minimum(quantile, _share_no_nearer(distances, distance))
        return quantile

    def class_distance_quantile(self, nearest_distance: Tensor, classes: Tensor) -> Tensor:
        """d within one class for each point (N,), here ``classes`` (N,): ``1 - #{x in c : x < d_nearest} / n_c``.

        0 for a class without points.
        """
        quantile = torch.zeros_like(nearest_distance, dtype=torch.float64)
        of_classes = rows_by_class(classes, len(self.sorted_distances))
        for distances, rows in zip(self.sorted_distances, of_classes, strict=True):
            if len(distances) and len(rows):
                quantile[rows] = _share_no_nearer(distances, nearest_distance[rows].double())
        return quantile


def _share_no_nearer(known: Tensor, distance: Tensor) -> Tensor:
    """1 - #{x in known : x < distance} / n."""
    n_nearer = torch.searchsorted(known.to(distance.device), distance)
    return (len(known) - n_nearer).double() / len(known)


def rows_by_class(labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
    """The rows of each class 0..C-1, ascending; rows with any other label (N,) are left out.

    One sort, so that the cost does not grow with the number of classes.
    """
    order = torch.argsort(labels, stable=True)
    ends = torch.searchsorted(labels[order], torch.arange(n_classes + 1, device=labels.device)).tolist()
    return tuple(order[start:stop] for start, stop in itertools.pairwise(ends))


def sorted_by_class(values: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, ...]:
    """The values (N,) of each class 0..C-1, ascending."""
    ascending, order = values.sort()
    return tuple(ascending[rows] for rows in rows_by_class(labels[order], n_classes))


def effective_sample_sizes(
    calibration_rescaled_similarity: ArrayLike,
    calibration_labels: ArrayLike,
    rescaled_similarity: ArrayLike,
    n_classes: int,
) -> Tensor:
    """Effective sample sizes (N, C): ``n_c = #{calibration points of class c with q'_ca < q'}``, int64."""
    caller = "effective_sample_sizes"
    calibration = as_tensor(calibration_rescaled_similarity, "calibration_rescaled_similarity", caller).double()
    n = tuple(calibration.shape)
    labels = as_tensor(calibration_labels, "calibration_labels", caller, kind="integer", shape=n, like=calibration)
    q_rescaled = as_tensor(rescaled_similarity, "rescaled_similarity", caller, shape=(None,), like=calibration)
    q_rescaled = q_rescaled.double().contiguous()
    by_class = sorted_by_class(calibration, labels, n_classes)
    return torch.stack([torch.searchsorted(known, q_rescaled) for known in by_class], dim=1)  # left: #{q'_ca < q'}


def dkw_epsilon(effective_sample_sizes: ArrayLike, alpha: float) -> Tensor:
    """Half-width (N,) of the band, by the DKW formula: ``sqrt(ln(2 / (1 - alpha)) / (2 n_min))``, at most 1.

    ``n_min`` is the smallest of a row's effective sample sizes (N, C). The half-width is 1 if n_min = 0 or alpha = 1.
    """
    alpha = check_alpha(alpha, "dkw_epsilon")
    sizes = as_tensor(effective_sample_sizes, "effective_sample_sizes", "dkw_epsilon", shape=(None, None))
    n_min = sizes.double().amin(dim=1)
    if alpha == 1.0:
        return torch.ones_like(n_min)
    return (math.log(2 / (1 - alpha)) / (2 * n_min)).sqrt().clamp(max=1.0)  # n_min = 0 gives infinity, so 1


FEWEST = 20  #: calibration points with a prediction, to be ranked among them alone


@dataclass(frozen=True)
class Familiarity:
    """Whether an input is near enough to the training data, for how sure its prediction is.

    Among the calibration points that have its prediction, let d be the share that is no nearer to the training data,
    and o the share that is no surer (by the log-odds of the softmax). Then

        f = d^2 o,    familiarity = (1 + #{calibration points with the same prediction and no larger f}) / (1 + n),

    and 0 if d = 0, farther than all of them. Inputs like the calibration points are spread evenly over it, so a bound
    of 0.05 loses about 5 % of them, for every prediction. Strangers are far *and* seldom sure: the product finds more
    of them than the distance alone. The distance counts twice, since an answer can be sure and far off. A prediction
    that fewer than ``FEWEST`` calibration points have is ranked among all of them.

    Holds the calibration points, sorted: for each class, and last for all of them together.
    """

    distances: tuple[Array, ...]
    odds: tuple[Array, ...]
    products: tuple[Array, ...]  # f of the calibration points

    @classmethod
    def fit(cls, nearest_distance: Array, logits: Array) -> Familiarity:
        """From the distances (N,) and logits (N, C) of the calibration points."""
        odds, predictions = log_odds(logits), logits.argmax(axis=1)
        chosen = [np.flatnonzero(predictions == c) for c in range(logits.shape[1])]
        chosen = [rows if len(rows) >= FEWEST else rows[:0] for rows in chosen] + [np.arange(len(predictions))]
        distances = tuple(np.sort(nearest_distance[rows]) for rows in chosen)
        sorted_odds = tuple(np.sort(odds[rows]) for rows in chosen)
        products = tuple(
            np.sort(_products(nearest_distance[rows], odds[rows], *known))
            for rows, *known in zip(chosen, distances, sorted_odds, strict=True)
        )
        return cls(distances, sorted_odds, products)

    def of(self, nearest_distance: Array, logits: Array) -> Array:
        """The familiarity of points (N,), in [0, 1]."""
        odds, predictions = log_odds(logits), logits.argmax(axis=1)
        familiarity = np.ones(len(predictions))
        for c in np.unique(predictions).tolist():
            rows, group = np.flatnonzero(predictions == c), c if len(self.products[c]) else -1
            f = _products(nearest_distance[rows], odds[rows], self.distances[group], self.odds[group])
            known = self.products[group]
            familiarity[rows] = (f > 0) * (1 + np.searchsorted(known, f, side="right")) / (1 + len(known))
        return familiarity


def log_odds(logits: Array) -> Array:
    """The log-odds of the prediction (N,) by the softmax of logits (N, C): z_yhat - log sum of the other exp z_c."""
    z = np.sort(np.asarray(logits, dtype=np.float64), axis=1)
    others = z[:, :-1] - z[:, -2:-1]  # at most 0
    return z[:, -1] - z[:, -2] - np.log(np.exp(others).sum(axis=1))


def _products(distance: Array, odds: Array, known_distances: Array, known_odds: Array) -> Array:
    """f = d^2 o of points, ranked among sorted distances and odds."""
    n = len(known_distances)
    d = (n - np.searchsorted(known_distances, distance)) / n
    o = (1 + np.searchsorted(known_odds, odds, side="right")) / (1 + n)
    return d**2 * o
