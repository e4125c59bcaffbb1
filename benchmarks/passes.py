"""The two passes of an epoch against one plain product, and against libraries a user might pick instead."""

from __future__ import annotations

from collections.abc import Iterator

import faiss
import numpy as np
import torch
from measure import THREADS, Figure, compare
from problems import clouds, support_of
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from usearch.index import search

N, M, CAP = 9_000, 1_000, 2_048


def run() -> Iterator[Figure]:
    """Calibration and training pass."""
    points, labels = clouds(N, M)
    queries, predictions = clouds(N, M, seed=1)
    support = support_of(points, labels)
    product = f"product {N:,} × {N:,}, M = {M:,}"

    def calibration() -> None:
        support.match(queries, predictions)

    yield compare("calibration pass", calibration, product, lambda: queries @ points.T, at_most=1.15)
    yield compare("training pass", support.match_self, product, lambda: queries @ points.T, at_most=0.65)

    groups = torch.where(support.labels == support.predictions, support.labels, -1).numpy()
    faiss.omp_set_num_threads(THREADS)
    index = faiss.IndexFlatL2(M)
    index.add(points.numpy())

    def capped(of: Tensor, predicted: Tensor) -> np.ndarray:
        """The reference's way: a list of 2,048 neighbours, and the length of its run of matches."""
        _, neighbors = index.search(of.numpy(), CAP)
        return np.cumprod(groups[neighbors] == predicted.numpy()[:, None], axis=1).sum(axis=1)

    faiss_search = f"faiss IndexFlatL2, k = {CAP:,}, and a cumulative product"
    yield compare(
        "calibration pass", calibration, faiss_search, lambda: capped(queries, predictions), at_least=2.8, repeats=2
    )
    yield compare(
        "training pass", support.match_self, faiss_search, lambda: capped(points, labels), at_least=5, repeats=2
    )
    nearest_alone = "faiss IndexFlatL2, k = 1"  # which knows no q
    yield compare(
        "calibration pass", calibration, nearest_alone, lambda: index.search(queries.numpy(), 1), at_least=0.95
    )

    few, few_predictions = queries[:1_000], predictions[:1_000]

    def ours() -> None:
        support.match(few, few_predictions)

    scikit_learn = NearestNeighbors(n_neighbors=CAP, algorithm="brute").fit(points.numpy())
    alternatives = {
        f"faiss IndexFlatL2, k = {CAP:,}": lambda: index.search(few.numpy(), CAP),
        f"scikit-learn NearestNeighbors, brute, k = {CAP:,}": lambda: scikit_learn.kneighbors(few.numpy()),
        f"usearch exact search, k = {CAP:,}": lambda: search(
            points.numpy(), few.numpy(), CAP, metric="l2sq", exact=True, threads=THREADS
        ),
    }
    for name, alternative in alternatives.items():
        yield compare("q and nearest of 1,000 queries", ours, name, alternative, at_least=1, repeats=2)
