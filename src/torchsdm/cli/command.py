"""The command ``sdm``: its verbs, settings from a file, and errors in one sentence."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from torchsdm import __version__
from torchsdm.errors import InvalidInputError, TorchSDMError, worded
from torchsdm.settings import parse_toml, read_settings

_EXIT_BAD_INPUT = 1
_MANY_OBJECTS = 100_000  # between garbage collections: imports make more, which all live as long as the command
_LINE_BREAKS = ("\\b\n", "\b\n")  # what raw docstrings have, and after which click keeps the lines of a paragraph
_VERBS = {
    "check": "check",
    "demo": "demo",
    "doctor": "doctor",
    **dict.fromkeys(("evaluate", "export", "report"), "evaluate"),
    **dict.fromkeys(("explain", "guard", "predict"), "predict"),
    **dict.fromkeys(("mcp", "serve"), "serve"),
    **dict.fromkeys(("audit", "embed", "train"), "train"),
    **dict.fromkeys(("certify", "choose", "compact", "log", "recalibrate", "undo", "update"), "update"),
}  # and their modules


class Verbs(click.Group):
    """The verbs, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context | None) -> list[str]:
        """The names of the verbs."""
        return sorted(_VERBS)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        """A verb by its name."""
        if cmd_name not in _VERBS:
            return None
        verb: click.Command = getattr(import_module(f"torchsdm.cli.{_VERBS[cmd_name]}"), cmd_name)
        verb.help = (verb.help or "").replace(*_LINE_BREAKS)
        return verb


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(__version__, prog_name="sdm")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Settings in TOML: one table per verb, such as [train] alpha = 0.9.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def sdm(context: click.Context, config: Path | None, debug: bool) -> None:
    r"""Find out which answers of a language model you can act on.

    \b
    Typical use:
      sdm demo                                  everything on real text, in minutes
      sdm train reviews.jsonl -o model -m MODEL
      sdm predict model new.jsonl -o decisions.jsonl
      sdm explain model new.jsonl --only ID
      sdm evaluate model test.jsonl

    Completion for bash (or zsh, fish): eval "$(_SDM_COMPLETE=bash_source sdm)"
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("sdm: %(message)s"))
    library = logging.getLogger("torchsdm")
    library.handlers, library.propagate = [handler], False
    library.setLevel(logging.INFO)
    if config is not None:
        context.default_map = _settings(config)


sdm.help = (sdm.help or "").replace(*_LINE_BREAKS)


def main() -> None:
    """Run the command; an error is one sentence, with a traceback only if ``--debug`` is given."""
    is_debugging = "--debug" in sys.argv[1:]
    gc.set_threshold(_MANY_OBJECTS)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]  # takes only what it shows
            sdm(prog_name="sdm")
    except Exception as error:
        if is_debugging:
            raise
        click.echo(f"sdm: {_sentence(error)}", err=True)
        sys.exit(_EXIT_BAD_INPUT)


def _sentence(error: Exception) -> str:
    """An error on one line; an unexpected one also says how to get the traceback."""
    message = " ".join(worded(error).split())
    if isinstance(error, TorchSDMError):
        return message
    if isinstance(error, OSError):  # a full disk, say
        return f"{message}."
    if isinstance(error, MemoryError) or "can't allocate memory" in message:  # Python's and NumPy's, or torch's
        return "There is not enough memory. Give fewer or narrower inputs at once, or close other programs."
    return f"{type(error).__name__}: {message}. This should not happen; sdm --debug VERB shows the traceback."


def _settings(path: Path) -> dict[str, Any]:
    """Default values of options, by verb; unknown verbs, unknown options and wrong types are refused."""
    settings = parse_toml(read_settings(path), str(path))
    for name, options in settings.items():
        verb = sdm.get_command(None, name)
        if verb is None or not isinstance(options, dict):
            raise InvalidInputError(f"{path}: there is no verb {name!r}. Choose from {', '.join(sorted(_VERBS))}.")
        known = {
            spelling.lstrip("-"): one for one in verb.params if isinstance(one, click.Option) for spelling in one.opts
        }
        for option in list(options):
            if option not in known:
                listed = ", ".join(sorted(spelling for spelling in known if len(spelling) > 1))
                raise InvalidInputError(f"{path}: sdm {name} has no option {option!r}. Choose from {listed}.")
            value = _typed(options.pop(option), known[option], f"{path}, {option!r} of sdm {name}")
            options[str(known[option].name)] = value
    return settings


def _typed(value: Any, option: click.Option, where: str) -> Any:
    """A value from a settings file, as if it had been typed; an option that can be repeated also takes a list."""
    values = value if option.multiple and isinstance(value, list) else [value]
    if not all(isinstance(one, str | int | float) for one in values):
        raise InvalidInputError(f"{where}: {value!r} is not one value.")
    typed = [str(one).lower() if isinstance(one, bool) else str(one) for one in values]
    try:
        converted = [option.type(one, option) for one in typed]
    except click.BadParameter as error:
        raise InvalidInputError(f"{where}: {error.message}") from error
    return converted if option.multiple else converted[0]


def _show_warning(message: Warning | str, *_: Any) -> None:
    click.echo(f"sdm: warning: {worded(message)}", err=True)
