"""``sdm update``, ``sdm recalibrate`` and ``sdm certify``: change a saved model without training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchsdm.cli._options import (
    LanguageModel,
    ModelOutput,
    Signature,
    alpha_option,
    alpha_setting,
    column_options,
    json_option,
    language_model_options,
    model_output_options,
    open_live,
    say,
    signature_options,
)
from torchsdm.cli._words import change_lines, said_once, trust_lines
from torchsdm.errors import InvalidInputError
from torchsdm.settings import AUTO, CONTROLS, POLICIES

if TYPE_CHECKING:
    from torchsdm.application import Draft, LiveModel, SavedModel
    from torchsdm.data import Columns, LabelledStates
    from torchsdm.estimators import SDMClassifier, SDMEnsemble

OUTPUT_HELP = "Directory for the changed model. Default: MODEL itself, whose log then has the change."


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--add", metavar="FILE", help="Labelled texts or states to add to the support.")
@click.option("--add-calibration", metavar="FILE", help="Labelled texts or states to add to the calibration set.")
@click.option("--remove", multiple=True, metavar="ID", help="Remove an example, of any set; can be repeated.")
@click.option("--relabel", multiple=True, metavar="ID=LABEL", help="Change the label of an example; can be repeated.")
@click.option("--allow-new-labels", is_flag=True, help="Allow labels that look like a misspelt class.")
@click.option("--keep-repeated", is_flag=True, help="Add points even if the model has them already.")
@click.option(
    "--recalibrate/--no-recalibrate", default=True, show_default=True, help="Recompute the region afterwards."
)
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option("--force", is_flag=True, help="Write even if less than half of what was admitted would be.")
@model_output_options(OUTPUT_HELP)
@signature_options
@column_options
@language_model_options
@json_option
def update(
    model: str,
    add: str | None,
    add_calibration: str | None,
    remove: tuple[str, ...],
    relabel: tuple[str, ...],
    allow_new_labels: bool,
    keep_repeated: bool,
    recalibrate: bool,
    dry_run: bool,
    force: bool,
    output: ModelOutput,
    signature: Signature,
    columns: Columns,
    language_model: LanguageModel,
    as_json: bool,
) -> None:
    r"""Add, remove or relabel examples of a saved MODEL, without training.

    Examples are added to the support or to the calibration set; they are removed and relabelled in whichever set has
    them. A label outside the model's classes is allowed in the support: inputs near such an example lose similarity.
    What the change does to the share of admitted inputs is said before anything is written. If the share falls by more
    than half, nothing is.

    \b
    Examples:
      sdm update model --add checked.jsonl
      sdm update model --add some.jsonl --add-calibration others.jsonl --dry-run
      sdm update model --remove 1041 --relabel 977=positive -o corrected
    """
    if not (add or add_calibration or remove or relabel):
        raise InvalidInputError("Nothing to do: give --add, --add-calibration, --remove or --relabel.")
    target = output.path(model)
    relabelled = dict(map(_pair, relabel))
    if len(relabelled) < len(relabel):
        raise InvalidInputError("--relabel names an id twice.")
    from torchsdm.application import standing, summary
    from torchsdm.estimators import Recalibrate, Relabel, Remove

    live = language_model.open_live(model, writable=output.is_in_place(model) and not dry_run)
    draft, removed = live.draft(), dict.fromkeys(remove)
    classifier = draft.classifier
    before, known = standing(classifier), _known_ids(classifier)
    if removed:
        draft.apply(Remove([known.get(name, name) for name in removed]))
    if relabelled:
        labels = {str(one): one for one in classifier.classes_.tolist()}
        values = [labels.get(value, value) for value in relabelled.values()]
        _check_labels("--relabel", values, classifier, allow_new_labels)
        draft.apply(Relabel([known.get(name, name) for name in relabelled], values))
    counts = {"added": 0, "added_calibration": 0, "removed": len(removed), "relabelled": len(relabelled)}
    for what, file in (("added", add), ("added_calibration", add_calibration)):
        if file is not None:
            to = "calibration" if what == "added_calibration" else "support"
            counts[what] = _add(live, draft, file, columns, to, allow_new_labels, keep_repeated)
    if recalibrate:
        with said_once(classifier):
            draft.apply(Recalibrate())
    after = standing(classifier)
    if not as_json:  # before anything is written
        click.echo("\n".join([f"{model}: {_listed(counts)}", *change_lines(before, after, recalibrate)]))
    falls = recalibrate and _share(after) < _share(before) / 2
    if falls and not (force or dry_run):
        raise InvalidInputError(
            f"{target} was not written: {_share(after):.1%} would be admitted instead of {_share(before):.1%}. To "
            "write it all the same: --force."
        )
    if not dry_run:
        write(live, draft, target, output.is_in_place(model), signature)
    result = {**counts, **summary(classifier, target), "before": before, "after": after, "written": not dry_run}
    result["version"] = classifier.version_
    say(result, "\n".join([*_ending(target, dry_run, falls, result), *trust_lines(result)]), as_json)


@click.command()
@click.argument("model", metavar="MODEL")
@alpha_option("Target accuracy of admitted inputs; can be repeated. For one class with CLASS=, then for each.")
@click.option("--min-class-count", type=int, help="Calibration points per class that a region needs.")
@click.option("--policy", type=click.Choice(POLICIES), help="Change which lanes are admitted.")
@model_output_options(OUTPUT_HELP)
@signature_options
@json_option
def recalibrate(
    model: str,
    alphas: tuple[float | tuple[str, float], ...],
    min_class_count: int | None,
    policy: str | None,
    output: ModelOutput,
    signature: Signature,
    as_json: bool,
) -> None:
    r"""Recompute the region of a saved MODEL: for a different alpha, or after updates.

    If that changes the rule, it is also certified again, on the same certification sample: for the first alpha that is
    given, or else for that of the certificate.

    \b
    Examples:
      sdm recalibrate model --alpha 0.9 --alpha 0.95
      sdm recalibrate model --policy trusted
    """
    path = output.path(model)
    from torchsdm.application import summary
    from torchsdm.estimators import Recalibrate

    live = open_live(model, output.is_in_place(model))
    draft = live.draft()
    with said_once(draft.classifier):
        draft.apply(Recalibrate(alpha_setting(alphas, None), min_class_count, policy))
    write(live, draft, path, output.is_in_place(model), signature)
    result = {**summary(draft.classifier, path), "version": draft.classifier.version_}
    say(result, "\n".join(trust_lines(result)), as_json)


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="[DATA]", required=False)
@alpha_option("Accuracy to promise; for one class with CLASS=, then for each. Default: that of the last certificate.")
@click.option("--delta", type=float, help="Probability with which the promise may fail. Default: as in training.")
@click.option("--control", type=click.Choice([*CONTROLS, AUTO]), help="For whom it holds. Default: as in training.")
@model_output_options(OUTPUT_HELP)
@signature_options
@column_options
@language_model_options
@json_option
def certify(
    model: str,
    data: str | None,
    alphas: tuple[float | tuple[str, float], ...],
    delta: float | None,
    control: str | None,
    output: ModelOutput,
    signature: Signature,
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
    alpha = alpha_setting(alphas, None)
    if isinstance(alpha, list):
        raise InvalidInputError("A certificate has one --alpha, or one for each class with CLASS=.")
    path = output.path(model)
    from torchsdm.application import summary
    from torchsdm.estimators import Certify, SDMClassifier

    live = language_model.open_live(model, writable=output.is_in_place(model))
    draft = live.draft()
    if not isinstance(draft.classifier, SDMClassifier):
        raise InvalidInputError(f"{model} is an ensemble, which is not certified.")
    given = None if data is None else labelled_data(live.snapshot.saved, data, columns)
    with said_once(draft.classifier):
        draft.apply(Certify(given, alpha, delta, control))
    write(live, draft, path, output.is_in_place(model), signature)
    result = {**summary(draft.classifier, path), "version": draft.classifier.version_}
    say(result, "\n".join(trust_lines(result)), as_json)


def write(live: LiveModel, draft: Draft, target: Path, in_place: bool, signature: Signature) -> None:
    """Write changes that were tried: into the model's log, or as a model of its own elsewhere."""
    with live:
        if in_place:
            live.commit(draft, **signature.said())
        else:
            draft.classifier.save(target)


