"""``sdm explain``: the examples behind a decision."""

from __future__ import annotations

import json

import click

from torchsdm.cli._options import LanguageModel, column_options, json_option, language_model_options
from torchsdm.columns import Columns
from torchsdm.errors import InvalidInputError
from torchsdm.wording import shortened

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
    from torchsdm.application import answer_rows, given_block, ids_and_texts, selected

    saved = language_model.open(model)
    given = [given_block(saved, texts=texts)] if inputs is None else saved.blocks(inputs, columns)
    for block in selected(given, only, first):
        if as_json:
            for row in answer_rows(saved.classifier, block, k=exemplars, calibration=True, texts=True):
                click.echo(json.dumps(row, allow_nan=False, ensure_ascii=False))
            continue
        explanations = saved.classifier.explain(block.hidden_states, exemplars)
        for (name, of_input), explanation in zip(ids_and_texts(block), explanations, strict=True):
            heading = f"id {name!r}" if of_input is None else f"id {name!r} {of_input}"
            click.echo(f"{shortened(heading, _HEADING)}\n{explanation}\n")
