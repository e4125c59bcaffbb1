"""Fresh environments, made by uv from wheels alone: it links files from its cache instead of copying gigabytes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

UV = (sys.executable, "-m", "uv")


def fresh_environment(folder: Path, python: str) -> Path:
    """An empty environment in a folder, which is emptied first; returns its Python."""
    subprocess.run([*UV, "--quiet", "venv", "--clear", "--python", python, str(folder)], check=True)
    return folder / "bin" / "python"


def install(python: Path, *what: str) -> None:
    """Install packages, given with uv's options, into an environment; nothing is built from source."""
    subprocess.run([*UV, "--quiet", *_install(python), *what], env=_settings(), check=True)


def would_install(python: Path, *what: str) -> set[str]:
    """The names of the packages that :func:`install` would add; only their descriptions are downloaded."""
    command = [*UV, "--color", "never", *_install(python), "--dry-run", *what]
    plan = subprocess.run(command, env=_settings(), check=True, stderr=subprocess.PIPE, text=True).stderr
    return planned(plan)


def planned(plan: str) -> set[str]:
    """The packages that a dry run of uv would add.

    >>> sorted(planned("Would install 2 packages\\n + numpy==2.0.0\\n - numpy==1.0.0\\n + torch==2.13.0+cpu"))
    ['numpy', 'torch']
    """
    return set(re.findall(r"^ \+ ([a-z0-9-]+)==", plan, re.MULTILINE))


def _install(python: Path) -> tuple[str, ...]:
    return ("pip", "install", "--python", str(python), "--only-binary", ":all:")


def _settings() -> dict[str, str]:
    settings = dict(os.environ)
    if "PIP_FIND_LINKS" in os.environ:  # a CPU build of torch, say
        settings.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"])
    return settings
