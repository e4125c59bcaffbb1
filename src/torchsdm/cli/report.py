"""``sdm report``: an HTML report on a saved model and labelled data."""

from __future__ import annotations

from pathlib import Path

import click

from torchsdm.cli._options import (
    Costs,
    LanguageModel,
    column_options,
    cost_options,
    json_option,
    language_model_options,
    output_option,
    say,
    training_options,
)
from torchsdm.columns import Columns
from torchsdm.errors import InvalidInputError


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="[NAME=]DATA...", nargs=-1, required=True)
@output_option("The HTML file.", is_directory=False, required=True)
@click.option("--title", help="Default: the model's name.")
@click.option("--no-texts", is_flag=True, help="Quote no texts, for data you must not share.")
@cost_options
@training_options
@column_options
@language_model_options
@json_option
def report(
    model: str,
    data: tuple[str, ...],
    output: Path,
    title: str | None,
    no_texts: bool,
    training: str | None,
    calibration: str | None,
    certification: str | None,
    groups: str,
    costs: Costs,
    columns: Columns,
    language_model: LanguageModel,
    as_json: bool,
) -> None:
    r"""Write an HTML report on a saved MODEL and labelled DATA: tables, plots, examples, and where numbers come from.

    \b
    Examples:
      sdm report model test.jsonl tweets=tweets.csv -o report.html
      sdm report model test.jsonl -o report.html --cost-error 20 --cost-review 1
    """
    prices = costs.given("sdm report")
    from torchsdm.application import evaluate_model
    from torchsdm.estimators import SDMClassifier
    from torchsdm.evaluation import write_report

    saved = language_model.open(model)
    if prices is not None and not isinstance(saved.classifier, SDMClassifier):
        raise InvalidInputError(f"{model} is an ensemble, which has no alpha to choose. Leave out the prices.")
    evaluation = evaluate_model(saved, data, columns, None, (), training, groups, calibration, certification)
    title = title or f"Evaluation of {saved.path}"
    write_report(output.resolve(), evaluation, saved.classifier, title=title, texts=not no_texts, prices=prices)
    sizes = {name: len(states) for name, states in evaluation.data_sets.items()}
    say(
        {"report": str(output), "inputs": sizes},
        f"{output}: {sum(sizes.values())} inputs in {len(sizes)} data sets.",
        as_json,
    )
