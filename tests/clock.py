"""A terminal, and a clock that a test sets, to read remaining times from progress bars."""

from __future__ import annotations

import io
import re


class Clock:
    """Seconds as a test wants them; tqdm asks it for the time."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr("tqdm.std.time", lambda: self.now)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch) -> Terminal:
    screen = Terminal()  # within the test: pytest puts its own stream back between fixture and test
    monkeypatch.setattr("sys.stderr", screen)
    return screen


def remaining(screen: Terminal) -> dict[int, int]:
    """The remaining time that a bar showed at each count, in seconds, which a bar rounds down."""
    found = re.findall(r" (\d+)/\d+ \[\d+:\d+<(\d+):(\d+)", screen.getvalue())
    return {int(n): 60 * int(minutes) + int(seconds) for n, minutes, seconds in found}
