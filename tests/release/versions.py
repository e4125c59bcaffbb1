"""Test every Python that is found, and the oldest dependencies: make test-versions

Each gets a fresh environment in .venv/versions with the built wheel (not the working tree), wheels only. The pinned
versions of constraints.txt come first; the combination "oldest" has the lowest versions that pyproject.toml allows, on
the oldest Python. torch is the pinned one everywhere. What ran and how it ended is written to results.json.
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

from release.environments import fresh_environment, install
from release.pins import CONSTRAINTS, REPOSITORY, read_pins
from release.wheel import build

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
OLDEST = "oldest"
RESULTS = Path(__file__).with_name("results.json")
ENVIRONMENTS = REPOSITORY / ".venv" / "versions"
TOOLS = ("hypothesis", "onnx", "pytest", "pytest-timeout", "pytest-xdist")  # of the tests: pinned even in "oldest"
# Import, numbers by hand, contract, files of every format, saving and loading, the command, the service.
TESTS = (
    "tests/project/test_front_door.py",
    "tests/release/test_no_network.py",
    "tests/golden",
    "tests/contract/test_classifier.py",
    "tests/unit/storage/test_earlier_models.py",
    "tests/system/test_earlier_formats.py",
    "tests/system/test_persistence.py",
    "tests/unit/cli",
    "tests/system/test_service.py",
)
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}


def interpreter(version: str) -> str | None:
    """Where a Python of this version is: installed by pyenv, or on the path."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(pyenv.glob(f"{version}.*/bin/python"))  # on the path, pyenv has names that may not run
    return str(installed[-1]) if installed else shutil.which(f"python{version}")


def installed(name: str, python: str, wheel: Path) -> Path:
    """The Python of a fresh environment with the wheel, its extras and the tools of the tests."""
    environment = fresh_environment(ENVIRONMENTS / name, python)
    wanted = [f"torchsdm[all] @ {wheel.as_uri()}", *TOOLS]
    if name != OLDEST:
        install(environment, "--constraints", str(CONSTRAINTS), *wanted)
        return environment
    pins = [pin for pin in read_pins(CONSTRAINTS) if pin.name in (*TOOLS, "torch")]
    lines = [f"{pin.name}=={pin.version}" + (f" ; {pin.marker}" if pin.marker else "") for pin in pins]
    constraints = wheel.with_name("constraints.txt")
    constraints.write_text("\n".join(lines), encoding="utf-8")
    lowest = ("--resolution", "lowest-direct", "--requirements", str(REPOSITORY / "pyproject.toml"), "--extra", "all")
    install(environment, *lowest, "--constraints", str(constraints), *TOOLS)
    install(environment, "--no-deps", str(wheel))
    return environment


def run_tests(python: Path, tests: list[str]) -> dict[str, int]:
    """How many tests passed, failed and were skipped, with one process and one thread."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | ONE_THREAD
    command = [str(python), "-m", "pytest", *tests, "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True)
    print(done.stdout[-4000:], flush=True)
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
    """What is installed, of what we ask for ourselves."""
    code = (
        "import json, re; from importlib.metadata import requires, version, PackageNotFoundError\n"
        "found = {}\n"
        "for line in requires('torchsdm'):\n"
        "    name = re.split(r'[^\\w-]', line)[0]\n"
        "    try: found[name] = version(name)\n"
        "    except PackageNotFoundError: continue\n"
        "found.pop('torchsdm', None)\n"
        "print(json.dumps({'python': __import__('platform').python_version(), **dict(sorted(found.items()))}))"
    )
    return dict(json.loads(subprocess.run([python, "-c", code], stdout=subprocess.PIPE, check=True).stdout))


def main() -> int:
    """Run the combinations; 1 if a test failed or nothing could be run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("combinations", nargs="*", default=[*PYTHONS, OLDEST], help=f"of {[*PYTHONS, OLDEST]}")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="files and folders of tests to run")
    parser.add_argument("--keep", action="store_true", help="keep the environments, which are large")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results |= {"system": platform.platform(terse=True), "machine": platform.machine()}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        for name in options.combinations:
            python = interpreter(PYTHONS[0] if name == OLDEST else name)
            if python is None:
                print(f"Python {name} is not installed here: not tested.", flush=True)
                continue
            print(f"{name}: installing", flush=True)
            environment = installed(name, python, wheel)
            counts = run_tests(environment, options.tests)
            failed += counts["failed"] + (counts["passed"] == 0)
            results.setdefault("combinations", {})[name] = {
                **counts,
                "tests": options.tests,
                "versions": packages(environment),
            }
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            if not options.keep:
                shutil.rmtree(ENVIRONMENTS / name)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
