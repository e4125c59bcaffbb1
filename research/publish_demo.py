"""Write the demo's results into README.md and "Why not softmax?": headline, tables and picture (make demo-publish)."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from tools.pages import REPOSITORY, write_between
from torchsdm.evaluation import Grid

README, PAGE = REPOSITORY / "README.md", REPOSITORY / "docs/why-not-softmax.md"
PICTURE = REPOSITORY / "docs/pictures/why-not-softmax.svg"
BEGIN, END = "<!-- results: written by make demo-publish -->", "<!-- end of results -->"
IN_README = (
    *("SDM, certified", "softmax, certified", "logistic regression, certified"),
    *("softmax ≥ alpha", "temperature scaling ≥ alpha"),
)
SETS = {"reviews": "film reviews, as in training", "verdicts": "critics' one-line verdicts"}


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Per hundred inputs: admitted and right, admitted and wrong, rejected."""
    whole = [record for record in records if record["stratum"] == "all"]
    cells = {(record["dataset"], record["estimator"]): record for record in whole}
    rules = list(dict.fromkeys(record["estimator"] for record in whole))[::-1]
    figure, axes = plt.subplots(1, len(SETS), figsize=(9, 3.8), sharey=True, layout="constrained")
    for axis, (name, title) in zip(axes, SETS.items(), strict=True):
        for place, rule in enumerate(rules):
            cell = cells[name, rule]
            right = 100 * cell["n_correct"] / cell["n_total"]
            admitted = 100 * cell["n_admitted"] / cell["n_total"]
            axis.barh(place, right, color="#2b7a4b")
            axis.barh(place, admitted - right, left=right, color="#c0392b")
            axis.barh(place, 100 - admitted, left=admitted, color="#e4e4e4")
        axis.set(title=title, xlim=(0, 100), yticks=range(len(rules)), yticklabels=rules)
        axis.spines[["top", "right"]].set_visible(False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in ("#2b7a4b", "#c0392b", "#e4e4e4")]
    figure.legend(handles, ["admitted, right", "admitted, wrong", "rejected"], loc="outside lower center", ncols=3)
    figure.savefig(path, metadata={"Date": None})


def main(folder: Path) -> None:
    """Write what a run of the demo left in a folder into the pages."""
    plt.rcParams["svg.hashsalt"] = "torchsdm"  # the same numbers give the same file
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    headline, legend, noticed = (
        textwrap.fill(text, 120) for text in (result["headline"], result["legend"], result["guard"]["sentence"])
    )
    columns, rows = result["table"]["columns"], result["table"]["rows"]
    few = [row for row in rows if row[0] in IN_README]
    draw(result["records"], PICTURE)
    write_between(PAGE, BEGIN, END, "\n\n".join([headline, Grid(columns, rows).to_markdown(), legend, noticed]))
    write_between(README, BEGIN, END, "\n\n".join([headline, Grid(columns, few).to_markdown(), legend, noticed]))
    print(f"Published to {PICTURE}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
