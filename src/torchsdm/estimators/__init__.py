"""``SDMClassifier``, ``SDMEnsemble`` and ``SDMTextClassifier``: scikit-learn's contract over the rooms above."""

from torchsdm.estimators._data import given_part, given_states, row_keys
from torchsdm.estimators._fitting import Strength
from torchsdm.estimators._parameters import check_training, training_settings
from torchsdm.estimators._saving import write_estimator
from torchsdm.estimators.asking import LabelRequest
from torchsdm.estimators.changes import (
    Add,
    Certify,
    Recalibrate,
    Relabel,
    Remove,
    Request,
    ResetGuard,
    replay,
    request_digest,
)
from torchsdm.estimators.classifier import SDMClassifier
from torchsdm.estimators.ensemble import SDMEnsemble
from torchsdm.estimators.text_classifier import SDMTextClassifier, load, load_base, load_classifier
from torchsdm.estimators.within import decide_with, explain_with

__all__ = [
    "Add",
    "Certify",
    "LabelRequest",
    "Recalibrate",
    "Relabel",
    "Remove",
    "Request",
    "ResetGuard",
    "SDMClassifier",
    "SDMEnsemble",
    "SDMTextClassifier",
    "Strength",
    "check_training",
    "decide_with",
    "explain_with",
    "given_part",
    "given_states",
    "load",
    "load_base",
    "load_classifier",
    "replay",
    "request_digest",
    "row_keys",
    "training_settings",
    "write_estimator",
]
