"""Write the demo's results into the documentation: plot and table of "Why not softmax?" (make demo-publish)."""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE, PICTURE = REPOSITORY / "docs/why-not-softmax.md", REPOSITORY / "docs/pictures/why-not-softmax.svg"
BEGIN, END = "<!-- results: written by make demo-publish -->", "<!-- end of results -->"
SHOWN = ("no reject", "softmax(z′) ≥ α", "temperature ≥ α", "APS", "SDM_HR")
SETS = {"reviews": "film reviews, as in training", "critics": "critics' one-line verdicts"}


def draw(cells: dict[tuple[str, str], dict], path: Path) -> None:
    """Per hundred inputs: admitted and right, admitted and wrong, rejected."""
    figure, axes = plt.subplots(1, len(SETS), figsize=(9, 2.6), sharey=True, layout="constrained")
    for axis, (name, title) in zip(axes, SETS.items(), strict=True):
        for place, estimator in enumerate(reversed(SHOWN)):
            cell = cells[name, estimator]
            right = 100 * cell["n_correct"] / cell["n_total"]
            admitted = 100 * cell["n_admitted"] / cell["n_total"]
            axis.barh(place, right, color="#2b7a4b")
            axis.barh(place, admitted - right, left=right, color="#c0392b")
            axis.barh(place, 100 - admitted, left=admitted, color="#e4e4e4")
        axis.set(title=title, xlim=(0, 100), yticks=range(len(SHOWN)), yticklabels=list(reversed(SHOWN)))
        axis.spines[["top", "right"]].set_visible(False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in ("#2b7a4b", "#c0392b", "#e4e4e4")]
    figure.legend(handles, ["admitted, right", "admitted, wrong", "rejected"], loc="outside lower center", ncols=3)
    figure.savefig(path, metadata={"Date": None})


def table(records: list[dict]) -> str:
    """For each rule: how much it admits, its accuracy, and the lowest accuracy for any class or prediction."""
    lines = [
        "| inputs | rule | admitted | accuracy of admitted | lowest for any class or prediction |",
        "|---|---|--:|--:|--:|",
    ]
    for name in SETS:
        for rule in dict.fromkeys(one["estimator"] for one in records):
            cells = [one for one in records if (one["dataset"], one["estimator"]) == (name, rule)]
            whole = next(one for one in cells if one["stratum"] == "all")
            lowest = min((one for one in cells if one["n_admitted"]), key=lambda one: one["accuracy"], default=None)
            right = ["–", "–"]
            if lowest is not None:
                counts = f"{lowest['accuracy']:.0%} ({lowest['n_correct']} of {lowest['n_admitted']})"
                right = [f"{whole['accuracy']:.1%}", counts]
            admitted = f"{whole['share']:.1%}"
            lines.append(f"| {name} | {rule} | {admitted} | {' | '.join(right)} |")
    return "\n".join(lines)


def main(folder: Path) -> None:
    plt.rcParams["svg.hashsalt"] = "torchsdm"  # the same numbers give the same file
    records = json.loads((folder / "result.json").read_text(encoding="utf-8"))["table"]
    cells = {(one["dataset"], one["estimator"]): one for one in records if one["stratum"] == "all"}
    draw(cells, PICTURE)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(records)}\n\n{END}{after}", encoding="utf-8")
    print(f"Wrote the results in {folder} to {PAGE} and {PICTURE}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
