"""``sdm update``, ``sdm recalibrate`` and ``sdm certify``: change a saved model without training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchsdm.choices import CONTROLS, POLICIES
from torchsdm.cli._options import LanguageModel, column_options, json_option, language_model_options, output_option, say
from torchsdm.cli._words import trust_lines
from torchsdm.columns import Columns
from torchsdm.errors import InvalidInputError

if TYPE_CHECKING:
    from torchsdm.application import SavedModel
    from torchsdm.states import LabelledStates


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--add", metavar="FILE", help="Labelled texts or states to add to the support.")
@click.option("--remove", multiple=True, metavar="ID", help="Remove an example from the support; can be repeated.")
@click.option("--relabel", multiple=True, metavar="ID=LABEL", help="Change the label of an example; can be repeated.")
@click.option(
    "--recalibrate/--no-recalibrate", default=True, show_default=True, help="Recompute the region afterwards."
)
@output_option("Directory for the changed model. Default: MODEL itself, replaced atomically.")
@column_options
@language_model_options
@json_option
def update(
    model: str,
    add: str | None,
    remove: tuple[str, ...],
    relabel: tuple[str, ...],
    recalibrate: bool,
    output: Path | None,
    columns: Columns,
    language_model: LanguageModel,
    as_json: bool,
) -> None:
    r"""Add, remove or relabel examples in the support of a saved MODEL, without training.

    A label outside the model's classes is allowed: inputs near such an example lose similarity.

    \b
    Examples:
      sdm update model --add checked.jsonl
      sdm update model --remove 1041 --relabel 977=positive -o corrected
    """
    if add is None and not remove and not relabel:
        raise InvalidInputError("Nothing to do: give --add, --remove or --relabel.")
    from torchsdm.application import summary
    from torchsdm.states import join_states

    saved = language_model.open(model)
    classifier = saved.classifier
    removed, relabelled = dict.fromkeys(remove), dict(map(_pair, relabel))
    if len(relabelled) < len(relabel):
        raise InvalidInputError("--relabel names an id twice.")
    counts = {"added": 0, "removed": len(removed), "relabelled": len(relabelled)}
    known = {str(name): name for one in classifier.models_ for name in one.examples.ids()}
    if removed:
        classifier.remove_exemplars([known.get(name, name) for name in removed])
    if relabelled:
        labels = {str(one): one for one in classifier.classes_.tolist()}
        classifier.relabel_exemplars(
            [known.get(name, name) for name in relabelled], [labels.get(value, value) for value in relabelled.values()]
        )
    if add is not None:
        data = join_states(list(saved.blocks(add, columns, needs_labels=True)))
        taken = {str(name): name for one in classifier.models_ for name in one.known_ids()}
        classifier.add_exemplars(
            data.hidden_states,
            [] if data.labels is None else data.labels,
            ids=_new_ids(data.ids, taken),
            texts=data.texts,
        )
        counts["added"] = len(data)
    if recalibrate:
        classifier.recalibrate()
    classifier.save(output or model)
    result = {**counts, **summary(classifier, Path(output or model))}
    done = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    say(
        result,
        "\n".join([f"{output or model}: {done}; {result['n_support']} in the support.", *trust_lines(result)]),
        as_json,
    )


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "-a", "--alpha", "alphas", multiple=True, type=float, help="Target accuracy of admitted inputs; can be repeated."
)
@click.option("--min-class-count", type=int, help="Calibration points per class that a region needs.")
@click.option("--policy", type=click.Choice(POLICIES), help="Change which lanes are admitted.")
@output_option("Directory for the changed model. Default: MODEL itself, replaced atomically.")
@json_option
def recalibrate(
    model: str,
    alphas: tuple[float, ...],
    min_class_count: int | None,
    policy: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    r"""Recompute the region of a saved MODEL: for a different alpha, or after updates.

    If that changes the rule, it is also certified again, for the first alpha, on the same certification sample.

    \b
    Examples:
      sdm recalibrate model --alpha 0.9 --alpha 0.95
      sdm recalibrate model --policy trusted
    """
    from torchsdm.application import SavedModel, summary

    saved = SavedModel.load(model)
    alpha: Any = None if not alphas else alphas[0] if len(alphas) == 1 else list(alphas)
    if policy is not None:
        saved.classifier.set_params(policy=policy)
    saved.classifier.recalibrate(alpha, min_class_count=min_class_count)
    saved.classifier.save(output or model)
    result = summary(saved.classifier, Path(output or model))
    say(result, "\n".join(trust_lines(result)), as_json)


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="[DATA]", required=False)
@click.option("-a", "--alpha", type=float, help="Accuracy to promise. Default: that of the last certificate.")
@click.option("--delta", type=float, help="Probability with which the promise may fail. Default: as in training.")
@click.option("--control", type=click.Choice(CONTROLS), help="For whom it holds. Default: as in training.")
@output_option("Directory for the changed model. Default: MODEL itself, replaced atomically.")
@column_options
@language_model_options
@json_option
def certify(
    model: str,
    data: str | None,
    alpha: float | None,
    delta: float | None,
    control: str | None,
    output: Path | None,
    columns: Columns,
    language_model: LanguageModel,
    as_json: bool,
) -> None:
    r"""Certify a saved MODEL again, with new labelled DATA that nothing else has seen.

    Without DATA, the same certification sample is used once more, for another alpha, delta or control. That is a second
    chance to be wrong: a warning says what is left of the promise.

    \b
    Examples:
      sdm certify model checked.jsonl
      sdm certify model checked.jsonl --alpha 0.9 --control predictions
    """
    from torchsdm.application import summary
    from torchsdm.estimators import SDMClassifier

    saved = language_model.open(model)
    classifier = saved.classifier
    if not isinstance(classifier, SDMClassifier):
        raise InvalidInputError(f"{model} is an ensemble, which is not certified.")
    given = None if data is None else labelled_data(saved, data, columns)
    classifier.set_params(**{k: v for k, v in {"delta": delta, "control": control}.items() if v is not None})
    classifier.recertify(given, alpha=alpha)
    classifier.save(output or model)
    result = summary(classifier, Path(output or model))
    say(result, "\n".join(trust_lines(result)), as_json)


def labelled_data(saved: SavedModel, source: str, columns: Columns) -> LabelledStates:
    """New labelled data for a saved model, with ids that are not in use."""
    from torchsdm.states import join_states

    data = join_states(list(saved.blocks(source, columns, needs_labels=True)))
    known = {str(name): name for one in saved.classifier.models_ for name in one.known_ids()}
    return replace(data, ids=_new_ids(data.ids, known))


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.rpartition("=")
    if not separator or not name or not value:
        raise InvalidInputError(f"--relabel takes ID=LABEL. Got {text!r}.")
    return name, value


def _new_ids(ids: Any, known: dict[str, Any]) -> list[Any] | None:
    """Ids of added examples; None, to assign new ones, if rows were merely numbered and the numbers are taken."""
    names = list(ids)
    is_numbered = names == list(range(len(names)))
    return None if is_numbered and any(str(name) in known for name in names) else names
