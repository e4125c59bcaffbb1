"""The documentation runs: every Python block of every page, page by page, in a process and a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import warm_process

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
PAGES = [README, *sorted((REPOSITORY / "docs").rglob("*.md"))]


def python_blocks(page: Path) -> str:
    fenced = re.finditer(r"^( *)```python\n(.*?)^\1```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return "\n".join(textwrap.dedent(block.group(2)) for block in fenced)  # also blocks within list items


@pytest.mark.parametrize(
    "page", [p for p in PAGES if python_blocks(p)], ids=lambda p: p.relative_to(REPOSITORY).as_posix()
)
def test_code_blocks_run(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text(python_blocks(page), encoding="utf-8")
    if page == README:  # a new user's first lines, in an interpreter that has imported nothing
        done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    else:
        done = warm_process.run(script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


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
    names = [path.stem for path in (REPOSITORY / "docs/results").glob("*.json")]
    linked = (tmp_path / "results.html").read_text(encoding="utf-8")
    for name in names:  # pages that only the site has
        assert f'href="results/{name}.html"' in linked and (tmp_path / f"results/{name}.html").is_file()
    assert names
