"""How well estimators perform: metrics, tables, comparisons, displays, the HTML report; and how sound labels are."""

from torchsdm.evaluation._opening import verdicts
from torchsdm.evaluation.audit import AuditedLabel, LabelAudit, audit_labels, check_auditable
from torchsdm.evaluation.displays.alpha import AlphaDisplay, CostDisplay
from torchsdm.evaluation.displays.distance import DistanceDisplay
from torchsdm.evaluation.displays.partition import PartitionDisplay
from torchsdm.evaluation.displays.reliability import ReliabilityDisplay
from torchsdm.evaluation.displays.risk_coverage import RiskCoverageCurve, RiskCoverageDisplay
from torchsdm.evaluation.displays.training_history import TrainingHistoryDisplay
from torchsdm.evaluation.entrants import GROUPS, SDM_RULES, Entrant, FittedParts, classifier_entrants, paper_entrants
from torchsdm.evaluation.evaluation import Evaluation
from torchsdm.evaluation.metrics import AdmittedShareScorer, Cell, ood_auroc, ood_fpr_at_95, ordering_score
from torchsdm.evaluation.report import write_report
from torchsdm.evaluation.strangers import Overview, explain_labels, split_strangers
from torchsdm.evaluation.tables import (
    UNLISTED,
    Basis,
    EstimatorKey,
    Grid,
    ResultRow,
    ResultTable,
    Rule,
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
    "FittedParts",
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
    "TrainingHistoryDisplay",
    "accuracy_text",
    "audit_labels",
    "check_auditable",
    "classifier_entrants",
    "csv_text",
    "explain_labels",
    "is_moved",
    "markdown_text",
    "ood_auroc",
    "ood_fpr_at_95",
    "ordering_score",
    "paper_entrants",
    "share_text",
    "split_strangers",
    "strata",
    "verdicts",
    "write_report",
]
