"""What a configuration promises: a stranger's may want more layers or weights than its files can hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

_COUNTS = re.compile("layers|blocks|experts|depth")  # in the name of what a model has many of
_MOST = 2048  # of them: ten times as many as the largest models have
_WEIGHTS_PER_BYTE = 16  # of one bit, each used twice
_SMALL = 10_000_000  # weights that any file may lack, such as those of a layer that is not stored


def check_counts(config: Any) -> None:
    """Refuse a configuration with so many layers that making them would take minutes."""
    for name, value in _entries(config.to_dict()):
        if _COUNTS.search(name) and isinstance(value, int) and value > _MOST:
            raise ValueError(f"its configuration has {name} = {value:,}; more than {_MOST:,} are not loaded.")


def check_weights(make: Callable[[], nn.Module], n_bytes: int) -> None:
    """Refuse a model with many more weights than its files can hold; ``make`` is run without memory."""
    with torch.device("meta"):
        n_weights = sum(weight.numel() for weight in make().parameters())
    if n_weights > _WEIGHTS_PER_BYTE * n_bytes + _SMALL:
        raise ValueError(f"its configuration describes {n_weights:,} weights, but its files have {n_bytes:,} bytes.")


def _entries(config: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of a configuration and those within it."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _entries({str(key): one for key, one in value.items()})
        else:
            yield str(name), value
