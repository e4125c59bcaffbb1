"""How much the certified rule admits, and what that is worth: on new data, and on data of another kind.

    python -m research.studies.certificate [--data FOLDER] [--states FOLDER] [--seeds 10]
    python -m research.studies.certificate --publish  # its figures into the docs

Two data sets, with the classifier's defaults: a quarter to certify, the rest to train and, out of fold, to calibrate.

- factcheck: statements, each as 32 features of Mixtral. For each seed 4,500 of ``factcheck/mixtral32_pool`` are drawn,
  the others are the test set; ``factcheck/mixtral32_test``, which another language model wrote, is the shift.
- sentiment: the first 8,000 film reviews of ``sentiment/pool`` through MiniLM (mean and first token, 256 tokens, no
  prompt), tested on ``sentiment/test`` and on the tweets of ``sentiment_ood/test``. The states are kept in the folder
  ``--states``; extracting them takes some twenty minutes on two cores.

``make study STUDY=certificate`` runs both commands.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from research.studies.common import add_options, statements, states_of
from tools.pages import REPOSITORY, machine, said, write_between

RESULTS = Path(__file__).with_suffix(".json")
PAGE = REPOSITORY / "docs/howto/certify.md"
BEGIN, END = "<!-- results: written by make study STUDY=certificate -->", "<!-- end of results -->"

DELTA = 0.1
ALPHAS = {"factcheck": (0.9, 0.95), "sentiment": (0.85, 0.9)}
GOALS = {  # share of the test set that the certified rule should admit
    ("factcheck", 0.9): "≥ 0.77",
    ("factcheck", 0.95): "≥ 0.45, none in at most 1 of 10",
    ("sentiment", 0.85): "≥ 0.65",
    ("sentiment", 0.9): "≥ 0.40, shifted ≤ 0.005",
}
RULES = {  # entrants to show, in this order, and what to call them
    ("LM + SDM", "SDM_HR"): "the paper's region",
    ("LM + SDM", "every level"): "**SDM, certified at every level**",
    ("LM + SDM", "certified"): "**SDM, certified**",
    ("LM + SDM", "certified softmax"): "softmax of its logits, certified",
    ("LM + SDM", "certified energy"): "energy of its logits, certified",
    ("LM + logistic regression", "certified softmax"): "logistic regression, certified",
    ("LM + logistic regression", "certified k-th neighbour"): "distance to the k-th neighbour, certified",
    ("LM + cosine neighbours", "certified vote"): "vote of neighbours, certified",
}
N_DRAWN = 4_500
_NONE = {"share": 0.0, "accuracy": None, "lowest_group": None, "by_prediction": {}}
NOTHING = {"test": _NONE, "shifted": _NONE}  # of a rule that a fit does not have


def main() -> None:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", choices=list(DATA), help="one data set; the other's results stay")
    parser.add_argument("--publish", action="store_true", help="write the results into the documentation")
    options = parser.parse_args()
    if options.publish:
        publish(json.loads(RESULTS.read_text(encoding="utf-8")))
        return
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"fits": []}
    chosen = [options.only] if options.only else list(DATA)
    results = {"machine": machine(), "fits": [fit for fit in results["fits"] if fit["data"] not in chosen]}
    for data in chosen:
        for fit in fits(data, options):
            results["fits"].append(fit)
            print(json.dumps(fit), flush=True)
            RESULTS.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(f"\n{section(results)}\n\nWritten to {RESULTS}")


# --- Compute ---------------------------------------------------------------------------------------------------------


def fits(data: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record per seed and alpha: what every rule admits of the test set and of the shifted one."""
    from torchsdm import SDMClassifier
    from torchsdm.errors import SDMWarning
    from torchsdm.trust import separate_ledger

    for seed in range(options.seeds):
        pool, tests = DATA[data](options, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SDMWarning)  # missing regions and certificates are counted
            start = time.perf_counter()
            with separate_ledger():  # each fit is an experiment of its own
                first = SDMClassifier(alpha=ALPHAS[data][0], delta=DELTA, random_state=seed).fit(pool)
            seconds = time.perf_counter() - start
            for alpha in ALPHAS[data]:  # each as if it had been chosen beforehand
                classifier = copy.copy(first).recalibrate(alpha)
                yield {
                    **{"data": data, "seed": seed, "alpha": alpha, "seconds_of_fit": round(seconds, 1)},
                    "found": classifier.certificate_.found,
                    "region_found": classifier.region_.found,
                    "rules": rules(pool, classifier, tests),
                }


