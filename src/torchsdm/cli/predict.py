"""``sdm predict``: a decision for every input, one JSON object each, in the order of the input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from torchsdm.cli._options import LanguageModel, column_options, json_option, language_model_options, output_option, say
from torchsdm.columns import Columns
from torchsdm.errors import InvalidInputError
from torchsdm.files import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from torchsdm.application import SavedModel
    from torchsdm.model import Explanation
    from torchsdm.states import LabelledStates

_SIGNALS = (
    *("confidence", "confidence_lower", "similarity", "distance_quantile", "distance_quantile_lower"),
    *("rescaled_similarity", "rescaled_similarity_lower", "out_of_distribution"),
)


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("inputs", metavar="INPUT")
@output_option("File for the decisions, as JSON lines. Default: standard output.", is_directory=False)
@click.option("-k", "--exemplars", default=3, show_default=True, help="Nearest training examples given with each.")
@click.option("--texts", is_flag=True, help="Also give the texts of the nearest training examples.")
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

    INPUT holds texts (.jsonl, .csv, .tsv, .parquet) or states (.npz, .safetensors, .jsonl, .parquet, or a folder that
    sdm embed wrote); - is standard input, as JSON lines. One JSON object is written for each input, in order.

    \b
    Examples:
      sdm predict model new.jsonl -o decisions.jsonl
      cat new.jsonl | sdm predict model - | jq 'select(.admitted) | .label'
    """
    if exemplars < 0:
        raise InvalidInputError(f"--exemplars must be at least 0. Got {exemplars}.")
    from tqdm.auto import tqdm

    saved = language_model.open(model)
    n_inputs = n_admitted = 0
    with _written(output) as file, tqdm(unit="input", disable=None) as progress:
        for block in saved.blocks(inputs, columns):
            for row in decided(saved, block, exemplars, texts):
                file.write(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n")
                n_admitted += row["admitted"]
            n_inputs += len(block)
            progress.update(len(block))
            file.flush()
    if output is not None:
        summary = {"inputs": n_inputs, "admitted": n_admitted, "output": str(output)}
        say(summary, f"{n_admitted} of {n_inputs} inputs admitted; decisions in {output}.", as_json)


def decided(saved: SavedModel, block: LabelledStates, k: int, texts: bool) -> Iterator[dict[str, Any]]:
    """A plain dictionary for each input of a block."""
    ids = list(block.ids or range(len(block)))
    if k == 0:
        for name, row in zip(ids, saved.classifier.decide(block.hidden_states).to_dicts(), strict=True):
            yield {"id": name, **_answer(row)}
        return
    for name, explanation in zip(ids, saved.classifier.explain(block.hidden_states, k), strict=True):
        yield {"id": name, **_answer(explanation.decision), "exemplars": _exemplars(explanation, texts)}


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    verdict = {
        "label": row["predictions"],
        "admitted": row["admitted"],
        "admitted_alpha": row["admitted_alpha"],
        "admitted_lower": row["admitted_lower"],
    }
    magnitude = max(row["logits"].values())
    return (
        verdict
        | {name: row[name] for name in _SIGNALS}
        | {"magnitude": magnitude, "probabilities": row["probabilities"]}
    )


def _exemplars(explanation: Explanation, texts: bool) -> list[dict[str, Any]]:
    return [
        {
            "id": point.id,
            "label": point.label,
            "prediction": point.prediction,
            "distance": point.distance,
            "vouches": point.is_match,
            **({"text": point.text} if texts else {}),
        }
        for point in explanation.exemplars
    ]


@contextmanager
def _written(output: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that takes its place only when all is written."""
    if output is None:
        yield sys.stdout
        return
    output = output.resolve()  # what a link points to, not the link
    temporary = output.with_name(f"{TEMPORARY_PREFIX}{output.name}")
    try:
        file = open(temporary, "w", encoding="utf-8")  # noqa: SIM115  (closed below, whatever happens)
    except OSError as error:
        raise InvalidInputError(f"{output} cannot be written: {error}.") from error
    try:
        with file:
            yield file
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
