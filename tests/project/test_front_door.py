"""The front door is light: what answers before any work is done imports nothing heavy. ``make bench`` has the times."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import torchsdm
from torchsdm.cli.command import sdm

HEAVY = {"torch", "numpy", "scipy", "sklearn", "transformers", "safetensors", "tqdm", "pandas"}
REPORT = f"""
import json, os, sys
def loaded():
    return sorted({{name.partition(".")[0] for name in sys.modules}} & {HEAVY!r})
"""
ANSWERED = """
from torchsdm.cli import main
def answer(words):
    sys.argv = ["sdm", *words]
    try:
        main()
    except SystemExit as end:
        return end.code
answers = [[answer(words), loaded()] for words in json.loads(sys.argv[1])]
os.environ.update(_SDM_COMPLETE="bash_complete", COMP_WORDS="sdm tr", COMP_CWORD="1")
print("completion")
answers.append([answer([]), loaded()])
print("\\n" + json.dumps(answers))
"""


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-c", REPORT + code, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def test_the_package_is_imported_without_what_it_needs_later():
    done = run("""
import torchsdm, torchsdm.errors
assert "SDMClassifier" in dir(torchsdm) and "baselines" in dir(torchsdm)
assert torchsdm.TorchSDMError is torchsdm.errors.TorchSDMError
print(json.dumps(loaded()))
""")
    assert json.loads(done.stdout) == []


def test_modules_are_attributes_of_the_package():
    done = run("import torchsdm; print(torchsdm.errors.__name__, torchsdm.baselines.__name__)")
    assert done.stdout == "torchsdm.errors torchsdm.baselines\n"


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(AttributeError, match="module 'torchsdm' has no attribute 'SDMClasifier'"):
        torchsdm.SDMClasifier  # noqa: B018
    assert not hasattr(torchsdm, "_not_there")


def test_type_checkers_see_the_names_that_are_there():
    code = ast.parse(Path(torchsdm.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in code.body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    seen = {}
    for statement in block.body:
        (alias,) = statement.names
        assert alias.asname == alias.name  # which marks it as exported
        seen[alias.name] = statement.module
    assert set(seen) == set(torchsdm.__all__)
    for name, module in seen.items():
        assert getattr(torchsdm, name) is getattr(sys.modules[module], name)


def test_help_completion_and_wrong_options_import_nothing_heavy(tmp_path):
    helps = [["--help"], ["--version"], *([verb, "--help"] for verb in sdm.list_commands(None))]
    refused = [
        *(["tarin"], ["train"], ["train", "--nonsense"]),
        ["embed", "texts.jsonl", "-o", str(tmp_path / "states")],
        ["embed", "texts.jsonl", "-o", str(tmp_path / "states"), "--segments", "words"],
        ["train", "texts.jsonl", "-o", str(tmp_path / "model"), "-p", "sentiment"],
        *(["predict", "model", "new.jsonl", "-k", "-1"], ["explain", "model"], ["update", "model"]),
    ]
    done = run(ANSWERED, json.dumps([*helps, *refused]))
    shown, _, last = done.stdout.rstrip().rpartition("\n")
    *answers, completion = json.loads(last)
    for words, (status, loaded) in zip([*helps, *refused], answers, strict=True):
        assert loaded == [], words
        assert (status == 0) == (words in helps), words
    assert completion == [0, []] and "plain,train" in shown.rpartition("completion")[2]
    assert "Traceback" not in done.stderr


def test_a_verb_bundles_its_options():
    bundled = {"text", "label", "id", "answer", "states", "language_model", "device", "batch_tokens"}
    for verb in ("predict", "explain", "evaluate", "report", "update"):
        options = {option.name: option.opts for option in sdm.get_command(None, verb).params}
        assert bundled <= set(options)
        assert options["language_model"] == ["-m", "--language-model"]
