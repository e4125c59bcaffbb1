"""``SDMClassifier``, ``SDMEnsemble`` and ``SDMTextClassifier``: scikit-learn's contract over the rooms above."""

from torchsdm.estimators._loading import load_classifier
from torchsdm.estimators.classifier import SDMClassifier
from torchsdm.estimators.ensemble import SDMEnsemble
from torchsdm.estimators.text_classifier import SDMTextClassifier
from torchsdm.estimators.within import decide_with, explain_with

__all__ = [
    "SDMClassifier",
    "SDMEnsemble",
    "SDMTextClassifier",
    "decide_with",
    "explain_with",
    "load_classifier",
]
