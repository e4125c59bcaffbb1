"""Find the sentences and paragraphs of a text, and join them into at most a given number."""

from __future__ import annotations

import re
from itertools import pairwise

Span = tuple[int, int]  # start and end, end not included

# A sentence ends at . ! ? or … (with closing quotes or brackets) before white space, at a full stop of scripts that
# use no space, or at the end of a line. Abbreviations end sentences too: an extra segment does no harm.
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*|[。！？]+|\n+")
_PARAGRAPH_END = re.compile(r"\n\s*\n")


def split_spans(text: str, kind: str) -> list[Span]:
    """The sentences or paragraphs of a text as spans of characters, without the white space around them.

    Examples
    --------
    >>> text = "It rains. It pours!"
    >>> [text[start:end] for start, end in split_spans(text, "sentences")]
    ['It rains.', 'It pours!']
    """
    ends = _SENTENCE_END if kind == "sentences" else _PARAGRAPH_END
    spans: list[Span] = []
    start = 0
    matches = ends.finditer(text)
    found = [match.end() for match in matches if match[0][0] not in ".!?…" or _is_space(text, match.end())]
    for end in [*found, len(text)]:
        piece = text[start:end]
        if piece.strip():
            left = start + len(piece) - len(piece.lstrip())
            spans.append((left, start + len(piece.rstrip())))
        start = end
    return spans


def _is_space(text: str, position: int) -> bool:
    return position < len(text) and text[position].isspace()


def join_spans(spans: list[Span], n: int) -> list[Span]:
    """At most n spans: if there are more, neighbours are joined into groups of nearly equal size."""
    if len(spans) <= n:
        return spans
    edges = [len(spans) * part // n for part in range(n + 1)]
    return [(spans[first][0], spans[last - 1][1]) for first, last in pairwise(edges)]
