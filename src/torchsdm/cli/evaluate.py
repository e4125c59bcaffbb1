"""``sdm evaluate``: what a saved model admits of data sets, and how often it is right, beside other estimators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from torchsdm.cli._options import (
    LanguageModel,
    column_options,
    comparison_options,
    json_option,
    language_model_options,
    ray_option,
    strict_option,
    warn_of_rejected,
)

if TYPE_CHECKING:
    pass

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
@comparison_options
@strict_option
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", help="How the table is printed.")
@click.option("--intervals", is_flag=True, help="Also print 95 % intervals.")
@click.option("--wide", is_flag=True, help="Print accuracy and share of every class and prediction, as in the paper.")
@column_options
@language_model_options
@ray_option("Keep the support")
@json_option
def evaluate(
    model: str,
    strict: bool,
    form: str,
    intervals: bool,
    wide: bool,
    language_model: LanguageModel,
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
    from torchsdm.application import evaluate_model
    from torchsdm.data import BadRows
    from torchsdm.files import strict_json

    bad: dict[str, BadRows] = {}
    evaluation = evaluate_model(language_model.open(model, backend), **asked, bad=None if strict else bad)
    for name, rows in bad.items():
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
        writers: dict[str, Any] = {"text": table.to_text, "markdown": table.to_markdown, "latex": table.to_latex}
        click.echo(writers[form](intervals=intervals))
