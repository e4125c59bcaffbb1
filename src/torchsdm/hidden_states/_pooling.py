"""From a language model's states at every position to the state h of a sequence (section 4.3 of the paper).

Pure functions of tensors. A sequence of n tokens has spans of token positions: the whole sequence (0, n) first, then
optionally segments of it. The chosen parts of each span are concatenated:

- ``final``: the state at its last position;
- ``first``: the state at its first position;
- ``mean``: the mean of the states at its positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

PARTS = ("first", "final", "mean")  #: what can be taken from a span
DECODER_PARTS = ("final", "mean")  #: the paper's h
ENCODER_PARTS = ("first", "mean")

Span = tuple[int, int]


def pool(states: Tensor, spans: Sequence[Sequence[Span]], parts: Sequence[str]) -> Tensor:
    """h = [parts of each span] for a batch of padded sequences, in float32.

    Parameters
    ----------
    states : (B, L, H)
    spans : (B, P)
        The same number P of spans for each sequence; none reaches into its padding.
    parts : sequence of str

    Returns
    -------
    (B, P, len(parts) * H)

    Notes
    -----
    Each span is reduced separately, so the result does not depend on what else is in the batch.
    """
    # (B, L, H) -> (B, P, parts * H)
    return torch.stack(
        [
            torch.stack([torch.cat([_part(sequence[start:end], part) for part in parts]) for start, end in of_sequence])
            for sequence, of_sequence in zip(states, spans, strict=True)
        ]
    )


def _part(states: Tensor, part: str) -> Tensor:
    """One part of a span's states (n, H) -> (H,)."""
    if part == "mean":
        return states.float().mean(dim=0)
    return states[0 if part == "first" else -1].float()
