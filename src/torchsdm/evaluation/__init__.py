"""How well estimators perform: metrics, tables, comparisons, displays, and the HTML report."""

from torchsdm.evaluation.displays import (
    AlphaDisplay,
    CostDisplay,
    DistanceDisplay,
    PartitionDisplay,
    ReliabilityDisplay,
    RiskCoverageCurve,
    RiskCoverageDisplay,
    TrainingHistoryDisplay,
)
from torchsdm.evaluation.entrants import GROUPS, SDM_RULES, Entrant, classifier_entrants, paper_entrants
from torchsdm.evaluation.evaluation import Evaluation
from torchsdm.evaluation.keys import UNLISTED, Basis, EstimatorKey, Rule
from torchsdm.evaluation.report import write_report
from torchsdm.evaluation.tables import (
    Grid,
    ResultRow,
    ResultTable,
    accuracy_text,
    csv_text,
    is_moved,
    markdown_text,
    share_text,
    strata,
)

__all__ = [
    "GROUPS",
    "SDM_RULES",
    "UNLISTED",
    "AlphaDisplay",
    "Basis",
    "CostDisplay",
    "DistanceDisplay",
    "Entrant",
    "EstimatorKey",
    "Evaluation",
    "Grid",
    "PartitionDisplay",
    "ReliabilityDisplay",
    "ResultRow",
    "ResultTable",
    "RiskCoverageCurve",
    "RiskCoverageDisplay",
    "Rule",
    "TrainingHistoryDisplay",
    "accuracy_text",
    "classifier_entrants",
    "csv_text",
    "is_moved",
    "markdown_text",
    "paper_entrants",
    "share_text",
    "strata",
    "write_report",
]
