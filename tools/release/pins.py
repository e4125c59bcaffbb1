"""The pins of constraints.txt and of its hashed twin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
CONSTRAINTS = REPOSITORY / "constraints.txt"
HASHED = REPOSITORY / "constraints-hashed.txt"
HASHED_CUDA = REPOSITORY / "constraints-hashed-cuda.txt"
_LINE = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[^ ;\\]+)(?: *; *(?P<marker>[^\\]*))?")


class Pin(NamedTuple):
    """One line: a package, its version, and the environments it is for."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """The pin as pip reads it, without hashes."""
        return f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")


def read_pins(path: Path) -> list[Pin]:
    """All pins of a file; a line that ends with a backslash goes on in the next."""
    lines = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return [_pin(line) for line in lines if line.strip() and not line.startswith("#")]


def _pin(line: str) -> Pin:
    requirement, *hashes = line.split("--hash=")
    found = _LINE.fullmatch(requirement.strip())
    if found is None:
        raise ValueError(f"{line!r} is not a pin.")
    return Pin(found["name"], found["version"], (found["marker"] or "").strip(), tuple(one.strip() for one in hashes))
