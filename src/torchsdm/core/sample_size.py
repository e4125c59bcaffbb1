"""Effective sample sizes, and bands around distance quantiles by the DKW formula (appendix A.5).

The bands are a heuristic, not DKW bands: n counts calibration points with a smaller q', which are not the points of the
distance eCDF, and so nothing is known of their coverage.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchsdm.core.signals import sorted_by_class
from torchsdm.validation import ArrayLike, as_integer_tensor, as_tensor, check_alpha


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
    labels = as_integer_tensor(calibration_labels, "calibration_labels", caller, shape=n, like=calibration)
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


def distance_quantile_band(distance_quantile: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper distance quantile: ``max(d - epsilon, 0)`` and ``min(d + epsilon, 1)``."""
    return (distance_quantile - epsilon).clamp(min=0.0), (distance_quantile + epsilon).clamp(max=1.0)
