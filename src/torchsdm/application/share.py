"""Give a saved model away: as a report to read, or as a folder that decides with NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsdm.application.certify import check_prices
from torchsdm.application.evaluate import evaluate_model
from torchsdm.application.saved_model import SavedModel
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import SDMClassifier, load_classifier

if TYPE_CHECKING:
    from torchsdm.evaluation import Evaluation


def report_model(
    saved: SavedModel,
    data: Sequence[str],
    output: Path,
    *,
    title: str | None = None,
    texts: bool = True,
    cost_error: Any = None,
    cost_review: float | None = None,
    **compared: Any,
) -> Evaluation:
    """Write the HTML report on a model and data, which are evaluated as ``evaluate_model`` does."""
    from torchsdm.evaluation import write_report

    prices = None
    if cost_error is not None or cost_review is not None:
        if cost_error is None or cost_review is None:
            raise InvalidInputError("'cost_error' and 'cost_review' go together: give both, or neither.")
        if not isinstance(saved.classifier, SDMClassifier):
            raise InvalidInputError(f"{saved.path} is an ensemble, which has no alpha to choose. Leave out the prices.")
        check_prices(saved.classifier, cost_error, cost_review)  # before texts are read
        prices = {"cost_error": cost_error, "cost_review": cost_review}
    evaluation = evaluate_model(saved, data, alpha=None, estimators=(), **compared)
    title = title or f"Evaluation of {saved.path}"
    write_report(output.resolve(), evaluation, saved.classifier, title=title, texts=texts, prices=prices)
    return evaluation


def export_model(model: Path, output: Path) -> dict[str, int]:
    """Write a model as a folder that decides with NumPy alone; the sizes of its files."""
    classifier = load_classifier(model)
    if not isinstance(classifier, SDMClassifier):
        raise InvalidInputError(f"{model} is an ensemble, which cannot be exported. Train a single classifier.")
    classifier.export_numpy(output)
    return {path.name: path.stat().st_size for path in sorted(output.glob("sdm_*"))}
