"""Ratios of times measured in turn, and peak memory: a noisy machine slows both sides of a ratio equally."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

THREADS = 2


@dataclass(frozen=True)
class Figure:
    """One line of the table: some work measured against a yardstick."""

    work: str
    against: str
    ratio: float
    goal: str = ""
    reached: bool | None = None
    low: float | None = None
    high: float | None = None
    work_seconds: float | None = None
    yardstick_seconds: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @property
    def spread(self) -> str:
        """The smallest and largest ratio of consecutive pairs of measurements."""
        return "" if self.low is None or self.high is None else f"{self.low:.2f} to {self.high:.2f}"


def compare(
    work: str,
    do_work: Callable[[], Any],
    against: str,
    do_yardstick: Callable[[], Any],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    repeats: int = 7,
    note: str = "",
    scale: float = 1.0,
    clock: Callable[[Callable[[], Any]], float] | None = None,
) -> Figure:
    """Time both in turn and return the ratio of their medians; ``scale`` multiplies the yardstick's time.

    ``clock`` measures how long a call takes, by default ``seconds``.
    With ``at_least`` the ratio is inverted: how many times faster the work is.
    """
    clock = clock or seconds
    do_yardstick(), do_work()  # warm up caches, compiled code, pages
    yardsticks, works = [], []
    for _ in range(repeats):
        yardsticks.append(clock(do_yardstick) * scale)
        works.append(clock(do_work))
    typical = statistics.median(works), statistics.median(yardsticks)
    pairs = [work_time / yardstick_time for work_time, yardstick_time in zip(works, yardsticks, strict=True)]
    if at_least is not None:
        pairs = [1 / pair for pair in pairs]
    ratio = typical[1] / typical[0] if at_least is not None else typical[0] / typical[1]
    return judged(work, against, ratio, at_most, at_least, min(pairs), max(pairs), typical[0], typical[1], note)


def judged(
    work: str,
    against: str,
    ratio: float,
    at_most: float | None = None,
    at_least: float | None = None,
    low: float | None = None,
    high: float | None = None,
    work_seconds: float | None = None,
    yardstick_seconds: float | None = None,
    note: str = "",
) -> Figure:
    """A figure with its goal, and whether it is reached."""
    goal, reached = "", None
    if at_most is not None:
        goal, reached = f"≤ {at_most:g}", ratio <= at_most
    if at_least is not None:
        goal, reached = f"≥ {at_least:g} times faster", ratio >= at_least
    return Figure(work, against, ratio, goal, reached, low, high, work_seconds, yardstick_seconds, note)


def seconds(work: Callable[[], Any]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def process_seconds(work: Callable[[], Any]) -> float:
    """CPU time of the processes that a call starts and waits for."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (end.ru_utime - start.ru_utime) + (end.ru_stime - start.ru_stime)


class PeakMemory:
    """Peak memory within a ``with`` block beyond that at its start, in bytes (Linux)."""

    def __enter__(self) -> PeakMemory:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
        self.before = _status("VmRSS")
        return self

    def __exit__(self, *error: object) -> None:
        self.extra = _status("VmHWM") - self.before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
