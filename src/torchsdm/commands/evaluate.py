"""``sdm evaluate``: the paper's table of a saved model on labelled data."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from torchsdm.commands.inputs import Columns, SavedModel
from torchsdm.commands.options import column_options, json_option, language_model_options
from torchsdm.commands.training_data import read_training
from torchsdm.comparison import classifier_entrants, paper_entrants
from torchsdm.data import LabelledStates, join_states
from torchsdm.ensemble import SDMEnsemble
from torchsdm.errors import InvalidInputError
from torchsdm.estimator import SDMClassifier
from torchsdm.evaluation import Entrant, Evaluation

_TRAINED = ("language model", "cnn", "vbll", "today")  # groups that need the training data
FORMATS = ("text", "markdown", "latex", "csv", "json")


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="[NAME=]DATA...", nargs=-1, required=True)
@click.option("-a", "--alpha", type=float, help="Default: the model's; of several the first.")
@click.option("-e", "--estimator", "estimators", multiple=True, help="Estimators by name or part of it. Default: all.")
@click.option(
    "--training", metavar="FILE", help="Training data, for estimators that are trained: cnn, vbll and others."
)
@click.option("--groups", default="cnn,vbll,today", show_default=True, help="Which of them, with commas.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--intervals", is_flag=True, help="Also give 95 % intervals.")
@column_options
@language_model_options
@json_option
def evaluate(
    model: str,
    data: tuple[str, ...],
    alpha: float | None,
    estimators: tuple[str, ...],
    training: str | None,
    groups: str,
    form: str,
    intervals: bool,
    text: str,
    label: str | None,
    id_: str | None,
    answer: str | None,
    states: str,
    language_model: str | None,
    device: str | None,
    batch_tokens: int,
    as_json: bool,
) -> None:
    r"""Print accuracy among the admitted, and the admitted share, of a saved MODEL on labelled DATA.

    Beside the region of MODEL stand estimators over the same logits: softmax and temperature thresholds, APS and RAPS.
    With --training, others are trained on the data that MODEL was trained on. The first DATA should be in distribution.

    \b
    Examples:
      sdm evaluate model test.jsonl tweets=tweets.csv
      sdm evaluate model test.jsonl --estimator softmax --estimator SDM_HR --format markdown
    """
    saved = SavedModel.load(model, language_model=language_model, device=device, batch_tokens=batch_tokens)
    columns = Columns(text, label, id_, answer, states)
    evaluation = evaluate_model(saved, data, columns, alpha, estimators, training, groups)
    table = evaluation.table
    if as_json or form == "json":
        click.echo(table.to_json())
    elif form == "csv":
        click.echo(table.to_csv(), nl=False)
    else:
        writers: dict[str, Any] = {"text": table.to_text, "markdown": table.to_markdown, "latex": table.to_latex}
        click.echo(writers[form](intervals=intervals))


def evaluate_model(
    saved: SavedModel,
    data: Sequence[str],
    columns: Columns,
    alpha: float | None,
    estimators: Sequence[str],
    training: str | None,
    groups: str,
) -> Evaluation:
    """The evaluation of a saved model, beside other estimators, on data given as PATH or NAME=PATH."""
    sets = dict(_named(one) for one in data)
    if len(sets) < len(data):
        raise InvalidInputError("Two data sets have one name. Give them names: NAME=DATA.")
    classifier = saved.classifier
    if alpha is not None or len(classifier.models_[0].calibration.regions) > 1:
        classifier = copy.copy(classifier)
        first = classifier.models_[0].calibration.regions[0].alpha
        classifier.recalibrate(alpha if alpha is not None else first)
    wanted = groups.split(",")
    if training is not None:
        _check_groups(classifier, wanted)
    states = {name: join_states(list(saved.blocks(path, columns, needs_labels=True))) for name, path in sets.items()}
    _check_labels(states, classifier.classes_.tolist())
    chosen_alpha = classifier.models_[0].calibration.regions[0].alpha
    name = _language_model_name(saved)
    entrants = classifier_entrants(classifier, name=name)
    if training is not None:
        extractor = None if saved.text_classifier is None else saved.text_classifier.checked_extractor()
        entrants += paper_entrants(read_training(training, columns, extractor), classifier, groups=wanted, name=name)
    entrants = _chosen(entrants, estimators)
    return Evaluation(entrants, states, chosen_alpha, {"model": str(saved.path)})


def _named(text: str) -> tuple[str, str]:
    """NAME=PATH, or a path whose name is the data set's."""
    name, separator, path = text.partition("=")
    if separator and name and not Path(text).exists():
        return name, path
    return ("standard input" if text == "-" else Path(text).name.partition(".")[0] or text), text


def _check_groups(classifier: SDMClassifier | SDMEnsemble, groups: Sequence[str]) -> None:
    if isinstance(classifier, SDMEnsemble):
        raise InvalidInputError("--training is for a single classifier; an ensemble is compared by its own rule.")
    for group in groups:
        if group not in _TRAINED:
            raise InvalidInputError(f"--groups takes {', '.join(_TRAINED)}. Got {group!r}.")


def _chosen(entrants: list[Entrant], names: Sequence[str]) -> list[Entrant]:
    if not names:
        return entrants
    for name in names:
        if not any(name.lower() in f"{entrant.model} {entrant.name}".lower() for entrant in entrants):
            known = ", ".join(dict.fromkeys(entrant.name for entrant in entrants))
            raise InvalidInputError(f"--estimator {name!r} is none of: {known}.")
    return [
        entrant
        for entrant in entrants
        if any(name.lower() in f"{entrant.model} {entrant.name}".lower() for name in names)
    ]


def _check_labels(states: dict[str, LabelledStates], classes: list[Any]) -> None:
    """Labels that the model does not know cannot be got right: say so before anything is computed."""
    for name, data in states.items():
        for row, label in enumerate(data.labels if data.labels is not None else []):
            value = label.item() if hasattr(label, "item") else label
            if value not in classes:
                place = "" if data.ids is None else f" (id {data.ids[row]!r})"
                raise InvalidInputError(
                    f"{name}, row {row + 1}{place}: the label {value!r} is none of the model's: {classes!r}."
                )


def _language_model_name(saved: SavedModel) -> str:
    origin = saved.classifier.states_origin_
    reference = None if origin is None else origin["model"]["reference"]
    return "states" if reference is None else Path(str(reference).rpartition(":")[2]).name
