"""Learn ten handwritten digits, then meet inputs that are no digits at all: ``make demo``.

The digits are real (scikit-learn's bundled scans, 8 x 8 pixels); the strangers are real too: patches of two
photographs, scaled to the same pixels. A softmax must call every patch some digit, often with great confidence. The
high-reliability region is meant to admit digits that training examples vouch for, and no patch.
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
    """n grey 8 x 8 patches of scikit-learn's two photographs, each stretched to the digits' range 0..16."""
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
    """One line of the table: how many of the inputs a rule admits, and how many of those are right."""
    share = f"{chosen.mean():7.1%}"
    if truth is None:
        accuracy = "no digit to get right"
    elif chosen.any():
        accuracy = f"{(decisions.predictions == truth)[chosen].mean():.1%}"
    else:
        accuracy = "all rejected"
    print(f"{inputs:<24}{name:<30}{share}    {accuracy}")


def main() -> None:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=400, stratify=y, random_state=0)
    patches = photograph_patches(400)

    print(f"Training on {len(X)} digits, half to learn from and half to calibrate on (alpha = {ALPHA}) ...")
    classifier = SDMClassifier(
        alpha=ALPHA, n_filters=100, n_rounds=2, max_epochs=60, learning_rate=3e-3, random_state=0, verbose=True
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RegionWarning)
        classifier.fit(X, y)

    region = classifier.region_
    print(f"\nHigh-reliability region: rescaled similarity at least {region.min_rescaled_similarity:.1f},")
    counts = ", ".join(f"{label}: {int(count)}" for label, count in enumerate(region.class_counts))
    print(f"resting on so many calibration points of each digit: {counts}.")
    for warning in caught:
        print(f"Note: {warning.message}")

    print(f"\n{'inputs':<24}{'rule':<30}{'admitted':>7}   correct among them")
    for inputs, states, truth in (("400 unseen digits", X_test, y_test), ("400 photograph patches", patches, None)):
        decisions = classifier.decide(states)
        softmax = torch.softmax(torch.from_numpy(decisions.logits), dim=1).amax(dim=1).numpy()
        print_row("no rule", inputs, decisions, np.ones(len(states), dtype=bool), truth)
        print_row(f"softmax at least {ALPHA}", inputs, decisions, softmax >= ALPHA, truth)
        print_row("SDM region", inputs, decisions, decisions.admitted, truth)
        print_row("SDM region, lower estimator", inputs, decisions, decisions.admitted_lower, truth)

    print(
        "\nOn digits the rules differ in how much they admit and how often they err. The patches make the difference:\n"
        "no digit is right for them, so whatever is admitted there would be acted on wrongly."
    )

    digits, strangers = classifier.decide(X_test), classifier.decide(patches)
    print("\nAn admitted digit, and what it rests on (+ vouches for the answer, - does not):")
    print(classifier.explain(X_test[[digits.rescaled_similarity.argmax()]], k=3)[0])
    wrong = np.flatnonzero(digits.predictions != y_test)
    if len(wrong):
        print(f"\nA digit {y_test[wrong[0]]} that the model takes for something else:")
        print(classifier.explain(X_test[[wrong[0]]], k=3)[0])
    print("\nThe photograph patch that is farthest from every digit:")
    print(classifier.explain(patches[[strangers.nearest_distance.argmax()]], k=3)[0])


if __name__ == "__main__":
    main()
