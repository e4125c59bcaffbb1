"""The page of results: what each kind of machine measured is kept, and has a column of its own.

A run replaces, for the processor it ran on, the benchmarks that it ran; all others stay as they were.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KEPT = HERE / "results"
PAGE = HERE.parent / "docs" / "performance.md"
CLUSTER_PAGE = HERE.parent / "docs" / "howto" / "cluster.md"
PICTURE = HERE.parent / "docs" / "pictures" / "growth.svg"
BEGIN, END = "<!-- results: written by make bench-publish -->", "<!-- end of results -->"
PACKAGES = ("torch", "faiss-cpu", "usearch", "scikit-learn")


def publish(results: dict[str, Any]) -> None:
    """Keep the results of this machine, and write those of all machines into the documentation."""
    keep(results)
    machines = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(KEPT.glob("*.json"))]
    if "growth" in results["figures"]:
        from growth import plot

        plot(results["figures"]["growth"], str(PICTURE))
    _put(PAGE, markdown(machines))
    if "cluster" in results["figures"]:
        from projection import markdown as projection

        _put(CLUSTER_PAGE, projection(machines))


def _put(page: Path, text: str) -> None:
    """Replace what was published before between the marks on a page."""
    head, rest = page.read_text(encoding="utf-8").split(BEGIN)
    _, tail = rest.split(END)
    page.write_text(f"{head}{BEGIN}\n\n{text}\n{END}{tail}", encoding="utf-8")
    print(f"Published to {page}")


def keep(results: dict[str, Any]) -> None:
    """Put the benchmarks that were run in place of older ones from the same kind of processor."""
    path = KEPT / (re.sub(r"[^a-z0-9]+", "-", results["machine"]["processor"].lower()).strip("-") + ".json")
    older = json.loads(path.read_text(encoding="utf-8"))["figures"] if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**results, "figures": {**older, **results["figures"]}}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def markdown(machines: list[dict[str, Any]]) -> str:
    """A row for each piece of work, a column for each machine; then what is noted, and how the work grows."""
    names = [machine["machine"]["processor"] for machine in machines]
    lines = [f"- **{name}**: {_versions(machine['machine'])}" for name, machine in zip(names, machines, strict=True)]
    measured = [name for machine in machines for name in machine["figures"] if name != "growth"]
    lines += ["", *_table(machines, dict.fromkeys(measured)), ""]
    lines += [
        f"- {name}: {one['work']}: {one['note']}."
        for name, machine in zip(names, machines, strict=True)
        for figures in machine["figures"].values()
        for one in figures
        if one.get("note")
    ]
    if any("growth" in machine["figures"] for machine in machines):
        lines += ["", *_table(machines, ["growth"])]
    return "\n".join([*lines, ""])


def _versions(machine: dict[str, str]) -> str:
    return ", ".join(["two threads", f"Python {machine['python']}", *(f"{one} {machine[one]}" for one in PACKAGES)])


def _table(machines: list[dict[str, Any]], benchmarks: Any) -> list[str]:
    columns = [
        {(one["work"], one["against"]): one for name in benchmarks for one in machine["figures"].get(name, ())}
        for machine in machines
    ]
    head = ["work", "against", "goal", *(machine["machine"]["processor"] for machine in machines)]
    lines = [f"| {' | '.join(head)} |", f"|---|---|---|{'---|' * len(machines)}"]
    for key in dict.fromkeys(key for column in columns for key in column):
        cells = [column.get(key) for column in columns]
        goal = next(one["goal"] for one in cells if one is not None)
        lines.append(f"| {' | '.join([*key, goal, *map(_cell, cells)])} |")
    return lines


def _cell(one: dict[str, Any] | None) -> str:
    """The ratio, in bold where its goal is missed, and the smallest and largest of consecutive pairs."""
    if one is None:
        return "–"
    ratio = f"**{one['ratio']:.2f}**" if one["reached"] is False else f"{one['ratio']:.2f}"
    return ratio + (f" ({one['spread']})" if one["spread"] else "")
