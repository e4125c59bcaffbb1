"""``sdm explain``: the examples behind a decision."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from torchsdm.cli._options import LanguageModel, column_options, json_option, language_model_options
from torchsdm.errors import InvalidInputError
from torchsdm.wording import shortened

if TYPE_CHECKING:
    from torchsdm.data import Columns

_HEADING = 300  # characters to show of an input's text


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("inputs", metavar="INPUT", required=False)
@click.option("-k", "--exemplars", default=5, show_default=True, help="Nearest training examples to show.")
@click.option(
    "--only", "only", multiple=True, metavar="ID", help="Explain only the input with this id; can be repeated."
)
@click.option(
    "-t", "--say", "texts", multiple=True, metavar="TEXT", help="Explain this text instead of INPUT; can be repeated."
)
@click.option("-n", "--first", type=int, metavar="N", help="Explain only the first N inputs.")
@column_options
@language_model_options
@json_option
def explain(
    model: str,
    inputs: str | None,
    exemplars: int,
    only: tuple[str, ...],
    texts: tuple[str, ...],
    first: int | None,
    columns: Columns,
    language_model: LanguageModel,
    as_json: bool,
) -> None:
    r"""Show each decision, its nearest training examples, and the accuracy of calibration points like the input.

    With --json, print one row per input: what sdm predict --texts writes, and the calibration points.

    \b
    Examples:
      sdm explain model new.jsonl --only ticket-17
      sdm explain model --say "A film to remember."
    """
    if (inputs is None) == (not texts):
        raise InvalidInputError("Give either INPUT or --say TEXT.")
    if exemplars < 1 or (first is not None and first < 1):
        raise InvalidInputError("--exemplars and --first must be at least 1.")
    from torchsdm.application import explain_inputs

    saved = language_model.open(model)
    for row, words in explain_inputs(saved, inputs, columns, k=exemplars, texts=texts, only=only, first=first):
        if as_json:
            click.echo(json.dumps(row, allow_nan=False, ensure_ascii=False))
            continue
        heading = f"id {row['id']!r}" if row["text"] is None else f"id {row['id']!r} {row['text']}"
        click.echo(f"{shortened(heading, _HEADING)}\n{words}\n")
