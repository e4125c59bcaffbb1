"""Models on disk: the directory, its examples, the model card, the hub, and an export that needs NumPy alone."""

from torchsdm.storage.card import model_card
from torchsdm.storage.changes import (
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
from torchsdm.storage.directory import (
    CONFIG_NAME,
    StoredModel,
    config_mark,
    holds_model,
    label_values_from_json,
    label_values_to_json,
    mapped_tensors,
    read_config,
    read_model,
    stored_kind,
    write_model,
)
from torchsdm.storage.hub import HubModel
from torchsdm.storage.log_writer import LogWriter, login_name, saving
from torchsdm.storage.model_files import load_model_parts, model_parts, outcome_to_bytes, take_outcome
from torchsdm.storage.numpy_export import write_numpy_export
from torchsdm.storage.review import Judged, NewInput, ReviewStore

__all__ = [
    "CHANGES",
    "CONFIG_NAME",
    "COSTLY",
    "GUARD_RESET",
    "UNDO",
    "Change",
    "Entry",
    "HubModel",
    "Judged",
    "LogWriter",
    "NewInput",
    "ReadLog",
    "Record",
    "ReviewStore",
    "StoredModel",
    "acknowledged_version",
    "config_mark",
    "holds_model",
    "label_values_from_json",
    "label_values_to_json",
    "load_model_parts",
    "login_name",
    "mapped_tensors",
    "model_card",
    "model_parts",
    "outcome_to_bytes",
    "read_changes",
    "read_config",
    "read_history",
    "read_model",
    "saving",
    "stored_kind",
    "take_outcome",
    "write_model",
    "write_numpy_export",
]
