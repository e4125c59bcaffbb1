"""Write the page of results from the result files in research/results (make results).

A result is one JSON file, research/results/NAME.json:

    title, command      what it is, and the command that makes it
    model, alpha        the language model, and the target accuracy
    data                per data set: name, role, n, and optionally a remark
    points              per data set and rule: dataset, rule, share (admitted), accuracy, lowest (of any class or
                        prediction); None where nothing is admitted
    shown               rules in the table of the page; all of them by default
    machine, remarks    where it ran, and sentences that belong to it; optionally minutes of its steps
    claims, sections    optional, on the site only: claims with their evidence, and whole tables

To add one, put the file there, and into docs/results.md a section with the two marks of ``MARKS`` around nothing.
`make results` fills it, and the tests hold the page to the files. For a run of `python -m research`,
`python -m research.publish_results runs/NAME` writes the file. When the site is built, every file becomes a page with
all of its tables (docs/_results_hook.py).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.experiments.claims import VERDICTS
from tools.pages import REPOSITORY
from torchsdm.evaluation import Grid, markdown_text

FOLDER, PAGE = REPOSITORY / "research/results", REPOSITORY / "docs/results.md"
PICTURE = REPOSITORY / "docs/pictures/results.svg"
MARKS = "<!-- result: {name} -->", "<!-- end of result -->"
RULES = {  # what the rules of the paper's runs are called on the page, and their colours in the picture
    "CNN: softmax ≥ α": ("softmax ≥ α", "#d55e00"),
    "CNN: temperature ≥ α": ("temperature ≥ α", "#e69f00"),
    "SDM: SDM_HR": ("the paper's region", "#009e73"),
}
CERTIFIED = {  # rules of runs that certify, on the page only
    "language model: certified softmax": "own probability, certified",
    "SDM: certified softmax": "softmax(z′), certified",
    "SDM: certified": "SDM, certified",
}


# --- Files -----------------------------------------------------------------------------------------------------------


def read_results(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """The result files, by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def kept(run: Mapping[str, Any]) -> dict[str, Any]:
    """The result file of a run's result.json: without what tables.csv of the run has too."""
    machine, region, states = run["machine"], run["region"], run["states"]
    remarks = [region["explanation"]] if region["explanation"] else []
    if states is not None:
        remarks.insert(
            0,
            f"States of {states['dimensions']:,} dimensions from {states['tokens']:,} tokens; "
            f"{states['documents_cut']:,} of {states['documents']:,} texts were too long and cut.",
        )
    main = next(section for section in run["sections"] if section["title"] == "Main table")
    points = _points(main["records"], run["model"]["name"])
    return {
        "title": run["title"],
        "model": run["model"]["name"],
        "alpha": run["alpha"],
        "command": _portable(run["command"], run["model"]["reference"]),
        "shown": [rule for rule in (*RULES, *CERTIFIED) if any(point["rule"] == rule for point in points)],
        "machine": f"{machine['threads']} threads of {machine['processor']}, torch {machine['torch']}, "
        f"Python {machine['python']}, torchsdm {run['torchsdm']}",
        "remarks": remarks,
        "minutes": {step: round(seconds / 60, 1) for step, seconds in run["seconds"].items()},
        "data": [{name: one[name] for name in ("name", "role", "n", "remark")} for one in run["data"]],
        "points": points,
        "claims": [{name: one[name] for name in ("key", "statement", "held", "evidence")} for one in run["claims"]],
        "sections": [
            {name: one[name] for name in ("title", "text", "columns", "rows")}
            for one in run["sections"]
            if one["on_page"]
        ],
    }


def _portable(command: str, model: str | None) -> str:
    """The command without the places of one machine: where its results go, and the folder of a model file."""
    command = re.sub(r" (-o|--output) \S+", "", command)
    return command if model is None or not model.startswith("/") else command.replace(model, Path(model).name)


