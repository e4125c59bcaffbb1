"""Lines of text and JSONL files, compressed or not; every error gives the line number."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchsdm.errors import InvalidInputError


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, compressed or not; a read error names the line."""
    number = 0
    try:
        with _open(path)(path, "rt", encoding="utf-8-sig", newline="") as lines:
            for number, line in enumerate(lines, start=1):  # noqa: B007  (used in the error below)
                yield line
    except UnicodeDecodeError as error:
        place = _first_undecodable_line(path)
        raise InvalidInputError(f"{path}, line {place}: not UTF-8 ({error.reason}).") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInputError(f"{path} cannot be read beyond line {number}: {error}.") from error


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file, compressed or not, with their line numbers from 1."""
    for number, line in enumerate(text_lines(path), start=1):
        if line.strip():
            yield number, _json_object(line, f"{path}, line {number}")


def _open(path: Path) -> Any:
    return gzip.open if path.suffix == ".gz" else open


def _first_undecodable_line(path: Path) -> int:
    """A decoder reads ahead, so the line it fails on has to be searched for."""
    with _open(path)(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1


def _json_object(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"{place}: not valid JSON ({error.msg}).") from error
    except (ValueError, RecursionError) as error:  # a number or nesting beyond Python's limits
        raise InvalidInputError(f"{place}: not usable as JSON ({error}).") from error
    if not isinstance(row, dict):
        raise InvalidInputError(f"{place}: expected a JSON object. Got {type(row).__name__}.")
    return row
