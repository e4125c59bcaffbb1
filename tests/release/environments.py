"""Fresh environments, made by uv from wheels alone: it links files from its cache instead of copying gigabytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

UV = (sys.executable, "-m", "uv", "--quiet")


def fresh_environment(folder: Path, python: str) -> Path:
    """An empty environment in a folder, which is emptied first; returns its Python."""
    subprocess.run([*UV, "venv", "--clear", "--python", python, str(folder)], check=True)
    return folder / "bin" / "python"


def install(python: Path, *what: str) -> None:
    """Install packages, given with uv's options, into an environment; nothing is built from source."""
    environment = dict(os.environ)
    if "PIP_FIND_LINKS" in os.environ:  # a CPU build of torch, say
        environment.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"])
    command = [*UV, "pip", "install", "--python", str(python), "--only-binary", ":all:", *what]
    subprocess.run(command, env=environment, check=True)
