"""One fitted model and its directory: calibration, explanations, log of changes, card, hub, export."""

from torchsdm.model.calibration import Calibration, EncodedPoints
from torchsdm.model.changes import (
    CHANGES,
    COSTLY,
    GUARD_RESET,
    UNDO,
    Change,
    Entry,
    ReadLog,
    Record,
    acknowledged_version,
    read_changes,
    read_history,
)
from torchsdm.model.checks import CheckStore, Judgement, Kept, Offered, Stream, read_checks
from torchsdm.model.directory import (
    CONFIG_NAME,
    StoredModel,
    config_mark,
    holds_model,
    label_values_from_json,
    label_values_to_json,
    mapped_tensors,
    number_or_none,
    read_config,
    read_model,
    write_model,
)
from torchsdm.model.examples import Examples, Set, same_points
from torchsdm.model.explanation import Explanation, explain
from torchsdm.model.hub import HubModel, model_card
from torchsdm.model.log_writer import LogWriter, saving
from torchsdm.model.model import (
    CALIBRATION,
    CERTIFICATION,
    SUPPORT,
    Certification,
    Points,
    SDMModel,
    locate,
)
from torchsdm.model.model_files import outcome_to_bytes, put_together, take_apart, take_outcome
from torchsdm.model.numpy_export import write_numpy_export
from torchsdm.model.review import Judged, NewInput, ReviewStore

__all__ = [
    "CALIBRATION",
    "CERTIFICATION",
    "CHANGES",
    "CONFIG_NAME",
    "COSTLY",
    "GUARD_RESET",
    "SUPPORT",
    "UNDO",
    "Calibration",
    "Certification",
    "Change",
    "CheckStore",
    "EncodedPoints",
    "Entry",
    "Examples",
    "Explanation",
    "HubModel",
    "Judged",
    "Judgement",
    "Kept",
    "LogWriter",
    "NewInput",
    "Offered",
    "Points",
    "ReadLog",
    "Record",
    "ReviewStore",
    "SDMModel",
    "Set",
    "StoredModel",
    "Stream",
    "acknowledged_version",
    "config_mark",
    "explain",
    "holds_model",
    "label_values_from_json",
    "label_values_to_json",
    "locate",
    "mapped_tensors",
    "model_card",
    "number_or_none",
    "outcome_to_bytes",
    "put_together",
    "read_changes",
    "read_checks",
    "read_config",
    "read_history",
    "read_model",
    "same_points",
    "saving",
    "take_apart",
    "take_outcome",
    "write_model",
    "write_numpy_export",
]
