"""Settings: the values that options may have, and dataclasses filled from tables of TOML with their types checked.

Nothing heavy is imported here, so the command can list the values without the code behind them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
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
_WORDS = {
    str: ("a string", "strings"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "booleans"),
}


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


def parse_value(text: str) -> Any:
    """A value written in TOML; anything else is kept as a string."""
    try:  # in a list, so that neither a comment nor a second line can end it
        values = tomllib.loads(f"values = [{text}]")["values"]
    except (ValueError, RecursionError):
        return text
    return values[0] if len(values) == 1 else text


def filled(kind: type[_Filled], table: Any, where: str, **ours: Any) -> _Filled:
    """A dataclass from a table whose keys are its fields, except for those in ``ours``."""
    values = as_table(table, where)
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in ours}
    refuse_unknown(values, set(hints), where)
    for one in fields(kind):  # type: ignore[arg-type]  # a dataclass
        has_default = one.default is not MISSING or one.default_factory is not MISSING
        if not has_default and one.name not in {*values, *ours}:
            raise InvalidInputError(f"{where}: {one.name!r} is missing.")
    for name, value in values.items():
        if not _is_a(value, hints[name]):
            raise InvalidTypeError(f"{where}: {name!r} must be {_described(hints[name])}. Got {value!r}.")
        if isinstance(value, list):
            if not 0 < len(set(value)) == len(value):
                raise InvalidInputError(f"{where}: {name!r} must list at least one value, each once. Got {value!r}.")
            values[name] = tuple(value) if get_origin(hints[name]) is tuple else value
    return kind(**values, **ours)


def check_fields(filled: _Filled, *, apart: Collection[str] = ()) -> _Filled:
    """Require that the fields of a dataclass have the types that they say, except those that others look after."""
    for name, hint in get_type_hints(type(filled)).items():
        if name not in apart and not _is_a(getattr(filled, name), hint):
            value = shortened(repr(getattr(filled, name)))
            raise InvalidTypeError(f"{name!r} of {type(filled).__name__} must be {hint}. Got {value}.")
    return filled


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a TOML value fits an annotation; an integer is a number, a boolean is not."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_is_a(value, part) for part in parts)
    if origin is tuple and parts[-1] is not Ellipsis:
        fits = isinstance(value, list | tuple) and len(value) == len(parts)
        return fits and all(_is_a(one, part) for one, part in zip(value, parts, strict=True))
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(_is_a(one, parts[0]) for one in value)
    if origin in (Mapping, dict):
        return isinstance(value, Mapping) and all(_is_a(one, parts[1]) for one in value.values())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return hint is Any or (isinstance(value, hint) and isinstance(value, bool) == (hint is bool))


def _described(hint: Any, *, several: bool = False) -> str:
    """An annotation in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_described(part, several=several) for part in parts if part is not NoneType)
    if origin in (list, tuple):
        return f"a list of {_described(parts[0], several=True)}"
    if origin is Mapping:
        return f"a table of {_described(parts[1], several=True)}"
    return _WORDS[hint][several]


def as_table(value: Any, where: str) -> dict[str, Any]:
    """Require a table; the error says where."""
    if not isinstance(value, Mapping):
        raise InvalidTypeError(f"{where} must be a table. Got {value!r}.")
    return dict(value)


def refuse_unknown(table: Mapping[str, Any], known: set[str], where: str) -> None:
    """Refuse an unknown key, and list the known ones."""
    for key in table:
        if key not in known:
            raise InvalidInputError(f"{where}: there is no setting {key!r}. Use one of {', '.join(sorted(known))}.")
