"""The verbs that change a saved model without training, list its changes, and undo them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchsdm.cli import options
from torchsdm.cli._words import change_lines, trust_lines
from torchsdm.cli.options import say
from torchsdm.errors import InvalidInputError
from torchsdm.settings import AUTO, CONTROLS, POLICIES
from torchsdm.wording import counted

if TYPE_CHECKING:
    from torchsdm.model import Change


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--add", metavar="FILE", help="Labelled texts or states to add to the support.")
@click.option("--add-calibration", metavar="FILE", help="Labelled texts or states to add to the calibration set.")
@click.option("--remove", multiple=True, metavar="ID", help="Remove an example, of any set; can be repeated.")
@click.option(
    "--relabel",
    multiple=True,
    callback=lambda context, option, values: _pairs(values),
    metavar="ID=LABEL",
    help="Change the label of an example; can be repeated.",
)
@click.option("--allow-new-labels", is_flag=True, help="Allow labels outside the classes, in the support.")
@click.option("--keep-repeated", is_flag=True, help="Add points even if the model has them already.")
@click.option("--recalibrate/--no-recalibrate", default=True, help="Recompute the region afterwards.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option("--force", is_flag=True, help="Write even if less than half as much would be admitted.")
@options.writing
@options.columns
@options.language_model
@options.as_json
def update(model: str, language_model: dict[str, Any], as_json: bool, **asked: Any) -> None:
    r"""Add, remove or relabel examples of a saved MODEL, without training.

    Examples are added to the support or to the calibration set; they are removed and relabelled in whichever set has
    them. With --allow-new-labels, an example of the support may have a label outside the model's classes: inputs near
    it lose similarity. Before anything is written, the command prints what the change does to the share of admitted
    inputs. If the share falls by more than half, nothing is written without --force.

    \b
    Examples:
      sdm update model --add checked.jsonl
      sdm update model --add some.jsonl --add-calibration others.jsonl --dry-run
      sdm update model --remove 1041 --relabel 977=positive -o corrected
    """
    if not any(asked[what] for what in ("add", "add_calibration", "remove", "relabel")):
        raise InvalidInputError("Nothing to do: give --add, --add-calibration, --remove or --relabel.")
    from torchsdm.application import keep_ledger_in_cache, update_model

    keep_ledger_in_cache()

    def show(result: dict[str, Any]) -> None:
        if not as_json:
            lines = change_lines(result["before"], result["after"], asked["recalibrate"])
            click.echo("\n".join([f"{model}: {_counts(result)}", *lines]))

    result = update_model(model, show=show, language_model=language_model, **asked)
    say(result, "\n".join([*_ending(result), *trust_lines(result)]), as_json)


@click.command()
@click.argument("model", metavar="MODEL")
@options.alpha(
    several=True,
    help="Target accuracy of admitted inputs; can be repeated. With CLASS=, for one class; then name every class.",
)
@click.option("--min-class-count", type=int, help="Calibration points per class that a region needs.")
@click.option("--policy", type=click.Choice(POLICIES), help="Change which lanes are admitted.")
@options.writing
@options.as_json
def recalibrate(model: str, as_json: bool, **asked: Any) -> None:
    r"""Recompute the region of a saved MODEL: for a different alpha, or after updates.

    If that changes the rule, it is also certified again, on the same certification sample: for the first alpha that is
    given, or else for that of the certificate.

    \b
    Examples:
      sdm recalibrate model --alpha 0.9 --alpha 0.95
      sdm recalibrate model --policy trusted
    """
    from torchsdm.application import keep_ledger_in_cache, recalibrate_model

    keep_ledger_in_cache()
    result = recalibrate_model(model, **asked)
    say(result, "\n".join(trust_lines(result)), as_json)


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="[DATA]", required=False)
@options.alpha(
    help="Accuracy to guarantee. With CLASS=, for one class; then name every class. Default: as last certified."
)
@click.option("--delta", type=float, help="Probability with which the guarantee may fail. Default: as in training.")
@click.option(
    "--control", type=click.Choice([*CONTROLS, AUTO]), help="What the guarantee covers. Default: as in training."
)
@click.option(
    "--ask",
    type=int,
    is_eager=True,
    metavar="N",
    help="Draw from DATA, which needs no labels, about N inputs to label, and write them to --output, a file.",
)
@click.option("--seed", type=int, help="Of --ask: the same seed draws the same inputs.")
@options.writing
@options.columns
@options.language_model
@options.as_json
def certify(
    model: str, language_model: dict[str, Any], as_json: bool, ask: int | None, seed: int | None, **asked: Any
) -> None:
    r"""Certify a saved MODEL again, with new labelled DATA that nothing else has seen.

    Without DATA, the same certification sample is used once more, for another alpha, delta or control. That is a second
    chance to be wrong: a warning says what is left of the promise.

    With --ask, DATA needs no labels: a random part of it is drawn, and of this only what a rule with a chance could
    admit is written to --output to be labelled (.jsonl, .csv or .parquet). Fill in every "label", with ? where nobody
    can tell, which counts as an error, and give the file as DATA. What else belongs to it is in a file beside it.

    \b
    Examples:
      sdm certify model checked.jsonl
      sdm certify model checked.jsonl --alpha 0.9 --control predictions
      sdm certify model new.jsonl --ask 200 -o to-label.jsonl
      sdm certify model to-label.jsonl
    """
    from torchsdm.application import ask_labels, certify_model, keep_ledger_in_cache

    keep_ledger_in_cache()
    if ask is not None:
        if asked["data"] is None or asked["output"] is None:
            raise InvalidInputError("--ask draws from DATA and writes a file: give DATA, and --output FILE.")
        terms = {name: asked[name] for name in ("alpha", "delta", "control", "columns")}
        drawn = ask_labels(
            model, asked["data"], asked["output"], ask, seed=seed, language_model=language_model, **terms
        )
        say(drawn, _asked(drawn), as_json)
        return
    result = certify_model(model, language_model=language_model, **asked)
    say(result, "\n".join(trust_lines(result)), as_json)


def _asked(drawn: dict[str, Any]) -> str:
    n, of = counted(drawn["n_to_label"], "input"), counted(drawn["n_drawn"], "input")
    return (
        f"{drawn['output']}: {n} to label, of {of} drawn; the others could hardly be admitted and need no label.\n"
        f"Fill in every label (? if nobody can tell), then: sdm certify {drawn['model']} {drawn['output']}"
    )


def _counts(result: dict[str, Any]) -> str:
    words = {"added": "added to the support", "added_calibration": "added to the calibration set"}
    words |= {"removed": "removed", "relabelled": "relabelled"}
    return ", ".join(f"{result[what]} {said}" for what, said in words.items() if result[what]) + "."


def _ending(result: dict[str, Any]) -> list[str]:
    if result["written"]:
        version = f", as version {result['version']}" if result["version"] else ""
        return [f"Written to {result['model']}{version}."]
    lines = ["Nothing was written." + (" Writing this change takes --force." if result["needs_force"] else "")]
    if result["certificate"] is not None and result["n_certification"]:
        lines.append("Each look at the certification sample costs one delta.")
    return lines


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for one in given:
        name, _, label = one.rpartition("=")
        if not name or not label:
            raise InvalidInputError(f"--relabel takes ID=LABEL. Got {one!r}.")
        if name in pairs:
            raise InvalidInputError("--relabel names an id twice.")
        pairs[name] = label
    return pairs


_FINE = 0.895  # from here on every alpha has a line in the table; below, every twentieth


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="[DATA]", required=False)
@options.costs(required=True)
@click.option("--dry-run", is_flag=True, help="Only print: certify nothing and write nothing.")
@options.writing
@options.columns
@options.language_model
@options.as_json
def choose(model: str, language_model: dict[str, Any], as_json: bool, **asked: Any) -> None:
    r"""Choose alpha for a saved MODEL by what a wrong answer and a review cost, and certify it.

    The choice is an estimate on the calibration set. The certificate is then made on data that the choice has not seen:
    the model's certification sample or, better if that has served before, new labelled DATA. If no alpha pays, or none
    will probably be certified, the model stays as it is.

    \b
    Examples:
      sdm choose model --cost-error 20 --cost-review 1 --dry-run
      sdm choose model checked.jsonl --cost-error spam=50 --cost-error ham=5 --cost-review 1
    """
    from torchsdm.application import choose_alpha

    result = choose_alpha(model, language_model=language_model, **asked)
    lines = [*_table(result["choice"]), "", *_verdict(result, asked["dry_run"])]
    say(result, "\n".join(lines), as_json)


def _table(choice: dict[str, Any]) -> list[str]:
    lines = ["  alpha   admitted   of these wrong   chance of a certificate   cost per input"]
    for point in choice["curve"]:
        alpha, is_chosen = point["alpha"], point["alpha"] == choice["alpha"]
        if not is_chosen and alpha < _FINE and round(100 * alpha) % 5:
            continue
        wrong = f"{point['error_rate']:.2%}" if point["admitted_share"] >= 0.0005 else "–"
        lines.append(
            f"{'>' if is_chosen else ' '} {alpha:<5.3g}   {point['admitted_share']:>8.1%}   {wrong:>14}   "
            f"{point['chance']:>23.0%}   {point['cost']:>14.4g}"
        )
    return lines


def _verdict(result: dict[str, Any], dry_run: bool) -> list[str]:
    choice = result["choice"]
    if result["written"]:
        tested = f"{choice['n_certification']:,} certification points, which the choice has not seen"
        return [choice["explanation"], f"{result['model']}, tested on {tested}:", *trust_lines(result)]
    return [choice["explanation"], "Nothing was certified." if dry_run else f"{result['model']} is unchanged."]


# --- The changes that were made ---------------------------------------------------------------------------------------


@click.command()
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@options.as_json
def log(model: Path, as_json: bool) -> None:
    r"""List the changes of a saved MODEL: version, when, who, what and why.

    \b
    Example:
      sdm log model
    """
    from torchsdm.model import read_history

    history = read_history(model)
    lines = [_line(change) for change in history] or [f"{model} has no changes since it was saved."]
    say({"model": str(model), "changes": [change.to_dict() for change in history]}, "\n".join(lines), as_json)


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("versions", metavar="VERSION...", type=int, nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@options.signature
@options.as_json
def undo(model: str, versions: tuple[int, ...], dry_run: bool, who: str, why: str, as_json: bool) -> None:
    r"""Undo the last changes of a saved MODEL by their version, as sdm log lists them; or undo an undo.

    The model is then as it was before them. Changes made in one step are undone together. If another change came later,
    nothing is done: undo both, or correct what is wrong with sdm update.

    \b
    Examples:
      sdm undo model 7 --why "labels of the wrong week"
      sdm undo model 9 8 --dry-run
    """
    from torchsdm.application import LiveModel, standing, summary

    with LiveModel.open(model, who="sdm undo", writable=not dry_run, exclusive=False) as live:
        before = standing(live.snapshot.saved.classifier)
        draft = live.draft_undo(versions)
        undone = [entry.details["version"] for entry in draft.entries]
        after = standing(draft.classifier)
        if not as_json:
            said = f"change{'s' if len(undone) > 1 else ''} {', '.join(map(str, undone))}"
            click.echo("\n".join([f"{model}: {said} undone.", *change_lines(before, after)]))
        if not dry_run:
            live.commit(draft, who=who, why=why)
    classifier = draft.classifier
    result = {**summary(classifier, Path(model)), "version": classifier.version_, "undone": undone}
    result |= {"before": before, "after": after, "written": not dry_run}
    ending = "Nothing was written." if dry_run else f"Written to {model}, as version {classifier.version_}."
    say(result, "\n".join([ending, *trust_lines(result)]), as_json)


@click.command()
@click.argument("model", metavar="MODEL")
@options.signature
@options.as_json
def compact(model: str, who: str, why: str, as_json: bool) -> None:
    r"""Save a MODEL with its changes included, so that it opens faster and drops what was removed.

    Decisions stay the same. The history stays, too, but what is in it can no longer be undone.

    \b
    Example:
      sdm compact model
    """
    from torchsdm.application import LiveModel

    with LiveModel.open(model, who="sdm compact", exclusive=False) as live:
        change = live.compact(who=who, why=why)
        version = live.snapshot.version
    nothing = f"{model} has no changes since it was saved."
    result = {"model": model, "version": version, "written": change is not None}
    say(result, nothing if change is None else f"{model} was saved again, as version {version}.", as_json)


def _line(change: Change) -> str:
    about = (
        f" {change.details['version']}"
        if change.what == "undo"
        else f" ({counted(change.n, 'point')})" * bool(change.n)
    )
    undone = "" if change.undone_by is None else f" [undone by {change.undone_by}]"
    why = f": {change.why}" if change.why else ""
    return f"{change.version:>5}  {change.at}  {change.who}  {change.what}{about}{why}{undone}"
