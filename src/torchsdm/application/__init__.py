"""What the command and the service share: open a saved model, read inputs, decide, and describe the result."""

from torchsdm.application.answers import (
    answer_rows,
    decision_schema,
    example_row,
    given_block,
    ids_and_texts,
    readable_block,
    selected,
    with_rejected,
)
from torchsdm.application.evaluate import evaluate_model
from torchsdm.application.guards import guard_state, open_guard
from torchsdm.application.inputs import checked, open_documents, readable
from torchsdm.application.live_model import LiveModel, Snapshot, Staged
from torchsdm.application.outputs import check_output_format, write_rows
from torchsdm.application.saved_model import SavedModel
from torchsdm.application.summaries import standing, summary
from torchsdm.application.training import read_training, read_training_parts

__all__ = [
    "LiveModel",
    "SavedModel",
    "Snapshot",
    "Staged",
    "answer_rows",
    "check_output_format",
    "checked",
    "decision_schema",
    "evaluate_model",
    "example_row",
    "given_block",
    "guard_state",
    "ids_and_texts",
    "open_documents",
    "open_guard",
    "read_training",
    "read_training_parts",
    "readable",
    "readable_block",
    "selected",
    "standing",
    "summary",
    "with_rejected",
    "write_rows",
]