def rules(pool: Any, classifier: Any, tests: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Share, accuracy and lowest group of what each rule admits, by data set."""
    from torchsdm.evaluation import Evaluation, paper_entrants

    entrants = paper_entrants(pool, classifier, groups=("sdm", "today"))
    entrants = [one for one in entrants if (one.model, one.name) in RULES]
    table = Evaluation(entrants, tests, classifier.region_.alpha).results()
    found: dict[str, dict[str, Any]] = {name(entrant): {} for entrant in entrants}
    for entrant, row in table:
        cells = [*row.accuracy.by_class.values(), *row.accuracy.by_prediction.values()]
        groups = [cell.accuracy for cell in cells if cell.accuracy is not None]
        whole = row.accuracy.marginal
        found[name(entrant)][row.dataset] = {
            "share": whole.share,
            "accuracy": whole.accuracy,
            "lowest_group": min(groups, default=None),
            "by_prediction": {
                str(label): [cell.n_admitted, cell.n_correct] for label, cell in row.accuracy.by_prediction.items()
            },
        }
    return found


def name(entrant: Any) -> str:
    """What the table calls an entrant."""
    return RULES[entrant.model, entrant.name]


def factcheck(options: argparse.Namespace, seed: int) -> tuple[Any, dict[str, Any]]:
    """Statements: some of the pool to fit on, the others as the test set, and those of another model."""
    pool, shifted = (statements(options, part) for part in ("pool", "test"))
    order = np.random.default_rng(seed).permutation(len(pool))
    return pool.take(order[:N_DRAWN]), {"test": pool.take(order[N_DRAWN:]), "shifted": shifted}


def sentiment(options: argparse.Namespace, seed: int) -> tuple[Any, dict[str, Any]]:
    """Film reviews and tweets; the seed draws nothing here."""
    del seed
    read = {part: states_of(options, f"sentiment-{part}") for part in ("pool", "test", "shifted")}
    return read.pop("pool"), read


DATA = {"factcheck": factcheck, "sentiment": sentiment}


# --- Tell ------------------------------------------------------------------------------------------------------------


def section(results: dict[str, Any]) -> str:
    """The table of every rule, with the goals."""
    known, lines = results["machine"], []
    for (data, alpha), goal in GOALS.items():
        of_cell = [fit for fit in results["fits"] if (fit["data"], fit["alpha"]) == (data, alpha)]
        if not of_cell:
            continue
        lines += ["", f"**{data}, α = {alpha}** ({len(of_cell)} seeds; goal for the certified rule: {goal})", ""]
        lines += [
            "| rule | admitted | least | none | right | lowest group | shifted admitted | right | by prediction |"
        ]
        lines += ["|---|--:|--:|--:|--:|--:|--:|--:|---|"]
        for rule in RULES.values():
            found = [fit["rules"].get(rule, NOTHING) for fit in of_cell]
            if found != [NOTHING] * len(found):
                lines.append(line(rule, found))
    return f"{said(known)} Seeds from 0; all numbers are in `research/studies/certificate.json`.\n" + "\n".join(lines)


def line(rule: str, fits: list[dict[str, Any]]) -> str:
    """Means over the seeds; accuracies over those with something admitted."""

    def mean(part: str, key: str) -> str:
        values = [fit[part][key] for fit in fits if fit[part][key] is not None]
        return f"{np.mean(values):.3f}" if values else "–"

    shares = [fit["test"]["share"] for fit in fits]
    cells = [f"{np.mean(shares):.3f}", f"{min(shares):.3f}", str(sum(share == 0 for share in shares))]
    cells += [
        mean("test", "accuracy"),
        mean("test", "lowest_group"),
        f"{np.mean([f['shifted']['share'] for f in fits]):.4f}",
    ]
    by_prediction: dict[str, list[list[int]]] = {}
    for fit in fits:
        for label, counts in fit["shifted"].get("by_prediction", {}).items():
            by_prediction.setdefault(label, []).append(counts)
    summed = {label: np.sum(counts, axis=0).tolist() for label, counts in sorted(by_prediction.items())}
    shifted = "; ".join(f"{label}: {right / n:.2f} of {n / len(fits):.0f}" for label, (n, right) in summed.items() if n)
    return f"| {rule} | {' | '.join([*cells, mean('shifted', 'accuracy'), shifted])} |"


def publish(results: dict[str, Any]) -> None:
    """Write the table into the documentation."""
    write_between(PAGE, BEGIN, END, section(results))


if __name__ == "__main__":
    main()
