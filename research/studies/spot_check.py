"""How many labels it takes until spot checks notice that answers are right less often than promised.

    python -m research.studies.spot_check [--streams 200] [--calm 2000]
    python -m research.studies.spot_check --publish  # its figures into the docs

``make study STUDY=spot_check`` runs both commands: about five minutes on one core. No data are needed: an answer is
right with a known probability. The same streams of verdicts go past four methods:

- ``SpotCheck`` with two predictions, both of which fall: it is raised by either of them, or by both together.
- MAPIE's ``RiskMonitoring`` of the accuracy, with 1 - alpha as its threshold. Half of its level is for estimating a
  threshold from reference data; as that is given here, it gets twice the level.
- Two tests as people write them by hand: is the number of errors among the last 200 answers, or in each new block of
  200, unlikely (p <= false_alarm) at alpha? They have no correction for being asked again and again.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy.special import gammainc, gammaln
from scipy.stats import binom

from tools.pages import REPOSITORY, machine, write_between

RESULTS = Path(__file__).with_suffix(".json")
PAGE = REPOSITORY / "docs/howto/spot-checks.md"
BEGIN, END = "<!-- results: written by make study STUDY=spot_check -->", "<!-- end of results -->"

FALSE_ALARM = 0.01
ALPHAS = (0.9, 0.95)
BEFORE = (
    (0.0, 0),
    (0.0, 200),
    (0.03, 200),
    (0.03, 2_000),
)  # points above alpha, and for how many labels, before a fall
LONGEST = {0.02: 40_000, 0.05: 15_000, 0.1: 5_000}  # labels after a fall of so many points below alpha
N_CALM = 10_000
WINDOW = 200
CHUNK = 1_000
NEVER = math.inf

Raised: TypeAlias = "np.ndarray[Any, Any]"


def main() -> None:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200, help="streams of each kind with a fall")
    parser.add_argument("--calm", type=int, default=2_000, help="streams of each kind without one")
    parser.add_argument("--publish", action="store_true", help="write the results into the documentation")
    options = parser.parse_args()
    if options.publish:
        publish(json.loads(RESULTS.read_text(encoding="utf-8")))
        return
    results = study(options.streams, options.calm)
    RESULTS.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(section(results))
    print(f"\nWritten to {RESULTS}")


# --- Compute ---------------------------------------------------------------------------------------------------------


def study(n_streams: int, n_calm_streams: int) -> dict[str, Any]:
    """Streams of every kind past every method."""
    return {
        "machine": machine(),
        "false_alarm": FALSE_ALARM,
        "n_streams": n_streams,
        "n_calm_streams": n_calm_streams,
        "n_calm": N_CALM,
        "window": WINDOW,
        "falls": list(falls(n_streams)),
        "calm": list(calm(n_calm_streams)),
    }


def falls(n_streams: int) -> Iterator[dict[str, Any]]:
    """Delays after a fall, for each kind of stream."""
    for alpha, (above, n_before), (drop, n_after) in product(ALPHAS, BEFORE, LONGEST.items()):
        chance = np.repeat([alpha + above, alpha - drop], [n_before, n_after])
        seed = [*(round(1000 * value) for value in (alpha, above, drop)), n_before]
        ends = raised_at(chance, n_streams, alpha, seed)
        found = {name: delays(at, n_before) for name, at in ends.items()}
        yield _told({"alpha": alpha, "above": above, "n_before": n_before, "drop": drop, **found})


def calm(n_streams: int) -> Iterator[dict[str, Any]]:
    """How many streams raise an alarm without a fall, for each kind of stream."""
    for alpha, above in product(ALPHAS, sorted({above for above, _ in BEFORE})):
        seed = [round(1000 * value) for value in (alpha, above)]
        ends = raised_at(np.full(N_CALM, alpha + above), n_streams, alpha, seed)
        yield _told({"alpha": alpha, "above": above, **{name: int(np.isfinite(at).sum()) for name, at in ends.items()}})


def _told(found: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(found), flush=True)
    return found


def raised_at(chance: np.ndarray, n_streams: int, alpha: float, seed: Sequence[int]) -> dict[str, Raised]:
    """The verdict by which each method was raised in each stream."""
    is_wrong, is_second = verdicts(chance, n_streams, seed)
    return {name: raised(is_wrong, is_second, alpha) for name, raised in METHODS.items()}


def verdicts(chance: np.ndarray, n_streams: int, seed: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Whether each answer is wrong, and which of two predictions it is (S, N)."""
    rng = np.random.default_rng(seed)
    is_wrong = rng.random((n_streams, len(chance)), dtype=np.float32) >= chance
    return is_wrong, rng.integers(2, size=is_wrong.shape, dtype=np.int8).astype(bool)


