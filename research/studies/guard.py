"""When the drift guard notices a shift, and how often it raises an alarm without one.

    python -m research.studies.guard [--data FOLDER] [--fits 10] [--streams 1000]
    python -m research.studies.guard --publish  # its figures into the docs

The data are statements, each as 32 features of Mixtral: ``factcheck/mixtral32_pool`` on six topics, and
``factcheck/mixtral32_test``, which another language model wrote. ``make study STUDY=guard`` runs both commands.

For each seed the pool is split at random: some points to fit on, some that the guard compares with, some that are calm
inputs. The guard's points were seen by nothing else, so its promise is exact in every calm stream below.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tools.pages import REPOSITORY, machine, write_between

RESULTS = Path(__file__).with_suffix(".json")
PAGE, PICTURE = REPOSITORY / "docs/howto/guard.md", REPOSITORY / "docs/pictures/guard.svg"
BEGIN, END = "<!-- results: written by make study STUDY=guard -->", "<!-- end of results -->"

SIGNALS = ("nearest_distance", "confidence", "similarity")
SETTINGS = {
    "n_filters": 100,
    "n_rounds": 3,
    "max_epochs": 40,
    "learning_rate": 1e-3,
    "patience": 8,
    "standardization": "per_dimension",
    "certification_size": None,  # held out here
}
N_FIT, N_KNOWN = (
    3_375,
    1_125,
)  # 4,500 statements, a quarter of them for the guard; the others of the pool are calm inputs
N_BEFORE_TURN = 200
N_SIMULATED = 10_000
FALSE_ALARM = 0.01
GOAL = 40
N_DRAWN = N_BEFORE_TURN + GOAL + 10  # inputs of the picture

Points = SimpleNamespace  # with the three signals as arrays


def main() -> None:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TORCHSDM_DATA"), help="default: $TORCHSDM_DATA")
    parser.add_argument("--fits", type=int, default=10, help="classifiers, with seeds from 0")
    parser.add_argument("--streams", type=int, default=1_000, help="streams of each kind for each classifier")
    parser.add_argument("--publish", action="store_true", help="write results and picture into the documentation")
    options = parser.parse_args()
    if options.publish:
        publish(json.loads(RESULTS.read_text(encoding="utf-8")))
        return
    if options.data is None:
        parser.error("no data: name the folder that has factcheck/mixtral32_pool.jsonl.gz with --data or TORCHSDM_DATA")
    results = study(options.data, options.fits, options.streams)
    RESULTS.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(table(results))
    print(f"\nWritten to {RESULTS}")


# --- Compute ---------------------------------------------------------------------------------------------------------


def study(data: Path, n_fits: int, n_streams: int) -> dict[str, Any]:
    """Fit one classifier per seed, run all kinds of streams past its guard."""
    from torchsdm.data import read_states

    pool, shifted = (
        read_states(data / f"factcheck/mixtral32_{part}.jsonl.gz", states="attributes", labels="label")
        for part in ("pool", "test")
    )
    fits, turns = [], []
    for seed in range(n_fits):
        decided = decide(pool, shifted, seed)
        fits.append({"seed": seed, **streams(*decided, seed, n_streams)})
        turns.append(one_turn(*decided[:3], seed))
        print(json.dumps(fits[-1]), flush=True)
    return {
        "machine": machine(),
        "settings": {**SETTINGS, "n_fit": N_FIT, "n_known": N_KNOWN, "false_alarm": FALSE_ALARM},
        "n_shifted": len(shifted.hidden_states),
        "n_streams": n_streams,
        "n_before_turn": N_BEFORE_TURN,
        "n_simulated": N_SIMULATED,
        "fits": fits,
        "turn": turns[0],
    }


def decide(pool: Any, shifted: Any, seed: int) -> tuple[Points, Points, Points, Points]:
    """Decisions on the points known to the guard, calm ones, shifted ones; and the classifier's calibration set."""
    from torchsdm import SDMClassifier
    from torchsdm.trust import separate_ledger

    states, labels = np.asarray(pool.hidden_states), np.asarray(pool.labels)
    order = np.random.default_rng(seed).permutation(len(states))
    fit, known, calm = np.split(order, [N_FIT, N_FIT + N_KNOWN])
    with separate_ledger():  # each fit is an experiment of its own
        classifier = SDMClassifier(**SETTINGS, random_state=seed).fit(states[fit], labels[fit])
    decided = [points_of(classifier.decide(inputs)) for inputs in (states[known], states[calm], shifted.hidden_states)]
    return *decided, points_of(classifier.model_.calibration)


