"""Commands that answer before any work is done, against starting Python: CPU time of one process each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from measure import Figure, compare, process_seconds


def run() -> Iterator[Figure]:
    """Importing the package, help, and a wrong option."""
    sdm = "from torchsdm.cli import main; main()"
    for work, code, words, at_most in (
        ("import torchsdm", "import torchsdm", (), 5),
        ("sdm --help", sdm, ("--help",), 15),
        ("sdm train with a wrong option", sdm, ("train", "--nonsense"), 15),
    ):
        yield compare(
            work,
            lambda: _python(code, *words),  # noqa: B023
            "python -c pass",
            lambda: _python("pass"),
            at_most=at_most,
            repeats=15,
            clock=process_seconds,
        )


def _python(code: str, *words: str) -> None:
    subprocess.run([sys.executable, "-c", code, *words], capture_output=True)
