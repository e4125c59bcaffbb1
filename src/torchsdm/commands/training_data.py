"""What a classifier is trained on: labelled states, or labelled texts and a language model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from torchsdm.commands.inputs import Columns, checked, open_documents, readable
from torchsdm.commands.options import MODEL_HELP
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError
from torchsdm.hidden_states.extractor import HiddenStateExtractor
from torchsdm.hidden_states.prompts import PROMPTS, TaskPrompt, task_prompt
from torchsdm.hidden_states.states_cache import StatesCache
from torchsdm.state_files import has_states, read_states

Command = TypeVar("Command", bound=Callable[..., Any])


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


def read_training(source: str, columns: Columns, extractor: HiddenStateExtractor | None) -> LabelledStates:
    """Labelled states from a file; of texts they are extracted, or taken from the cache if they were before."""
    with readable(source) as path:
        if has_states(path, columns.states):
            if extractor is not None:
                raise InvalidInputError(f"{path} holds states already: leave --model out.")
            names = {"labels": columns.label, "ids": columns.id}
            given = {name: column for name, column in names.items() if column is not None}
            read = read_states(path, states=columns.states, **given)
            return checked(read, path, columns, needs_labels=True)
        if extractor is None:
            raise InvalidInputError(f"{path} holds texts: name a language model that reads them, with --model.")
        documents = open_documents(path, columns, with_labels=True)
        if not documents.has_labels:
            raise InvalidInputError(f"{path} has no labels. Name their column: --label NAME.")
        return StatesCache(extractor).states(list(documents))


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
