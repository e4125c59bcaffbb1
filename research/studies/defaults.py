"""Training settings: how long they take, how often something is certified, and how much is admitted of new data.

    python -m research.studies.defaults [--data FOLDER] [--states FOLDER] [--setting paper] [--seeds 1] [--cells 1]
    python -m research.studies.defaults --publish  # its figures into the docs

For each seed some points of the pool are drawn to fit on, a quarter of them to certify, half of the rest each to train
and to calibrate, at alpha = 0.9; then the test set is decided on. Every setting has the same draws. The settings of the
paper are given the same certification sample here, so that only the training differs; they take a hundred times as
long, so they have few seeds and few cells. Seconds are those of the processor, with one thread. Fits that the .json
has already are not repeated, so an interrupted study goes on.

``make study STUDY=defaults`` runs both commands.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from research.studies.common import add_options, statements, states_of
from tools.pages import REPOSITORY, machine, said, write_between

RESULTS = Path(__file__).with_suffix(".json")
PAGE = REPOSITORY / "docs/decisions/0018-training-defaults.md"
BEGIN, END = "<!-- results: written by make study STUDY=defaults -->", "<!-- end of results -->"

ALPHA = 0.9
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "200 filters at 3e-4": {"n_filters": 200, "learning_rate": 3e-4},
    "1,000 filters at 1e-4": {"n_filters": 1000},
    "one round": {"n_rounds": 1},
    "five rounds": {"n_rounds": 5},
    "scalar standardisation": {"standardization": "scalar"},
    "200 filters, 5 epochs at 1e-3, one round": {
        "n_filters": 200,
        "learning_rate": 1e-3,
        "max_epochs": 5,
        "n_rounds": 1,
    },
    "paper": {},  # of training; the certification sample is everybody's
}
CELLS = [  # data, encoder, points drawn
    ("news", "minilm", 3_000),
    ("news", "minilm", 1_000),
    ("sentiment", "minilm", 3_000),
    ("sentiment", "minilm", 6_000),
    ("factcheck", "mixtral32", 3_000),
]
N_SEEDS = {"defaults": 10, "paper": 2}  # five of the others
N_CELLS = {"paper": 1}  # all of the others


def main() -> None:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--seeds", type=int, help="so many of each setting")
    parser.add_argument("--setting", choices=list(SETTINGS), help="one setting")
    parser.add_argument("--cells", type=int, help="so many cells of the table, from the first")
    parser.add_argument("--publish", action="store_true", help="write the results into the documentation")
    options = parser.parse_args()
    if options.publish:
        write_between(PAGE, BEGIN, END, section(read()))
        return
    for setting in [options.setting] if options.setting else SETTINGS:
        for cell in CELLS[: options.cells or N_CELLS.get(setting, len(CELLS))]:
            for seed in range(options.seeds or N_SEEDS.get(setting, 5)):
                key = {"data": cell[0], "encoder": cell[1], "n": cell[2], "setting": setting, "seed": seed}
                if not any(key.items() <= one.items() for one in read()["fits"]):
                    add({**key, **fitted(options, **key)})
    print(section(read()))


def read() -> dict[str, Any]:
    """The results so far."""
    known: dict[str, Any] = {"fits": []}
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else known


def add(fit: dict[str, Any]) -> None:
    """Keep the record of a fit; two processes may take turns."""
    print(json.dumps(fit), flush=True)
    results = {"machine": machine(), "fits": [*read()["fits"], fit]}
    RESULTS.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")


# --- Compute ---------------------------------------------------------------------------------------------------------


def fitted(options: argparse.Namespace, data: str, encoder: str, n: int, setting: str, seed: int) -> dict[str, Any]:
    """Seconds of a fit, whether it found something, and what it admits of the test set."""
    from torchsdm import SDMClassifier
    from torchsdm.errors import SDMWarning
    from torchsdm.trust import separate_ledger

    pool, test = drawn(options, data, encoder, n, seed)
    make = SDMClassifier.paper if setting == "paper" else SDMClassifier
    classifier = make(ALPHA, random_state=seed, **{"certification_size": 0.25, **SETTINGS[setting]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SDMWarning)  # missing regions and certificates are counted
        start = time.process_time()
        with separate_ledger():  # each fit is an experiment of its own
            classifier.fit(pool)
        seconds = time.process_time() - start
    decisions = classifier.decide(test.hidden_states)
    right = decisions.predictions == test.labels
    admitted = decisions.admitted
    groups = [
        right[admitted & (side == c)] for c in classifier.classes_ for side in (test.labels, decisions.predictions)
    ]
    return {
        "seconds": round(seconds, 1),
        "certified": bool(classifier.certificate_.found),
        "region": bool(classifier.region_.found),
        "accuracy": float(right.mean()),
        "share": float(admitted.mean()),
        "right": float(right[admitted].mean()) if admitted.any() else None,
        "lowest_group": min((float(group.mean()) for group in groups if len(group)), default=None),
    }


def drawn(options: argparse.Namespace, data: str, encoder: str, n: int, seed: int) -> tuple[Any, Any]:
    """So many points of the pool at random, and the test set."""
    if data == "factcheck":  # its test set is of another kind; the rest of the pool is not
        pool = statements(options, "pool")
        order = np.random.default_rng(seed).permutation(len(pool))
        return pool.take(order[:n]), pool.take(order[n:])
    pool = states_of(options, f"{data}-pool", encoder)
    order = np.random.default_rng(seed).permutation(len(pool))
    return pool.take(order[:n]), states_of(options, f"{data}-test", encoder)


# --- Tell ------------------------------------------------------------------------------------------------------------


def section(results: dict[str, Any]) -> str:
    """A table for every cell."""
    lines = []
    for data, encoder, n in CELLS:
        of_cell = [one for one in results["fits"] if (one["data"], one["encoder"], one["n"]) == (data, encoder, n)]
        if not of_cell:
            continue
        lines += ["", f"**{data}, {encoder}, {n:,} points**", ""]
        lines += [
            "| settings | fits | CPU seconds | certified | something admitted | admitted | right | lowest group |"
        ]
        lines += ["|---|--:|--:|--:|--:|--:|--:|--:|"]
        for setting in SETTINGS:
            fits = [one for one in of_cell if one["setting"] == setting]
            if fits:
                lines.append(line(setting, fits))
    return (
        f"{said(results['machine'])} Seeds from 0; numbers of every fit are in `research/studies/defaults.json`.\n"
        + "\n".join(lines)
    )


def line(setting: str, fits: list[dict[str, Any]]) -> str:
    """Means over the seeds; accuracies over those with something admitted."""

    def mean(key: str) -> str:
        values = [fit[key] for fit in fits if fit[key] is not None]
        return f"{np.mean(values):.3f}" if values else "–"

    seconds = f"{np.median([fit['seconds'] for fit in fits]):.0f}"
    counts = [str(sum(fit["certified"] for fit in fits)), str(sum(fit["share"] > 0 for fit in fits))]
    cells = [str(len(fits)), seconds, *counts, mean("share"), mean("right"), mean("lowest_group")]
    return f"| {setting} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
