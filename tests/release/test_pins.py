"""The pins: what is hashed is what is pinned, for every Python, and no line lets an unhashed file in."""

from __future__ import annotations

import re
import sys

import pytest
from packaging.markers import Marker

from tools.release.pins import CONSTRAINTS, HASHED, HASHED_CUDA, REPOSITORY, read_pins

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYTHONS = ["3.10.13", "3.11.7", "3.12.1", "3.13.0"]
SYSTEMS = {
    "linux": {"sys_platform": "linux", "platform_machine": "x86_64", "os_name": "posix"},
    "darwin": {"sys_platform": "darwin", "platform_machine": "arm64", "os_name": "posix"},
    "win32": {"sys_platform": "win32", "platform_machine": "AMD64", "os_name": "nt"},
}


def versions(path, environment):
    """The version of each package that a file pins in an environment."""
    chosen = [pin for pin in read_pins(path) if not pin.marker or Marker(pin.marker).evaluate(environment)]
    assert len({pin.name for pin in chosen}) == len(chosen), "a package is pinned twice"
    return {pin.name: pin.version for pin in chosen}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_hashed_and_plain_pins_name_the_same_versions(python, system):
    environment = {
        "python_version": ".".join(python.split(".")[:2]),
        "python_full_version": python,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        **SYSTEMS[system],
    }
    plain, hashed = versions(CONSTRAINTS, environment), versions(HASHED, environment)
    assert len(hashed) > 150
    assert hashed.items() <= plain.items()  # a plain pin may be for another system
    assert versions(HASHED_CUDA, environment).keys().isdisjoint(plain)


def test_every_plain_pin_is_hashed():
    pinned = {(pin.name, pin.version) for pin in read_pins(CONSTRAINTS)}
    assert pinned == {(pin.name, pin.version) for pin in read_pins(HASHED)}


@pytest.mark.parametrize("path", [HASHED, HASHED_CUDA], ids=lambda path: path.name)
def test_every_hashed_pin_has_hashes(path):
    for pin in read_pins(path):
        assert pin.hashes and all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in pin.hashes), pin.name


def test_everything_we_ask_for_is_pinned():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    asked = {re.split(r"[^\w-]", line)[0].lower().replace("_", "-") for lines in extras for line in lines}
    asked |= {re.split(r"[^\w-]", line)[0].lower().replace("_", "-") for line in project["dependencies"]}
    assert asked - {pin.name for pin in read_pins(CONSTRAINTS)} == {"torchsdm"}
