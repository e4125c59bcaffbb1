"""What the command and the service share: open a saved model, read inputs, decide, and describe the result."""

from typing import TYPE_CHECKING, Any

from torchsdm.application.answers import (
    answer_rows,
    decision_schema,
    example_row,
    explain_inputs,
    given_block,
    with_rejected,
)
from torchsdm.application.embed import embed_documents
from torchsdm.application.evaluate import evaluate_model
from torchsdm.application.guards import continued_guard, guard_state, open_guard, successor
from torchsdm.application.inspection import calibration_examples, calibration_map, signal_histograms
from torchsdm.application.live_model import Draft, LiveModel, Snapshot
from torchsdm.application.outputs import check_output, write_rows
from torchsdm.application.plain_changes import change_requests
from torchsdm.application.requests import AnswerRequest, answer_requests
from torchsdm.application.review import ReviewQueue
from torchsdm.application.saved_model import SavedModel
from torchsdm.application.scoring import Scores, parts_of, remove_finished, score, score_blocks
from torchsdm.application.summaries import standing, summary
from torchsdm.application.training import read_training, read_training_parts

if TYPE_CHECKING:
    from torchsdm.application.demo import run_demo

__all__ = [
    "AnswerRequest",
    "Draft",
    "LiveModel",
    "ReviewQueue",
    "SavedModel",
    "Scores",
    "Snapshot",
    "answer_requests",
    "answer_rows",
    "calibration_examples",
    "calibration_map",
    "change_requests",
    "check_output",
    "continued_guard",
    "decision_schema",
    "embed_documents",
    "evaluate_model",
    "example_row",
    "explain_inputs",
    "given_block",
    "guard_state",
    "open_guard",
    "parts_of",
    "read_training",
    "read_training_parts",
    "remove_finished",
    "run_demo",
    "score",
    "score_blocks",
    "signal_histograms",
    "standing",
    "successor",
    "summary",
    "with_rejected",
    "write_rows",
]


def __getattr__(name: str) -> Any:
    """The demo, imported when it is used: it needs all of evaluation, which takes half a second."""
    if name != "run_demo":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchsdm.application.demo import run_demo

    return run_demo
