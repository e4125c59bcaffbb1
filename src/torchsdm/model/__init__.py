"""One fitted model on tensors and class numbers: adaptor, support, calibration, and the explanation of a decision."""

from torchsdm.model.calibration import Calibration
from torchsdm.model.examples import Examples, ListedExamples
from torchsdm.model.explanation import Explanation, explain
from torchsdm.model.model import Certification, Points, SDMModel

__all__ = [
    "Calibration",
    "Certification",
    "Examples",
    "Explanation",
    "ListedExamples",
    "Points",
    "SDMModel",
    "explain",
]
