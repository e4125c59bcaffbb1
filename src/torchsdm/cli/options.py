"""Options that several verbs share, and how results and messages are printed.

Nothing here imports torch or a room before a verb runs, so help, completion and wrong options answer at once.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from torchsdm.errors import InvalidInputError
from torchsdm.files import login_name
from torchsdm.settings import PROMPT_NAMES, Columns
from torchsdm.wording import counted

if TYPE_CHECKING:
    from torchsdm.data import BadRow
    from torchsdm.hidden_states import HiddenStateExtractor

_EXIT_INTERRUPTED = 128 + 2  # SIGINT
_ROWS = 5  # that could not be read, to be shown
Option: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def together(*options: Option, kind: Callable[..., Any] = dict, argument: str | None = None) -> Option:
    """Several options as one, in this order; with ``argument``, the verb gets all values as one, a ``kind``."""

    def decorate(verb: Any) -> Any:
        @functools.wraps(verb)
        def with_bundle(**values: Any) -> Any:
            bundle = kind(**{name: values.pop(name) for name in names})
            return verb(**values, **{str(argument): bundle})

        command: Any = verb if argument is None else with_bundle
        n_before = len(getattr(verb, "__click_params__", ()))
        for option in reversed(options):
            command = option(command)
        names = [parameter.name for parameter in command.__click_params__[n_before:]]
        return command

    return decorate


_DOCUMENT_OPTIONS = (
    click.option("--text", default="text", help="Column or key of the text."),
    click.option("--label", help="Column of the label. Default: 'label', if there is one."),
    click.option("--id", help="Column of the id. Default: 'id', if there is one; else rows are numbered."),
    click.option("--answer", help="Column of the answer to judge. Default: 'answer', if there is one."),
)
_STATES = click.option("--states", default="hidden_states", help="Key of the states, if the file has any.")
_DEVICE = click.option("--device", help="A torch device. Default: the CPU.")
#: ``columns``: the columns of text, label, id and answer in a file of texts.
text_columns = together(*_DOCUMENT_OPTIONS, kind=Columns, argument="columns")
#: ``columns``: the same for a file that may contain states instead.
columns = together(*_DOCUMENT_OPTIONS, _STATES, kind=Columns, argument="columns")
#: ``language_model``: where that of a saved classifier is now, and what it runs on, as ``SavedModel.load`` takes it.
language_model = together(
    click.option("-m", "--language-model", help="Where the language model is now, if it has moved."),
    _DEVICE,
    click.option("--batch-tokens", default=4096, help="Tokens per batch."),
    kind=lambda language_model, **rest: {"model": language_model, **rest},
    argument="language_model",
)
#: ``asked``: a language model to ask, if one is named, and what to ask it; for ``extractor_of``.
asked_model = together(
    click.option(
        "-m",
        "--language-model",
        help="Language model: a directory, a .gguf or .onnx file, package:NAME for a model inside an installed package,"
        " or a name on the Hugging Face hub.",
    ),
    click.option(
        "-p",
        "--prompt",
        help=f"One of {', '.join(PROMPT_NAMES)}, or a template with {{document}}. Default: only the document.",
    ),
    click.option("--prompt-file", type=click.Path(path_type=Path), help="File with the template."),
    click.option("--label-words", help="Words for the labels, such as 0=No,1=Yes, or No,Yes for 0 and 1."),
    click.option("--system", help="System message for the chat template."),
    click.option("--max-tokens", type=int, help="Longest sequence; longer documents are cut off at the end."),
    click.option("--revision", help="Branch, tag or commit on the hub."),
    click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model. Only if you trust it."),
    _DEVICE,
    argument="asked",
)


def extractor_of(
    language_model: str | None,
    *,
    prompt: str | None,
    prompt_file: Path | None,
    label_words: str | None,
    system: str | None,
    **settings: Any,
) -> HiddenStateExtractor | None:
    """What reads texts with the language model that was named; None if none was."""
    if language_model is None:
        if prompt is not None or prompt_file is not None:
            raise InvalidInputError("A prompt needs a language model: --language-model NAME.")
        return None
    if prompt_file is not None:
        if prompt is not None:
            raise InvalidInputError("Give --prompt or --prompt-file, not both.")
        try:
            prompt = prompt_file.read_text(encoding="utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{prompt_file} cannot be read as a template: {error}.") from error
    from torchsdm.hidden_states import HiddenStateExtractor, TaskPrompt, task_prompt

    known = task_prompt(prompt, "--prompt")
    words = known.label_words if label_words is None else _label_words(label_words)
    task = TaskPrompt(known.template, words, known.system if system is None else system)
    return HiddenStateExtractor(language_model, task, verbose=True, **settings)


def _label_words(text: str) -> dict[Any, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    if all(separator for _, separator, _ in pairs):
        return {int(label) if label.lstrip("-").isdigit() else label: word for label, _, word in pairs}
    return dict(enumerate(text.split(",")))


def _class_number(value: Any) -> Any:
    """A number for every class, or name and number for CLASS=NUMBER."""
    if not isinstance(value, str):  # converted before, in a settings file
        return value
    name, separator, number = value.rpartition("=")
    if separator and not name:
        raise click.BadParameter(f"{value!r} names no class.")
    try:
        return (name, float(number)) if separator else float(number)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is neither a number nor CLASS=NUMBER.") from error


def class_number_option(*names: str, several: bool = False, **settings: Any) -> Option:
    """An option of which the verb gets one number, one by class, a list of several if they may be, or None."""

    def joined(_: click.Context, option: click.Parameter, values: Sequence[Any]) -> Any:
        pairs = [value for value in values if isinstance(value, tuple)]
        if len(dict(pairs)) < len(values) and (pairs or (len(values) > 1 and not several)):
            what = f"{option.opts[-1]} takes {'numbers' if several else 'one number'}"
            raise InvalidInputError(f"{what}, or CLASS=NUMBER once for every class, not both.")
        return dict(pairs) or (list(values) if len(values) > 1 else next(iter(values), None))

    return click.option(*names, multiple=True, type=_class_number, callback=joined, **settings)


#: ``--alpha``, as an estimator takes it; None by default.
alpha = partial(class_number_option, "-a", "--alpha", metavar="[CLASS=]ALPHA")


def costs(*, required: bool) -> Option:
    """``--cost-error`` and ``--cost-review``."""
    return together(
        class_number_option(
            "--cost-error",
            required=required,
            metavar="[CLASS=]COST",
            help="Cost of a wrong answer. With CLASS=, for inputs of that true class; then name every class.",
        ),
        click.option("--cost-review", type=float, required=required, metavar="COST", help="Cost of one review."),
    )


#: The data that a model was fitted on, and which estimators to train on them and compare it with.
comparison = together(
    click.option("--training", metavar="FILE", help="MODEL's training data, to train other estimators on."),
    click.option("--certification", metavar="FILE", help="MODEL's certification set, if it had its own."),
    click.option("--calibration", metavar="FILE", help="MODEL's calibration set, if it had its own."),
    click.option(
        "--groups",
        default="cnn,vbll,today",
        help="Which estimators to train, comma-separated: language model, cnn, vbll, today.",
    ),
)
strict = click.option(
    "--strict", is_flag=True, help="Stop at the first row that cannot be read. Default: it is rejected."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
guard_file = partial(
    click.option, "--guard", "guard_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE"
)
ray = partial(click.option, "--ray", "backend", metavar="auto|HOST:PORT")


def _checked_output(
    context: click.Context, _: click.Parameter, path: Path | None, *, is_directory: bool
) -> Path | None:
    """Refuse an output that cannot be written before any work is done."""
    if path is None:
        return None
    is_directory = is_directory and context.params.get("ask") is None  # sdm certify --ask writes a file
    kind = "directory" if is_directory else "file"
    if not path.name or (path.exists() and not (path.is_dir() if is_directory else path.is_file())):
        raise InvalidInputError(f"--output must be a {kind}; {str(path)!r} is not.")
    parents = path.absolute().parents
    parent = next(one for one in parents if one.exists()) if is_directory else parents[0]  # directories are created
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InvalidInputError(f"{path} cannot be written: {parent} is not a writable directory.")
    return path


_output = partial(click.option, "-o", "--output", type=click.Path(path_type=Path))
output_file = partial(_output, callback=partial(_checked_output, is_directory=False))
output_directory = partial(_output, callback=partial(_checked_output, is_directory=True))
overwrite = click.option("--overwrite", is_flag=True, help="Replace a model that is in --output already.")
who = partial(
    click.option,
    "--who",
    callback=lambda _, __, who: login_name() if who is None else who,
    metavar="NAME",
)
#: ``who`` and ``why``, for the log of a model; by default the user and the verb.
signature = together(
    who(help="Who makes the change, for the log. Default: your login name."),
    click.option(
        "--why",
        callback=lambda context, _, why: f"sdm {context.info_name}" if why is None else why,
        metavar="REASON",
        help="Why, for the log.",
    ),
)
#: Where a changed model is written, and who changes it why, as ``application.ModelChange`` takes it.
writing = together(
    output_directory(help="Directory for the changed model. Default: MODEL itself, whose log gets the change."),
    overwrite,
    signature,
)


@contextmanager
def resumable(count: Callable[[], int] = lambda: 0, what: str = "", place: Path | None = None) -> Iterator[None]:
    """On Ctrl-C, say what is kept and that the same command resumes, and leave with 130, as shells do.

    The interruption says what is kept, or ``count`` how many things are at a place.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        n = count()
        kept = " and ".join([*error.args, *([f"{counted(n, what)} in {place}"] if n else [])])
        said = f"with {kept} kept: the same command resumes" if kept else "before there was anything to keep"
        click.echo(f"{chr(10) * sys.stderr.isatty()}sdm: Interrupted, {said}.", err=True)
        raise click.exceptions.Exit(_EXIT_INTERRUPTED) from None


def say(result: dict[str, Any], text: str, as_json: bool) -> None:
    """Print a result: for a person, or as one line of JSON."""
    click.echo(json.dumps(result, allow_nan=False, ensure_ascii=False) if as_json else text)


def warn_of_rejected(bad: Mapping[int, BadRow], n_rows: int, source: str) -> None:
    """Say on standard error how many rows of an input could not be read, and which came first."""
    first = "; ".join(str(bad[number]) for number in sorted(bad)[:_ROWS])
    more = f"; and {len(bad) - _ROWS:,} more" * (len(bad) > _ROWS)
    said = f"{len(bad):,} of {n_rows:,} rows could not be read and {'is' if len(bad) == 1 else 'are'} rejected"
    click.echo(f"sdm: warning: {source}: {said}. {first}{more}.", err=True)
