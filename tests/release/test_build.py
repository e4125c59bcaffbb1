"""What ``hatch_build.py`` puts into a wheel, with a compiler, without one, and with one that fails."""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.release.pins import REPOSITORY
from tools.release.wheel import differences, libraries

pytest.importorskip("hatchling", reason="pip install hatchling")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no loops are compiled on Windows")

PURE = "torchsdm-0.1.0-py3-none-any.whl"
COMPILED = f"torchsdm-0.1.0-py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}.whl"
IS_X86 = platform.machine() in ("x86_64", "AMD64")
FILES = (
    "pyproject.toml",
    "hatch_build.py",
    "README.md",
    "LICENSE",
)  # not .gitignore, which alone would keep libraries out
# A compiler that writes its flags instead of code; OLD knows x86-64-v3 at most, as those of 2020.
COMPILER = """#!/bin/sh
{refusing}
while [ "$1" != -o ]; do
    case "$1" in -m*) flags="$flags $1" ;; -fsyntax-only) exit 0 ;; esac
    shift
done
echo "compiled with$flags" >"$2"
"""
OLD = 'case "$*" in *x86-64-v4*) echo "bad value" >&2; exit 1 ;; esac'


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The package with libraries of an earlier build in it, one of them unfinished."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(REPOSITORY / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.library"))
    for name in FILES:
        shutil.copy(REPOSITORY / name, root)
    native = root / "src" / "torchsdm" / "arithmetic"
    (native / "_unfinished-1").mkdir()
    for name in ("_loops-base.library", "_loops-v4.library", "_unfinished-1/_loops-base.library"):
        (native / name).write_text("stale")
    return root


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    """Makes a compiler; returns the path to it."""

    def made(refusing: str = "") -> str:
        path = tmp_path_factory.mktemp("compiler") / "cc"
        path.write_text(COMPILER.format(refusing=refusing))
        path.chmod(0o755)
        return str(path)

    return made


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Builds a target of a tree with a compiler; returns the file, or None, and what was said."""

    def built(root: Path, compiler: str, target: str = "wheel") -> tuple[Path | None, str]:
        monkeypatch.setenv("CC", compiler)
        folder = tmp_path / f"{target}-{len(list(tmp_path.iterdir()))}"
        command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
        return next(folder.iterdir()) if done.returncode == 0 else None, done.stderr

    return built


def loops(wheel: Path) -> dict[str, str]:
    """The libraries in a wheel, and what is in them."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".library")}


def test_a_wheel_has_the_loops_and_is_for_this_platform(tree, compiler, build):
    wheel, _ = build(tree, compiler())
    assert wheel.name == COMPILED and not differences(wheel, libraries())
    found = loops(wheel)
    assert found["torchsdm/arithmetic/_loops-base.library"] == "compiled with\n"
    assert len(set(found.values())) == len(libraries())  # each for its own instructions, none of them stale
    with zipfile.ZipFile(wheel) as archive:
        facts = archive.read("torchsdm-0.1.0.dist-info/WHEEL").decode()
    assert "Root-Is-Purelib: false" in facts and f"Tag: {COMPILED.removeprefix('torchsdm-0.1.0-')[:-4]}" in facts


def test_a_wheel_has_the_templates_of_the_report_and_the_card(tree, build, tmp_path):
    wheel, _ = build(tree, "none")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
        assert "# {title}" in archive.read("torchsdm/model/model_card.md").decode()
    render = """
from torchsdm.evaluation import report
templates = {name: report._environment().get_template(name) for name in report._environment().list_templates()}
assert report.__file__.startswith(%r) and len(templates) > 10 and {"report.html", "report.css"} <= {*templates}
print(templates["sections/where-the-numbers-come-from.html"].render(facts="<b>"))
"""
    command = [sys.executable, "-c", render % str(tmp_path / "installed")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "<pre>&lt;b&gt;</pre>" in done.stdout, done.stderr


def test_building_a_wheel_leaves_the_sources_alone(tree, compiler, build):
    before = {path: path.stat().st_mtime_ns for path in sorted(tree.rglob("*.library"))}
    build(tree, compiler())
    assert {path: path.stat().st_mtime_ns for path in sorted(tree.rglob("*.library"))} == before


def test_without_a_compiler_a_wheel_is_pure(tree, build):
    wheel, said = build(tree, "no-such-compiler")
    assert "No C compiler: torchsdm is built without compiled loops." in said
    assert wheel.name == PURE and loops(wheel) == {} and not differences(wheel, set())


def test_a_compiler_that_fails_is_a_sentence(tree, build):
    wheel, said = build(tree, "false")
    assert wheel is None and "Traceback" not in said
    assert "could not be compiled: 'false' ended with status 1. Name another compiler in the environment" in said


@pytest.mark.skipif(not IS_X86, reason="one library for other processors")
def test_instructions_that_a_compiler_does_not_know_are_left_out(tree, compiler, build):
    wheel, _ = build(tree, compiler(OLD))
    assert wheel.name == COMPILED
    assert {name.rpartition("-")[2] for name in loops(wheel)} == {"base.library", "v3.library"}


def test_the_archive_of_sources_gives_the_same_wheel(tree, compiler, build, tmp_path):
    cc = compiler()
    archive, _ = build(tree, cc, "sdist")
    with tarfile.open(archive) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}
        sources.extractall(tmp_path / "unpacked", filter="data")
    c_files = {path.relative_to(tree).as_posix() for path in tree.rglob("arithmetic/*.[ch]")}
    assert {"hatch_build.py", *c_files} <= names and not [name for name in names if name.endswith(".library")]
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel, again = build(tree, cc)[0], build(unpacked, cc)[0]
    assert wheel.read_bytes() == again.read_bytes()


def editable(root: Path) -> dict[str, object]:
    """What the hook adds when an editable install is built."""
    data: dict[str, object] = {}
    hook = runpy.run_path(str(root / "hatch_build.py"))["CompiledLoops"]
    hook(str(root), {}, None, None, "", "wheel").initialize("editable", data)
    return data


def test_an_editable_install_has_the_loops_in_its_folder(tree, compiler, tmp_path, monkeypatch):
    root = shutil.copytree(tree, tmp_path / "tree")
    monkeypatch.setenv("CC", compiler(OLD))
    assert editable(root) == {}  # what is installed points to the folder, and fits every platform
    native = root / "src" / "torchsdm" / "arithmetic"
    assert (native / "_loops-base.library").read_text() == "compiled with\n"
    if IS_X86:
        assert not (native / "_loops-v4.library").exists()  # it was stale, and this compiler cannot make it anew


def test_an_editable_install_needs_a_folder_it_may_write_to(tree, compiler, monkeypatch, capfd):
    monkeypatch.setenv("CC", compiler())
    monkeypatch.setattr(os, "access", lambda path, mode, **_: mode != os.W_OK)  # root may write everywhere
    with pytest.raises(SystemExit):
        editable(tree)
    assert (
        f"could not be compiled: '{tree / 'src' / 'torchsdm' / 'arithmetic'}' is not writable."
        in capfd.readouterr().err
    )
