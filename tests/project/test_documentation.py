"""The documentation runs: every Python block of every page, page by page, in a process and a folder of its own.

The tutorial runs with its commands, block by block, and they print what it says they do.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import warm_process

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
TUTORIAL = REPOSITORY / "docs/tutorial.md"
PAGES = [README, *sorted((REPOSITORY / "docs").rglob("*.md"))]


def python_blocks(page: Path) -> str:
    fenced = re.finditer(r"^( *)```python\n(.*?)^\1```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return "\n".join(textwrap.dedent(block.group(2)) for block in fenced)  # also blocks within list items


@pytest.mark.parametrize(
    "page", [p for p in PAGES if python_blocks(p) and p != TUTORIAL], ids=lambda p: p.relative_to(REPOSITORY).as_posix()
)
def test_code_blocks_run(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text(python_blocks(page), encoding="utf-8")
    if page == README:  # a new user's first lines, in an interpreter that has imported nothing
        done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    else:
        done = warm_process.run(script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_tutorial_runs_as_written(tmp_path):
    """Numbers may differ on another processor; words may not."""
    blocks = re.findall(r"^```(bash|text|python)\n(.*?)^```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL | re.M)
    printed, kinds = "", [kind for kind, _ in blocks]
    for kind, block in blocks:
        if kind == "text":
            for line in block.replace("\n    ", " ").splitlines():  # long lines are folded
                assert _without_numbers(line) in _without_numbers(printed), f"{line!r} is not in\n{printed}"
            continue
        (tmp_path / "block.py").write_text(block, encoding="utf-8")
        program, words = tmp_path / "block.py", []
        if kind == "bash":
            (command,) = block.splitlines()
            name, *words = shlex.split(command)
            assert name in ("sdm", "python")
            program = warm_process.SDM if name == "sdm" else REPOSITORY / words.pop(0)
        done = warm_process.run(program, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        printed = done.stdout + done.stderr
    assert kinds.count("bash") == 6 and kinds.count("text") == 5 and kinds.count("python") == 2


def _without_numbers(text: str) -> str:
    return re.sub(r"\d[\d,.]*\d|\d", "#", text)


def test_site_builds_without_warnings(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "index.html").is_file()
    names = [path.stem for path in (REPOSITORY / "research/results").glob("*.json")]
    linked = (tmp_path / "results.html").read_text(encoding="utf-8")
    for name in names:  # pages that only the site has
        assert f'href="results/{name}.html"' in linked and (tmp_path / f"results/{name}.html").is_file()
    assert names
