"""Test every Python that is found, and the oldest dependencies: make test-versions

Each gets a fresh environment in .venv/versions with the built wheel (not the working tree), wheels only. The pinned
versions of constraints.txt come first; the combination "oldest" has the lowest versions that pyproject.toml allows, on
the oldest Python that can be tested. torch is the pinned one everywhere. On Linux its default build brings gigabytes of
CUDA, so a Python for which pip finds no CPU build is left out, unless --cuda is given. How each ended, or why it was
left out, is written to results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.release.environments import fresh_environment, install, would_install
from tools.release.lock import CUDA
from tools.release.pins import CONSTRAINTS, REPOSITORY, read_pins
from tools.release.wheel import build

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
OLDEST = "oldest"
RESULTS = Path(__file__).with_name("results.json")
ENVIRONMENTS = REPOSITORY / ".venv" / "versions"
LOOPBACK = REPOSITORY / "tests" / "cluster" / "loopback.py"
TOOLS = ("hypothesis", "onnx", "pytest", "pytest-timeout", "pytest-xdist")  # of the tests: pinned even in "oldest"
OLD_TOOLS = ("httpx>=0.27",)  # the test client of FastAPI's oldest versions needs it, the pinned one does not
# Import, numbers by hand, contract, every module, files of every format, saving and loading, the service.
TESTS = (
    "tests/project/test_front_door.py",
    "tests/release/test_no_network.py",
    "tests/golden",
    "tests/contract",
    "tests/unit",
    "research/tests",
    "tests/system/test_earlier_formats.py",
    "tests/system/test_persistence.py",
    "tests/system/test_service.py",
)
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}


class NotTested(Exception):
    """Why a combination cannot be tested here."""


def interpreter(version: str) -> str | None:
    """Where a Python of this version is: installed by pyenv, or on the path."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(pyenv.glob(f"{version}.*/bin/python"))  # on the path, pyenv has names that may not run
    return str(installed[-1]) if installed else shutil.which(f"python{version}")


def prepared(name: str, version: str, with_cuda: bool) -> Path:
    """The Python of a fresh environment that has the pinned torch alone; :class:`NotTested` says why there is none."""
    python = interpreter(version)
    if python is None:
        raise NotTested(f"Python {version} is not installed")
    environment = fresh_environment(ENVIRONMENTS / name, python)
    torch = [pin.requirement for pin in read_pins(CONSTRAINTS) if pin.name == "torch"]
    if not with_cuda and any(package.startswith(CUDA) for package in would_install(environment, *torch)):
        raise NotTested(f"no CPU build of {torch[0]} for Python {version}")
    install(environment, "--no-deps", *torch)  # what it needs comes with the others, in their versions
    return environment


def oldest_prepared(with_cuda: bool) -> Path:
    """The same for the oldest Python that can be had."""
    reasons = []
    for version in PYTHONS:
        try:
            return prepared(OLDEST, version, with_cuda)
        except NotTested as reason:
            reasons.append(str(reason))
    raise NotTested("; ".join(reasons))


def complete(environment: Path, name: str, wheel: Path) -> None:
    """Add the wheel, its extras and the tools of the tests to an environment that has torch."""
    if name != OLDEST:
        install(environment, "--constraints", str(CONSTRAINTS), f"torchsdm[all] @ {wheel.as_uri()}", *TOOLS)
        return
    constraints = wheel.with_name("constraints.txt")
    pins = [pin.requirement for pin in read_pins(CONSTRAINTS) if pin.name in (*TOOLS, "torch")]
    constraints.write_text("\n".join(pins), encoding="utf-8")
    lowest = ("--resolution", "lowest-direct", "--requirements", str(REPOSITORY / "pyproject.toml"), "--extra", "all")
    install(environment, *lowest, "--constraints", str(constraints), *TOOLS, *OLD_TOOLS)
    install(environment, "--no-deps", str(wheel))


def run_tests(python: Path, tests: list[str]) -> dict[str, int]:
    """How many tests passed, failed and were skipped, with one process, one thread and no network but loopback."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | ONE_THREAD
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--tb", "short", "--disable-warnings"]
    command = [str(python), str(LOOPBACK), str(python), "-m", "pytest", *tests, *options]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True)
    print(done.stdout[-20000:], flush=True)
    return outcome(done.stdout)


def outcome(output: str) -> dict[str, int]:
    """The counts in the last line of pytest.

    >>> outcome("...\\n2 failed, 30 passed, 1 skipped in 3.20s")
    {'passed': 30, 'failed': 2, 'skipped': 1}
    """
    counted = {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", output.strip().rpartition("\n")[2])}
    failed = counted.get("failed", 0) + counted.get("error", 0) + counted.get("errors", 0)
    return {"passed": counted.get("passed", 0), "failed": failed, "skipped": counted.get("skipped", 0)}


def packages(python: Path) -> dict[str, str]:
    """What is installed, of what the library and its extras ask for, and the version of Python."""
    code = (
        "import json, re; from importlib.metadata import requires, version, PackageNotFoundError\n"
        "found = {}\n"
        "for line in requires('torchsdm'):\n"
        "    name = re.split(r'[^\\w-]', line)[0]\n"
        "    try: found[name] = version(name)\n"
        "    except PackageNotFoundError: continue\n"
        "print(json.dumps({'python': __import__('platform').python_version(), **dict(sorted(found.items()))}))"
    )
    found = json.loads(subprocess.run([python, "-c", code], stdout=subprocess.PIPE, check=True).stdout)
    return {name: version for name, version in found.items() if name not in (*TOOLS, "torchsdm")}


def tried(name: str, options: argparse.Namespace, wheel: Path) -> dict[str, Any]:
    """What came of a combination, as results.json has it."""
    print(f"{name}: installing", flush=True)
    try:
        environment = oldest_prepared(options.cuda) if name == OLDEST else prepared(name, name, options.cuda)
        complete(environment, name, wheel)
        return {**run_tests(environment, options.tests), "tests": options.tests, "versions": packages(environment)}
    except NotTested as reason:
        print(f"{name}: not tested, {reason}", flush=True)
        return {"not_tested": str(reason)}
    finally:
        if not options.keep:
            shutil.rmtree(ENVIRONMENTS / name, ignore_errors=True)


def main() -> int:
    """Run the combinations; 1 if a test failed or nothing could be run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("combinations", nargs="*", default=[*PYTHONS, OLDEST], help=f"of {[*PYTHONS, OLDEST]}")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="files and folders of tests to run")
    parser.add_argument("--keep", action="store_true", help="keep the environments, which are large")
    parser.add_argument("--cuda", action="store_true", help="where torch has no CPU build, take the one with CUDA")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results |= {"system": platform.platform(terse=True), "machine": platform.machine()}
    combinations = results.setdefault("combinations", {})
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        for name in options.combinations:
            combinations[name] = tried(name, options, wheel)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    tested = [one for name in options.combinations if "not_tested" not in (one := combinations[name])]
    return int(not tested or any(one["failed"] or not one["passed"] for one in tested))


if __name__ == "__main__":
    sys.exit(main())
