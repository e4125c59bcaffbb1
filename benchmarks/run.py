"""Run the benchmarks, print a table, write JSON.

    python benchmarks/run.py [NAME ...] [--json FILE] [--publish]

Without names all are run, each in its own process. ``--publish`` keeps the results in ``benchmarks/results`` and writes
them into the documentation, where each kind of machine has a column.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

NAMES = (
    *("passes", "epoch", "region", "queries", "files", "adding", "changes", "memory", "extraction", "growth"),
    *("filter", "front_door", "first_use", "service", "cluster", "train", "evaluating"),
)
HERE = Path(__file__).resolve().parent
LOOPBACK = HERE.parent / "tests" / "cluster" / "loopback.py"  # Ray takes another address wherever there is one


def main() -> int:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--json", type=Path, default=HERE.parent / "build" / "benchmarks.json")
    parser.add_argument("--publish", action="store_true", help="write the results into docs/")
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}: choose from {', '.join(NAMES)}")
    if options.child:
        return _measure(options.names[0], Path(options.child))
    results: dict[str, Any] = {"machine": _machine(), "figures": {}}
    for name in options.names or NAMES:
        print(f"\n{name}", flush=True)
        results["figures"][name] = _in_process(name)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nWritten to {options.json}")
    if options.publish:
        from page import publish

        publish(results)
    return 0


def _in_process(name: str) -> list[dict[str, Any]]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        own_network = [sys.executable, str(LOOPBACK)] if name == "cluster" else []
        subprocess.run([*own_network, sys.executable, __file__, name, "--child", file.name], check=True)
        return list(json.load(file))


def _measure(name: str, path: Path) -> int:
    import torch
    from measure import THREADS

    torch.set_num_threads(THREADS)
    figures = []
    for figure in importlib.import_module(name).run():
        mark = {True: "reached", False: "MISSED", None: ""}[figure.reached]
        print(f"  {figure.ratio:8.2f}  {figure.goal:>18}  {mark:8} {figure.work}  /  {figure.against}", flush=True)
        if figure.note:
            print(f"            {figure.note}", flush=True)
        figures.append(figure.to_dict() | {"spread": figure.spread})
    path.write_text(json.dumps(figures), encoding="utf-8")
    return 0


def _machine() -> dict[str, str]:
    cpu = next((line.split(": ")[1] for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    packages = {name: version(name) for name in ("torch", "numpy", "faiss-cpu", "usearch", "scikit-learn")}
    return {"processor": cpu, "threads": "2", "python": platform.python_version(), **packages}


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []


if __name__ == "__main__":
    sys.exit(main())