def streams(
    known: Points, calm: Points, shifted: Points, calibration: Points, seed: int, n_streams: int
) -> dict[str, Any]:
    """How each kind of stream ended, over ``n_streams`` of each."""
    ends: dict[str, list[Any]] = {kind: [] for kind in ("shifted", "turning", "calm", "simulated", "reused")}
    held_out = joined(known, calm)
    n_known, n_held_out = len(known.similarity), len(held_out.similarity)
    for number in range(n_streams):
        rng = np.random.default_rng([seed, number])
        ties, strange, turning = turning_stream(calm, shifted, rng)
        # Points never seen, in random order, are exchangeable: the first are known, the others come as a stream.
        again = rows(held_out, rng.permutation(n_held_out))
        # Drawn with replacement, points known and points to come are independent, as many as we like.
        drawn = rows(held_out, rng.integers(n_held_out, size=n_known + N_SIMULATED))
        ends["shifted"].append(raised(known, strange, ties))
        ends["turning"].append(raised(known, turning, ties))
        ends["calm"].append(raised(rows(again, slice(n_known)), rows(again, slice(n_known, None)), ties))
        ends["simulated"].append(raised(rows(drawn, slice(n_known)), rows(drawn, slice(n_known, None)), ties))
        ends["reused"].append(raised(calibration, again, ties))
    turned = [(at and at - N_BEFORE_TURN, by) for at, by in ends["turning"] if at is None or at > N_BEFORE_TURN]
    return {
        "after_shift": delays(ends["shifted"]),
        "after_turn": delays(turned),
        "before_turn": {"n_inputs": N_BEFORE_TURN, "alarms": n_streams - len(turned)},
        "calm": {"n_inputs": n_held_out - n_known, "alarms": alarms(ends["calm"])},
        "simulated": {"n_inputs": N_SIMULATED, "alarms": alarms(ends["simulated"])},
        "calibration_reused": {"n_inputs": n_held_out, "alarms": alarms(ends["reused"])},
    }


def turning_stream(calm: Points, shifted: Points, rng: np.random.Generator) -> tuple[int, Points, Points]:
    """A seed to break ties, the shifted points in random order, and the same after some calm ones."""
    ties = int(rng.integers(2**31))
    strange = rows(shifted, rng.permutation(len(shifted.similarity)))
    before = rows(calm, rng.permutation(len(calm.similarity))[:N_BEFORE_TURN])
    return ties, strange, joined(before, strange)


def raised(known: Points, stream: Points, seed: int) -> tuple[int | None, str | None]:
    """The input that raised the alarm, and the signal."""
    guard = guard_of(known, seed)
    guard.update(stream)
    return guard.raised_at, guard.raised_by


def guard_of(known: Points, seed: int) -> Any:
    """A guard that compares with these points."""
    from torchsdm import DriftGuard

    return DriftGuard(*(getattr(known, name) for name in SIGNALS), false_alarm=FALSE_ALARM, seed=seed)


def delays(ends: Sequence[tuple[int | None, str | None]]) -> dict[str, Any]:
    """How many streams took how many inputs until the alarm, and which signal raised it."""
    counts = Counter(at for at, _ in ends)
    missed = counts.pop(None, 0)
    return {
        "streams_by_delay": {str(at): counts[at] for at in sorted(counts)},
        "never": missed,
        "raised_by": dict(sorted(Counter(by for _, by in ends if by is not None).items())),
    }


def alarms(ends: Iterable[tuple[int | None, str | None]]) -> int:
    """How many streams raised an alarm."""
    return sum(at is not None for at, _ in ends)


def one_turn(known: Points, calm: Points, shifted: Points, seed: int) -> dict[str, Any]:
    """The three martingales input by input, of the first turning stream; each is divided by 3, as for the alarm."""
    ties, _, stream = turning_stream(calm, shifted, np.random.default_rng([seed, 0]))
    guard = guard_of(known, ties)
    curves: dict[str, list[float]] = {name: [] for name in SIGNALS}
    for number in range(N_DRAWN):
        guard.update(rows(stream, slice(number, number + 1)))
        for name, value in guard.log_martingales.items():
            curves[name].append(round((value - math.log(3)) / math.log(10), 3))
    return {"seed": seed, "raised_at": guard.raised_at, "raised_by": guard.raised_by, "log10_martingale_third": curves}


def points_of(decisions: Any) -> Points:
    """The three signals of decisions."""
    return Points(**{name: np.asarray(getattr(decisions, name)) for name in SIGNALS})


def rows(points: Points, chosen: Any) -> Points:
    """Some of the points."""
    return Points(**{name: values[chosen] for name, values in vars(points).items()})


def joined(first: Points, second: Points) -> Points:
    """The points of both, in their order."""
    return Points(**{name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in SIGNALS})


# --- Tell ------------------------------------------------------------------------------------------------------------


def setting(results: dict[str, Any]) -> str:
    """What was computed, and on what, in a few sentences."""
    known, settings, fits = results["machine"], results["settings"], results["fits"]
    return (
        f"{len(fits)} classifiers, with seeds {fits[0]['seed']} to {fits[-1]['seed']}, fitted on {settings['n_fit']:,} "
        f"statements each; a guard over {settings['n_known']:,} others with `false_alarm={settings['false_alarm']}`; "
        f"{results['n_streams']:,} streams of each kind for each; {results['n_shifted']} shifted statements. "
        f"{known['processor']}, Python {known['python']}, torch {known['torch']}, numpy {known['numpy']}. All "
        "numbers are in `research/studies/guard.json`."
    )


