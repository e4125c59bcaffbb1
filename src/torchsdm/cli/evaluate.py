"""``sdm evaluate``, ``sdm report`` and ``sdm export``: what a saved model admits, a report, and an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from torchsdm.cli import options
from torchsdm.cli.options import say, warn_of_rejected

FORMATS = ("text", "markdown", "latex", "csv", "json")


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="[NAME=]DATA...", nargs=-1, required=True)
@click.option("-a", "--alpha", type=float, help="Target accuracy. Default: the model's, or the first of several.")
@click.option(
    "-e",
    "--estimator",
    "estimators",
    multiple=True,
    help="Estimator, by name or part of it; can be repeated. Default: all.",
)
@options.comparison
@options.strict
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", help="How the table is printed.")
@click.option("--intervals", is_flag=True, help="Also print 95 % intervals.")
@click.option("--wide", is_flag=True, help="Print accuracy and share of every class and prediction, as in the paper.")
@options.columns
@options.language_model
@options.ray(help="Keep the support on a Ray cluster.")
@options.as_json
def evaluate(
    model: str,
    strict: bool,
    form: str,
    intervals: bool,
    wide: bool,
    language_model: dict[str, Any],
    backend: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    r"""Print the share of DATA that a saved MODEL admits, and the accuracy of admitted inputs.

    Inputs without labels, or with labels outside MODEL's classes, are strangers: of these it prints what is admitted,
    lanes, reasons and predictions, and whether the drift guard would be raised. An admitted input with a label outside
    the classes is a mistake. If DATA contains inputs that MODEL was fitted on, it says so.

    The table compares MODEL with estimators over the same logits: softmax and temperature thresholds, APS and RAPS,
    and, if MODEL has a certificate, scores certified the same way. With --training, it adds estimators trained on the
    same data as MODEL. The first labelled DATA should be in distribution.

    A row of DATA that cannot be read counts as rejected; --strict stops at the first. A missing or unknown label is an
    error.

    \b
    Examples:
      sdm evaluate model test.jsonl tweets=tweets.csv
      sdm evaluate model test.jsonl --estimator softmax --estimator SDM_HR --format markdown
    """
    from torchsdm.application import SavedModel, evaluate_model
    from torchsdm.data import BadRows
    from torchsdm.files import strict_json

    bad: dict[str, BadRows] = {}
    evaluation = evaluate_model(
        SavedModel.load(model, backend=backend, **language_model), **asked, bad=None if strict else bad
    )
    for name, rows in bad.items():
        if rows:
            warn_of_rejected(rows, evaluation.n_rows(name), name)
    table, overviews = evaluation.table, evaluation.overviews()
    if as_json or form in ("json", "csv"):
        for note in evaluation.notes:
            click.echo(f"sdm: {note}", err=True)
    if as_json or form == "json":
        of_strangers = [
            {"dataset": name, "labels": evaluation.kinds[name], "stratum": "overview", **one.to_json()}
            for name, one in overviews.items()
        ]
        click.echo(strict_json([*table.to_dicts(), *of_strangers]))
    elif form == "csv":
        click.echo(table.to_csv(), nl=False)
    elif form == "text" and not wide:
        beneath = {name: one.lines(evaluation.kinds[name]) for name, one in overviews.items()}
        click.echo(table.to_narrow_text(intervals=intervals, beneath=beneath))
    else:
        click.echo(getattr(table, f"to_{form}")(intervals=intervals))


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="[NAME=]DATA...", nargs=-1, required=True)
@options.output_file(help="The HTML file.", required=True)
@click.option("--title", help="Default: the model's name.")
@click.option("--no-texts", is_flag=True, help="Quote no texts, for data you must not share.")
@options.costs(required=False)
@options.comparison
@options.strict
@options.columns
@options.language_model
@options.as_json
def report(
    model: str,
    output: Path,
    no_texts: bool,
    strict: bool,
    language_model: dict[str, Any],
    as_json: bool,
    **asked: Any,
) -> None:
    r"""Write an HTML report on a saved MODEL and DATA: tables, plots, examples, and where numbers come from.

    DATA without labels, or with labels outside MODEL's classes, are shown without accuracy: lanes, reasons, examples.

    A row of DATA that cannot be read counts as rejected; --strict stops at the first.

    \b
    Examples:
      sdm report model test.jsonl tweets=tweets.csv -o report.html
      sdm report model test.jsonl -o report.html --cost-error 20 --cost-review 1
    """
    from torchsdm.application import SavedModel, report_model
    from torchsdm.data import BadRows

    bad: dict[str, BadRows] = {}
    saved = SavedModel.load(model, **language_model)
    evaluation = report_model(saved, output=output, texts=not no_texts, bad=None if strict else bad, **asked)
    for name, rows in bad.items():
        if rows:
            warn_of_rejected(rows, evaluation.n_rows(name), name)
    for note in evaluation.notes:
        click.echo(f"sdm: {note}", err=True)
    sizes = {name: evaluation.n_inputs(name) for name in evaluation.data_sets}
    say(
        {"report": str(output), "inputs": sizes, "unread": evaluation.unread},
        f"{output}: {sum(sizes.values())} inputs in {len(sizes)} data sets.",
        as_json,
    )


@click.command()
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@options.output_directory(help="Folder for the export.", required=True)
@options.as_json
def export(model: Path, output: Path, as_json: bool) -> None:
    r"""Write a saved MODEL as a folder that decides on states with NumPy alone, without torch and torchsdm.

    The folder has two files: sdm_model.npz and the module sdm_numpy.py, whose load(FOLDER).decide(states) gives the
    decisions of MODEL. It reads states, not texts, and has no drift guard and no explanations.

    \b
    Example:
      sdm export model -o exported
    """
    from torchsdm.application import export_model

    sizes = export_model(model, output)
    text = f"{output}: {sum(sizes.values()) / 1e6:.1f} MB in {' and '.join(sizes)}, to copy to where it decides."
    say({"export": str(output), "bytes": sizes}, text, as_json)
