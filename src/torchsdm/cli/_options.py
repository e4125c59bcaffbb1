"""Options that several verbs share, and how results and messages are printed.

Nothing here imports torch or a room before a verb runs, so help, completion and wrong options answer at once.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from torchsdm.errors import InvalidInputError
from torchsdm.files import login_name
from torchsdm.settings import PROMPT_NAMES, Columns

if TYPE_CHECKING:
    from torchsdm.application import LiveModel, SavedModel
    from torchsdm.cluster import Backend
    from torchsdm.data import BadRow
    from torchsdm.hidden_states import HiddenStateExtractor

Command = TypeVar("Command", bound=Callable[..., Any])
_EXIT_INTERRUPTED = 128 + 2  # SIGINT
_ROWS = 5  # that could not be read, to be shown
Option = Callable[[Callable[..., Any]], Callable[..., Any]]

LANGUAGE_MODEL_HELP = (
    "Language model: a directory, a .gguf or .onnx file, package:NAME for a model inside an installed package, or a "
    "name on the Hugging Face hub."
)
_DOCUMENT_OPTIONS: dict[str, Option] = {
    "text": click.option("--text", default="text", help="Column or key of the text."),
    "label": click.option("--label", help="Column of the label. Default: 'label', if there is one."),
    "id": click.option("--id", help="Column of the id. Default: 'id', if there is one; else rows are numbered."),
    "answer": click.option("--answer", help="Column of the answer to judge. Default: 'answer', if there is one."),
}
_COLUMN_OPTIONS: dict[str, Option] = {
    **_DOCUMENT_OPTIONS,
    "states": click.option("--states", default="hidden_states", help="Key of the states, if the file has any."),
}
_DEVICE = click.option("--device", help="A torch device. Default: the CPU.")


def _bundled(kind: Callable[..., Any], name: str, options: dict[str, Option]) -> Callable[[Command], Command]:
    """Options whose values reach the verb as one argument, an object of ``kind``."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_bundle(**values: Any) -> Any:
            bundle = kind(**{option: values.pop(option) for option in options})
            return command(**values, **{name: bundle})

        bundled: Command = _together(*options.values())(with_bundle)
        return bundled

    return decorate


