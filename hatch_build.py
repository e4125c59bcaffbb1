"""Compiles the loops of ``torchsdm.native`` when a wheel is built, so that nobody waits for a compiler later."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = Path(__file__).resolve().parent / "src" / "torchsdm" / "native" / "_build.py"


class CompiledLoops(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the libraries to a wheel, which is then one for this platform and every Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files of the wheel are collected."""
        libraries: list[Path] = runpy.run_path(str(BUILD))["compile_loops"]()
        if not libraries:
            self.app.display_warning("No C compiler: torchsdm is built without compiled loops. It works, but slowly.")
            return
        build_data["artifacts"] += [f"/{path.relative_to(self.root).as_posix()}" for path in libraries]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
