"""``sdm report``: an HTML report on a saved model and data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
    strict_option,
    training_options,
    warn_of_rejected,
)
from torchsdm.errors import InvalidInputError

if TYPE_CHECKING:
    from torchsdm.data import Columns


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="[NAME=]DATA...", nargs=-1, required=True)
@output_option("The HTML file.", is_directory=False, required=True)
@click.option("--title", help="Default: the model's name.")
@click.option("--no-texts", is_flag=True, help="Quote no texts, for data you must not share.")
@cost_options
@training_options
@strict_option
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
    strict: bool,
    costs: Costs,
    columns: Columns,
    language_model: LanguageModel,
    as_json: bool,
) -> None:
    r"""Write an HTML report on a saved MODEL and DATA: tables, plots, examples, and where numbers come from.

    DATA without labels, or with labels outside MODEL's classes, are shown without accuracy: lanes, reasons, examples.

    A row of DATA that cannot be read counts as rejected; --strict stops at the first.

    \b
    Examples:
      sdm report model test.jsonl tweets=tweets.csv -o report.html
      sdm report model test.jsonl -o report.html --cost-error 20 --cost-review 1
    """
    prices = costs.given("sdm report")
    from torchsdm.application import evaluate_model
    from torchsdm.data import BadRows
    from torchsdm.estimators import SDMClassifier
    from torchsdm.evaluation import write_report

    saved = language_model.open(model)
    if prices is not None and not isinstance(saved.classifier, SDMClassifier):
        raise InvalidInputError(f"{model} is an ensemble, which has no alpha to choose. Leave out the prices.")
    bad: dict[str, BadRows] = {}
    evaluation = evaluate_model(
        saved, data, columns, None, (), training, groups, calibration, certification, bad=None if strict else bad
    )
    for name, rows in bad.items():
        warn_of_rejected(rows, evaluation.n_rows(name), name)
    title = title or f"Evaluation of {saved.path}"
    write_report(output.resolve(), evaluation, saved.classifier, title=title, texts=not no_texts, prices=prices)
    for note in evaluation.notes:
        click.echo(f"sdm: {note}", err=True)
    sizes = {name: evaluation.n_inputs(name) for name in evaluation.data_sets}
    say(
        {"report": str(output), "inputs": sizes, "unread": evaluation.unread},
        f"{output}: {sum(sizes.values())} inputs in {len(sizes)} data sets.",
        as_json,
    )
