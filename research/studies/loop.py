"""What the loop after deployment is worth: rejected inputs are labelled and come back, a hundred inputs at a time.

    python -m research.studies.loop [--data FOLDER] [--states FOLDER] [--seeds 5]
    python -m research.studies.loop --publish  # its figures into the docs

A classifier is fitted on 1,000 texts: a quarter to certify, half of the rest each to train and to calibrate. Then 2,000
others arrive by the hundred. What is labelled of each hundred, and where it goes, differs; after each hundred the model
is updated and recalibrated, which certifies it again on the same sample. The test set stays the same, and so do the
weights: nothing is trained until the end. Then each model is certified once more, on 500 fresh texts drawn at random.

- sentiment: the first 8,000 film reviews of ``sentiment/pool`` through MiniLM, tested on ``sentiment/test``.
- news: posts on four topics, as ``examples/newsgroups_data.py`` writes them, 3,500 of ``newsgroups/pool`` and 1,000 of
  ``newsgroups/test``, through MiniLM.

alpha and control were chosen so that most of the first models are certified, after a look at three of the seeds.

The hidden states are kept in the folder ``--states``. ``make study STUDY=loop`` runs both commands.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from research.studies.common import add_options, states_of
from tools.pages import REPOSITORY, machine, said, write_between

RESULTS = Path(__file__).with_suffix(".json")
PAGE = REPOSITORY / "docs/howto/update.md"
BEGIN, END = "<!-- results: written by make study STUDY=loop -->", "<!-- end of results -->"

ALPHAS = {"sentiment": 0.8, "news": 0.9}
CONTROL = "all"  # 250 certification points are too few to promise anything for each class
N_START, N_HUNDREDS, N_FRESH = 1_000, 20, 500
EVERY = 5  # hundreds after which the test set is decided on

Rows = np.ndarray


class Way(NamedTuple):
    """What is labelled of a hundred inputs, and which part of that goes to the support; the rest calibrates."""

    label: Callable[[Rows, np.random.Generator], Rows]
    """From which of the hundred were rejected (100,) to the rows to label."""
    to_support: float


def rejected(is_rejected: Rows, rng: np.random.Generator) -> Rows:
    """All that were rejected."""
    return rng.permutation(np.flatnonzero(is_rejected))


def at_random(is_rejected: Rows, rng: np.random.Generator) -> Rows:
    """As many as were rejected, whichever they are."""
    return rng.permutation(len(is_rejected))[: int(is_rejected.sum())]


WAYS: dict[str, Way | None] = {
    "no updates": None,
    "rejected ones, half each": Way(rejected, 0.5),
    "random ones, half each": Way(at_random, 0.5),
    "rejected ones to the support": Way(rejected, 1.0),
    "random ones to the calibration set": Way(at_random, 0.0),
}
RETRAINED = {  # what is trained anew at the end, on the first texts and on what one of the ways has labelled
    "retrained with the rejected ones": "rejected ones, half each",
    "retrained with the random ones": "random ones, half each",
}


def main() -> None:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--publish", action="store_true", help="write the results into the documentation")
    options = parser.parse_args()
    if options.publish:
        write_between(PAGE, BEGIN, END, section(json.loads(RESULTS.read_text(encoding="utf-8"))))
        return
    start = time.perf_counter()
    runs = []
    for data in ALPHAS:
        pool, test = (states_of(options, f"{data}-{part}") for part in ("pool", "test"))
        for seed in range(options.seeds):
            runs += [{"data": data, "seed": seed, **run} for run in loop(pool, test, ALPHAS[data], seed)]
            print(f"{data}, seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
    results = {"machine": machine(), "alphas": ALPHAS, "n_seeds": options.seeds, "runs": runs}
    RESULTS.write_text(dumped(results), encoding="utf-8")
    print(f"\n{section(results)}\n\nWritten to {RESULTS}")


# --- Compute ---------------------------------------------------------------------------------------------------------


def loop(pool: Any, test: Any, alpha: float, seed: int, **settings: Any) -> Iterator[dict[str, Any]]:
    """One record per way: what is admitted of the test set over time, and what is right of it."""
    from torchsdm import SDMClassifier
    from torchsdm.errors import SDMWarning
    from torchsdm.trust import separate_ledger

    order = np.random.default_rng(seed).permutation(len(pool))
    first, stream, fresh = np.split(order, [N_START, N_START + 100 * N_HUNDREDS])
    fresh = pool.take(fresh[:N_FRESH])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SDMWarning)  # missing regions and certificates are counted
        settings = {"alpha": alpha, "control": CONTROL, "random_state": seed, **settings}
        with separate_ledger():  # each fit is an experiment of its own
            fitted = SDMClassifier(**settings).fit(pool.take(first))
        labelled = {}
        for name, way in WAYS.items():
            classifier = copy.copy(fitted)
            states = [standing(classifier, test)]
            kept: list[int] = []
            with separate_ledger():  # as if it were the only way
                for number, hundred in enumerate(stream.reshape(N_HUNDREDS, 100) if way is not None else (), start=1):
                    kept += update(classifier, pool, hundred, way, np.random.default_rng([seed, number]))
                    if number % EVERY == 0:
                        states.append(standing(classifier, test))
                found = certified(classifier, fresh, test)
            labelled[name] = kept
            yield {"way": name, "n_labelled": len(kept), "over_time": states, "fresh": found}
        for name, source in RETRAINED.items():
            rows = np.concatenate([first, np.array(labelled[source], dtype=int)])
            with separate_ledger():
                classifier = SDMClassifier(**settings).fit(pool.take(rows))
                found = certified(classifier, fresh, test)
            states = [standing(classifier, test)]
            yield {"way": name, "n_labelled": len(labelled[source]), "over_time": states, "fresh": found}


def update(classifier: Any, pool: Any, hundred: Rows, way: Way, rng: np.random.Generator) -> list[int]:
    """Let a hundred inputs arrive, label some, add them, recalibrate; the rows that were labelled."""
    is_rejected = ~classifier.decide(pool.take(hundred).hidden_states).admitted
    chosen = hundred[way.label(is_rejected, rng)]
    n = round(way.to_support * len(chosen))
    for rows, add in ((chosen[:n], classifier.add_exemplars), (chosen[n:], classifier.add_calibration)):
        if len(rows):
            part = pool.take(rows)
            add(part.hidden_states, part.labels, ids=[f"row-{row}" for row in rows], repeated="keep")
    if len(chosen):
        classifier.recalibrate()
    return [int(row) for row in chosen]


def standing(classifier: Any, test: Any) -> dict[str, Any]:
    """What the certified rule and the region admit of the test set, and how many certificates the sample served."""
    decisions = classifier.decide(test.hidden_states)
    certificate = classifier.certificate_
    return {
        "certified": admission(decisions.certified, decisions.predictions, test.labels),
        "region": admission(decisions.admitted_at[:, 0], decisions.predictions, test.labels),
        "looks": certificate.looks,
        "found": certificate.found,
    }


def certified(classifier: Any, fresh: Any, test: Any) -> dict[str, Any]:
    """The same for a copy that is certified on fresh points."""
    return standing(copy.copy(classifier).recertify(fresh.hidden_states, fresh.labels), test)


def admission(admitted: Rows, predictions: Rows, labels: Any) -> list[float | None]:
    """Share and accuracy of what is admitted."""
    is_right = (predictions == np.asarray(labels))[admitted]
    return [round(float(admitted.mean()), 4), round(float(is_right.mean()), 4) if len(is_right) else None]


# --- Tell ------------------------------------------------------------------------------------------------------------


def section(results: dict[str, Any]) -> str:
    """What the page says of the results: a table for each data set."""
    known, n_seeds = results["machine"], results["n_seeds"]
    lines = [f"Means over {n_seeds} seeds. {said(known)} All numbers are in `research/studies/loop.json`."]
    for data, alpha in results["alphas"].items():
        of_data = [run for run in results["runs"] if run["data"] == data]
        lines += ["", f"**{data}, α = {alpha}**", ""]
        lines += ["| what comes back | labels | certified rule, at first | after 1,000 | after 2,000 | right |"]
        lines[-1] += " region | right | certified on fresh texts | right |"
        lines += ["|---|" + "--:|" * 9]
        for way in [*WAYS, *RETRAINED]:
            lines.append(f"| {way} | {' | '.join(cells([run for run in of_data if run['way'] == way]))} |")
        lines += ["", broken(of_data, alpha)]
    return "\n".join(lines)


def cells(runs: list[dict[str, Any]]) -> list[str]:
    """A line of the table: means over the seeds, accuracies over those in which something is admitted."""

    def column(number: int, rule: str, value: int) -> str:
        return mean([run["over_time"][number][rule][value] for run in runs])

    n_times, n_labelled = len(runs[0]["over_time"]), np.mean([run["n_labelled"] for run in runs])
    middle = n_times // 2  # after half of the stream; without updates everything stays as it is
    is_retrained = n_times == 1 and n_labelled > 0
    return [
        f"{n_labelled:,.0f}",
        *(("", "") if is_retrained else (column(0, "certified", 0), column(middle, "certified", 0))),
        *(column(-1, rule, value) for rule in ("certified", "region") for value in (0, 1)),
        *(mean([run["fresh"]["certified"][value] for run in runs]) for value in (0, 1)),
    ]


def mean(values: list[float | None]) -> str:
    """The mean of what there is, or a dash."""
    found = [value for value in values if value is not None]
    return f"{np.mean(found):.3f}" if found else "–"


def broken(runs: list[dict[str, Any]], alpha: float) -> str:
    """How many certified rules were below alpha on the test set, and how often the first sample was asked."""

    def below(found: list[float | None]) -> str:
        accuracies = [one for one in found if one is not None]
        return f"{sum(one < alpha for one in accuracies)} of {len(accuracies)}"

    last = below([run["over_time"][-1]["certified"][1] for run in runs])
    fresh = below([run["fresh"]["certified"][1] for run in runs])
    looks = max(state["looks"] for run in runs for state in run["over_time"])
    return (
        f"Below α on the test set: {last} certified rules at the end, {fresh} on fresh texts. The first certification "
        f"sample served up to {looks} certificates."
    )


def dumped(results: dict[str, Any]) -> str:
    """Strict JSON with a run per line: small, and changes can be read."""
    runs = ",\n  ".join(json.dumps(run, allow_nan=False) for run in results["runs"])
    head = json.dumps({**results, "runs": []}, indent=1, allow_nan=False)
    return head.replace('"runs": []', f'"runs": [\n  {runs}\n ]') + "\n"


if __name__ == "__main__":
    main()