def all_delays(fits: Iterable[dict[str, Any]], kind: str) -> list[float]:
    """The delays of all streams, ascending; infinite where the alarm was never raised."""
    found: list[float] = []
    for fit in fits:
        for delay, n in fit[kind]["streams_by_delay"].items():
            found += [int(delay)] * n
        found += [math.inf] * fit[kind]["never"]
    return sorted(found)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values do not exceed."""
    return float(np.quantile(values, share, method="inverted_cdf"))


def table(results: dict[str, Any]) -> str:
    """The figures as Markdown, over all fits."""
    fits, n_streams, false_alarm = results["fits"], results["n_streams"], results["settings"]["false_alarm"]
    lines = ["| stream | streams | alarm | goal | reached |", "|---|--:|---|---|---|"]

    def row(stream: str, n: int, found: str, goal: str, is_reached: bool) -> None:
        lines.append(f"| {stream} | {n:,} | {found} | {goal} | {'yes' if is_reached else '**no**'} |")

    for kind, stream in (
        ("after_shift", "shifted from the first input"),
        ("after_turn", f"shifted after {results['n_before_turn']} calm inputs"),
    ):
        found = all_delays(fits, kind)
        median, late = quantile(found, 0.5), quantile(found, 0.9)
        medians = [quantile(all_delays([fit], kind), 0.5) for fit in fits]
        words = (
            f"after {median:.0f} shifted inputs in the median ({min(medians):.0f} to {max(medians):.0f} by fit), "
            f"{late:.0f} at the 90 % quantile, {found[-1]:.0f} at most"
        )
        row(stream, len(found), words, f"within {GOAL} in the median", median <= GOAL)
    for kind, stream in (
        ("before_turn", "those {:,} calm inputs"),
        ("calm", "{:,} calm inputs"),
        ("simulated", "{:,} calm inputs, simulated"),
        ("calibration_reused", "{:,} calm inputs, compared with the calibration set"),
    ):
        shares = [fit[kind]["alarms"] / n_streams for fit in fits]
        mean = sum(shares) / len(shares)
        words = f"in {mean:.2%} of the streams ({min(shares):.1%} to {max(shares):.1%} by fit)"
        row(
            stream.format(fits[0][kind]["n_inputs"]),
            n_streams * len(fits),
            words,
            f"≤ {false_alarm:.0%}",
            mean <= false_alarm,
        )
    return "\n".join(lines)


def section(results: dict[str, Any]) -> str:
    """What the page says of the results."""
    return f"{setting(results)}\n\n{table(results)}"


def draw(results: dict[str, Any], path: Path) -> None:
    """A stream that turns: the three martingales, the turn and the alarm."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "torchsdm"  # the same numbers give the same file
    turn, n_before = results["turn"], results["n_before_turn"]
    threshold, raised_at = 1 / results["settings"]["false_alarm"], turn["raised_at"]
    inputs = np.arange(1, N_DRAWN + 1)
    figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
    axis.axvspan(n_before + 0.5, N_DRAWN, color="#f6e3d4", linewidth=0)
    axis.axhline(threshold, color="#555555", linestyle="--", linewidth=1)
    colours = {"nearest_distance": "#1b6ca8", "confidence": "#2b7a4b", "similarity": "#8a4fa3"}
    for name, colour in colours.items():
        curve = 10.0 ** np.array(turn["log10_martingale_third"][name])
        axis.plot(inputs, curve, color=colour, linewidth=1.6, label=name.replace("_", " "))
    axis.plot(raised_at, threshold, "o", color="#c0392b", markersize=8, zorder=3)
    axis.annotate(
        f"alarm at input {raised_at},\n{raised_at - n_before} after the turn, by {turn['raised_by'].replace('_', ' ')}",
        (raised_at, threshold),
        (n_before - 60, threshold * 15),
        color="#c0392b",
        ha="center",
        arrowprops={"arrowstyle": "->", "color": "#c0392b"},
    )
    axis.text(3, threshold * 1.25, f"alarm at {threshold:.0f} = 1 / false_alarm", color="#555555", va="bottom")
    axis.text(n_before + 1.5, 0.0025, "statements another\nmodel wrote", color="#a04a10", va="bottom")
    axis.text(n_before - 1, 0.0025, "statements as in training", ha="right", va="bottom", color="#555555")
    axis.set(yscale="log", ylim=(0.002, 1e5), xlim=(1, N_DRAWN), xlabel="input", ylabel="martingale / 3")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="upper left", frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def publish(results: dict[str, Any]) -> None:
    """Write table and picture into the documentation."""
    draw(results, PICTURE)
    write_between(PAGE, BEGIN, END, section(results))


if __name__ == "__main__":
    main()
