"""Run a command of ``sdm`` and time its steps and its imports.

    python benchmarks/steps.py FILE STEPS WORD ...

Writes the CPU time of each step to FILE, as JSON. STEPS is JSON, too: functions by step, as in
{"saving": "torchsdm.estimators:SDMClassifier.save"}. The times add up to that of the whole main thread; an import or a
step within another step is counted on its own, not twice.

Functions are timed by wrapping them. A profiler slows down Python code and not arithmetic: under ``cProfile`` the
command took twice as long, and imports seemed to be most of it.
"""

from __future__ import annotations

import builtins
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce, wraps
from pathlib import Path
from typing import Any

TORCH, LIBRARIES, OURS = "importing torch", "importing other libraries", "importing torchsdm"
REST = "everything else"


class Stopwatch:
    """CPU time of the thread that it is made in, by step; ``clock`` starts with the process."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.seconds = dict.fromkeys((TORCH, LIBRARIES, OURS, REST), 0.0)
        self._clock, self._last, self._open = clock, 0.0, [REST]
        self._thread = threading.get_ident()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """What is done within belongs to this step, and not to the one around it."""
        self.stop()
        self._open.append(name)
        try:
            yield
        finally:
            self.stop()
            self._open.pop()

    def stop(self) -> None:
        """Count the time until now."""
        now = self._clock()
        self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._last
        self._last = now

    def timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, as a step."""

        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            with self.step(step):
                return function(*arguments, **options)

        return call

    def timed_import(self, load: Callable[..., Any]) -> Callable[..., Any]:
        """The same ``__import__``, as a step; what torch imports belongs to torch."""

        def call(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
            package = (globals["__package__"] if level else name).partition(".")[0]
            step = {"torch": TORCH, "torchsdm": OURS}.get(package, LIBRARIES)
            if self._open[-1] in (TORCH, step) or threading.get_ident() != self._thread:
                return load(name, globals, locals, fromlist, level)
            with self.step(step):
                return load(name, globals, locals, fromlist, level)

        return call


class Places:
    """Functions to time, each wrapped once its module has been imported, when the command itself imports it."""

    def __init__(self, watch: Stopwatch, steps: Mapping[str, str]) -> None:
        self._watch, self.missing = watch, dict(steps)

    def after(self, load: Callable[..., Any]) -> Callable[..., Any]:
        """The same ``__import__``, after which functions that are there now are wrapped."""

        def call(name: str, *arguments: Any, **options: Any) -> Any:
            loaded = load(name, *arguments, **options)
            if name.startswith("torchsdm"):
                self._wrap()
            return loaded

        return call

    def _wrap(self) -> None:
        for step, place in list(self.missing.items()):
            module, _, names = place.partition(":")
            *path, name = names.split(".")
            owner = reduce(lambda within, part: getattr(within, part, None), path, sys.modules.get(module))
            if owner is not None and hasattr(owner, name):
                setattr(owner, name, self._watch.timed(step, getattr(owner, name)))
                del self.missing[step]


def main(file: str, steps: str, *words: str) -> None:
    """Run the command with its steps timed."""
    watch = Stopwatch()
    places = Places(watch, json.loads(steps))
    builtins.__import__ = watch.timed_import(places.after(builtins.__import__))
    sys.argv = ["sdm", *words]
    try:
        from torchsdm.cli import main as sdm

        sdm()
    finally:
        watch.stop()
        Path(file).write_text(json.dumps(watch.seconds), encoding="utf-8")
    if places.missing:
        sys.exit(f"not found: {places.missing}")


if __name__ == "__main__":
    main(*sys.argv[1:])
