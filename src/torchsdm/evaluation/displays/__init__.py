"""Plots of an estimator in the style of scikit-learn: each display computes arrays first, then draws them.

    display = ReliabilityDisplay.from_estimator(classifier, X, y)  # or from_predictions(decisions, y)
    display.accuracy  # what will be drawn
    display.plot()  # needs matplotlib; sets display.figure_ and display.ax_

Only ``plot`` needs matplotlib: the arrays are available without it.
"""

from torchsdm.evaluation.displays.alpha import AlphaDisplay, CostDisplay
from torchsdm.evaluation.displays.distance import DistanceDisplay
from torchsdm.evaluation.displays.partition import PartitionDisplay
from torchsdm.evaluation.displays.reliability import ReliabilityDisplay
from torchsdm.evaluation.displays.risk_coverage import RiskCoverageCurve, RiskCoverageDisplay
from torchsdm.evaluation.displays.training_history import TrainingHistoryDisplay

__all__ = [
    "AlphaDisplay",
    "CostDisplay",
    "DistanceDisplay",
    "PartitionDisplay",
    "ReliabilityDisplay",
    "RiskCoverageCurve",
    "RiskCoverageDisplay",
    "TrainingHistoryDisplay",
]
