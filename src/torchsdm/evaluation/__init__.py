"""How well estimators perform: metrics, tables, comparisons, displays, the HTML report; and how sound labels are."""

from torchsdm.evaluation._opening import Verdict, verdicts
from torchsdm.evaluation.audit import AuditedLabel, LabelAudit, audit_labels, check_auditable
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
from torchsdm.evaluation.metrics import Cell
from torchsdm.evaluation.overview import Overview
from torchsdm.evaluation.report import write_report
from torchsdm.evaluation.scorers import AdmittedShareScorer
from torchsdm.evaluation.stranger_scores import StrangerScore, stranger_scores
from torchsdm.evaluation.strangers import explain_labels, split_strangers
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
    "AdmittedShareScorer",
    "AlphaDisplay",
    "AuditedLabel",
    "Basis",
    "Cell",
    "CostDisplay",
    "DistanceDisplay",
    "Entrant",
    "EstimatorKey",
    "Evaluation",
    "Grid",
    "LabelAudit",
    "Overview",
    "PartitionDisplay",
    "ReliabilityDisplay",
    "ResultRow",
    "ResultTable",
    "RiskCoverageCurve",
    "RiskCoverageDisplay",
    "Rule",
    "StrangerScore",
    "TrainingHistoryDisplay",
    "Verdict",
    "accuracy_text",
    "audit_labels",
    "check_auditable",
    "classifier_entrants",
    "csv_text",
    "explain_labels",
    "is_moved",
    "markdown_text",
    "paper_entrants",
    "share_text",
    "split_strangers",
    "stranger_scores",
    "strata",
    "verdicts",
    "write_report",
]
