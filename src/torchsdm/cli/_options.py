"""Options that several verbs share, and how they speak to a person."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from torchsdm.errors import InvalidInputError
from torchsdm.hidden_states import PROMPTS, TaskPrompt, task_prompt

Command = TypeVar("Command", bound=Callable[..., Any])

MODEL_HELP = (
    "Language model: a directory, a .gguf file, package:NAME for a model inside an installed package, or a name on the "
    "Hugging Face hub."
)


def prompt_options(command: Command) -> Command:
    """The language model and what it is asked."""
    names = ", ".join(PROMPTS)
    for option in (
        click.option(
            "--trust-remote-code", is_flag=True, help="Run code that comes with the model. Only if you trust it."
        ),
        click.option("--revision", help="Branch, tag or commit on the hub."),
        click.option("--max-tokens", type=int, help="Longest sequence; longer documents lose their end."),
        click.option("--system", help="System message for the chat template."),
        click.option("--label-words", help="Words that stand for the labels, as in 0=No,1=Yes, or No,Yes for 0 and 1."),
        click.option("--prompt-file", type=click.Path(path_type=Path), help="A file that holds the template."),
        click.option(
            "-p", "--prompt", help=f"One of {names}, or a template with {{document}}. Default: the document alone."
        ),
        click.option("-m", "--model", "language_model", help=MODEL_HELP),
    ):
        command = option(command)
    return command


def make_prompt(prompt: str | None, file: Path | None, label_words: str | None, system: str | None) -> TaskPrompt:
    """A prompt from options."""
    if prompt is not None and file is not None:
        raise InvalidInputError("--prompt and --prompt-file exclude each other. Got both.")
    if file is not None:
        try:
            prompt = file.read_text(encoding="utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{file} cannot be read as a template: {error}.") from error
    chosen = task_prompt(prompt, "--prompt")
    words = chosen.label_words if label_words is None else _label_words(label_words)
    return TaskPrompt(chosen.template, words, chosen.system if system is None else system)


def _label_words(text: str) -> dict[Any, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    if all(separator for _, separator, _ in pairs):
        return {int(label) if label.lstrip("-").isdigit() else label: word for label, _, word in pairs}
    return dict(enumerate(text.split(",")))


def document_options(command: Command) -> Command:
    """Where text, label, id and answer stand in a file."""
    for option in (
        click.option("--answer", help="Column of the answer that is judged. Default: 'answer', where there is one."),
        click.option(
            "--id", "id_", help="Column of the id. Default: 'id', where there is one; else rows are numbered."
        ),
        click.option("--label", help="Column of the label. Default: 'label', where there is one."),
        click.option("--text", default="text", show_default=True, help="Column or key of the text."),
    ):
        command = option(command)
    return command


def column_options(command: Command) -> Command:
    """The same for a file that may hold states instead."""
    states = click.option(
        "--states", default="hidden_states", show_default=True, help="Key of states, if it holds any."
    )
    return document_options(states(command))


def language_model_options(command: Command) -> Command:
    """Where the language model of a saved classifier is now, and on what it runs."""
    for option in (
        click.option("--batch-tokens", default=4096, show_default=True, help="Tokens run through it at once."),
        click.option("--device", help="A torch device. Default: the CPU."),
        click.option("-m", "--model", "language_model", help="Where the language model is now, if not where it was."),
    ):
        command = option(command)
    return command


def json_option(command: Command) -> Command:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)


def output_option(what: str, *, is_directory: bool = True, **settings: Any) -> Callable[[Command], Command]:
    """``--output``; one that cannot be written is refused before any work is done."""

    def checked(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
        if path is not None:
            _check_output(path, is_directory)
        return path

    return click.option("-o", "--output", type=click.Path(path_type=Path), callback=checked, help=what, **settings)


def _check_output(path: Path, is_directory: bool) -> None:
    kind = "directory" if is_directory else "file"
    if not path.name or (path.exists() and not (path.is_dir() if is_directory else path.is_file())):
        raise InvalidInputError(f"--output must be a {kind}. Got {str(path)!r}, which is none.")
    parents = path.absolute().parents
    parent = next(one for one in parents if one.exists()) if is_directory else parents[0]  # directories are made
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InvalidInputError(f"{path} cannot be written: {parent} is no directory that can be written to.")


def say(result: dict[str, Any], text: str, as_json: bool) -> None:
    """Print a result: for a person, or as one line of JSON."""
    click.echo(json.dumps(result, allow_nan=False, ensure_ascii=False) if as_json else text)


def log_to_terminal() -> None:
    """The library's messages on the error stream, a line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("sdm: %(message)s"))
    library = logging.getLogger("torchsdm")
    library.handlers, library.propagate = [handler], False
    library.setLevel(logging.INFO)
