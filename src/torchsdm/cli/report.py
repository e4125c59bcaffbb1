"""``sdm report``: an HTML report on a saved model and data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchsdm.cli._options import (
    LanguageModel,
    column_options,
    comparison_options,
    cost_options,
    json_option,
    language_model_options,
    output_option,
    say,
    strict_option,
    warn_of_rejected,
)

if TYPE_CHECKING:
    pass


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="[NAME=]DATA...", nargs=-1, required=True)
@output_option("The HTML file.", is_directory=False, required=True)
@click.option("--title", help="Default: the model's name.")
@click.option("--no-texts", is_flag=True, help="Quote no texts, for data you must not share.")
@cost_options(required=False)
@comparison_options
@strict_option
@column_options
@language_model_options
@json_option
def report(
    model: str,
    output: Path,
    no_texts: bool,
    strict: bool,
    language_model: LanguageModel,
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
    from torchsdm.application import report_model
    from torchsdm.data import BadRows

    bad: dict[str, BadRows] = {}
    noted: dict[str, Any] = {"bad": None if strict else bad}
    saved = language_model.open(model)
    evaluation = report_model(saved, output=output, texts=not no_texts, **asked, **noted)
    for name, rows in bad.items():
        warn_of_rejected(rows, evaluation.n_rows(name), name)
    for note in evaluation.notes:
        click.echo(f"sdm: {note}", err=True)
    sizes = {name: evaluation.n_inputs(name) for name in evaluation.data_sets}
    say(
        {"report": str(output), "inputs": sizes, "unread": evaluation.unread},
        f"{output}: {sum(sizes.values())} inputs in {len(sizes)} data sets.",
        as_json,
    )
