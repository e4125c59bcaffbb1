"""Exemplar adaptors: frozen hidden states in, exemplars h' and logits z' out, and the points that they encoded.

The paper's g is a 1-D CNN whose kernel spans the whole input, which is a linear map from D inputs to M filters; it is
written as one. With several positions, the same filters are applied at each and max-pooled.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from torchsdm.arithmetic import blocks, empty_float32, invariant_linear
from torchsdm.errors import InvalidInputError
from torchsdm.matching import Match, RowIndex
from torchsdm.validation import check_positive, check_shape


@dataclass(frozen=True)
class Encoded:
    """Points after the adaptor.

    Shown examples of what belongs to no class, the adaptor has a logit z_b beside those of the C classes, which is
    trained and never answered. An input *resembles* the background if

        z_b > max_c z_c,

    or if its nearest training example is a background one. Its prediction is still the best class, but nothing vouches
    for it: q = 0, so no region and no certificate ever admits it.
    """

    exemplars: Tensor  # (N, M)
    logits: Tensor  # (N, C) of the classes, float32
    is_background: Tensor  # (N,) where the background's logit is highest

    @classmethod
    def of(cls, exemplars: Tensor, logits: Tensor, n_classes: int) -> Encoded:
        """Split the logits of an adaptor, C of them or C + 1."""
        z, z_background = logits[:, :n_classes], logits[:, n_classes:]
        return cls(exemplars, z, (z_background > z.amax(dim=1, keepdim=True)).any(dim=1))

    @classmethod
    def concatenate(cls, parts: list[Encoded]) -> Encoded:
        """Several of them, one after the other."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def __getitem__(self, rows: list[int]) -> Encoded:
        """Some of the points."""
        return Encoded(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def split(self, size: int) -> list[Encoded]:
        """Blocks of at most so many points."""
        columns = (getattr(self, name).split(size) for name in self.__dataclass_fields__)
        return [Encoded(*block) for block in zip(*columns, strict=True)]

    @cached_property
    def row_index(self) -> RowIndex:
        """An index that finds equal exemplars."""
        return RowIndex(self.exemplars)

    @property
    def predictions(self) -> Tensor:
        """The class with the highest logit (N,)."""
        return self.logits.argmax(dim=1)

    @property
    def recognised_as(self) -> Tensor:
        """The same, but C where the background's logit is highest: what counts for an example of the support (N,)."""
        return torch.where(self.is_background, self.logits.shape[1], self.predictions)

    def unvouched(self, match: Match) -> Match:
        """What matching found for these points, with q = 0 where the background's logit is highest."""
        return replace(match, similarity=match.similarity.masked_fill(self.is_background, 0))


_CACHED_ELEMENTS = 1 << 22  # hidden-state entries that may stay in cache from one operation to the next (16 MB)
_BLOCK_ELEMENTS = 1 << 23  # entries of states, exemplars or logits in float64 at once (64 MB)


class Adaptor(nn.Module, ABC):
    """What every adaptor shares: standardisation as buffers, a linear output layer, and a batch-invariant pass."""

    mean: Tensor
    scale: Tensor

    def __init__(self, n_inputs: int, n_classes: int, n_filters: int, generator: torch.Generator | None) -> None:
        super().__init__()
        for name, value in (("n_inputs", n_inputs), ("n_classes", n_classes), ("n_filters", n_filters)):
            check_positive(value, name, type(self).__name__, integer=True)
        self.n_inputs, self.n_classes, self.n_filters = n_inputs, n_classes, n_filters
        self.register_buffer("mean", torch.tensor(0.0, dtype=torch.float32))
        self.register_buffer("scale", torch.tensor(1.0, dtype=torch.float32))
        self.output = _linear(n_filters, n_classes, generator)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Exemplars (N, M) and logits (N, C) of hidden states (N, D), or (N, positions, D) if supported."""
        exemplars = self._exemplars((hidden_states - self.mean) / self.scale)
        return exemplars, self.output(exemplars)

    @torch.no_grad()
    def encode_quickly(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Exemplars and logits of many states in float32, as calling the module gives them; for training.

        Without gradients, and without copies larger than a block. The last bits of a row depend on its batch.
        """
        device = self.output.weight.device
        exemplars = empty_float32(len(hidden_states), self.n_filters, device=device)
        for rows in blocks(len(hidden_states), math.prod(hidden_states.shape[1:]), _CACHED_ELEMENTS):
            block = hidden_states[rows].to(device).float()
            exemplars[rows] = self._exemplars((block - self.mean).div_(self.scale))
        return exemplars, self.output(exemplars)

    @torch.no_grad()
    def encode_exactly(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Exemplars and logits in float64 rounded to float32, with the same bits for a row in any batch.

        The last bits of float32 products depend on the batch shape, so exemplars, and with them decisions, would
        depend on the rest of the batch. This pass does not; decisions and the stored support use it.
        """
        device = self.output.weight.device
        widest = max(math.prod(hidden_states.shape[1:]), self.n_filters, self.n_classes)
        exemplars = torch.empty(len(hidden_states), self.n_filters, dtype=torch.float32, device=device)
        logits = torch.empty(len(hidden_states), self.n_classes, dtype=torch.float32, device=device)
        for block in blocks(len(hidden_states), widest, _BLOCK_ELEMENTS):
            exemplars[block] = self._exemplars_exact(hidden_states[block].to(device).float())
            logits[block] = invariant_linear(exemplars[block], self.output.weight, self.output.bias)
        return exemplars, logits

    def standardise(self, hidden_states: Tensor, rows: Tensor | None = None, *, per_dimension: bool = False) -> None:
        """Set mean and scale (ddof = 1) from training states, or from some rows of them.

        One scalar each over all entries, or one per dimension with ``per_dimension``.
        """
        rows = torch.arange(len(hidden_states)) if rows is None else rows
        axes = (0,) if per_dimension else None
        pieces = rows.split(max(1, _BLOCK_ELEMENTS // max(1, math.prod(hidden_states.shape[1:]))))
        n = len(rows) * math.prod(hidden_states.shape[1:-1]) * (1 if per_dimension else hidden_states.shape[-1])

        def total(of: Callable[[Tensor], Tensor]) -> Tensor:
            entries = (hidden_states[block].float().double().reshape(-1, hidden_states.shape[-1]) for block in pieces)
            return torch.stack([of(block).sum(dim=axes) for block in entries]).sum(dim=0)

        mean = total(lambda h: h) / n
        scale = (total(lambda h: (h - mean).square_()) / max(1, n - 1)).sqrt()
        device = self.output.weight.device
        self.mean = mean.float().to(device)
        # A constant dimension is centred but not scaled.
        self.scale = torch.where(scale.float() > 0, scale, torch.ones_like(scale)).float().to(device)

    def answering(self, exemplars: Tensor, logits: Tensor) -> Tensor:
        """Exemplars (N, M) as they would be with other logits (N, C); unchanged where logits are no part of them."""
        return exemplars

    @abstractmethod
    def _exemplars(self, standardised: Tensor) -> Tensor:
        """g: standardised states to exemplars (N, M)."""

    @abstractmethod
    def _exemplars_exact(self, hidden_states: Tensor) -> Tensor:
        """g of states that are not standardised yet, in float64, rounded to float32: the same bits in any batch."""


class ExemplarAdaptor(Adaptor):
    """The paper's adaptor: M filters that span the input, then a linear layer.

    Parameters
    ----------
    n_inputs : int
        D, the width of a hidden state.
    n_classes : int
    n_filters : int
        M, the width of an exemplar.
    generator : torch.Generator, optional
        Source of the initial weights; torch's default generator if not given.

    Notes
    -----
    ``forward`` takes (N, D) and also (N, positions, D): then each filter is applied at every position and its largest
    value is kept.

    Examples
    --------
    >>> adaptor = ExemplarAdaptor(n_inputs=6, n_classes=3, n_filters=4)
    >>> exemplars, logits = adaptor(torch.zeros(2, 6))
    >>> tuple(exemplars.shape), tuple(logits.shape)
    ((2, 4), (2, 3))
    """

    def __init__(
        self, n_inputs: int, n_classes: int, n_filters: int = 1000, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(n_inputs, n_classes, n_filters, generator)
        self.filters = _linear(n_inputs, n_filters, generator)

    @torch.no_grad()
    def answering(self, exemplars: Tensor, logits: Tensor) -> Tensor:
        """Exemplars as they would be with other logits, if the first C filters are the logits (``training.linear``)."""
        return torch.cat([logits / self.output.weight.diagonal(), exemplars[:, self.n_classes :]], dim=1)

    def _exemplars(self, standardised: Tensor) -> Tensor:
        values: Tensor = self.filters(standardised)
        return values.amax(dim=1) if values.ndim == 3 else values  # the largest of all positions

    def _exemplars_exact(self, hidden_states: Tensor) -> Tensor:
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])  # (N * positions, D)
        values = invariant_linear(rows, self.filters.weight, self.filters.bias, self.mean, self.scale)
        values = values.reshape(*hidden_states.shape[:-1], self.n_filters)
        return values.amax(dim=1) if values.ndim == 3 else values


class IdentityAdaptor(Adaptor):
    """The paper's ablation: hidden states are matched directly and only the linear layer is trained."""

    def __init__(self, n_inputs: int, n_classes: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__(n_inputs, n_classes, n_inputs, generator)

    def _exemplars(self, standardised: Tensor) -> Tensor:
        if standardised.ndim != 2:
            raise InvalidInputError(
                f"IdentityAdaptor takes one state per input (N, D). Got shape {tuple(standardised.shape)}; "
                "use ExemplarAdaptor for several positions."
            )
        return standardised

    def _exemplars_exact(self, hidden_states: Tensor) -> Tensor:
        return self._exemplars((hidden_states.double() - self.mean.double()).div_(self.scale.double())).float()


def make_adaptor(
    kind: str, n_inputs: int, n_classes: int, n_filters: int, generator: torch.Generator | None = None
) -> Adaptor:
    """An adaptor by name: 'filters' or 'identity'."""
    if kind == "identity":
        return IdentityAdaptor(n_inputs, n_classes, generator=generator)
    return ExemplarAdaptor(n_inputs, n_classes, n_filters, generator=generator)


def restore_adaptor(kind: str, n_inputs: int, n_classes: int, n_filters: int, weights: Mapping[str, Tensor]) -> Adaptor:
    """An adaptor by name with the weights of a state dict; global random state is left untouched."""
    width = n_inputs if kind == "identity" else n_filters
    expected = {"output.weight": (n_classes, width), "output.bias": (n_classes,)}
    expected |= {} if kind == "identity" else {"filters.weight": (n_filters, n_inputs), "filters.bias": (n_filters,)}
    for name, shape in expected.items():  # before memory is taken for as many
        check_shape(weights[name], shape, name, "restore_adaptor")
    for name in ("mean", "scale"):
        if tuple(weights[name].shape) not in ((), (n_inputs,)):
            raise InvalidInputError(
                f"'{name}' of an adaptor must be one number or {n_inputs}. Got {weights[name].shape}."
            )
    adaptor = make_adaptor(kind, n_inputs, n_classes, n_filters, torch.Generator())
    adaptor.mean, adaptor.scale = weights["mean"].clone(), weights["scale"].clone()  # scalars, or one per dimension
    adaptor.load_state_dict(weights)
    return adaptor


class _Linear(nn.Linear):
    """A linear layer without initial weights: torch's default generator is left as it is."""  # skip_init is slow

    def reset_parameters(self) -> None:
        """Leave the weights to ``_linear``."""


def _linear(n_in: int, n_out: int, generator: torch.Generator | None) -> nn.Linear:
    """A linear layer with torch's usual initial weights, U(-1/sqrt(n_in), 1/sqrt(n_in)), from a generator."""
    layer = _Linear(n_in, n_out, dtype=torch.float32)
    bound = 1 / math.sqrt(n_in)
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer
