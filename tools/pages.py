"""Figures in the documentation: the machine they come from, and where on a page they stand."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def machine() -> dict[str, str]:
    """Processor and versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    processor = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    packages = {name: version(name) for name in ("torch", "numpy")}
    return {"processor": processor, "python": platform.python_version(), **packages}


def said(machine: dict[str, str]) -> str:
    """The machine in words."""
    versions = ", ".join(f"{package} {number}" for package, number in machine.items() if package != "processor")
    return f"{machine['processor']}, {versions}."


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what a page has between two marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}", encoding="utf-8")
    print(f"Published to {page}")
