"""Certify a saved model again: on new data, for another alpha, or for the alpha that costs least."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchsdm.application.describe import summary
from torchsdm.application.update import ModelChange, new_examples
from torchsdm.data import Columns
from torchsdm.estimators import Certify, SDMClassifier
from torchsdm.labels import by_class
from torchsdm.model import CERTIFICATION
from torchsdm.trust import Prices


def certify_model(
    model: str | Path,
    data: str | None = None,
    *,
    alpha: float | Mapping[Any, float] | None = None,
    delta: float | None = None,
    control: str | None = None,
    columns: Columns = Columns(),  # noqa: B008  # frozen
    **writing: Any,
) -> dict[str, Any]:
    """Certify with new labelled data or on the same sample; see ``SDMClassifier.recertify`` and ``ModelChange``."""
    change = ModelChange(model, **writing)
    classifier = change.single()
    given = None if data is None else new_examples(change.saved, data, columns, classifier, CERTIFICATION)
    change.apply(Certify(given, alpha, delta, control))
    return change.write()


def choose_alpha(
    model: str | Path,
    data: str | None = None,
    *,
    cost_error: Any,
    cost_review: float,
    dry_run: bool = False,
    columns: Columns = Columns(),  # noqa: B008  # frozen
    **writing: Any,
) -> dict[str, Any]:
    """Choose the alpha that costs least and certify it, on new data if there are any; see ``ModelChange``.

    The model stays as it is if no alpha pays, or none will probably be certified.
    """
    change = ModelChange(model, dry_run=dry_run, **writing)
    classifier = change.single()
    check_prices(classifier, cost_error, cost_review)  # before texts are read
    given = None if data is None else new_examples(change.saved, data, columns, classifier, CERTIFICATION)
    n = None if given is None else len(given)
    choice = classifier.choose_alpha(cost_error=cost_error, cost_review=cost_review, n_certification=n)
    if choice.pays and not dry_run:
        change.apply(Certify(given, choice.alpha))
        return {**change.write(), "choice": choice.to_json()}
    change.live.close()
    facts = {**summary(classifier, Path(model)), "version": classifier.version_, "written": False}
    return {**facts, "choice": choice.to_json()}


def check_prices(classifier: SDMClassifier, cost_error: Any, cost_review: float) -> None:
    """Refuse what ``SDMClassifier.choose_alpha`` would refuse."""
    classes = classifier.classes_
    error = (
        by_class(cost_error, classes, "cost_error", "choose_alpha") if isinstance(cost_error, Mapping) else cost_error
    )
    Prices.of(error, cost_review, len(classes), "choose_alpha")
