"""Which columns of a file hold text, label, id, answer and states."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Columns:
    """Names of columns or keys; None means the usual name, if the file has it."""

    text: str = "text"
    label: str | None = None
    id: str | None = None
    answer: str | None = None
    states: str = "hidden_states"
