"""A Markdown page of the results of several runs: what was run, which claims held, the main tables."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from research.experiments.claims import VERDICTS, similarity_rises
from research.experiments.run import RESULT_NAME
from torchsdm.errors import InvalidInputError
from torchsdm.evaluation import Grid, markdown_text
from torchsdm.files import replace_file

_NEEDED = (
    *("title", "model", "command", "alpha", "settings", "data", "states", "region", "sections", "claims", "seconds"),
    "machine",
)
_MARKS = {True: "held", False: "**not held**", None: "–"}
_DEFAULTS = {"n_rounds": "?", "max_epochs": "?"}  # for results without these settings
_SHOWN_BEFORE = ("Main table", "Calibration set")  # of the study of estimators, in results without "on_page"


def read_results(folder: str | Path) -> dict[str, dict[str, Any]]:
    """The results of all finished runs in a folder, by run name."""
    folder = Path(folder)
    results = {}
    for path in sorted(folder.glob(f"*/{RESULT_NAME}")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidInputError(f"{path} cannot be read as a result: {error}.") from error
        missing = [name for name in _NEEDED if not isinstance(result, dict) or name not in result]
        if missing:
            raise InvalidInputError(f"{path} is not the result of an experiment: {missing[0]!r} is missing.")
        results[path.parent.name] = result
    if not results:
        raise InvalidInputError(f"{folder} has no finished run: none of its folders has a {RESULT_NAME}.")
    return results


def write_results_page(page: str | Path, folder: str | Path) -> None:
    """Write the page, and the reports of the runs to a folder of the same name next to it."""
    page, folder = Path(page), Path(folder)
    results = read_results(folder)
    reports = page.with_suffix("")
    links = {}
    try:
        for run in results:
            report = folder / run / "report.html"
            if report.is_file():
                reports.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(report, reports / f"{run}.html")
                links[run] = quote(f"{reports.name}/{run}.html")
        page.parent.mkdir(parents=True, exist_ok=True)
        replace_file(page, results_page(results, links).encode())
    except OSError as error:
        raise InvalidInputError(f"{page} cannot be written: {error}.") from error


def results_page(results: Mapping[str, Mapping[str, Any]], links: Mapping[str, str]) -> str:
    """The page as Markdown; ``links`` are the links to the reports, by run."""
    machines = dict.fromkeys(_machine(result["machine"]) for result in results.values())
    parts = [
        "# Results",
        "<!-- Written by `python -m research --page`; do not edit, change the runs. -->",
        "The paper's experiments, with the language models named below. Where these are weaker than the paper's, the "
        "numbers differ. Each claim of the paper is reported as held or not held, with its numbers. A claim about "
        "accuracy also holds where nothing is admitted.",
        f"Run on {'; and on '.join(machines)}.",
        "## Runs",
        _runs(results, links).to_markdown(),
        "Times are in minutes, summed over interruptions: extracting hidden states, training all rounds of the SDM "
        "classifier, and everything else (the networks it is compared with, evaluation, report).",
        "## Claims",
        _claims(results).to_markdown(),
        *_across_runs(results),
        *(part for run, result in results.items() for part in _run(run, result, links.get(run))),
    ]
    return "\n\n".join(parts) + "\n"


def _runs(results: Mapping[str, Mapping[str, Any]], links: Mapping[str, str]) -> Grid:
    rows = []
    for run, result in results.items():
        (pool,) = (data for data in result["data"] if data["role"] == "pool")
        training = {**_DEFAULTS, **result["settings"]["training"]}
        region, seconds = result["region"], result["seconds"]
        rest = sum(value for step, value in seconds.items() if step not in ("hidden states", "training"))
        q_min = region["min_rescaled_similarity"]
        rows.append(
            [
                f"[{run}](#{_anchor(f'Run {run}')})",
                result["model"]["name"],
                f"{pool['n']:,}",
                f"{training['n_rounds']} × {training['max_epochs']}",
                f"{result['alpha']:g}",
                f"{region['calibration_accuracy']:.3f}",
                "∞" if q_min is None else f"{q_min:.4g}",
                *(f"{value / 60:.1f}" for value in (seconds.get("hidden states", 0), seconds["training"], rest)),
                f"[report]({links[run]})" if run in links else "–",
            ]
        )
    columns = ["run", "model", "pool", "rounds × epochs", "α", "calibration accuracy", "q′_min"]
    return Grid([*columns, "states", "training", "rest", "report"], rows)


def _claims(results: Mapping[str, Mapping[str, Any]]) -> Grid:
    statements: dict[str, str] = {}
    for result in results.values():
        for claim in result["claims"]:
            statements.setdefault(claim["key"], claim["statement"])
    held = {run: {claim["key"]: claim["held"] for claim in result["claims"]} for run, result in results.items()}
    rows = [
        [f"({key}) {statement}", *(_MARKS[held[run].get(key)] for run in results)]
        for key, statement in statements.items()
    ]
    return Grid(["claim", *results], rows)


def _across_runs(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Claim (d) over runs: the paper makes it about several models and tasks."""
    alpha = Counter(result["alpha"] for result in results.values()).most_common(1)[0][0]
    points: dict[tuple[float, float], tuple[str, float, float]] = {}
    for run, result in results.items():
        q_min = result["region"]["min_rescaled_similarity"]
        q = float("inf") if q_min is None else float(q_min)
        accuracy = float(result["region"]["calibration_accuracy"])
        if result["alpha"] == alpha:  # q'_min at another alpha is not comparable
            points.setdefault((accuracy, q), (run, accuracy, q))  # several studies train the same classifier
    claim = similarity_rises(list(points.values()))
    return [f"Claim (d) across these runs: **{claim.verdict}**.", _list(claim.evidence)]


def _machine(machine: Mapping[str, Any]) -> str:
    where = machine.get("device", "cpu")
    versions = f"torch {machine['torch']}, Python {machine['python']}"
    return f"{machine['threads']} threads of {machine['processor']}, device {where}, {versions}"


def _run(run: str, result: Mapping[str, Any], link: str | None) -> list[str]:
    data = Grid(
        ["data set", "role", "inputs", "remark"],
        [[one["name"], one["role"], f"{one['n']:,}", one["remark"]] for one in result["data"]],
    )
    parts = [f"## Run {run}", f"{result['title']}, with {result['model']['name']}."]
    if result["command"]:
        parts.append(f"```\n{result['command']}\n```")
    parts.append(data.to_markdown())
    if result["states"] is not None:
        states = result["states"]
        parts.append(
            f"States with {states['dimensions']:,} dimensions from {states['tokens']:,} tokens; "
            f"{states['documents_cut']:,} of {states['documents']:,} texts were too long for the model and cut."
        )
    if result["region"]["explanation"]:
        parts.append(result["region"]["explanation"])
    for section in result["sections"]:
        if section.get("on_page", section["study"] != "estimators" or section["title"] in _SHOWN_BEFORE):
            parts += [
                f"### {section['title']}",
                section["text"],
                Grid(section["columns"], section["rows"]).to_markdown(),
            ]
    for claim in result["claims"]:
        parts += [f"({claim['key']}) {claim['statement']} **{VERDICTS[claim['held']]}**", _list(claim["evidence"])]
    if link is not None:
        parts.append(f"All estimators, plots and examples: [report]({link}).")
    return [part for part in parts if part]


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {markdown_text(line)}" for line in lines)


def _anchor(heading: str) -> str:
    """The anchor that Markdown gives a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
