"""Settings: the values that options may have, names of columns, files of TOML, and fields whose types are checked.

Nothing heavy is imported here, so the command can list the values without the code behind them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.wording import shortened

SEGMENTS = ("sentences", "paragraphs", "fields")  #: kinds of segments to summarise states over
PROMPT_NAMES = ("sentiment", "factcheck", "verify-answer", "document")  #: prompts that come with the package
TRAININGS = ("linear", "sdm")  #: a penalised linear solution, or rounds of the paper's training
PAPER: dict[str, Any] = {
    "training": "sdm",
    "n_filters": 1000,
    "n_rounds": 10,
    "max_epochs": 200,
    "batch_size": 50,
    "learning_rate": 1e-5,
    "patience": None,
    "standardization": "scalar",
    "calibration_size": 0.5,
    "certification_size": None,
}  #: training as in the paper, without a certificate
PRESETS = ("default", "paper")  #: of ``sdm train``
LANES = ("trusted", "certified", "review", "unfamiliar")  #: of decisions, the most reliable first
REJECTED = "rejected"  #: the lane of inputs that could not be read, of which there is no decision
CONTROLS = ("groups", "pooled", "predictions", "all")  #: for whom a certificate holds, the strongest promise first
AUTO = "auto"  #: the strongest control that calibration says will be certified
BACKGROUNDS = ("class", "exemplars")  #: what background examples are: a class that is trained, or only of the support
POLICIES = ("certified", "trusted")  #: which lanes are admitted

_Filled = TypeVar("_Filled")


@dataclass(frozen=True)
class Columns:
    """Names of columns or keys of a file; None means the usual name, if the file has it."""

    text: str = "text"
    label: str | None = None
    id: str | None = None
    answer: str | None = None
    states: str = "hidden_states"


def read_settings(path: Path) -> str:
    """The text of a settings file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} cannot be read as settings: {error}.") from error


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """TOML as nested tables."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also integers without end, and tables in tables without end
        raise InvalidInputError(f"{where} is not valid TOML: {error}.") from error


def check_fields(filled: _Filled, *, apart: Collection[str] = ()) -> _Filled:
    """Require that the fields of a dataclass have the types that they say, except those that others look after."""
    for name, hint in get_type_hints(type(filled)).items():
        if name not in apart and not is_of_type(getattr(filled, name), hint):
            value = shortened(repr(getattr(filled, name)))
            raise InvalidTypeError(f"{name!r} of {type(filled).__name__} must be {hint}. Got {value}.")
    return filled


def is_of_type(value: Any, hint: Any) -> bool:
    """Whether a value fits an annotation; an integer is a number, a boolean is not."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(is_of_type(value, part) for part in parts)
    if origin is tuple and parts[-1] is not Ellipsis:
        fits = isinstance(value, list | tuple) and len(value) == len(parts)
        return fits and all(is_of_type(one, part) for one, part in zip(value, parts, strict=True))
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(is_of_type(one, parts[0]) for one in value)
    if origin in (Mapping, dict):
        return isinstance(value, Mapping) and all(is_of_type(one, parts[1]) for one in value.values())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return hint is Any or (isinstance(value, hint) and isinstance(value, bool) == (hint is bool))
