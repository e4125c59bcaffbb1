"""``sdm evaluate``: the paper's table of a saved model on labelled data."""

from __future__ import annotations

from typing import Any

import click

from torchsdm.cli._options import LanguageModel, column_options, json_option, language_model_options
from torchsdm.columns import Columns

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
    columns: Columns,
    language_model: LanguageModel,
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
    from torchsdm.application import evaluate_model

    evaluation = evaluate_model(language_model.open(model), data, columns, alpha, estimators, training, groups)
    table = evaluation.table
    if as_json or form == "json":
        click.echo(table.to_json())
    elif form == "csv":
        click.echo(table.to_csv(), nl=False)
    else:
        writers: dict[str, Any] = {"text": table.to_text, "markdown": table.to_markdown, "latex": table.to_latex}
        click.echo(writers[form](intervals=intervals))
