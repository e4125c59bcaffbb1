"""Compiles the loops of ``torchsdm.arithmetic`` when a wheel is built, so that nobody waits for a compiler later."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path(__file__).resolve().parent / "src" / "torchsdm" / "arithmetic"
NO_COMPILER = "No C compiler: torchsdm is built without compiled loops. It works, but slowly."
REMEDY = "Name another compiler in the environment variable CC, or set CC=none: without the loops, torchsdm is slow."


class CompiledLoops(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the libraries to a wheel, which is then one for this platform and every Python.

    A wheel gets them from a temporary folder: the source folder may be read-only, and what lies there from an earlier
    build stays out. An editable install is the source folder, and has them there.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files of the wheel are collected."""
        if version == "editable":
            self._compiled(NATIVE)
            return
        self.folder = TemporaryDirectory(prefix="torchsdm-loops-")
        libraries = self._compiled(Path(self.folder.name))
        if libraries:
            build_data["force_include"] |= {str(path): f"torchsdm/arithmetic/{path.name}" for path in libraries}
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder, whose libraries are in the wheel."""
        if version != "editable":
            self.folder.cleanup()

    def _compiled(self, folder: Path) -> list[Path]:
        try:
            libraries: list[Path] = runpy.run_path(str(NATIVE / "_build.py"))["compile_loops"](folder)
        except OSError as error:
            self.app.abort(f"The loops of torchsdm could not be compiled: {error}. {REMEDY}")
            raise  # abort has ended the process
        if not libraries:
            self.app.display_warning(NO_COMPILER)
        return libraries
