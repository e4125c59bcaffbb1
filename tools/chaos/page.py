"""Write the figures of the long trials and of the tested versions into docs/reliability.md: python page.py"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.pages import REPOSITORY, said, write_between

RESULTS = Path(__file__).resolve().parent / "results"
VERSIONS = REPOSITORY / "tools" / "release" / "results.json"
PAGE = REPOSITORY / "docs" / "reliability.md"

WRITTEN_BY = {"versions": "make test-versions"}  # the others by make chaos
NOT_YET = "*No run in full has been published yet.*"

ENDS = {
    "done": "went through",
    "said": "said in one sentence what is wrong",
    "died": "was killed, or ended by the system",
    "done and done": "both went through",
    "done and said": "one went through, the other said why not",
}


def table(columns: list[str], rows: list[list[Any]]) -> str:
    """Markdown; the first column is words, the others are numbers."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def fuzz(figures: dict[str, Any]) -> str:
    """Cases of bad input by what read them."""
    targets = figures["targets"].items()
    rows = [
        [name, f"{one['cases']:,}", f"{one['refused']:,}", one["megabytes"], one["failures"]] for name, one in targets
    ]
    opening = (
        f"{figures['cases']:,} cases, seed {figures['seed']}: {figures['refused']:,} were refused in words of ours, "
        f"the others could be read, and {figures['failures'] or 'none'} failed."
    )
    return f"{opening}\n\n{table(['what read it', 'cases', 'refused', 'MB more at most', 'failed'], rows)}"


def kills(faults: dict[str, Any], serving: dict[str, Any], scoring: dict[str, Any] | None) -> str:
    """How often what was killed."""
    counts = {
        key.removeprefix("kill -9: "): ended.get("died", 0)
        for key, ended in faults["ended"].items()
        if key.startswith("kill -9")
    }
    rows: list[list[Any]] = [[f"`sdm` {name}", n, "same outcome when run again"] for name, n in counts.items()]
    told = f"{serving['changes_acknowledged']:,} acknowledged changes, all there, each once"
    rows.append(["a service that is being changed", serving["kills"], told])
    if scoring is not None:
        rows.append(["`sdm predict --ray` (its driver)", scoring["kills"], "same bytes when run again"])
    total, real = sum(row[1] for row in rows), faults["kills_with_a_real_language_model"]
    opening = f"{total:,} times kill -9 at random moments, {real} of them with a real language model at work."
    return f"{opening}\n\n{table(['killed', 'times', 'after it'], rows)}"


def other_faults(faults: dict[str, Any]) -> str:
    """How the other faults ended."""
    ends: dict[str, Counter[str]] = {}
    for key, ended in faults["ended"].items():
        fault = key.partition(": ")[0]
        ends.setdefault(fault, Counter()).update(ended)
    rows = [
        [fault, sum(counter.values()), "; ".join(f"{n} {ENDS[how]}" for how, n in counter.most_common())]
        for fault, counter in ends.items()
        if fault != "kill -9"
    ]
    left_out = "".join(f"\n\nLeft out: {fault}, since {why}." for fault, why in faults["left_out"].items())
    return table(["fault", "times", "the command"], rows) + left_out


def load(figures: dict[str, Any]) -> str:
    """The service at saturation."""
    versions = f"{figures['changes']} and {figures['versions_answered']}"
    memory = f"{figures['memory_mb']} MB, {100 * figures['memory_growth']:+.1f} %"
    rows = [
        ["minutes", f"{figures['minutes']:g}"],
        ["clients that keep asking, and connections in all", f"{figures['clients']} and {figures['connections']:,}"],
        ["answers (rows) compared with the library", f"{figures['answers']:,} ({figures['rows']:,})"],
        ["changes of the model meanwhile, and versions that answered", versions],
        ["lost, doubled, reordered or wrong", sum(figures["broken"].values())],
        ["p50 and p99", f"{figures['p50_ms']:g} and {figures['p99_ms']:g} ms"],
        ["memory, and its growth after the first minute", memory],
        ["slow clients that were given up", figures["slow_clients_given_up"]],
        ["from SIGTERM to the end, all questions answered", f"{figures['drain_seconds']:g} s"],
    ]
    return table(["", "measured"], rows)


def versions(figures: dict[str, Any]) -> str:
    """What was installed together and tested, and what could not be."""
    combinations = figures["combinations"]
    tested = {name: one for name, one in combinations.items() if "not_tested" not in one}
    left_out = [one["not_tested"] for one in combinations.values() if "not_tested" in one]
    packages = sorted({package for one in tested.values() for package in one["versions"]} - {"python"})
    rows = [
        ["Python", *[one["versions"]["python"] for one in tested.values()]],
        *[[f"tests {how}", *[one[how] for one in tested.values()]] for how in ("passed", "failed", "skipped")],
        *[[f"`{package}`", *[one["versions"].get(package, "") for one in tested.values()]] for package in packages],
    ]
    columns = ["", *[name if name == "oldest" else f"Python {name}" for name in tested]]
    return table(columns, rows) + ("\n\nNot tested: " + "; ".join(left_out) + "." if left_out else "")


def main() -> None:
    """All sections; one whose trials have not been run in full says so."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    machines = sorted({said(figures["machine"]) for figures in found.values() if "machine" in figures})
    if VERSIONS.exists():
        found["versions"] = json.loads(VERSIONS.read_text(encoding="utf-8"))
    sections: dict[str, tuple[set[str], Callable[[], str]]] = {  # which figures they need
        "machine": (set(), lambda: " ".join(machines) or NOT_YET),
        "fuzz": ({"fuzz"}, lambda: fuzz(found["fuzz"])),
        "kills": ({"faults", "serving"}, lambda: kills(found["faults"], found["serving"], found.get("scoring"))),
        "faults": ({"faults"}, lambda: other_faults(found["faults"])),
        "load": ({"load"}, lambda: load(found["load"])),
        "versions": ({"versions"}, lambda: versions(found["versions"])),
    }
    for name, (needed, text) in sections.items():
        figures = text() if needed <= found.keys() else NOT_YET
        begin = f"<!-- {name}: written by {WRITTEN_BY.get(name, 'make chaos')} -->"
        write_between(PAGE, begin, f"<!-- end of {name} -->", figures)


if __name__ == "__main__":
    main()
