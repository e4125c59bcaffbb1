"""Rows of text and JSONL files, compressed or not. A row that cannot be read does not hide the rows after it."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from torchsdm.errors import InvalidInputError

LONGEST_LINE = 1 << 26  #: characters that are held in memory for one document


class Unreadable(str):
    """What is wrong with a row that cannot be read; it stands in the place of the row."""

    __slots__ = ()


Row: TypeAlias = "tuple[str, Mapping[str, Any] | Unreadable]"
"""A place, "line 4" or "row 4" counted from 1, and the values by column."""
ReadRow: TypeAlias = "tuple[str, Mapping[str, Any]]"


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, compressed or not; bytes that are not UTF-8 become surrogates (see ``not_utf8``)."""
    number = 0
    try:
        with _open(path)(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
            for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE + 1), ""), start=1):
                if len(line) > LONGEST_LINE:  # a compressed file may be a thousand times as long as it looks
                    raise InvalidInputError(f"{path}, line {number}: longer than {LONGEST_LINE:,} characters.")
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInputError(f"{path} cannot be read beyond line {number}: {error}.") from error


def not_utf8(line: str) -> Unreadable | None:
    """What is wrong with a line that is not UTF-8; None for any other."""
    if line.isascii():
        return None
    try:
        line.encode("utf-8", "surrogateescape").decode()
    except UnicodeDecodeError as error:
        return Unreadable(f"not UTF-8 ({error.reason})")
    return None


def json_rows(path: Path) -> Iterator[Row]:
    """The objects of a JSONL file, compressed or not; blank lines are none."""
    for number, line in enumerate(text_lines(path), start=1):
        if line.strip():
            yield f"line {number}", not_utf8(line) or _json_object(line)


def readable_rows(rows: Iterable[Row], name: object) -> Iterator[ReadRow]:
    """The same rows; one that cannot be read is an error, which names it."""
    for place, row in rows:
        if isinstance(row, Unreadable):
            raise InvalidInputError(f"{name}, {place}: {row}.")
        yield place, row


def usual_keys(rows: Sequence[Mapping[str, Any]], share: float = 0.5) -> list[str]:
    """The keys that more than a share of the rows have."""
    counts = Counter(str(key) for row in rows for key in row)
    return [key for key, n in counts.items() if n > share * len(rows)]


def _open(path: Path) -> Any:
    return gzip.open if path.suffix == ".gz" else open


def _json_object(line: str) -> dict[str, Any] | Unreadable:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        return Unreadable(f"not valid JSON ({error.msg})")
    except (ValueError, RecursionError) as error:  # a number or nesting beyond Python's limits
        return Unreadable(f"not usable as JSON ({error})")
    return row if isinstance(row, dict) else Unreadable(f"expected a JSON object. Got {type(row).__name__}")
