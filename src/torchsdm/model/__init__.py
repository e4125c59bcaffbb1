"""One fitted model on tensors and class numbers: adaptor, support, calibration, and the explanation of a decision."""

from torchsdm.model.calibration import Calibration
from torchsdm.model.examples import Examples, ListedExamples, Set, same_points
from torchsdm.model.explanation import Explanation, explain
from torchsdm.model.model import (
    CALIBRATION,
    CERTIFICATION,
    SUPPORT,
    Certification,
    EncodedPoints,
    Points,
    SDMModel,
)

__all__ = [
    "CALIBRATION",
    "CERTIFICATION",
    "SUPPORT",
    "Calibration",
    "Certification",
    "EncodedPoints",
    "Examples",
    "Explanation",
    "ListedExamples",
    "Points",
    "SDMModel",
    "Set",
    "explain",
    "same_points",
]
