"""The SDM activation, its logarithm, its loss (Eqs. 6, 7, 10) and the rescaled similarity (Eq. 8).

Valid range: similarity q up to 10^7, logits up to +-10^4, distance quantile d in [0, 1], float32 and float64. The
arithmetic is in the logits' dtype, and gradients flow only to the logits: q and d are constants. Without
signals (q = e - 2, d = 1) everything here is the ordinary softmax.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor, nn

from torchsdm.errors import InvalidInputError
from torchsdm.validation import ArrayLike, as_tensor, check_range, check_shape

Signal: TypeAlias = "Tensor | float"  # q or d of every point (N,), or one number for all
SOFTMAX_SIMILARITY = math.e - 2  #: the q that, with d = 1, turns the SDM activation into softmax
SOFTMAX_DISTANCE_QUANTILE = 1.0


def log_activation(logits: Tensor, similarity: Signal, distance_quantile: Signal) -> Tensor:
    """Natural logarithm of Eq. 6, without checks: log_softmax(ln(2 + q) * d * z')."""
    q = torch.as_tensor(similarity, dtype=logits.dtype, device=logits.device).detach()
    d = torch.as_tensor(distance_quantile, dtype=logits.dtype, device=logits.device).detach()
    temperature = (torch.log(2 + q) * d).unsqueeze(-1)  # (N, 1)
    # Softmax ignores a common shift; subtracting it first keeps nearby large logits apart.
    shifted = logits - logits.detach().amax(dim=-1, keepdim=True)
    return torch.log_softmax(temperature * shifted, dim=-1)


def log_base(similarity: Signal, like: Tensor) -> Tensor:
    """ln(2 + q): dividing a natural logarithm by it gives the logarithm in base 2 + q."""
    return torch.log(2 + torch.as_tensor(similarity, dtype=like.dtype, device=like.device).detach())


def sdm_activation(logits: ArrayLike, similarity: ArrayLike | float, distance_quantile: ArrayLike | float) -> Tensor:
    """SDM activation (Eq. 6): ``(2 + q)^(d z'_i) / sum_c (2 + q)^(d z'_c)``.

    Computed as ``softmax(ln(2 + q) * d * z')`` (Eq. 10).

    Parameters
    ----------
    logits : (N, C), or any shape whose last axis is the classes
    similarity : (N,) or a number
        q >= 0.
    distance_quantile : (N,) or a number
        d in [0, 1]; d = 0 gives the uniform distribution.

    Returns
    -------
    Tensor (N, C)
        Probabilities, each row summing to 1.

    Examples
    --------
    >>> import torch
    >>> sdm_activation(torch.tensor([[1.0, 0.0]]), similarity=[6], distance_quantile=[1.0])  # 8 : 1
    tensor([[0.8889, 0.1111]])
    """
    z, q, d = _check_signals(logits, similarity, distance_quantile, "sdm_activation")
    return _like(log_activation(z, q, d).exp(), logits)


def sdm_log_activation(
    logits: ArrayLike, similarity: ArrayLike | float, distance_quantile: ArrayLike | float
) -> Tensor:
    """Logarithm of the SDM activation in base 2 + q: ``log_softmax(ln(2 + q) * d * z') / ln(2 + q)``."""
    z, q, d = _check_signals(logits, similarity, distance_quantile, "sdm_log_activation")
    return _like(log_activation(z, q, d) / log_base(q, z).unsqueeze(-1), logits)


def sdm_loss(
    logits: ArrayLike, labels: ArrayLike, similarity: ArrayLike | float, distance_quantile: ArrayLike | float
) -> Tensor:
    """SDM loss (Eq. 7): the mean over points of ``-log_(2 + q) sdm(z')_y``."""
    z, q, d = _check_signals(logits, similarity, distance_quantile, "sdm_loss")
    check_shape(z, (None, None), "logits", "sdm_loss")
    y = as_tensor(labels, "labels", "sdm_loss", kind="integer", shape=(len(z),), like=z)
    check_range(y, 0, z.shape[1] - 1, "labels", "sdm_loss")
    return sdm_losses(z, y, q, d).mean()


def sdm_losses(logits: Tensor, labels: Tensor, similarity: Signal, distance_quantile: Signal) -> Tensor:
    """Loss of each point (N,), the terms of Eq. 7; without checks, for the training loop."""
    log_probability = log_activation(logits, similarity, distance_quantile).gather(1, labels.unsqueeze(1)).squeeze(1)
    return -log_probability / log_base(similarity, logits)


def rescaled_similarity(similarity: ArrayLike, confidence: ArrayLike) -> Tensor:
    """Rescaled similarity (Eq. 8): ``q' = min(q, (2 + q)^sdm(z')_yhat)``, in float64; q = 0 gives 0."""
    q = as_tensor(similarity, "similarity", "rescaled_similarity").double()
    p = as_tensor(confidence, "confidence", "rescaled_similarity", shape=tuple(q.shape), like=q).double()
    # exp and log, not pow: the last bits of torch's pow depend on the batch shape.
    return torch.minimum(q, torch.exp(p * torch.log(2 + q)))


class SDMActivation(nn.Module):
    """``sdm_activation`` as a module; called with only logits it is ``nn.Softmax(dim=-1)``."""

    def forward(self, logits: Tensor, similarity: Signal = SOFTMAX_SIMILARITY, distance_quantile: Signal = 1) -> Tensor:
        """Probabilities (N, C)."""
        return sdm_activation(logits, similarity, distance_quantile)


class SDMLogActivation(nn.Module):
    """``sdm_log_activation`` as a module; called with only logits it is ``nn.LogSoftmax(dim=-1)``."""

    def forward(self, logits: Tensor, similarity: Signal = SOFTMAX_SIMILARITY, distance_quantile: Signal = 1) -> Tensor:
        """Logarithms (N, C) in base 2 + q."""
        return sdm_log_activation(logits, similarity, distance_quantile)


class SDMLoss(nn.Module):
    """``sdm_loss`` as a module; called with only logits and labels it is ``nn.CrossEntropyLoss()``."""

    def forward(
        self, logits: Tensor, labels: Tensor, similarity: Signal = SOFTMAX_SIMILARITY, distance_quantile: Signal = 1
    ) -> Tensor:
        """The mean loss, a scalar."""
        return sdm_loss(logits, labels, similarity, distance_quantile)


def _check_signals(
    logits: ArrayLike, similarity: ArrayLike | float, distance_quantile: ArrayLike | float, caller: str
) -> tuple[Tensor, Tensor, Tensor]:
    z = as_tensor(logits, "logits", caller, kind="real")
    if z.ndim == 0:
        raise InvalidInputError(f"'logits' of {caller} must have a last axis of classes. Got a single number.")
    q = as_tensor(similarity, "similarity", caller).to(z.device)
    d = as_tensor(distance_quantile, "distance_quantile", caller).to(z.device)
    for name, signal in (("similarity", q), ("distance_quantile", d)):
        if signal.ndim != 0:
            check_shape(signal, tuple(z.shape[:-1]), name, caller)
    impossible = q[~(torch.isfinite(q) & (q >= 0))]
    if len(impossible.reshape(-1)):
        raise InvalidInputError(
            f"'similarity' of {caller} must be finite and at least 0. Got {impossible.reshape(-1)[0].item()}."
        )
    if d.numel() and not bool(((d >= 0) & (d <= 1)).all()):
        raise InvalidInputError(
            f"'distance_quantile' of {caller} must be in [0, 1]. Got {d.min().item()} to {d.max().item()}; "
            "turn distances into quantiles with ClassEcdfs.distance_quantile."
        )
    return z, q.expand(z.shape[:-1]), d.expand(z.shape[:-1])


def _like(result: Tensor, logits: ArrayLike) -> Tensor:
    """Compute half-precision logits in float32 and return them in their own dtype, as torch's softmax does."""
    is_half = isinstance(logits, Tensor) and logits.dtype in (torch.float16, torch.bfloat16)
    return result.to(logits.dtype) if isinstance(logits, Tensor) and is_half else result
