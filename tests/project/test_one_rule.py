"""One rule, everywhere: the command, Python, HTTP and agents have the same defaults and make the same checks."""

from __future__ import annotations

import ast
from pathlib import Path

import torchsdm.cli
from torchsdm.cli.command import sdm

LONGEST = 40  # lines of a verb's body


def bodies():
    for path in sorted(Path(torchsdm.cli.__file__).parent.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any(".command" in ast.unparse(one) for one in node.decorator_list):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                yield node.name, body[-1].end_lineno - body[0].lineno + 1


def test_a_verb_parses_calls_and_prints():
    found = dict(bodies())
    assert set(found) == set(sdm.commands)
    del found["predict"]  # until its road is one
    assert {name: length for name, length in found.items() if length > LONGEST} == {}
