"""How many plain labels a certificate takes that one has with 200 labels asked for by ``ask_labels``.

    python -m research.studies.fewer_labels [--seeds 20] --data FOLDER
    python -m research.studies.fewer_labels --publish  # its figures into the docs

``make study STUDY=fewer_labels TORCHSDM_DATA=FOLDER`` runs both commands: two minutes on one core. Per seed, a floor is
found on calibration, N points are drawn and those that reach it labelled. Three certificates are compared: with these
labels; with all N labels; and with as many labels of the first points, which are a plain random sample.

- *simulated*: two classes; the score is the probability that an answer is right, (1 + B) / 2 with B from a beta
  distribution. 2,000 calibration points; nothing is estimated but the path.
- *statements*: an ``SDMClassifier`` on a third of the statements of factcheck, as 32 features of Mixtral; most of the
  others are the pool, a fifth of all are new.
"""

from __future__ import annotations

import argparse
import copy
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from research.studies.common import add_options, statements
from tools.pages import REPOSITORY, machine, write_between
from torchsdm.trust import UNLABELLED, Certificate, Floor, ScoredSample, certify

RESULTS = Path(__file__).with_suffix(".json")
PAGE = REPOSITORY / "docs/howto/certify.md"
BEGIN, END = "<!-- results: written by make study STUDY=fewer_labels -->", "<!-- end of results -->"

N_ASKED = 200
DELTA = 0.1
POOL = 100_000
SHAPES = {"simulated, easy": (3.0, 0.4), "simulated, medium": (1.5, 0.5), "simulated, hard": (0.6, 0.6)}  # of B
TERMS = (("groups", 0.9), ("predictions", 0.9), ("all", 0.9), ("all", 0.95))
STATEMENTS = (("groups", 0.9), ("all", 0.9), ("all", 0.95))


def main() -> None:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--publish", action="store_true", help="write the results into the documentation")
    add_options(parser)
    options = parser.parse_args()
    if options.publish:
        write_between(PAGE, BEGIN, END, section(json.loads(RESULTS.read_text(encoding="utf-8"))))
        return
    rows = []
    for problem, right, control, alpha, found in (*simulated(options.seeds), *read(options)):
        rows.append({"problem": problem, "right": right, "control": control, "alpha": alpha, **averages(found)})
        print(json.dumps(rows[-1]), flush=True)
    results = {"machine": machine(), "n_seeds": options.seeds, "n_asked": N_ASKED, "delta": DELTA, "rows": rows}
    RESULTS.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(f"{section(results)}\n\nWritten to {RESULTS}")


# --- Compute ---------------------------------------------------------------------------------------------------------


def simulated(n_seeds: int) -> Iterator[tuple[str, float, str, float, list[dict[str, Any]]]]:
    """Each simulated problem with each control and alpha."""
    for problem, shape in SHAPES.items():
        for control, alpha in TERMS:
            found = []
            for seed in range(n_seeds):
                rng = np.random.default_rng(seed)
                calibration = draw(2_000, shape, rng)
                terms: dict[str, Any] = {"alpha": alpha, "delta": DELTA, "control": control}
                floor = Floor.planned(calibration, 2, N_ASKED, POOL, **terms)
                full = draw(floor.n_drawn, shape, rng)
                reaches = floor.reached_by(full)
                plain = full[np.arange(reaches.sum())]  # as many of the same points, whether they reach it or not
                asked = replace(full, labels=np.where(reaches, full.labels, UNLABELLED))
                certificates = [certify(calibration, one, 2, **terms, advice=False) for one in (asked, full, plain)]
                new = draw(20_000, shape, rng)
                shares = [float(one.admits(new.predictions, new.score, new.eligible).mean()) for one in certificates]
                found.append(outcome(int(reaches.sum()), len(full), certificates, shares))
            yield problem, round(0.5 + 0.5 * shape[0] / sum(shape), 2), control, alpha, found


