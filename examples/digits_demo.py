"""Learn ten handwritten digits, then try inputs that are not digits.

The digits are real (scikit-learn's bundled scans, 8 x 8 pixels), and so are the other inputs: patches of two
photographs, scaled to the same size. A softmax has to call every patch a digit, often with high confidence. The
high-reliability region should admit digits that training examples vouch for, and no patches.

Run: python examples/digits_demo.py
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split

from torchsdm import Decisions, SDMClassifier
from torchsdm.errors import RegionWarning

ALPHA = 0.9


def photograph_patches(n: int, seed: int = 0) -> np.ndarray:
    """n grey 8 x 8 patches of scikit-learn's two photographs, each scaled to the digits' range 0..16."""
    rng = np.random.default_rng(seed)
    photographs = [image.mean(axis=2) for image in load_sample_images().images]
    patches = []
    while len(patches) < n:
        photograph = photographs[len(patches) % len(photographs)]
        row, column = (rng.integers(0, size - 8) for size in photograph.shape)
        patch = photograph[row : row + 8, column : column + 8]
        if np.ptp(patch) > 0:
            patches.append(np.round(16 * (patch - patch.min()) / np.ptp(patch)).ravel())
    return np.array(patches)


def print_row(name: str, inputs: str, decisions: Decisions, chosen: np.ndarray, truth: np.ndarray | None) -> None:
    """Print one line of the table: the share of inputs that a rule admits, and how many of those are right."""
    share = f"{chosen.mean():7.1%}"
    if truth is None:
        accuracy = "no right answer"
    elif chosen.any():
        accuracy = f"{(decisions.predictions == truth)[chosen].mean():.1%}"
    else:
        accuracy = "all rejected"
    print(f"{inputs:<24}{name:<30}{share}    {accuracy}")


def main() -> None:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=400, stratify=y, random_state=0)
    patches = photograph_patches(400)

    print(f"Training on {len(X)} digits, half for training and half for calibration (alpha = {ALPHA}) ...")
    classifier = SDMClassifier(
        alpha=ALPHA, n_filters=100, training="sdm", max_epochs=60, learning_rate=3e-3, random_state=0, verbose=True
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RegionWarning)
        classifier.fit(X, y)

    region = classifier.region_
    print(f"\nHigh-reliability region: rescaled similarity at least {region.min_rescaled_similarity:.1f},")
    counts = ", ".join(f"{label}: {int(count)}" for label, count in enumerate(region.class_counts))
    print(f"based on this many calibration points per digit: {counts}.")
    for warning in caught:
        print(f"Note: {warning.message}")

    print(f"\n{'inputs':<24}{'rule':<30}{'admitted':>7}   correct if admitted")
    for inputs, states, truth in (("400 unseen digits", X_test, y_test), ("400 photograph patches", patches, None)):
        decisions = classifier.decide(states)
        softmax = torch.softmax(torch.from_numpy(decisions.logits), dim=1).amax(dim=1).numpy()
        print_row("no rule", inputs, decisions, np.ones(len(states), dtype=bool), truth)
        print_row(f"softmax at least {ALPHA}", inputs, decisions, softmax >= ALPHA, truth)
        print_row("SDM region", inputs, decisions, decisions.admitted, truth)
        print_row("SDM region, lower estimator", inputs, decisions, decisions.admitted_lower, truth)

    print(
        "\nOn digits, the rules differ in how much they admit and how often they are wrong. The patches matter most:\n"
        "no digit is right for them, so acting on any admitted patch would be a mistake."
    )

    digits, strangers = classifier.decide(X_test), classifier.decide(patches)
    print("\nAn admitted digit, and the examples behind it (+ vouches for the answer, - does not):")
    print(classifier.explain(X_test[[digits.rescaled_similarity.argmax()]], k=3)[0])
    wrong = np.flatnonzero(digits.predictions != y_test)
    if len(wrong):
        print(f"\nA digit {y_test[wrong[0]]} that the model mistakes for another:")
        print(classifier.explain(X_test[[wrong[0]]], k=3)[0])
    print("\nThe photograph patch farthest from every digit:")
    print(classifier.explain(patches[[strangers.nearest_distance.argmax()]], k=3)[0])


if __name__ == "__main__":
    main()
