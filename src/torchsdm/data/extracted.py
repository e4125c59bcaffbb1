"""What a language model makes of documents, before labels and ids are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchsdm.validation import Array


@dataclass(frozen=True)
class ExtractedStates:
    """What a language model makes of N documents."""

    hidden_states: Array
    """h, (N, D) float32; (N, 1 + segments, D) with segments."""
    label_logits: Array | None
    """The language model's own logits of the label words (N, C), in the order of the prompt's ``label_words``."""
    n_tokens: Array
    """Tokens of each document under the prompt, as run (N,)."""
    n_cut: Array
    """Tokens that each document lost because it was too long (N,)."""

    def __len__(self) -> int:
        return len(self.hidden_states)

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays that are not None, by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    @classmethod
    def concatenate(cls, blocks: Sequence[ExtractedStates]) -> ExtractedStates:
        """The states of several blocks, one after the other."""
        logits = [block.label_logits for block in blocks if block.label_logits is not None]
        return cls(
            np.concatenate([block.hidden_states for block in blocks]),
            np.concatenate(logits) if logits else None,
            np.concatenate([block.n_tokens for block in blocks]),
            np.concatenate([block.n_cut for block in blocks]),
        )
