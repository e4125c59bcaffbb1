"""bfloat16 as a first filter against the same search without it: where it helps, and what it costs where it cannot."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from measure import Figure, compare
from problems import ENCODER, clouds, support_of
from torch import Tensor

from torchsdm import HiddenStateExtractor, SDMClassifier, SupportSet
from torchsdm.application.demo import read_films
from torchsdm.arithmetic import has_coarse_products
from torchsdm.errors import SDMWarning
from torchsdm.matching import _coarse, match

N_TEXTS, N_QUERIES = 5_000, 2_000


def run() -> Iterator[Figure]:
    """Points of the other benchmarks, exemplars of a trained model, and points that crowd together."""
    if not has_coarse_products():
        return
    points, labels = clouds(9_000, 1_000)
    queries, predictions = clouds(N_QUERIES, 1_000, seed=1)
    yield _compared("points of these benchmarks", support_of(points, labels), queries, predictions, at_most=0.75)
    yield _compared("exemplars of film verdicts", *_trained(), at_most=1)
    centre = 100 * torch.randn(2, 1_000, generator=torch.Generator().manual_seed(3))  # far from the mean of all
    crowded = support_of(points + centre[labels], labels)
    yield _compared("two crowds far apart", crowded, queries + centre[predictions], predictions, at_most=1.25)


def _trained() -> tuple[SupportSet, Tensor, Tensor]:
    """The support of a model that was trained on texts, and exemplars of other texts with their predictions."""
    warnings.simplefilter("ignore", SDMWarning)
    verdicts = read_films(n_verdicts=N_TEXTS + N_QUERIES)["verdicts"]
    states = HiddenStateExtractor(ENCODER).transform([one.text for one in verdicts])
    labels = np.array([one.label for one in verdicts])
    classifier = SDMClassifier(0.9, n_filters=1_000, training="sdm", certification_size=None, random_state=0)
    classifier.fit(states[:N_TEXTS], labels[:N_TEXTS])
    (model,) = classifier.models_
    exemplars, logits = model.adaptor.encode_exactly(torch.from_numpy(states[N_TEXTS:]))
    return classifier.support_, exemplars, logits.argmax(dim=1)


def _compared(what: str, support: SupportSet, queries: Tensor, predictions: Tensor, at_most: float) -> Figure:
    similarity = match(queries, predictions, support.parts).similarity.double()
    open_share = _open_share(support, queries, predictions)
    return compare(
        f"q and nearest of {len(queries):,} queries, {what}, {len(support):,} × {support.n_filters:,}",
        lambda: match(queries, predictions, support.parts, kernels="coarse"),
        "the same without bfloat16",
        lambda: match(queries, predictions, support.parts, kernels="compiled"),
        at_most=at_most,
        note=f"q is {similarity.mean():.0f} on average, {100 * open_share:.2g} % of the pairs are open to bfloat16",
    )


def _open_share(support: SupportSet, queries: Tensor, predictions: Tensor) -> float:
    """The share of pairs whose distance has to be known, for the nearest point, the boundary or the count."""
    (part,) = support.parts
    coarse, matched = part.points.coarse, match(queries, predictions, [part], kernels="compiled")
    side = coarse.queries(queries)
    products = torch.empty(len(queries), len(part))
    _coarse.multiply_into(products, side.multiplier, coarse.rounded, support.n_filters)
    products *= side.factor[:, None]
    lower, upper = coarse.lower + side.low[:, None] - products, coarse.upper + side.high[:, None] - products
    is_match = part.groups == predictions[:, None]
    squared = (torch.cdist(queries.double(), part.points.points.double()) * part.points.bounds.scale).square()
    nearest = (matched.nearest_distance * part.points.bounds.scale).square()[:, None]
    boundary = torch.where(is_match, torch.inf, squared).amin(dim=1, keepdim=True)
    is_open = (lower <= nearest) | (~is_match & (lower <= boundary))
    is_open |= is_match & (lower <= boundary) & (upper >= boundary)
    return float(is_open.double().mean())
