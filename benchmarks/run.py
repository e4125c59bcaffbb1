"""Run the benchmarks, print a table, write JSON.

    python benchmarks/run.py [NAME ...] [--json FILE] [--publish]

Without names all are run, each in its own process. ``--publish`` writes table and plot into the documentation.
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

NAMES = ("passes", "epoch", "region", "queries", "files", "changes", "memory", "extraction", "growth", "front_door")
HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "performance.md"
PICTURE = HERE.parent / "docs" / "pictures" / "growth.svg"
BEGIN, END = "<!-- results: written by make bench-publish -->", "<!-- end of results -->"


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
    if options.publish and options.names:
        parser.error("--publish needs all benchmarks: give no names")
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
        _publish(results)
    return 0


def _in_process(name: str) -> list[dict[str, Any]]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([sys.executable, __file__, name, "--child", file.name], check=True)
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
    packages = {name: version(name) for name in ("torch", "numpy", "numba", "faiss-cpu", "usearch", "scikit-learn")}
    return {"processor": cpu, "threads": "2", "python": platform.python_version(), **packages}


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []


def _publish(results: dict[str, Any]) -> None:
    sys.path.insert(0, str(HERE))
    from growth import plot

    plot(results["figures"]["growth"], str(PICTURE))
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, tail = rest.split(END)
    PAGE.write_text(f"{head}{BEGIN}\n\n{_markdown(results)}\n{END}{tail}", encoding="utf-8")
    print(f"Published to {PAGE} and {PICTURE}")


def _markdown(results: dict[str, Any]) -> str:
    machine = results["machine"]
    lines = [
        f"{machine['processor']}, two threads, Python {machine['python']}, "
        + ", ".join(f"{name} {machine[name]}" for name in ("torch", "numba", "faiss-cpu", "usearch", "scikit-learn"))
        + ".",
        "",
        "| work | against | ratio | pairs | goal | reached |",
        "|---|---|--:|---|---|---|",
    ]
    notes = []
    for name, figures in results["figures"].items():
        for one in figures if name != "growth" else ():
            reached = {True: "yes", False: "**no**", None: ""}[one["reached"]]
            cells = one["work"], one["against"], f"{one['ratio']:.2f}", one["spread"], one["goal"], reached
            lines.append(f"| {' | '.join(cells)} |")
            if one["note"]:
                notes.append(f"- {one['work']}: {one['note']}.")
    growth = ["", "| growth | ratio to the product | pairs |", "|---|--:|---|"]
    growth += [
        f"| {one['work']} ({one['against']}) | {one['ratio']:.2f} | {one['spread']} |"
        for one in results["figures"]["growth"]
    ]
    return "\n".join([*lines, "", *notes, *growth, ""])


if __name__ == "__main__":
    sys.exit(main())