def spot_check(is_wrong: np.ndarray, is_second: np.ndarray, alpha: float) -> Raised:
    """The verdict by which our spot checks were raised (S,); infinite if they never were."""
    from torchsdm import SpotCheck

    ends = np.full(len(is_wrong), NEVER)
    for stream, (wrong, second) in enumerate(zip(is_wrong, is_second, strict=True)):
        checks = SpotCheck(alpha, [False, True], false_alarm=FALSE_ALARM)
        for chunk in chunks(len(wrong)):
            checks.update(second[chunk], ~wrong[chunk])
            if checks.raised_at is not None:
                ends[stream] = checks.raised_at
                break
    return ends


def mapie(is_wrong: np.ndarray, is_second: np.ndarray, alpha: float) -> Raised:
    """The same of MAPIE's monitoring, with its own bound, evaluated for all streams at once.

    Its lower bound of the error rate is above the threshold where the sum of the errors minus t times the threshold is
    above its boundary, and that is where its supermartingale is above the inverse of its level.
    """
    from mapie.exchangeability_testing import RiskMonitoring
    from mapie.exchangeability_testing.bounds import GammaExponentialMixtureBound

    level = RiskMonitoring("accuracy", test_level=2 * FALSE_ALARM, threshold=1 - alpha).test_level_online / 2
    mixture = GammaExponentialMixtureBound(v_opt=1, c=1, alpha_opt=level)
    n_streams = len(is_wrong)
    ends, running = np.full(n_streams, NEVER), np.arange(n_streams)
    n_errors, variance = np.zeros((n_streams, 1)), np.zeros((n_streams, 1))
    for chunk in chunks(is_wrong.shape[1]):
        wrong = is_wrong[running, chunk].astype(float)
        t = np.arange(chunk.start, chunk.stop) + 1.0
        errors = n_errors[running] + np.cumsum(wrong, axis=1)
        mean_before = np.where(t == 1, 0.5, (errors - wrong) / np.maximum(t - 1, 1))
        v = variance[running] + np.cumsum((wrong - mean_before) ** 2, axis=1)
        crossed = _is_beyond(mixture, errors - t * (1 - alpha), v, math.log(1 / level))
        n_errors[running], variance[running] = errors[:, -1:], v[:, -1:]
        done = crossed.any(axis=1)
        ends[running[done]] = chunk.start + crossed[done].argmax(axis=1) + 1
        running = running[~done]
    return ends


def _is_beyond(mixture: Any, s: np.ndarray, v: np.ndarray, log_level: float) -> np.ndarray:
    """Where MAPIE's ``mixture.log_supermg(s, v)`` is above a level, for many s and v; never where s is not positive."""
    is_beyond = np.zeros(s.shape, dtype=bool)
    rows = s > 0
    x, shape = s[rows] + v[rows] + mixture.rho, v[rows] + mixture.rho
    value = gammaln(shape) + np.log(gammainc(shape, x)) - shape * np.log(x) + s[rows] + v[rows]
    is_beyond[rows] = mixture.leading_constant + value > log_level
    return is_beyond


def last_answers(is_wrong: np.ndarray, is_second: np.ndarray, alpha: float) -> Raised:
    """The same of a binomial test of the last ``WINDOW`` answers, after each of them."""
    return _tested_by_hand(is_wrong, alpha, 1)


def new_blocks(is_wrong: np.ndarray, is_second: np.ndarray, alpha: float) -> Raised:
    """The same of a binomial test of each new block of ``WINDOW`` answers."""
    return _tested_by_hand(is_wrong, alpha, WINDOW)


