"""``sdm predict``: one decision per input, in input order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from torchsdm.cli._options import LanguageModel, column_options, json_option, language_model_options, output_option, say
from torchsdm.columns import Columns
from torchsdm.errors import InvalidInputError


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("inputs", metavar="INPUT")
@output_option(
    "File for the decisions: .jsonl, .json, .csv, .tsv or .parquet. Default: standard output, as JSON lines.",
    is_directory=False,
)
@click.option("-k", "--exemplars", default=3, show_default=True, help="Nearest training examples per decision.")
@click.option("--texts", is_flag=True, help="Include the texts of inputs and nearest training examples.")
@column_options
@language_model_options
@json_option
def predict(
    model: str,
    inputs: str,
    output: Path | None,
    exemplars: int,
    texts: bool,
    columns: Columns,
    language_model: LanguageModel,
    as_json: bool,
) -> None:
    r"""Decide on every line of INPUT with a saved MODEL.

    INPUT contains texts (.jsonl, .csv, .tsv, .parquet) or states (.npz, .safetensors, .jsonl, .parquet, or a folder
    written by sdm embed); - reads JSON lines from standard input. The output has one row per input, in order: its id,
    the fields of Decisions, and its exemplars. .csv, .tsv and .parquet have one column per label, such as
    probabilities[LABEL], and exemplars as JSON in one column.

    \b
    Examples:
      sdm predict model new.jsonl -o decisions.jsonl
      sdm predict model new.jsonl -o decisions.csv -k 0
      cat new.jsonl | sdm predict model - | jq 'select(.admitted) | .predictions'
    """
    if exemplars < 0:
        raise InvalidInputError(f"--exemplars must be at least 0. Got {exemplars}.")
    from tqdm.auto import tqdm

    from torchsdm.application import answer_rows, check_output_format, write_rows

    if output is not None:
        check_output_format(output)
    saved = language_model.open(model)
    n_inputs = n_admitted = 0

    def decided() -> Iterator[list[dict[str, Any]]]:
        nonlocal n_inputs, n_admitted
        with tqdm(unit="input", disable=None) as progress:
            for block in saved.blocks(inputs, columns):
                rows = answer_rows(saved.classifier, block, k=exemplars, texts=texts)
                n_inputs += len(rows)
                n_admitted += sum(row["admitted"] for row in rows)
                yield rows
                progress.update(len(rows))

    write_rows(output, decided())
    if output is not None:
        summary = {"inputs": n_inputs, "admitted": n_admitted, "output": str(output)}
        say(summary, f"{n_admitted} of {n_inputs} inputs admitted; decisions in {output}.", as_json)
