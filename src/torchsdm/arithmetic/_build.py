"""Compiles the loops: one library for every processor and, on x86-64, one for each generation of vector instructions.

``hatch_build.py`` calls it when the package is built, ``sdm doctor --compile`` in an installed one. It imports
nothing of the package. The libraries do not depend on the version of Python.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).resolve().parent
# No contraction, and nothing that reorders sums: bits must not depend on the instructions.
FLAGS = "-std=gnu11 -O3 -fPIC -shared -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-psabi"
X86 = {
    "v3": "-march=x86-64-v3",
    "v4": "-march=x86-64-v4 -mprefer-vector-width=512",
    "v4-bf16": "-march=x86-64-v4 -mprefer-vector-width=512 -mavx512bf16",
}


def compile_loops(folder: Path = FOLDER) -> list[Path]:
    """Compile every library that the compiler has the flags for into a folder; none if there is no compiler.

    A compiler that fails, or a folder that is not writable, is an OSError.
    """
    if not has_compiler():
        return []
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"'{folder}' is not writable")
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    variants = {"base": "", **({name: flags for name, flags in X86.items() if _has_flags(flags)} if is_x86 else {})}
    with TemporaryDirectory(prefix="_unfinished-", dir=folder) as unfinished:
        compiled = [_compiled(Path(unfinished) / f"_loops-{name}.library", flags) for name, flags in variants.items()]
        for name in X86.keys() - variants.keys():
            (folder / f"_loops-{name}.library").unlink(missing_ok=True)  # from sources that may have changed since
        return [path.replace(folder / path.name) for path in compiled]  # whoever has loaded an old one keeps it


def source_digest() -> str:
    """What tells these sources from others: a library that was compiled from others is not used."""
    digest = hashlib.sha256()
    for path in sorted(FOLDER.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def has_compiler() -> bool:
    """Whether there is a C compiler: the one that the environment variable CC names, or cc. CC=none means no."""
    return os.name == "posix" and shutil.which(_compiler()[0]) is not None


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def _has_flags(flags: str) -> bool:
    """Whether the compiler knows these instructions: GCC 11 and Clang 12 do."""
    command = [*_compiler(), *flags.split(), "-fsyntax-only", "-x", "c", os.devnull]
    return subprocess.run(command, capture_output=True).returncode == 0


def _compiled(library: Path, flags: str) -> Path:
    sources = sorted(map(str, FOLDER.glob("*.c")))
    options = [*FLAGS.split(), f'-DSOURCES="{source_digest()}"', *flags.split()]
    command = [*_compiler(), *options, *sources, "-o", str(library), "-lm"]
    status = subprocess.run(command).returncode
    if status:
        raise ChildProcessError(f"'{shlex.join(_compiler())}' ended with status {status}")
    return library


if __name__ == "__main__":
    if not has_compiler():
        sys.stderr.write("No C compiler was found (cc, or the one that CC names): the loops are not compiled.\n")
    try:
        compile_loops()
    except OSError as error:
        sys.exit(f"The loops could not be compiled: {error}.")