def _points(records: Sequence[Mapping[str, Any]], model: str) -> list[dict[str, Any]]:
    """Share, accuracy and lowest accuracy of each row of a table, from its strata."""
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in records:
        over = one["model"].removeprefix(model).removeprefix(" + ") or "language model"
        rows.setdefault((one["dataset"], f"{over}: {one['estimator']}"), []).append(one)
    points = []
    for (data_set, rule), strata in rows.items():
        whole = next(one for one in strata if one["stratum"] == "all")
        known = [one["accuracy"] for one in strata if one["accuracy"] is not None]
        points.append(
            {
                "dataset": data_set,
                "rule": rule,
                "share": round(whole["share"], 4),
                "accuracy": None if whole["accuracy"] is None else round(whole["accuracy"], 4),
                "lowest": round(min(known), 4) if known else None,
            }
        )
    return points


# --- The page --------------------------------------------------------------------------------------------------------


def section(name: str, result: Mapping[str, Any]) -> str:
    """One result on the page: how it is made, a table of data sets by rules, the claims in a sentence."""
    rules = result.get("shown") or list(dict.fromkeys(point["rule"] for point in result["points"]))
    found = {(point["dataset"], point["rule"]): point for point in result["points"]}
    sets = [one for one in result["data"] if any((one["name"], rule) in found for rule in rules)]
    head = ["data set", "inputs", *(RULES[rule][0] if rule in RULES else CERTIFIED.get(rule, rule) for rule in rules)]
    rows = [
        [f"{one['name']}, {one['role']}", f"{one['n']:,}", *(_cell(found.get((one["name"], rule))) for rule in rules)]
        for one in sets
    ]
    parts = [
        f"{result['title']}, with {result['model']}, α = {result['alpha']:g}. "
        f"[All tables](../research/results/{name}.json).",
        f"```\n{result['command']}\n```",
        Grid(head, rows).to_markdown(),
        _claims_in_words(result.get("claims", [])),
    ]
    return "\n\n".join(part for part in parts if part)


def _cell(point: Mapping[str, Any] | None) -> str:
    """What a rule admits, how much of it is right, and the lowest accuracy of any class or prediction."""
    if point is None:
        return "–"
    if point["accuracy"] is None:
        return "admits nothing"
    return f"{_percent(point['share'])}; {point['accuracy']:.2f}, lowest {point['lowest']:.2f}"


def _percent(share: float) -> str:
    return "< 1 %" if share < 0.01 else f"{100 * share:.0f} %"


def _claims_in_words(claims: Sequence[Mapping[str, Any]]) -> str:
    if not claims:
        return ""
    counted = {held: [one["key"] for one in claims if one["held"] is held] for held in (True, False)}
    failed = f"; not held: {', '.join(f'({key})' for key in counted[False])}" if counted[False] else ""
    return f"Claims of the paper: {len(counted[True])} held{failed}."