def _together(*options: Option) -> Callable[[Any], Any]:
    """Several options as one, listed in this order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


#: ``columns``: the columns of text, label, id and answer in a file of texts.
document_options = _bundled(Columns, "columns", _DOCUMENT_OPTIONS)
#: ``columns``: the same for a file that may contain states instead.
column_options = _bundled(Columns, "columns", _COLUMN_OPTIONS)


@dataclass(frozen=True)
class LanguageModel:
    """The language model of a saved classifier: where it is now, and what it runs on."""

    reference: str | None
    device: str | None
    batch_tokens: int

    def opening(self) -> dict[str, Any]:
        """The same as arguments of ``LiveModel.open``."""
        return {"model": self.reference, "device": self.device, "batch_tokens": self.batch_tokens}

    def open(self, path: str, backend: Backend = None) -> SavedModel:
        """Open the classifier saved at a path, with this language model to read texts; see ``SavedModel.load``."""
        from torchsdm.application import SavedModel

        rest: dict[str, Any] = {"device": self.device, "batch_tokens": self.batch_tokens, "backend": backend}
        return SavedModel.load(path, language_model=self.reference, **rest)


def open_live(path: str, writable: bool) -> LiveModel:
    """A model to change; others can change it, too, until ours is written."""
    from torchsdm.application import LiveModel

    return LiveModel.open(path, who=_verb(), writable=writable, exclusive=False)


language_model_options = _bundled(
    LanguageModel,
    "language_model",
    {
        "reference": click.option(
            "-m", "--language-model", "reference", help="Where the language model is now, if it has moved."
        ),
        "device": _DEVICE,
        "batch_tokens": click.option("--batch-tokens", default=4096, help="Tokens per batch."),
    },
)


@dataclass(frozen=True)
class AskedModel:
    """A language model to ask, if one was named, and what to ask it."""

    reference: str | None
    prompt: str | None
    prompt_file: Path | None
    label_words: str | None
    system: str | None
    max_tokens: int | None
    revision: str | None
    trust_remote_code: bool
    device: str | None

    def extractor(self, **settings: Any) -> HiddenStateExtractor | None:
        """An extractor that reads texts with it; None if no language model was named."""
        if self.reference is None:
            if self.prompt is not None or self.prompt_file is not None:
                raise InvalidInputError("A prompt needs a language model: --language-model NAME.")
            return None
        template = self._template()
        from torchsdm.hidden_states import HiddenStateExtractor, TaskPrompt, task_prompt

        known = task_prompt(template, "--prompt")
        words = known.label_words if self.label_words is None else _label_words(self.label_words)
        prompt = TaskPrompt(known.template, words, known.system if self.system is None else self.system)
        names = ("max_tokens", "device", "revision", "trust_remote_code")
        settings |= {name: getattr(self, name) for name in names}
        return HiddenStateExtractor(self.reference, prompt, verbose=True, **settings)

    def _template(self) -> str | None:
        if self.prompt_file is None:
            return self.prompt
        if self.prompt is not None:
            raise InvalidInputError("Give --prompt or --prompt-file, not both.")
        try:
            return self.prompt_file.read_text(encoding="utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{self.prompt_file} cannot be read as a template: {error}.") from error


asked_model_options = _bundled(
    AskedModel,
    "language_model",
    {
        "reference": click.option("-m", "--language-model", "reference", help=LANGUAGE_MODEL_HELP),
        "prompt": click.option(
            "-p",
            "--prompt",
            help=f"One of {', '.join(PROMPT_NAMES)}, or a template with {{document}}. Default: only the document.",
        ),
        "prompt_file": click.option("--prompt-file", type=click.Path(path_type=Path), help="File with the template."),
        "label_words": click.option(
            "--label-words", help="Words for the labels, such as 0=No,1=Yes, or No,Yes for 0 and 1."
        ),
        "system": click.option("--system", help="System message for the chat template."),
        "max_tokens": click.option(
            "--max-tokens", type=int, help="Longest sequence; longer documents are cut off at the end."
        ),
        "revision": click.option("--revision", help="Branch, tag or commit on the hub."),
        "trust_remote_code": click.option(
            "--trust-remote-code", is_flag=True, help="Run code that comes with the model. Only if you trust it."
        ),
        "device": _DEVICE,
    },
)


def _label_words(text: str) -> dict[Any, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    if all(separator for _, separator, _ in pairs):
        return {int(label) if label.lstrip("-").isdigit() else label: word for label, _, word in pairs}
    return dict(enumerate(text.split(",")))


class ClassNumber(click.ParamType):  # type: ignore[type-arg]  # generic in some versions of click only
    """A number for every class, or CLASS=NUMBER for one; an option of this type can be repeated."""

    name = "class number"

    def convert(self, value: Any, param: Any, ctx: Any) -> float | tuple[str, float]:
        """A number, or a pair of name and number."""
        if isinstance(value, int | float | tuple):
            return value
        name, separator, number = str(value).rpartition("=")
        try:
            if separator:
                return (name, float(number)) if name else self.fail(f"{value!r} names no class.", param, ctx)
            return float(number)
        except ValueError:
            return self.fail(f"{value!r} is neither a number nor CLASS=NUMBER.", param, ctx)


def class_number_option(*names: str, several: bool = False, **settings: Any) -> Callable[[Any], Any]:
    """An option of which the verb gets one number, one by class, a list of several if they may be, or None."""

    def together(_: click.Context, option: click.Parameter, values: Sequence[Any]) -> Any:
        pairs = [value for value in values if isinstance(value, tuple)]
        if len(dict(pairs)) < len(values) and (pairs or (len(values) > 1 and not several)):
            what = f"{option.opts[-1]} takes {'numbers' if several else 'one number'}"
            raise InvalidInputError(f"{what}, or CLASS=NUMBER once for every class, not both.")
        return dict(pairs) or (list(values) if len(values) > 1 else next(iter(values), None))

    return click.option(*names, multiple=True, type=ClassNumber(), callback=together, **settings)


def alpha_option(help: str, *, several: bool = True) -> Callable[[Any], Any]:
    """``--alpha``, as an estimator takes it; None by default."""
    return class_number_option("-a", "--alpha", several=several, metavar="[CLASS=]ALPHA", help=help)


def cost_options(*, required: bool) -> Callable[[Command], Command]:
    """``--cost-error`` and ``--cost-review``."""
    error = class_number_option(
        "--cost-error",
        required=required,
        metavar="[CLASS=]COST",
        help="Cost of a wrong answer. With CLASS=, for inputs of that true class; then name every class.",
    )
    review = click.option("--cost-review", type=float, required=required, metavar="COST", help="Cost of one review.")
    return _together(error, review)


#: The data that a model was fitted on, and which estimators to train on them and compare it with.
comparison_options = _together(
    click.option("--training", metavar="FILE", help="MODEL's training data, to train other estimators on."),
    click.option("--certification", metavar="FILE", help="MODEL's certification set, if it had its own."),
    click.option("--calibration", metavar="FILE", help="MODEL's calibration set, if it had its own."),
    click.option(
        "--groups",
        default="cnn,vbll,today",
        help="Which estimators to train, comma-separated: language model, cnn, vbll, today.",
    ),
)
strict_option = click.option(
    "--strict", is_flag=True, help="Stop at the first row that cannot be read. Default: it is rejected."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def guard_option(what: str) -> Callable[[Command], Command]:
    """``--guard``: a file that keeps the drift guard."""
    return click.option(
        "--guard", "guard_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help=what
    )


def ray_option(what: str) -> Callable[[Command], Command]:
    """``--ray``, as ``backend``: the cluster to work on."""
    return click.option("--ray", "backend", default=None, metavar="auto|HOST:PORT", help=f"{what} on a Ray cluster.")


def output_option(what: str, *, is_directory: bool = True, **settings: Any) -> Callable[[Command], Command]:
    """``--output``, refused before any work is done if it cannot be written."""

    def checked(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
        if path is not None:
            _check_output(path, is_directory)
        return path

    return click.option("-o", "--output", type=click.Path(path_type=Path), callback=checked, help=what, **settings)


def _signed(who: str | None, why: str | None, **values: Any) -> dict[str, Any]:
    """Who changes a model and why, by default the user and the verb, beside other arguments of the change."""
    return {**values, "who": login_name() if who is None else who, "why": _verb() if why is None else why}


def _verb() -> str:
    return f"sdm {click.get_current_context().info_name}"


_SIGNATURE: dict[str, Option] = {
    "who": click.option("--who", metavar="NAME", help="Who makes the change, for the log. Default: your login name."),
    "why": click.option("--why", metavar="REASON", help="Why, for the log."),
}
#: ``signature``: the arguments ``who`` and ``why`` of a change, which go into the model's log.
signature_options = _bundled(_signed, "signature", _SIGNATURE)


def model_output_options(what: str, **settings: Any) -> Callable[[Command], Command]:
    """``--output`` and ``--overwrite``, for the directory of a model."""
    return _together(output_option(what, **settings), _OVERWRITE)


_OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace a model that is in --output already.")


#: ``writing``: where a changed model is written, and who changes it why, as ``application.ModelChange`` takes it.
writing_options = _bundled(
    _signed,
    "writing",
    {
        "output": output_option("Directory for the changed model. Default: MODEL itself, whose log gets the change."),
        "overwrite": _OVERWRITE,
        **_SIGNATURE,
    },
)


def _check_output(path: Path, is_directory: bool) -> None:
    kind = "directory" if is_directory else "file"
    if not path.name or (path.exists() and not (path.is_dir() if is_directory else path.is_file())):
        raise InvalidInputError(f"--output must be a {kind}; {str(path)!r} is not.")
    parents = path.absolute().parents
    parent = next(one for one in parents if one.exists()) if is_directory else parents[0]  # directories are created
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InvalidInputError(f"{path} cannot be written: {parent} is not a writable directory.")


@contextmanager
def resumable(kept: Callable[[], list[str]] = lambda: []) -> Iterator[None]:
    """On Ctrl-C, say what is kept and that the same command resumes, and leave with 130, as shells do."""
    try:
        yield
    except KeyboardInterrupt as error:
        what = " and ".join(error.args or kept())
        said = f"with {what} kept: the same command resumes" if what else "before there was anything to keep"
        click.echo(f"{chr(10) * sys.stderr.isatty()}sdm: Interrupted, {said}.", err=True)
        raise click.exceptions.Exit(_EXIT_INTERRUPTED) from None


def given_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options that were given, on the command line or in the settings file."""
    context = click.get_current_context()
    return {k: v for k, v in values.items() if context.get_parameter_source(k) is not ParameterSource.DEFAULT}


def say(result: dict[str, Any], text: str, as_json: bool) -> None:
    """Print a result: for a person, or as one line of JSON."""
    click.echo(json.dumps(result, allow_nan=False, ensure_ascii=False) if as_json else text)


def warn_of_rejected(bad: Mapping[int, BadRow], n_rows: int, source: str) -> None:
    """Say on standard error how many rows of an input could not be read, if any, and which came first."""
    if bad:
        first = "; ".join(str(bad[number]) for number in sorted(bad)[:_ROWS])
        more = f"; and {len(bad) - _ROWS:,} more" * (len(bad) > _ROWS)
        said = f"{len(bad):,} of {n_rows:,} rows could not be read and {'is' if len(bad) == 1 else 'are'} rejected"
        click.echo(f"sdm: warning: {source}: {said}. {first}{more}.", err=True)


def log_to_terminal() -> None:
    """Show the library's messages on standard error, one line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("sdm: %(message)s"))
    library = logging.getLogger("torchsdm")
    library.handlers, library.propagate = [handler], False
    library.setLevel(logging.INFO)