def draw(n: int, shape: tuple[float, float], rng: np.random.Generator) -> ScoredSample:
    """Points of a simulated problem."""
    predictions, score = rng.integers(0, 2, n), 0.5 + 0.5 * rng.beta(*shape, n)
    labels = np.where(rng.random(n) < score, predictions, 1 - predictions)
    return ScoredSample(labels, predictions, score, np.ones(n, dtype=bool))


def read(options: argparse.Namespace) -> Iterator[tuple[str, float, str, float, list[dict[str, Any]]]]:
    """The statements with each control and alpha."""
    from torchsdm import SDMClassifier

    data = statements(options, "pool")
    X, y = np.asarray(data.hidden_states, dtype=np.float32), np.asarray(data.labels)
    found: dict[tuple[str, float], list[dict[str, Any]]] = {terms: [] for terms in STATEMENTS}
    right = []
    for seed in range(options.seeds):
        order = np.random.default_rng(seed).permutation(len(X))
        learned, pool, new = np.split(order, [len(X) // 3, len(X) * 4 // 5])
        classifier = SDMClassifier(certification_size=None, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            classifier.fit(X[learned], y[learned])
            right.append(float((classifier.predict(X[new]) == y[new]).mean()))
            for control, alpha in STATEMENTS:
                classifier.set_params(control=control)
                plan = classifier.ask_labels(X[pool], N_ASKED, alpha=alpha, random_state=seed)
                others = plan.rows[: len(plan.ids)]
                samples = [
                    (plan, y[pool][plan.rows_to_label]),
                    (X[pool][plan.rows], y[pool][plan.rows]),
                    (X[pool][others], y[pool][others]),
                ]
                certified = [copy.copy(classifier).recertify(*sample, alpha=alpha) for sample in samples]
                decisions = [one.decide(X[new]) for one in certified]
                shares = [float(np.mean(one.certified)) for one in decisions]
                certificates = [one.certificate_ for one in certified]
                found[control, alpha].append(outcome(len(plan.ids), len(plan.rows), certificates, shares))
    for (control, alpha), outcomes in found.items():
        yield "statements", round(float(np.mean(right)), 2), control, alpha, outcomes


def outcome(n_labels: int, n_drawn: int, certificates: list[Certificate], shares: list[float]) -> dict[str, Any]:
    """What came of one draw: asked, all labelled, and as many plain labels."""
    asked, full, plain = certificates
    is_same = np.array_equal(asked.thresholds, full.thresholds)
    return {
        **{"n_labels": n_labels, "n_drawn": n_drawn, "same": is_same},
        **{"found": asked.found, "found_plain": plain.found},
        **{"admitted": shares[0], "admitted_full": shares[1], "admitted_plain": shares[2]},
    }


def averages(found: list[dict[str, Any]]) -> dict[str, float]:
    """Means over seeds."""
    return {name: round(float(np.mean([one[name] for one in found])), 4) for name in found[0]}


# --- Tell ------------------------------------------------------------------------------------------------------------


def section(results: dict[str, Any]) -> str:
    """What the page says of the results."""
    lines = [
        f"Means over {results['n_seeds']} seeds; {results['n_asked']} labels asked for, δ = {results['delta']:g}. "
        "*Plain labels* is the size of the sample that the asked labels stand for, *same* the share of seeds in which "
        "labels for all of it give the same rule. *Admitted* is of new inputs, 0 where nothing is certified: with the "
        "labels asked for, and with as many of the first points, a plain random sample.\n",
        "| problem | right | control | α | labels | plain labels | same | certified | admitted | plain: certified "
        "| plain: admitted |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in results["rows"]:
        cells = [row["problem"], f"{row['right']:.2f}", row["control"], f"{row['alpha']:g}", f"{row['n_labels']:.0f}"]
        cells += [f"{row['n_drawn']:.0f}", f"{row['same']:.0%}", f"{row['found']:.0%}", f"{row['admitted']:.3f}"]
        cells += [f"{row['found_plain']:.0%}", f"{row['admitted_plain']:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", "All numbers are in `research/studies/fewer_labels.json`."])


if __name__ == "__main__":
    main()
