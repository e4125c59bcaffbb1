"""Single queries and decisions, and batches against a million points."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from measure import Figure, PeakMemory, compare, judged
from problems import classifier_of_the_paper_s_size, clouds, states, support_of

from torchsdm.errors import SDMWarning
from torchsdm.matching import DEFAULT_BLOCK_SIZE
from torchsdm.matching.search import Products


def run() -> Iterator[Figure]:
    """One query with its exemplars, decisions end to end, then a thousand against a million."""
    yield _one_query()
    yield from _decisions()
    yield from _a_million()


def _one_query() -> Figure:
    points, labels = clouds(18_000, 1_000)
    support = support_of(points, labels)
    query, prediction = clouds(1, 1_000, seed=1)
    return compare(
        "one query against 18,000 × 1,000: q and 5 exemplars",
        lambda: support.match(query, prediction, k=5),
        "matrix-vector product",
        lambda: points @ query[0],
        at_most=1.2,
        repeats=51,
    )


def _decisions() -> Iterator[Figure]:
    """From hidden states to decisions, against the two products without which there are none."""
    warnings.simplefilter("ignore", SDMWarning)
    classifier = classifier_of_the_paper_s_size()
    (model,) = classifier.models_
    weight, exemplars = model.adaptor.filters.weight.detach(), classifier.support_.exemplars
    for n, at_most, repeats in ((1, 2.0, 51), (1_000, 1.2, 5)):
        X, _ = states(n, seed=99)
        x, h = torch.from_numpy(X).T.squeeze(1), torch.randn(len(weight), n).squeeze(1)
        yield compare(
            f"decide on {n:,} state{'s' * (n > 1)} of 6,144 numbers, support 18,000 × 1,000",
            lambda X=X: classifier.decide(X),
            "its two products in float32",
            lambda x=x, h=h: (weight @ x, exemplars @ h),
            at_most=at_most,
            repeats=repeats,
        )


def _a_million() -> Iterator[Figure]:
    points, labels = clouds(1_000_000, 256)
    support = support_of(points, labels)
    queries, predictions = clouds(1_000, 256, seed=1)

    def match() -> None:
        support.match(queries, predictions)

    with PeakMemory() as memory:  # of the first search, with what it keeps for others
        match()
    products = Products(support.parts, len(queries), DEFAULT_BLOCK_SIZE)

    def plain() -> None:
        for rows in products.row_blocks():
            part = queries[rows]
            for start, stop in products.spans(*support.parts):
                torch.mm(part, points[start:stop].T, out=products.buffer[: len(part), start:stop])

    work = "1,000 queries against 1,000,000 × 256"
    yield compare(work, match, "product in the same blocks", plain, at_most=1.1, repeats=5)
    yield judged(f"{work}: extra memory", "GB", memory.extra / 1e9, at_most=1.0)
