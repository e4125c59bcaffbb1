"""Background examples: what they cost of what belongs, and what they keep out; as a trained class, or as exemplars.

    python -m research.studies.background [--data FOLDER] [--states FOLDER] [--seeds 5]
    python -m research.studies.background --publish  # its figures into the docs

- news: 3,000 newsgroup posts of four topics, alpha 0.9, every group certified; the background are 100 or 300 film
  reviews. Strangers are other reviews (of the kind shown) and tweets (of a kind never shown).
- intents: 50 intents of CLINC150, alpha 0.9, all answers together certified; the background are the 250 out-of-scope
  queries that come with the training set. Strangers are the 1,000 out-of-scope queries of the test set, and queries of
  the other 100 intents.

``make study STUDY=background`` runs both commands.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from research.studies.common import add_options, states_of
from tools.pages import REPOSITORY, machine, said, write_between

RESULTS = Path(__file__).with_suffix(".json")
PAGE = REPOSITORY / "docs/howto/background.md"
BEGIN, END = "<!-- results: written by make study STUDY=background -->", "<!-- end of results -->"

ALPHA = 0.9
MODES = {None: "none shown", "exemplars": "exemplars of the support", "class": "a trained class (default)"}


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
    results: dict[str, Any] = {"machine": machine(), "fits": []}
    for data in (news, intents):
        for seed in range(options.seeds):
            for fit in data(options, seed):
                print(json.dumps(fit), flush=True)
                results["fits"].append({"data": data.__name__, "seed": seed, **fit})
                RESULTS.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(section(results))


# --- Compute ---------------------------------------------------------------------------------------------------------


def news(options: argparse.Namespace, seed: int) -> Iterator[dict[str, Any]]:
    """Posts, with film reviews as the background."""
    pool, reviews = states_of(options, "news-pool"), states_of(options, "sentiment-pool")
    rng = np.random.default_rng(seed)
    drawn = pool.take(rng.permutation(len(pool))[:3_000])
    shown = reviews.hidden_states[rng.permutation(len(reviews))[:300]]
    tests = {
        "belongs": states_of(options, "news-test"),
        "of the kind shown": states_of(options, "sentiment-test"),
        "of another kind": states_of(options, "sentiment-shifted"),
    }
    yield from judged(drawn, {0: None, 100: shown[:100], 300: shown}, tests, seed)


def intents(options: argparse.Namespace, seed: int) -> Iterator[dict[str, Any]]:
    """Queries, with some that are out of scope as the background."""
    tests = {
        "belongs": states_of(options, "intents-test"),
        "of the kind shown": states_of(options, "intents-strange"),
        "of another kind": states_of(options, "intents-other"),
    }
    shown = states_of(options, "intents-background").hidden_states
    yield from judged(states_of(options, "intents-pool"), {0: None, len(shown): shown}, tests, seed, control="all")


def judged(
    pool: Any, backgrounds: dict[int, Any], tests: dict[str, Any], seed: int, **terms: Any
) -> Iterator[dict[str, Any]]:
    """What each use of each background admits of each test set."""
    from torchsdm import SDMClassifier
    from torchsdm.errors import SDMWarning
    from torchsdm.trust import separate_ledger

    for n_shown, background in backgrounds.items():
        for mode in MODES:
            if (mode is None) != (background is None):
                continue
            classifier = SDMClassifier(ALPHA, random_state=seed, background_as=mode or "class", **terms)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SDMWarning)  # missing certificates are counted
                with separate_ledger():  # each fit is an experiment of its own
                    classifier.fit(pool, background=background)
            decided = {name: classifier.decide(test.hidden_states) for name, test in tests.items()}
            belongs, admitted = tests["belongs"].labels, decided["belongs"].admitted
            right = decided["belongs"].predictions[admitted] == belongs[admitted]
            yield {
                **{"n_shown": n_shown, "mode": mode, "certified": bool(classifier.certificate_.found)},
                "admitted": {name: float(one.admitted.mean()) for name, one in decided.items()},
                "right": float(right.mean()) if len(right) else None,
            }


# --- Tell ------------------------------------------------------------------------------------------------------------


def section(results: dict[str, Any]) -> str:
    """A table for each data set; means over the seeds."""
    lines = []
    for data in (news, intents):
        fits = [fit for fit in results["fits"] if fit["data"] == data.__name__]
        lines += ["", f"**{data.__name__}** ({len({fit['seed'] for fit in fits})} seeds)", ""]
        lines += [
            "| background | shown | certified | belongs: admitted | right | strangers of the kind shown | of another |"
        ]
        lines += ["|---|--:|--:|--:|--:|--:|--:|"]
        for key in dict.fromkeys((fit["n_shown"], fit["mode"]) for fit in fits):
            of_row = [fit for fit in fits if (fit["n_shown"], fit["mode"]) == key]
            shares = [float(np.mean([fit["admitted"][name] for fit in of_row])) for name in of_row[0]["admitted"]]
            right = [fit["right"] for fit in of_row if fit["right"] is not None]
            cells = [str(key[0]), f"{sum(fit['certified'] for fit in of_row)} of {len(of_row)}", f"{shares[0]:.3f}"]
            cells += [f"{np.mean(right):.3f}" if right else "–", *(f"{share:.3f}" for share in shares[1:])]
            lines.append(f"| {MODES[key[1]]} | {' | '.join(cells)} |")
    return (
        f"{said(results['machine'])} Seeds from 0; all numbers are in `research/studies/background.json`.\n"
        + "\n".join(lines)
    )


if __name__ == "__main__":
    main()
