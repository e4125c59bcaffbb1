"""Models on disk: the directory, its examples, the model card, the hub, and an export that needs NumPy alone."""

from torchsdm.storage.card import model_card
from torchsdm.storage.directory import (
    CONFIG_NAME,
    StoredModel,
    holds_model,
    label_values_from_json,
    label_values_to_json,
    read_model,
    stored_kind,
    write_model,
)
from torchsdm.storage.examples import StoredExamples
from torchsdm.storage.hub import HubModel
from torchsdm.storage.model_files import load_model_parts, model_parts
from torchsdm.storage.numpy_export import write_numpy_export
from torchsdm.storage.review import Judged, NewInput, ReviewStore

__all__ = [
    "CONFIG_NAME",
    "HubModel",
    "Judged",
    "NewInput",
    "ReviewStore",
    "StoredExamples",
    "StoredModel",
    "holds_model",
    "label_values_from_json",
    "label_values_to_json",
    "load_model_parts",
    "model_card",
    "model_parts",
    "read_model",
    "stored_kind",
    "write_model",
    "write_numpy_export",
]
