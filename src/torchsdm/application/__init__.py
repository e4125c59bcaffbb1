"""What the command and the service share: open a saved model, read inputs, decide, and describe the result."""

from torchsdm.application.evaluate import evaluate_model
from torchsdm.application.inputs import checked, open_documents, readable
from torchsdm.application.saved_model import SavedModel
from torchsdm.application.summaries import summary
from torchsdm.application.training import read_training

__all__ = [
    "SavedModel",
    "checked",
    "evaluate_model",
    "open_documents",
    "read_training",
    "readable",
    "summary",
]