def _tested_by_hand(is_wrong: np.ndarray, alpha: float, every: int) -> Raised:
    counts = np.cumsum(is_wrong, axis=1, dtype=np.int32)
    ends = np.arange(WINDOW - 1, is_wrong.shape[1], every)
    errors = counts[:, ends]
    errors[:, 1:] -= counts[:, ends[1:] - WINDOW]
    is_unlikely = errors >= most_errors(alpha)
    return np.where(is_unlikely.any(axis=1), ends[is_unlikely.argmax(axis=1)] + 1.0, NEVER)


def most_errors(alpha: float) -> int:
    """The fewest errors k among ``WINDOW`` answers with P(X >= k) <= ``FALSE_ALARM`` at alpha."""
    tail = binom.sf(np.arange(WINDOW + 1) - 1, WINDOW, 1 - alpha)
    return int(np.flatnonzero(tail <= FALSE_ALARM)[0])


def chunks(n: int) -> Iterator[slice]:
    """The stream in parts, so that one that has raised its alarm can end."""
    return (slice(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK))


METHODS: dict[str, Callable[[np.ndarray, np.ndarray, float], Raised]] = {
    "spot_check": spot_check,
    "mapie": mapie,
    "last_answers": last_answers,
    "new_blocks": new_blocks,
}
HEADINGS = (
    *("`SpotCheck`", "MAPIE `RiskMonitoring`"),
    *(f"last {WINDOW} answers, by hand", f"each {WINDOW} answers, by hand"),
)


def delays(ends: np.ndarray, n_before: int) -> dict[str, Any]:
    """Labels from the fall to the alarm, over the streams that raised none before it; None where there was none."""
    late = ends[ends > n_before] - n_before
    found = {"alarms_before": int((ends <= n_before).sum()), "never": int(np.isinf(late).sum())}
    quantiles = [quantile(late, share) for share in (0.5, 0.9)]
    return {"median": quantiles[0], "late": quantiles[1], **found}


def quantile(values: np.ndarray, share: float) -> int | None:
    """The smallest value that at least this share of the values do not exceed; None if there is none."""
    if not len(values):
        return None
    value = float(np.quantile(values, share, method="inverted_cdf"))
    return int(value) if math.isfinite(value) else None


# --- Tell ------------------------------------------------------------------------------------------------------------


def falls_table(results: dict[str, Any]) -> str:
    """Labels until an alarm as Markdown."""
    lines = ["| alpha | before | then | " + " | ".join(HEADINGS) + " |", "|---|---|---|" + "--:|" * len(METHODS)]
    for one in results["falls"]:
        alpha, drop = one["alpha"], one["drop"]
        before = f"{alpha + one['above']:.3g} for {one['n_before']:,} labels" if one["n_before"] else "–"
        cells = [_cell(one[name], results["n_streams"], drop) for name in METHODS]
        lines.append(f"| {alpha:g} | {before} | {alpha - drop:.3g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(found: dict[str, Any], n_streams: int, drop: float) -> str:
    """Median and 90 % quantile."""
    if found["alarms_before"] == n_streams:
        return "all raised before"
    return " / ".join(
        f"over {LONGEST[drop]:,}" if found[name] is None else f"{found[name]:,}" for name in ("median", "late")
    )


def calm_table(results: dict[str, Any]) -> str:
    """False alarms as Markdown."""
    lines = ["| alpha | right | " + " | ".join(HEADINGS) + " |", "|---|---|" + "--:|" * len(METHODS)]
    for one in results["calm"]:
        cells = [f"{one[name] / results['n_calm_streams']:.2%}" for name in METHODS]
        lines.append(f"| {one['alpha']:g} | {one['alpha'] + one['above']:.3g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def section(results: dict[str, Any]) -> str:
    """What the page says of the results."""
    return (
        f"Labels from a fall of accuracy to the alarm, median / 90 % quantile of those among {results['n_streams']:,} "
        f"streams of each kind that raised no alarm before it, with `false_alarm={results['false_alarm']:g}`:\n\n"
        f"{falls_table(results)}\n\n"
        f"Streams without any fall that raised an alarm within {results['n_calm']:,} labels, of "
        f"{results['n_calm_streams']:,} of each kind:\n\n"
        f"{calm_table(results)}\n\n"
        "All numbers are in `research/studies/spot_check.json`."
    )


def publish(results: dict[str, Any]) -> None:
    """Write the tables into the documentation."""
    write_between(PAGE, BEGIN, END, section(results))


if __name__ == "__main__":
    main()
