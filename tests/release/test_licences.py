"""The list of licences is that of the pinned packages, and whatever asks for more than to be named is argued."""

from __future__ import annotations

import re
from email.message import Message

import pytest

from tools.release.licences import ARGUED, PAGE, UNKNOWN, needs_argument, stated
from tools.release.pins import CONSTRAINTS, read_pins


def listed() -> dict[str, tuple[str, str]]:
    rows = re.findall(r"^\| ([a-z0-9-]+) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: (versions, licence) for name, versions, licence in rows if name != "package"}


def test_the_list_matches_the_pins():
    pinned: dict[str, list[str]] = {}
    for pin in read_pins(CONSTRAINTS):
        pinned.setdefault(pin.name, []).append(pin.version)
    found = {name: versions.split(", ") for name, (versions, _) in listed().items()}
    assert found == pinned, "Run 'make licences'."


def test_what_needs_an_argument_has_one():
    special = {name for name, (_, licence) in listed().items() if needs_argument(licence)}
    assert special == ARGUED.keys()
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"- **{name}** " in text and argument in text for name, argument in ARGUED.items())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("License-Expression", "MIT"), ("License", "other")], "MIT"),
        ([("Classifier", "License :: OSI Approved :: BSD License"), ("License", "other")], "BSD License"),
        ([("Classifier", "License :: OSI Approved"), ("License", "Apache 2.0")], "Apache 2.0"),
        ([("License", "x" * 61)], UNKNOWN),
        ([], UNKNOWN),
    ],
)
def test_the_licence_is_what_the_metadata_states(fields, expected):
    facts = Message()
    for name, value in fields:
        facts[name] = value
    assert stated(facts) == expected


@pytest.mark.parametrize("licence", ["MPL-2.0", "GNU General Public License", "LGPL-2.1", UNKNOWN])
def test_copyleft_needs_an_argument(licence):
    assert needs_argument(licence) and not needs_argument("MIT")
