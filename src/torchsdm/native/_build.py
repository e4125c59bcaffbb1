"""Compiles the loops: one library for every processor and, on x86-64, one for each generation of vector instructions.

``hatch_build.py`` calls it when the package is built, ``sdm doctor --compile`` in an installed one. It imports
nothing of the package. The libraries do not depend on the version of Python.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# No contraction, and nothing that reorders sums: bits must not depend on the instructions.
FLAGS = "-std=gnu11 -O3 -fPIC -shared -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-psabi"
X86 = {
    "v3": "-march=x86-64-v3",
    "v4": "-march=x86-64-v4 -mprefer-vector-width=512",
    "v4-bf16": "-march=x86-64-v4 -mprefer-vector-width=512 -mavx512bf16",
}


def compile_loops(folder: Path = FOLDER) -> list[Path]:
    """Compile every library into a folder; none if there is no compiler."""
    if not has_compiler():
        return []
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    variants = {"base": "", **(X86 if is_x86 else {})}
    return [_compiled(folder / f"_loops-{name}.so", flags) for name, flags in variants.items()]


def has_compiler() -> bool:
    """Whether there is a C compiler: the one that the environment variable CC names, or cc."""
    return os.name == "posix" and shutil.which(_compiler()[0]) is not None


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def _compiled(library: Path, flags: str) -> Path:
    sources = sorted(map(str, FOLDER.glob("*.c")))
    unfinished = library.with_suffix(f".{os.getpid()}")  # whoever has loaded the old one keeps it
    try:
        subprocess.run(
            [*_compiler(), *FLAGS.split(), *flags.split(), *sources, "-o", str(unfinished), "-lm"], check=True
        )
        unfinished.replace(library)
    finally:
        unfinished.unlink(missing_ok=True)
    return library


if __name__ == "__main__":
    sys.exit(None if compile_loops() else "No C compiler was found: install one, or name it in CC.")
