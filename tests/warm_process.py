"""Processes that start in milliseconds: each is forked from one process that has done nothing but import.

A test that needs a process of its own (to kill it, or for a fresh folder, environment and global state) would
otherwise wait seconds for ``import torch``. A process forked here shares nothing with the test or with its siblings
but modules that have been imported already. Tests of what importing costs or needs must start a real interpreter.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_PRELOADED = [
    *("torch", "torch._dynamo", "sklearn.datasets", "pandas", "pyarrow", "matplotlib.pyplot", "transformers"),
    *("torchsdm.matching._tiles", "torchsdm.baselines", "torchsdm.evaluation", "torchsdm.cli.command"),
]
_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_CONTEXT = multiprocessing.get_context(_METHOD)
_CONTEXT.set_forkserver_preload(_PRELOADED)

SDM = "from torchsdm.cli import main; main()"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # as a test has: last bits depend on it


def strict(text):
    """Strict JSON, which knows neither NaN nor infinity."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


@dataclass(frozen=True)
class Done:
    """How a command ended and what it wrote."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def rows(self):
        return [strict(line) for line in self.stdout.splitlines()]


class WarmProcess:
    """A Python program in a process of its own; the part of ``subprocess.Popen`` that tests need.

    ``program`` is a script or Python code; arguments follow, as on a command line. Standard input is empty and what it
    writes goes to files, unless paths (of named pipes, say) are given.
    """

    def __init__(
        self,
        program: Path | str,
        *arguments: object,
        cwd: Path | None = None,
        env: dict | None = None,
        stdin: Path | str = os.devnull,
        stdout: Path | None = None,
    ):
        self._folder = tempfile.TemporaryDirectory(prefix="process-")
        self._out, self._err = (Path(self._folder.name) / name for name in ("stdout", "stderr"))
        self._out = self._out if stdout is None else stdout
        words = [str(argument) for argument in arguments]
        where, environment = str(cwd or Path.cwd()), dict(os.environ if env is None else env)
        streams = str(stdin), str(self._out), str(self._err)
        self._process = _CONTEXT.Process(target=_run, args=(program, words, where, environment, streams))
        self._process.start()

    @property
    def stdout(self) -> str:
        """What it has written so far."""
        return self._out.read_text(encoding="utf-8") if self._out.exists() else ""

    @property
    def stderr(self) -> str:
        """What it has written so far."""
        return self._err.read_text(encoding="utf-8") if self._err.exists() else ""

    def poll(self) -> int | None:
        """The exit code, minus the signal's number if one ended it; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self._process.pid, number)

    def wait(self, timeout: float = 300) -> int:
        """The exit code at its end; what still runs after the time is killed."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        return self._process.exitcode


def run(program: Path | str, *arguments: object, timeout: float = 300, **options) -> Done:
    """Run a program to its end."""
    process = WarmProcess(program, *arguments, **options)
    return Done(process.wait(timeout), process.stdout, process.stderr)


def _run(program: Path | str, arguments: list[str], cwd: str, environment: dict, streams: tuple[str, ...]) -> None:
    for number, path in reversed(list(enumerate(streams))):  # who opens a pipe to it knows that the rest is open
        file = os.open(path, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  (multiprocessing put another there)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started to ignore it
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if "OMP_NUM_THREADS" in environment:  # which torch read when it was imported
        import torch

        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    sys.argv = [str(program) if isinstance(program, Path) else "-c", *arguments]
    if isinstance(program, Path):
        sys.path.insert(0, str(program.parent))
        runpy.run_path(str(program), run_name="__main__")
    else:
        exec(compile(program, "<code>", "exec"), {"__name__": "__main__"})
