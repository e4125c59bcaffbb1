"""One HTML page for an evaluation: tables, pictures, telling examples, and where every number comes from.

The page needs nothing but itself to be opened: styles are inside, pictures are inline SVG or PNG. Its size is bounded
however large the data: examples are few and shortened, and pictures draw at most some thousand points.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchsdm.core import Decisions, HighReliabilityRegion
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.evaluation.displays import (
    AlphaDisplay,
    DistanceDisplay,
    PartitionDisplay,
    ReliabilityDisplay,
    RiskCoverageDisplay,
    TrainingHistoryDisplay,
)
from torchsdm.evaluation.evaluation import Evaluation
from torchsdm.evaluation.metrics import possible_label_errors
from torchsdm.evaluation.tables import ABSENT, REJECTED, accuracy_text, share_text
from torchsdm.files import replace_file, strict_json
from torchsdm.model import Explanation
from torchsdm.states import LabelledStates
from torchsdm.validation import Array, ArrayLike, check_label_array, check_path
from torchsdm.wording import shortened

MAX_EXAMPLES = 3  #: of each kind and data set
MAX_TEXT = 400  #: characters shown of a text
_EXEMPLARS = 3
_DPI = 110
_COLOURS = 128  # of a picture
_PARTITIONS = 12  # classes with a panel each; with more the partition is left out
_CURVES = 6  # of a picture; more cannot be told apart
_ALPHAS = np.round(np.arange(0.70, 1.0, 0.02), 2)
_PICTURE_ROWS = 20_000  # inputs that pictures which match anew are made from


def write_report(
    path: str | Path,
    evaluation: Evaluation,
    classifier: SDMClassifier | SDMEnsemble,
    *,
    title: str = "Evaluation",
    texts: bool = True,
) -> None:
    """Write an evaluation as one HTML file.

    Parameters
    ----------
    path : path
        Replaced in one step if it is there.
    evaluation : Evaluation
    classifier : SDMClassifier or SDMEnsemble
        The fitted classifier whose region, history and examples are shown.
    title : str
    texts : bool
        Whether texts are quoted; without them the page can be passed on where the data may not.
    """
    target = check_path(path, "path", "write_report")
    if not isinstance(classifier, (SDMClassifier, SDMEnsemble)):
        kind = type(classifier).__name__
        raise InvalidTypeError(
            f"'classifier' of write_report must be a fitted SDMClassifier or SDMEnsemble. Got {kind}."
        )
    replace_file(target, render_report(evaluation, classifier, title=title, texts=texts).encode())


def render_report(
    evaluation: Evaluation, classifier: SDMClassifier | SDMEnsemble, *, title: str, texts: bool = True
) -> str:
    """The page as a string."""
    alphas = [region.alpha for region in classifier.models_[0].calibration.regions]
    if not any(np.isclose(alpha, evaluation.alpha, rtol=0, atol=1e-9) for alpha in alphas):
        known = ", ".join(f"{alpha:g}" for alpha in alphas)
        raise InvalidInputError(
            f"'classifier' of write_report must have a region for the evaluation's alpha, {evaluation.alpha:g}. "
            f"Got {known}; call recalibrate first."
        )
    sections = [
        ("Results", _results(evaluation)),
        ("Region", _region(classifier)),
        ("Ordering and calibration", _summaries(evaluation)),
        ("Pictures", "".join(_pictures(evaluation, classifier))),
        ("Examples", "".join(_examples(evaluation, classifier, texts))),
        ("Where the numbers come from", _facts(evaluation, classifier)),
    ]
    links = " · ".join(f'<a href="#{_anchor(name)}">{_escape(name)}</a>' for name, _ in sections)
    body = "".join(_section(name, content) for name, content in sections)
    return _PAGE.format(title=_escape(title), style=_style(), links=links, body=body)


def _section(name: str, content: str) -> str:
    return f'<section id="{_anchor(name)}"><h2>{_escape(name)}</h2>{content}</section>'


# --- Tables ----------------------------------------------------------------------------------------------------------


def _results(evaluation: Evaluation) -> str:
    alpha = evaluation.alpha
    parts = [
        f"<p>Accuracy among admitted inputs, and the admitted share of all inputs, at α = {alpha:g}. "
        f"<b>{REJECTED}</b>: all rejected. <b>{ABSENT}</b>: there was none. <span class='below'>Marked</span>: below "
        "α. Below each: Wilson's 95 % interval. Point at a number for its counts.</p>"
    ]
    rows = evaluation.table.rows
    for name in evaluation.data_sets:
        chosen = [row for row in rows if row.dataset == name]
        labels = [str(label) for label in chosen[0].accuracy.by_class]
        heads = [f"y = {label}" for label in labels] + [f"ŷ = {label}" for label in labels] + ["all"]
        head = "".join(f"<th colspan=2>{_escape(text)}</th>" for text in heads)
        lines = []
        for row in chosen:
            cells = [*row.accuracy.by_class.values(), *row.accuracy.by_prediction.values(), row.accuracy.marginal]
            line = "".join(_accuracy_cell(cell, alpha) for cell in cells)
            lines.append(f"<tr><td>{_escape(row.model)}</td><td>{_escape(row.estimator)}</td>{line}</tr>")
        n = len(evaluation.data_sets[name])
        parts.append(
            f"<h3>{_escape(name)} <small>{n:,} inputs</small></h3><div class='wide'><table><thead><tr><th>model</th>"
            f"<th>estimator</th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        )
    return "".join(parts)


def _accuracy_cell(cell: Any, alpha: float) -> str:
    hint = f"{cell.n_correct} of {cell.n_admitted} admitted are right; {cell.n_total} in all"
    mark = " class='below'" if cell.is_below(alpha) else ""
    interval = cell.interval()
    band = "" if interval is None else f"<span class='band'>{interval[0]:.2f}–{interval[1]:.2f}</span>"
    accuracy = f"<span{mark}>{accuracy_text(cell, alpha)}</span>{band}"
    return f"<td title='{hint}'>{accuracy}</td><td>{share_text(cell.share)}</td>"


def _summaries(evaluation: Evaluation) -> str:
    columns = {
        "coverage": "admitted share",
        "risk": "wrong among admitted",
        "aurc": "AURC",
        "excess_aurc": "E-AURC",
        "coverage_at_alpha": "coverage at α in hindsight",
        "ece": "ECE",
        "top_label_accuracy": "least accuracy of a prediction with confidence in [α, 1]",
        "ood_auroc": "AUROC against the first data set",
        "ood_fpr_at_95": "FPR at 95 %",
        "admitted_correct": "admitted, right",
        "admitted_wrong": "admitted, wrong",
        "rejected_correct": "rejected, right",
        "rejected_wrong": "rejected, wrong",
    }
    head = "".join(f"<th>{_escape(text)}</th>" for text in ("data set", "model", "estimator", *columns.values()))
    lines = []
    for record in evaluation.summaries():
        names = "".join(f"<td>{_escape(record[key])}</td>" for key in ("dataset", "model", "estimator"))
        values = "".join(f"<td>{_number(record[key])}</td>" for key in columns)
        lines.append(f"<tr>{names}{values}</tr>")
    return (
        "<p>Inputs are ordered by each estimator's own score. AURC is the mean over inputs of the risk at which each "
        "is first admitted; E-AURC what that is beyond a perfect order. ECE: 15 bins of equal width.</p>"
        f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _region(classifier: SDMClassifier | SDMEnsemble) -> str:
    is_ensemble = len(classifier.models_) > 1
    return "".join(
        _one_region(region, f"Round {number}, α" if is_ensemble else "α", classifier.classes_.tolist())
        for number, model in enumerate(classifier.models_)
        for region in model.calibration.regions
    )


def _one_region(region: HighReliabilityRegion, where: str, names: list[Any]) -> str:
    message = _escape(region.explain(names) or "")
    if not region.found:
        return f"<p>{where} = {region.alpha:g}: no region, everything is rejected. {message}</p>"
    lines = "".join(
        f"<tr><td>{_escape(name)}</td><td>{float(threshold):.4f}</td><td>{int(count)}</td></tr>"
        for name, threshold, count in zip(names, region.thresholds, region.class_counts, strict=True)
    )
    return (
        f"<p>{where} = {region.alpha:g}: admitted where q′ is at least {region.min_rescaled_similarity:.4g} and the "
        f"confidence at least that of the predicted class. {message}</p><table><thead><tr><th>class</th><th>confidence "
        f"at least</th><th>calibration points it rests on</th></tr></thead><tbody>{lines}</tbody></table>"
    )


# --- Pictures --------------------------------------------------------------------------------------------------------


def _pictures(evaluation: Evaluation, classifier: SDMClassifier | SDMEnsemble) -> Iterator[str]:
    history = TrainingHistoryDisplay.from_estimator(classifier)
    yield _figure("Training: losses, accuracies and similarity by epoch.", history)
    for name, data in evaluation.data_sets.items():
        yield f"<h3>{_escape(name)}</h3>"
        for caption, display in _displays(evaluation, classifier, name, data):
            yield _figure(caption, display)


def _displays(
    evaluation: Evaluation, classifier: SDMClassifier | SDMEnsemble, name: str, data: LabelledStates
) -> Iterator[tuple[str, Any]]:
    """The pictures of one data set, with their captions."""
    alpha = evaluation.alpha
    labels = check_label_array(data.labels, "render_report")
    curves = {
        f"{entrant.model}, {entrant.name}": evaluation.decisions[position, name]
        for position, entrant in enumerate(evaluation.entrants)
        if not evaluation.decisions[position, name].admitted.all()
    }
    names = list(curves)
    for start in range(0, len(names), _CURVES):
        caption = "Risk against coverage, each estimator by its own score; the mark is what it admits."
        some = {key: curves[key] for key in names[start : start + _CURVES]}
        yield caption, RiskCoverageDisplay.from_predictions(some, labels, alpha=alpha)
    rows = _sample(len(data))
    states, truth = _take(data.hidden_states, rows), labels[rows]
    of_all = "" if len(rows) == len(data) else f" {len(rows):,} of {len(data):,} inputs, drawn at random."
    own = classifier.decide(states).at(alpha)
    yield f"Accuracy against confidence sdm(z′).{of_all}", ReliabilityDisplay.from_predictions(own, truth, alpha=alpha)
    if isinstance(classifier, SDMClassifier) and len(own.classes) <= _PARTITIONS:
        region = next(region for region in classifier.regions_ if abs(region.alpha - alpha) < 1e-9)
        caption = (
            f"The partition: rescaled similarity q′ against confidence, by true class; the region is shaded.{of_all}"
        )
        yield caption, PartitionDisplay.from_predictions(own, truth, region=region)
    if isinstance(classifier, SDMClassifier):
        caption = f"Distance to the nearest training example, against that of calibration points.{of_all}"
        ecdfs = classifier.model_.calibration.ecdfs
        yield caption, DistanceDisplay.from_predictions(own, ecdfs=ecdfs, name=name)
    caption = f"Accuracy and admitted share across α.{of_all}"
    yield caption, AlphaDisplay.from_estimator(classifier, states, truth, alphas=_ALPHAS)


def _sample(n: int) -> Array:
    """Row numbers that pictures are made from: all, or as many as they may hold, drawn at random."""
    if n <= _PICTURE_ROWS:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, _PICTURE_ROWS, replace=False))


def _take(states: ArrayLike, rows: Array) -> Any:
    """Some rows of hidden states, of whatever type they are."""
    return states[torch.from_numpy(rows)] if isinstance(states, torch.Tensor) else np.asarray(states)[rows]


def _figure(caption: str, display: Any) -> str:
    """A display as an inline picture."""
    import matplotlib.pyplot as plt

    figure = display.plot().figure_
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight", dpi=_DPI)
    plt.close(figure)
    data = base64.b64encode(_in_few_colours(file)).decode()
    text = _escape(caption)
    return f"<figure><img alt='{text}' src='data:image/png;base64,{data}'><figcaption>{text}</figcaption></figure>"


def _in_few_colours(picture: io.BytesIO) -> bytes:
    """The picture with a palette, which takes a third of the bytes and looks the same."""
    from PIL import Image  # comes with matplotlib

    smaller = io.BytesIO()
    Image.open(picture).convert("RGB").quantize(_COLOURS).save(smaller, format="png", optimize=True)
    return smaller.getvalue()


# --- Examples --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """A kind of example: what it shows, and how its rows are chosen."""

    caption: str
    choose: Callable[[Decisions, Array], Array]


def _highest(score: Array, chosen: Array) -> Array:
    rows = np.flatnonzero(chosen)
    ordered: Array = rows[np.argsort(-score[rows], kind="stable")]
    return ordered


_KINDS = (
    _Kind(
        "Admitted and right, by the highest q′",
        lambda d, right: _highest(d.rescaled_similarity, d.admitted & right),
    ),
    _Kind(
        "Admitted and wrong, or wrongly labelled: look at these first",
        lambda d, right: _highest(d.confidence, d.admitted & ~right),
    ),
    _Kind(
        "Rejected: far from everything learned (d = 0)",
        lambda d, right: _highest(d.nearest_distance, ~d.admitted & (d.distance_quantile == 0)),
    ),
    _Kind(
        "Rejected: the nearest training example disagrees (q = 0)",
        lambda d, right: _highest(d.magnitude, ~d.admitted & (d.similarity == 0) & (d.distance_quantile > 0)),
    ),
    _Kind(
        "Rejected although right, by the highest confidence",
        lambda d, right: _highest(d.confidence, ~d.admitted & right & ~d.out_of_distribution),
    ),
)


def _examples(evaluation: Evaluation, classifier: SDMClassifier | SDMEnsemble, texts: bool) -> Iterator[str]:
    yield "<p>+ marks a training example that vouches for the answer: right, and predicted like the input.</p>"
    for name, data in evaluation.data_sets.items():
        decisions = classifier.decide(data.hidden_states).at(evaluation.alpha)
        truth = check_label_array(data.labels, "render_report")
        right = decisions.predictions == truth
        yield f"<h3>{_escape(name)}</h3>"
        n_errors = len(possible_label_errors(decisions, truth))
        yield f"<p>{n_errors} admitted against their given label.</p>"
        for kind in _KINDS:
            rows = kind.choose(decisions, right)
            if len(rows) == 0:
                continue
            shown = rows[:MAX_EXAMPLES]
            explained = classifier.explain(_take(data.hidden_states, shown), k=_EXEMPLARS)
            cards = "".join(_card(data, truth, int(row), one, texts) for row, one in zip(shown, explained, strict=True))
            yield f"<h4>{_escape(kind.caption)} <small>{len(shown)} of {len(rows)}</small></h4>{cards}"


def _card(data: LabelledStates, truth: Array, row: int, explanation: Explanation, texts: bool) -> str:
    decision = explanation.decision
    text = None if data.texts is None or not texts else str(data.texts[row])
    identity = row if data.ids is None else data.ids[row]
    verdict = "admitted" if decision["admitted"] else "rejected"
    exemplars = "".join(
        f"<li>{'+' if point.is_match else '−'} <b>{_escape(point.label)}</b> (predicted {_escape(point.prediction)}), "
        f"distance {point.distance:.4g}, id {_escape(point.id)}{_quoted(point.text if texts else None)}</li>"
        for point in explanation.exemplars
    )
    return (
        f"<article class='{verdict}'><p><b>{_escape(decision['predictions'])}</b> {verdict}, label "
        f"{_escape(truth[row])}; confidence {decision['confidence']:.3f}, q {decision['similarity']}, d "
        f"{decision['distance_quantile']:.3f}, q′ {decision['rescaled_similarity']:.1f}; id {_escape(identity)}</p>"
        f"{_quoted(text)}<ol>{exemplars}</ol></article>"
    )


def _quoted(text: str | None) -> str:
    if text is None:
        return ""
    return f"<blockquote>{_escape(shortened(text, MAX_TEXT))}</blockquote>"


# --- The rest --------------------------------------------------------------------------------------------------------


def _facts(evaluation: Evaluation, classifier: SDMClassifier | SDMEnsemble) -> str:
    facts = {
        **evaluation.facts(),
        "classifier": {
            "training_data_fingerprint": classifier.data_fingerprint_,
            "seed": classifier.random_seed_,
            "states_origin": None if classifier.states_origin_ is None else classifier.states_origin_.to_json(),
        },
    }
    text = _escape(strict_json(facts))
    return f"<details><summary>versions, data, settings, seeds</summary><pre>{text}</pre></details>"


def _style() -> str:
    return resources.files("torchsdm").joinpath("report.css").read_text(encoding="utf-8")


def _number(value: float | int | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def _escape(value: Any) -> str:
    return html.escape(str(value), quote=True)


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body><h1>{title}</h1><nav>{links}</nav>{body}</body></html>
"""
