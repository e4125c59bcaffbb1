"""``sdm log``, ``sdm undo`` and ``sdm compact``: the changes of a saved model, and how to undo them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchsdm.cli._options import json_option, say, signature_options
from torchsdm.cli._words import change_lines, trust_lines
from torchsdm.wording import counted

if TYPE_CHECKING:
    from torchsdm.model import Change


@click.command()
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@json_option
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
@signature_options
@json_option
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
@signature_options
@json_option
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
