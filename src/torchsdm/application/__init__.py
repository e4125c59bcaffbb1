"""What the command and the service share: open a saved model, read inputs, decide, and describe the result."""

from torchsdm.application.answers import (
    answer_rows,
    decision_schema,
    given_block,
    ids_and_texts,
    selected,
)
from torchsdm.application.evaluate import evaluate_model
from torchsdm.application.inputs import Columns, checked, open_documents, readable
from torchsdm.application.outputs import check_output_format, write_rows
from torchsdm.application.saved_model import SavedModel
from torchsdm.application.summaries import region_lines, summary
from torchsdm.application.training import read_training

__all__ = [
    "Columns",
    "SavedModel",
    "answer_rows",
    "check_output_format",
    "checked",
    "decision_schema",
    "evaluate_model",
    "given_block",
    "ids_and_texts",
    "open_documents",
    "read_training",
    "readable",
    "region_lines",
    "selected",
    "summary",
    "write_rows",
]
