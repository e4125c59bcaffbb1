"""Two Gaussian classes with a known posterior: what is admitted is right at the rate stated, what is far rejected."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from small import small_settings
from torchsdm import SDMClassifier

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

SEEDS, DISTANCE, WIDTH = 100, 2.5, 4


def two_blobs(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    y = rng.integers(0, 2, n)
    X = rng.normal(size=(n, WIDTH))
    X[:, 0] += (y - 0.5) * DISTANCE
    return X, y


def posterior_of(X: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """P(y = prediction | x) in closed form: the log odds of two unit Gaussians are linear in x."""
    sign = np.where(prediction == 1, 1.0, -1.0)
    return 1 / (1 + np.exp(-sign * DISTANCE * X[:, 0]))


@pytest.fixture(scope="module", params=[0.9, pytest.param(0.95, marks=pytest.mark.slow)])
def study(request):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the problems are too small to share out
    alpha = request.param
    rows: dict[str, list[np.ndarray]] = {}
    found, far_admitted = 0, {}
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        X, y = two_blobs(rng, 800)
        X_test, y_test = two_blobs(rng, 1000)
        classifier = SDMClassifier(alpha=alpha, **small_settings(max_epochs=6, random_state=seed)).fit(X, y)
        decisions = classifier.decide(X_test)
        found += classifier.region_.found
        for name, values in {
            "seed": np.full(len(y_test), seed),
            "label": y_test,
            "prediction": decisions.predictions,
            "admitted": decisions.admitted,
            "admitted_lower": decisions.admitted_lower,
            "posterior": posterior_of(X_test, decisions.predictions),
        }.items():
            rows.setdefault(name, []).append(values)
        direction = rng.normal(size=(100, WIDTH))
        far = 100 * direction / np.linalg.norm(direction, axis=1, keepdims=True)
        far_decisions = classifier.decide(far)
        far_admitted[seed] = int(far_decisions.admitted.sum())
        assert (far_decisions.distance_quantile == 0).all(), f"seed {seed}"
    torch.set_num_threads(threads)
    return alpha, {name: np.concatenate(values) for name, values in rows.items()}, found, far_admitted


def test_accuracy_among_admitted_reaches_alpha(study):
    """For each class and each prediction."""
    alpha, rows, found, _ = study
    assert found > SEEDS / 2  # else there is nothing to measure
    for estimator, by, group in product(("admitted", "admitted_lower"), ("label", "prediction"), (0, 1)):
        chosen = rows[estimator] & (rows[by] == group)
        correct = (rows["label"] == rows["prediction"])[chosen]
        assert len(correct) > 1000, (estimator, by, group)
        binomial_error = np.sqrt(alpha * (1 - alpha) / len(correct))
        assert correct.mean() >= alpha - 3 * binomial_error, (estimator, by, group)


def test_the_true_posterior_agrees(study):
    """The same with the closed form in place of drawn labels: no luck of the draw is left in it."""
    alpha, rows, _, _ = study
    for prediction in (0, 1):
        chosen = rows["admitted"] & (rows["prediction"] == prediction)
        assert rows["posterior"][chosen].mean() >= alpha


def test_few_single_fits_fall_short(study):
    """Each fit on its own: the share of fits below alpha by more than three binomial errors is small."""
    alpha, rows, _, _ = study
    total, short = 0, []
    for seed in range(SEEDS):
        for label in (0, 1):
            chosen = rows["admitted"] & (rows["seed"] == seed) & (rows["label"] == label)
            if chosen.sum() < 20:
                continue
            total += 1
            accuracy = (rows["label"] == rows["prediction"])[chosen].mean()
            if accuracy < alpha - 3 * np.sqrt(alpha * (1 - alpha) / chosen.sum()):
                short.append((seed, label))
    assert total > SEEDS / 2
    assert len(short) <= 0.05 * total, short


def test_far_points_are_all_rejected(study):
    _, _, _, far_admitted = study
    assert {seed: n for seed, n in far_admitted.items() if n} == {}
