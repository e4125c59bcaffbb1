"""Sort answers into three piles: automate, send to a person, or collect and label more like it.

The signals of a decision sort the rejected inputs: those near the boundary need a second look, those far from
the training data need a label. Run: python examples/triage.py
"""

from collections import Counter

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from torchsdm import SDMClassifier
from torchsdm.core import SDMDecisions


def triage(decisions: SDMDecisions) -> np.ndarray:
    """Name the desk that each input goes to."""
    far = decisions.distance_quantile == 0
    disagreeing = decisions.similarity == 0
    desks = np.full(len(decisions), "a second look", dtype=object)
    desks[disagreeing] = "an expert: neighbours disagree"
    desks[far] = "label more of these: far from the training data"
    desks[decisions.admitted] = "automate"
    desks[decisions.admitted & ~decisions.admitted_lower] = "automate, and sample for review"
    return desks


def main() -> None:
    X, y = load_digits(return_X_y=True)
    X, X_new, y, y_new = train_test_split(X, y, test_size=400, stratify=y, random_state=0)
    classifier = SDMClassifier(alpha=0.9, random_state=0)
    classifier.fit(X, y)
    noise = np.random.default_rng(0).uniform(0, 16, size=(100, X.shape[1]))
    for name, inputs, truth in (("400 digits", X_new, y_new), ("100 noise inputs", noise, None)):
        decisions = classifier.decide(inputs)
        desks = triage(decisions)
        print(f"\n{name}")
        for desk, count in Counter(desks).most_common():
            right = "" if truth is None else f", {(decisions.predictions == truth)[desks == desk].mean():.0%} correct"
            print(f"{count:5}  {desk}{right}")


if __name__ == "__main__":
    main()