def _add(
    live: LiveModel,
    draft: Draft,
    file: str,
    columns: Columns,
    to: str,
    allow_new_labels: bool,
    keep_repeated: bool,
) -> int:
    """Add the examples of a file; ids and labels are checked before a language model runs. Returns how many."""
    from torchsdm.estimators import Add

    classifier = draft.classifier
    known = _known_ids(classifier)

    def check(labels: list[Any], ids: list[Any]) -> None:
        clash = next((name for name in _new_ids(ids, known) or [] if str(name) in known), None)
        if clash is not None:
            raise InvalidInputError(f"{file}: the 'ids' must be new, but the model has {clash!r} already.")
        _check_labels(file, labels, classifier, allow_new_labels, only_classes=to == "calibration")

    data = live.snapshot.saved.labelled(file, columns, check)
    draft.apply(Add(replace(data, ids=_new_ids(data.ids, known)), to, "keep" if keep_repeated else "refuse"))
    return len(data)


def _check_labels(
    where: str,
    labels: list[Any],
    classifier: SDMClassifier | SDMEnsemble,
    allow_new_labels: bool,
    *,
    only_classes: bool = False,
) -> None:
    """Refuse a label that looks like a misspelt class, and, in a calibration set, one that is no class."""
    from torchsdm.labels import near_misses

    classes = classifier.classes_.tolist()
    for label, alike in near_misses(labels, classes).items():
        if only_classes or not allow_new_labels:
            outside = "" if only_classes else ", or, if it is none of the classes, give --allow-new-labels"
            raise InvalidInputError(
                f"{where}: the label {label!r}, in {labels.count(label)} of {len(labels)} rows, looks like the class "
                f"{alike!r}. Correct it{outside}."
            )
    strange = next((label for label in labels if label not in classes), None)
    if only_classes and strange is not None:
        raise InvalidInputError(
            f"{where}: {strange!r} is not a class of the model. Labels outside the classes are for the support: --add."
        )


