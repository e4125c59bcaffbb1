"""What the command and the service share: open a saved model, read inputs, decide, and describe the result."""

from typing import TYPE_CHECKING, Any

from torchsdm.application.answers import check_output, decision_schema, example_row
from torchsdm.application.audit import audit_data
from torchsdm.application.check import ModelChecks, check_model, check_state, demoted_rows, offered_texts, stream_of
from torchsdm.application.describe import (
    calibration_examples,
    calibration_map,
    compile_here,
    describe_installation,
    describe_model,
    signal_histograms,
    standing,
    summary,
)
from torchsdm.application.embed import embed_documents
from torchsdm.application.evaluate import evaluate_model, export_model, report_model
from torchsdm.application.ledger_file import LedgerFile, keep_ledger_in_cache
from torchsdm.application.live_model import LiveModel, Snapshot
from torchsdm.application.requests import AnswerRequest, answer_requests, explain_inputs
from torchsdm.application.review import ReviewQueue
from torchsdm.application.saved_model import SavedModel, guard_state, open_guard, reset_guard, successor
from torchsdm.application.scoring import Scores, parts_of, score
from torchsdm.application.train import read_training_parts, train_model
from torchsdm.application.update import (
    ModelChange,
    ask_labels,
    certify_model,
    change_requests,
    choose_alpha,
    recalibrate_model,
    update_model,
)

if TYPE_CHECKING:
    from torchsdm.application.demo import run_demo

__all__ = [
    "AnswerRequest",
    "LedgerFile",
    "LiveModel",
    "ModelChange",
    "ModelChecks",
    "ReviewQueue",
    "SavedModel",
    "Scores",
    "Snapshot",
    "answer_requests",
    "ask_labels",
    "audit_data",
    "calibration_examples",
    "calibration_map",
    "certify_model",
    "change_requests",
    "check_model",
    "check_output",
    "check_state",
    "choose_alpha",
    "compile_here",
    "decision_schema",
    "demoted_rows",
    "describe_installation",
    "describe_model",
    "embed_documents",
    "evaluate_model",
    "example_row",
    "explain_inputs",
    "export_model",
    "guard_state",
    "keep_ledger_in_cache",
    "offered_texts",
    "open_guard",
    "parts_of",
    "read_training_parts",
    "recalibrate_model",
    "report_model",
    "reset_guard",
    "run_demo",
    "score",
    "signal_histograms",
    "standing",
    "stream_of",
    "successor",
    "summary",
    "train_model",
    "update_model",
]


def __getattr__(name: str) -> Any:
    """The demo, imported when it is used: it needs all of evaluation, which takes half a second."""
    if name != "run_demo":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchsdm.application.demo import run_demo

    return run_demo
