"""Background: what belongs to no class, as one logit more that is trained and never answered.

Shown examples of what does not belong, the adaptor has a logit z_b beside those of the C classes. An input *resembles*
the background if

    z_b > max_c z_c,

or if its nearest training example is a background one. Its prediction is still the best class, but nothing vouches for
it: q = 0, so no region and no certificate ever admits it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchsdm.matching import Match, RowIndex


@dataclass(frozen=True)
class Encoded:
    """Points after the adaptor."""

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
