"""Write constraints-hashed.txt from constraints.txt: make lock

The same versions, with the SHA-256 of every file that the registry has, for ``pip install --require-hashes``. The
libraries for CUDA, which torch's default build for Linux needs and its CPU builds do not, go into a file of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.release.pins import CONSTRAINTS, HASHED, HASHED_CUDA, REPOSITORY, Pin, read_pins

CUDA = ("cuda-", "nvidia-", "triton")
# Wheels of the pinned versions that are not on PyPI: torch's CPU build for Python 3.11 on Linux.
ELSEWHERE = {"torch": ("sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",)}
HEAD = """\
# Written by "make lock" from constraints.txt: the same versions, with the hash of every file of theirs.
"""
HASHED_HEAD = f"""\
{HEAD}# pip install --require-hashes --no-deps --only-binary :all: -r constraints-hashed.txt
# Nothing is resolved (--no-deps): everything the core and the extras need is listed. With torch's default build for
# Linux, add -r constraints-hashed-cuda.txt; its CPU builds do without. pip takes a CPU build only from an index, or
# from a page of links, that states its hash: a plain folder of wheels comes after PyPI.
"""
CUDA_HEAD = f"{HEAD}# What torch's default build for Linux needs besides constraints-hashed.txt.\n"


def resolved() -> list[Pin]:
    """All that core and extras need at the pinned versions, for every supported Python, as the registry has it."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--all-extras", "--universal"]
    command += ["--python-version", "3.10", "--only-binary", ":all:", "--constraints", str(CONSTRAINTS)]
    command += ["--generate-hashes", "--no-annotate", "--no-header", "--quiet"]
    environment = {key: value for key, value in os.environ.items() if key != "UV_FIND_LINKS"}  # the registry alone
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "resolved.txt"
        subprocess.run([*command, "--output-file", str(output)], cwd=REPOSITORY, env=environment, check=True)
        return read_pins(output)


def is_for_python(pin: Pin) -> bool:
    """Whether a pin is for an interpreter we support, and not for a browser's."""
    return "== 'emscripten'" not in pin.marker


def written(pin: Pin) -> str:
    """A pin with its hashes, as pip reads it."""
    hashes = sorted({*pin.hashes, *ELSEWHERE.get(pin.name, ())})
    return pin.requirement + "".join(f" \\\n    --hash={one}" for one in hashes) + "\n"


if __name__ == "__main__":
    pins = [pin for pin in resolved() if is_for_python(pin)]
    for path, head, is_cuda in ((HASHED, HASHED_HEAD, False), (HASHED_CUDA, CUDA_HEAD, True)):
        chosen = [pin for pin in pins if pin.name.startswith(CUDA) == is_cuda]
        path.write_text(head + "\n" + "".join(map(written, chosen)), encoding="utf-8")
        print(f"{path.name}: {len(chosen)} pins, {sum(len(pin.hashes) for pin in chosen)} hashes")
