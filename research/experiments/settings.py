"""Settings of an experiment: dataclasses filled from tables of TOML, with their types checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.settings import is_of_type, parse_toml

_Filled = TypeVar("_Filled")
_WORDS = {
    str: ("a string", "strings"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "booleans"),
}


def parse_value(text: str) -> Any:
    """A value written in TOML; anything else is kept as a string."""
    try:  # in a list, so that neither a comment nor a second line can end it
        values = parse_toml(f"values = [{text}]", text)["values"]
    except InvalidInputError:
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
        if not is_of_type(value, hints[name]):
            raise InvalidTypeError(f"{where}: {name!r} must be {_described(hints[name])}. Got {value!r}.")
        if isinstance(value, list):
            if not 0 < len(set(value)) == len(value):
                raise InvalidInputError(f"{where}: {name!r} must list at least one value, each once. Got {value!r}.")
            values[name] = tuple(value) if get_origin(hints[name]) is tuple else value
    return kind(**values, **ours)


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