def filled(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with every result between its marks; each must have its place."""
    for name, result in results.items():
        begin, end = MARKS[0].format(name=name), MARKS[1]
        before, mark, rest = page.partition(begin)
        if not mark or end not in rest:
            raise SystemExit(f"{PAGE} has no section for {name}: put '{begin}' and '{end}' where it belongs.")
        page = f"{before}{begin}\n\n{section(name, result)}\n\n{end}{rest.partition(end)[2]}"
    return page


# --- On the site -----------------------------------------------------------------------------------------------------


def whole_page(result: Mapping[str, Any]) -> str:
    """A result with all of its tables, as a page of its own."""
    columns = ["data set", "rule", "admitted", "accuracy", "lowest"]
    parts = [
        f"# {result['title']}: {result['model']}",
        f"```\n{result['command']}\n```",
        f"α = {result['alpha']:g}. Run on {result['machine']}.",
        *result.get("remarks", []),
        _minutes(result.get("minutes", {})),
        Grid(
            ["data set", "role", "inputs", "remark"],
            [[one["name"], one["role"], f"{one['n']:,}", one.get("remark", "")] for one in result["data"]],
        ).to_markdown(),
        "## What each rule admits",
        "Share of all inputs, accuracy of what is admitted, and the lowest accuracy of any class or prediction.",
        Grid(columns, [_values(point) for point in result["points"]]).to_markdown(),
    ]
    for one in result.get("sections", []):
        parts += [f"## {one['title']}", one["text"], Grid(one["columns"], one["rows"]).to_markdown()]
    if result.get("claims"):
        parts.append("## Claims")
    for claim in result.get("claims", []):
        evidence = "\n".join(f"- {markdown_text(line)}" for line in claim["evidence"])
        parts += [f"({claim['key']}) {claim['statement']} **{VERDICTS[claim['held']]}**", evidence]
    return "\n\n".join(part for part in parts if part) + "\n"


def _minutes(minutes: Mapping[str, float]) -> str:
    listed = ", ".join(f"{step} {value:g}" for step, value in minutes.items())
    return f"Minutes, added up over interruptions: {listed}." if listed else ""


def _values(point: Mapping[str, Any]) -> list[str]:
    right = ["–" if point[name] is None else f"{point[name]:.3f}" for name in ("accuracy", "lowest")]
    return [point["dataset"], point["rule"], f"{point['share']:.3f}", *right]


# --- The picture -----------------------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT, TOP, STEP, RADIUS = 680, 350, 655, 44, 30, 13
LOWEST = 0.5  # accuracy at the left edge


def draw(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Accuracy of what each rule of ``RULES`` admits, a row per data set; the area of a dot is the admitted share."""
    rows = [(result, one) for result in results.values() for one in result["data"] if _dots(result, one["name"])]
    alphas = {result["alpha"] for result, _ in rows}
    height = TOP + STEP * len(rows) + 62
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="14">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    bottom = TOP + STEP * len(rows)
    for tick in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        lines.append(f'<path d="M{_x(tick):.0f} {TOP - 8}V{bottom}" stroke="#ddd"/>')
        lines.append(f'<text x="{_x(tick):.0f}" y="{bottom + 16}" text-anchor="middle" fill="#444">{tick:g}</text>')
    for alpha in sorted(alphas):
        lines.append(f'<path d="M{_x(alpha):.1f} {TOP - 8}V{bottom}" stroke="#000" stroke-dasharray="4 3"/>')
        lines.append(f'<text x="{_x(alpha):.1f}" y="{TOP - 14}" text-anchor="middle">α = {alpha:g}</text>')
    for number, (result, one) in enumerate(rows):
        y = TOP + STEP * number + STEP / 2
        label = f"{one['name']}, {result['model']} ({one['role']})"
        lines.append(f'<text x="{LEFT - 12}" y="{y + 4:.0f}" text-anchor="end">{label}</text>')
        for rule, point in _dots(result, one["name"]).items():
            radius = max(2.0, RADIUS * point["share"] ** 0.5)
            said = f"{RULES[rule][0]}: {_cell(point)}"
            lines.append(
                f'<circle cx="{_x(point["accuracy"]):.1f}" cy="{y:.0f}" r="{radius:.1f}" fill="{RULES[rule][1]}" '
                f'fill-opacity=".75"><title>{said.replace("<", "&lt;")}</title></circle>'
            )
    x = 60.0
    for label, colour in RULES.values():
        lines.append(f'<circle cx="{x:.0f}" cy="{bottom + 40}" r="6" fill="{colour}" fill-opacity=".75"/>')
        lines.append(f'<text x="{x + 12:.0f}" y="{bottom + 44}">{label}</text>')
        x += 36 + 7.8 * len(label)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _dots(result: Mapping[str, Any], data_set: str) -> dict[str, Mapping[str, Any]]:
    points = (one for one in result["points"] if one["dataset"] == data_set and one["accuracy"] is not None)
    return {one["rule"]: one for one in points if one["rule"] in RULES}


def _x(accuracy: float) -> float:
    return LEFT + (RIGHT - LEFT) * (max(accuracy, LOWEST) - LOWEST) / (1 - LOWEST)


def main(runs: Sequence[str]) -> None:
    """Add the results of runs, and write page and picture."""
    for run in runs:
        result = kept(json.loads((Path(run) / "result.json").read_text(encoding="utf-8")))
        path = FOLDER / f"{re.sub(r'[^a-z0-9-]+', '-', Path(run).name.lower())}.json"
        path.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        print(f"Wrote {path}")
    results = read_results()
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    PICTURE.write_text(draw(results), encoding="utf-8")
    print(f"Wrote {len(results)} results to {PAGE} and {PICTURE}")


if __name__ == "__main__":
    main(sys.argv[1:])