def _share(standing: dict[str, Any]) -> float:
    """The share of inputs that a model admits, as far as it can tell."""
    share: float = standing["region_share"] if standing["admitted_share"] is None else standing["admitted_share"]
    return share


def _listed(counts: dict[str, int]) -> str:
    words = {"added": "added to the support", "added_calibration": "added to the calibration set"}
    return ", ".join(f"{n} {words.get(what, what)}" for what, n in counts.items() if n) + "."


def _ending(target: Path, is_dry_run: bool, falls: bool, result: dict[str, Any]) -> list[str]:
    """What became of an update."""
    if not is_dry_run:
        version = f", as version {result['version']}" if result["version"] else ""
        return [f"Written to {target}{version}."]
    look = result["certificate"] is not None and result["n_certification"]
    return [
        "Nothing was written." + (" Without --force nothing would be." if falls else ""),
        *(["Who chooses between updates by the certification sample spends a delta on each."] if look else []),
    ]


def labelled_data(saved: SavedModel, source: str, columns: Columns) -> LabelledStates:
    """New labelled data for a saved model, with ids that are not in use."""
    from torchsdm.data import join_states

    data = join_states(list(saved.blocks(source, columns, needs_labels=True)))
    return replace(data, ids=_new_ids(data.ids, _known_ids(saved.classifier)))


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.rpartition("=")
    if not separator or not name or not value:
        raise InvalidInputError(f"--relabel takes ID=LABEL. Got {text!r}.")
    return name, value


def _known_ids(classifier: SDMClassifier | SDMEnsemble) -> dict[str, Any]:
    """The ids of all sets of a model, by how they are written."""
    return {str(name): name for one in classifier.models_ for name in one.known_ids()}


def _new_ids(ids: Any, known: dict[str, Any]) -> list[Any] | None:
    """Ids of added examples; None, to assign new ones, if rows were merely numbered and the numbers are taken."""
    names = list(ids)
    is_numbered = names == list(range(len(names)))
    return None if is_numbered and any(str(name) in known for name in names) else names
