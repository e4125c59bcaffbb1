"""An evaluation as one HTML file: what it comes to, tables, plots, telling examples, and where numbers come from.

It opens with a sentence per data set, their lanes, and what to do next; the tables of estimators come after. The report
is self-contained: styles and images are inline. Its size is bounded for any amount of data: examples are
few and shortened, and plots draw at most a few thousand points.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from torchsdm.core import HighReliabilityRegion, Target, target_of
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.evaluation._opening import UNPROMISED, Verdict, next_steps, verdicts
from torchsdm.evaluation._own_decisions import OwnDecisions
from torchsdm.evaluation._report_contents import Example, Lane, Reasoned, examples, lanes, pictures
from torchsdm.evaluation.displays import CostDisplay, TrainingHistoryDisplay
from torchsdm.evaluation.evaluation import Evaluation
from torchsdm.evaluation.metrics import Cell
from torchsdm.evaluation.overview import FreshGuards, Overview
from torchsdm.evaluation.strangers import CLASSES
from torchsdm.evaluation.tables import ABSENT, REJECTED, UNKNOWN, ResultRow, Stratum, accuracy_text, share_text, strata
from torchsdm.files import replace_file, strict_json
from torchsdm.settings import REJECTED as UNREAD
from torchsdm.validation import check_path
from torchsdm.wording import LANE_MEANS, described, promise_or_why, shortened

MAX_TEXT = 400  #: characters shown of a text
_SHORT_TEXT = 120  # the same beside a reason
_FOLDED = 16  # groups, above which a table of them is folded away
_LABELLED = 6  # percent of a bar, above which a part has room for its number
_DPI = 110
_COLOURS = 128  # in an image


def write_report(
    path: str | Path,
    evaluation: Evaluation,
    classifier: SDMClassifier | SDMEnsemble,
    *,
    title: str = "Evaluation",
    texts: bool = True,
    prices: Mapping[str, Any] | None = None,
) -> None:
    """Write an evaluation as one HTML file.

    Parameters
    ----------
    path : path
        Replaced atomically if it exists.
    evaluation : Evaluation
    classifier : SDMClassifier or SDMEnsemble
        The fitted classifier whose region, history and examples are shown.
    title : str
    texts : bool
        Whether to quote texts; without them you can share the report even if you may not share the data.
    prices : mapping, optional
        ``cost_error`` and ``cost_review``, as ``SDMClassifier.choose_alpha`` takes them: what each alpha would cost.
    """
    target = check_path(path, "path", "write_report")
    if not isinstance(classifier, (SDMClassifier, SDMEnsemble)):
        kind = type(classifier).__name__
        raise InvalidTypeError(
            f"'classifier' of write_report must be a fitted SDMClassifier or SDMEnsemble. Got {kind}."
        )
    page = render_report(evaluation, classifier, title=title, texts=texts, prices=prices)
    replace_file(target, page.encode())


def render_report(
    evaluation: Evaluation,
    classifier: SDMClassifier | SDMEnsemble,
    *,
    title: str,
    texts: bool = True,
    prices: Mapping[str, Any] | None = None,
) -> str:
    """The report as a string."""
    alphas = [region.alpha for region in classifier.models_[0].calibration.regions]
    if not any(np.isclose(alpha, evaluation.alpha, rtol=0, atol=1e-9) for alpha in alphas):
        known = ", ".join(f"{alpha:g}" for alpha in alphas)
        raise InvalidInputError(
            f"'classifier' of write_report must have a region for the evaluation's alpha, {evaluation.alpha:g}. "
            f"Got {known}; call recalibrate first."
        )
    own = {name: evaluation.own_decisions(classifier, name) for name in evaluation.data_sets}
    guards = FreshGuards(classifier)
    opening = _opening(evaluation, guards, own)
    sections = [
        ("What is promised", _promises(classifier)),
        ("What alpha costs", _costs(classifier, prices)),
        ("Results", _results(evaluation)),
        ("Lanes", "".join(_lanes(evaluation, guards, own, texts))),
        ("Region", _region(classifier)),
        ("Ordering and calibration", _summaries(evaluation)),
        ("Plots", "".join(_pictures(evaluation, classifier, own))),
        ("Examples", "".join(_examples(evaluation, classifier, own, texts))),
        ("Where the numbers come from", _facts(evaluation, classifier)),
    ]
    sections = [(name, content) for name, content in sections if content]
    links = " · ".join(f'<a href="#{_anchor(name)}">{_escape(name)}</a>' for name, _ in sections)
    body = "".join(_section(name, content) for name, content in sections)
    return _PAGE.format(title=_escape(title), style=_style(), opening=opening, links=links, body=body)


def _section(name: str, content: str) -> str:
    return f'<section id="{_anchor(name)}"><h2>{_escape(name)}</h2>{content}</section>'


# --- The opening -----------------------------------------------------------------------------------------------------


def _opening(evaluation: Evaluation, guards: FreshGuards, own: Mapping[str, OwnDecisions]) -> str:
    """What a reader in a hurry needs: a sentence per data set, a picture of the lanes, what to do next."""
    classifier = guards.classifier
    found = verdicts(evaluation, classifier, {name: one.by_policy for name, one in own.items()}, guards)
    said = "".join(
        f"<div class='verdict {one.standing}'><h2>{_escape(one.name)}</h2>"
        f"<p class='said'>{_escape(one.sentence)}</p><p>{_escape(one.detail)}</p></div>"
        for one in found
    )
    notes = "".join(f"<li>{_escape(note)}</li>" for note in evaluation.notes)
    steps = "".join(
        f"<li>{_escape(step.what)}<code>{_escape(step.command)}</code></li>"
        for step in next_steps(found, classifier, evaluation.settings.get("model"))
    )
    return (
        f"<section id='in-short'>{said}{f'<ul>{notes}</ul>' if notes else ''}</section>"
        f"<section id='lanes-at-a-glance'>{_bars(found)}</section>"
        f"<section id='next'><h2>What to do next</h2><ol class='steps'>{steps}</ol></section>"
    )


def _bars(found: Sequence[Verdict]) -> str:
    """How the inputs of each data set fall into lanes: a bar each, and what the colours mean."""
    rows = "".join(f"<div class='row'><span>{_escape(one.name)}</span>{_bar(one)}</div>" for one in found)
    shown = [lane for lane in LANE_MEANS if any(one.lanes[lane] for one in found)]
    means = LANE_MEANS
    if any(one.standing == UNPROMISED for one in found):
        means = {**means, "trusted": "admitted, without a promise"}
    legend = "".join(f"<span><i class='{lane}'></i><b>{lane}</b> {means[lane]}</span>" for lane in shown)
    return (
        f"<figure class='lanes'>{rows}<p class='legend'>{legend}</p>"
        "<figcaption>Inputs in each lane, of 100.</figcaption></figure>"
    )


def _bar(one: Verdict) -> str:
    """A stacked bar whose text keeps its shape at any width."""
    n, parts, start = sum(one.lanes.values()), [], 0.0
    for lane, count in one.lanes.items():
        share = 100 * count / n
        number = f"<text x='{start + share / 2:.2f}%' y='19'>{_rounded(share)}</text>" if share >= _LABELLED else ""
        title = f"<title>{lane}: {count:,} of {n:,}</title>"
        parts.append(
            f"<g class='{lane}'>{title}<rect x='{start:.2f}%' width='{share:.2f}%' height='28'></rect>{number}</g>"
        )
        start += share
    spoken = ", ".join(f"{lane} {count:,}" for lane, count in one.lanes.items() if count)
    return f"<svg role='img' aria-label='{_escape(one.name)}: {spoken}'>{''.join(parts)}</svg>"


def _rounded(percent: float) -> str:
    return f"{percent:.0f}" if round(percent) < 100 or percent == 100 else "&gt;99"


# --- Tables ----------------------------------------------------------------------------------------------------------


def _table(head: str, rows: Sequence[str], kind: str = "wide") -> str:
    """A table that scrolls in its own box where it is wider than the page."""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<div class='box {kind}'>{table}</div>"


def _results(evaluation: Evaluation) -> str:
    alpha, table = evaluation.alpha, evaluation.table
    parts = [
        f"<p>Accuracy of admitted inputs, and their share of all inputs, at α = {alpha:g}. <b>{REJECTED}</b>: all "
        f"rejected. <b>{ABSENT}</b>: no such input. <span class='below'>Marked</span>: below α. Under each accuracy: "
        "Wilson's 95 % interval. Where no class is known: the number admitted, and its share. Hover over a number for "
        "its counts.</p>",
        *(f"<p>{_escape(line)}</p>" for line in table.note.splitlines() if line not in evaluation.notes),
    ]
    by_data_set: dict[str, list[ResultRow]] = {name: [] for name in evaluation.data_sets}
    for row in table.rows:
        by_data_set[row.dataset].append(row)
    for name, rows in by_data_set.items():
        head = "".join(f"<th colspan=2>{_escape(stratum.name)}</th>" for stratum in _shown_strata(rows[0]))
        lines = []
        for row in rows:
            line = "".join(_accuracy_cell(stratum.cell, alpha) for stratum in _shown_strata(row))
            lines.append(f"<tr><td>{_escape(row.model)}</td><td>{_escape(row.estimator)}</td>{line}</tr>")
        n_unread = evaluation.unread.get(name, 0)
        unread = f", {n_unread:,} of them unread" if n_unread else ""
        parts.append(
            f"<h3>{_escape(name)} <small>{evaluation.n_inputs(name):,} inputs{unread}</small></h3>"
            + _table(f"<th>model</th><th>estimator</th>{head}", lines)
        )
    return "".join(parts)


def _shown_strata(row: ResultRow) -> list[Stratum]:
    """The strata with the marginal first: with many classes, the last columns are out of sight. Strangers have no y."""
    shown = (one for one in strata(row) if one.kind != "class" or row.accuracy.labels == CLASSES)
    return sorted(shown, key=lambda stratum: stratum.kind != "all")


def _accuracy_cell(cell: Cell, alpha: float) -> str:
    if cell.n_correct is None:
        return f"<td title='{cell.n_total} in total'>{cell.n_admitted:,}</td><td>{share_text(cell.share)}</td>"
    hint = f"{cell.n_correct} of {cell.n_admitted} admitted are right; {cell.n_total} in total"
    mark = " class='below'" if cell.is_below(alpha) else ""
    interval = cell.interval()
    band = "" if interval is None else f"<span class='band'>{interval[0]:.2f}–{interval[1]:.2f}</span>"
    accuracy = f"<span{mark}>{accuracy_text(cell, alpha)}</span>{band}"
    return f"<td title='{hint}'>{accuracy}</td><td>{share_text(cell.share)}</td>"


def _summaries(evaluation: Evaluation) -> str:
    columns = {
        "coverage": "admitted share",
        "risk": "error rate of admitted",
        "aurc": "AURC",
        "excess_aurc": "E-AURC",
        "coverage_at_alpha": "coverage at α in hindsight",
        "ece": "ECE",
        "top_label_accuracy": "lowest accuracy of a prediction with confidence in [α, 1]",
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
        "is first admitted; E-AURC is its excess over a perfect order. ECE: 15 bins of equal width.</p>"
        + _table(head, lines)
    )


def _promises(classifier: SDMClassifier | SDMEnsemble) -> str:
    """The certificate with its groups, the region with its groups, and what a user should know."""
    names, certificate = classifier.classes_.tolist(), classifier.certificate_
    is_current = classifier.lane_rule_.certificate is not None
    said = promise_or_why(
        None if certificate is None else certificate.promise(names),
        is_current=is_current,
        is_ensemble=isinstance(classifier, SDMEnsemble),
    )
    parts = [f"<p><b>Certificate:</b> {_escape(said)}</p>"]
    if certificate is not None and is_current:
        bounds = {group: f"{group.lower_bound:.3f}" for group in certificate.groups}
        title = "On the certification set, " + ("of the certified rule" if certificate.found else "of the safest rule")
        parts.append(_groups(title, bounds, "exact lower bound", certificate.target, names))
    for number, model in enumerate(classifier.models_, start=1):
        for region in model.calibration.regions:
            found = {group: _interval(group.interval) for group in model.calibration.groups(region) if region.found}
            of_round = f"round {number}, " if len(classifier.models_) > 1 else ""
            asked = described(region.target, names)
            title = f"On the calibration set, which the region was found on: {of_round}α = {asked}"
            parts.append(_groups(title, found, "95 % interval", region.target, names))
    warnings = "".join(f"<li>{_escape(warning)}</li>" for warning in classifier.warnings())
    return "".join(parts) + (f"<p><b>Before you rely on it:</b></p><ul>{warnings}</ul>" if warnings else "")


def _costs(classifier: SDMClassifier | SDMEnsemble, prices: Mapping[str, Any] | None) -> str:
    """What each alpha would admit and, with prices, cost; nothing where nothing can be certified."""
    if not isinstance(classifier, SDMClassifier):
        if prices is not None:
            raise InvalidInputError("'prices' of write_report must be None: an ensemble has no alpha to choose.")
        return ""
    points = classifier.model_.certification
    if prices is None and (points is None or not len(points.labels) or len(classifier.classes_) > _FOLDED):
        return ""  # of many classes the curve takes long
    display = CostDisplay.from_estimator(classifier, **(prices or {}))
    choice = display.choice
    chosen = "" if choice is None else f"<p>{_escape(choice.explain())}</p>"
    caption = "What would be admitted at each α" + ("." if choice is None else ", and what it would cost per input.")
    return (
        f"{chosen}<p>Estimated on the calibration set, which the model was shaped on. Only the certified point was "
        f"tested on points that nothing else saw.</p>{_figure(caption, display)}"
    )


def _groups(title: str, groups: Mapping[Any, str], column: str, target: Target, names: list[Any]) -> str:
    """A table of groups with the admitted points of each, their accuracy, and one more column; nothing for none."""
    lines = []
    for group, value in groups.items():
        alpha = target_of(target, group.class_number)
        mark = " class='below'" if group.accuracy is not None and group.accuracy < alpha else ""
        accuracy = ABSENT if group.accuracy is None else f"{group.accuracy:.3f}"
        lines.append(
            f"<tr><td>{_escape(group.name(names))}</td><td>{group.n_admitted:,}</td>"
            f"<td><span{mark}>{accuracy}</span></td><td>{value}</td></tr>"
        )
    head = f"<th>group</th><th>admitted</th><th>accuracy</th><th>{_escape(column)}</th>"
    table = _table(head, lines, "counts")
    if not lines:
        return ""
    if len(lines) > _FOLDED:
        return f"<details><summary><b>{_escape(title)}</b></summary>{table}</details>"
    return f"<h4>{_escape(title)}</h4>{table}"


def _interval(interval: tuple[float, float] | None) -> str:
    return ABSENT if interval is None else f"{interval[0]:.3f}–{interval[1]:.3f}"


def _region(classifier: SDMClassifier | SDMEnsemble) -> str:
    is_ensemble = len(classifier.models_) > 1
    return "".join(
        _one_region(region, f"Round {number}, α" if is_ensemble else "α", classifier.classes_.tolist())
        for number, model in enumerate(classifier.models_)
        for region in model.calibration.regions
    )


def _one_region(region: HighReliabilityRegion, where: str, names: list[Any]) -> str:
    message, asked = _escape(region.explain(names) or ""), _escape(described(region.target, names))
    if not region.found:
        return f"<p>{where} = {asked}: the paper's region was not found and admits nothing. {message}</p>"
    lines = [
        f"<tr><td>{_escape(name)}</td><td>{float(threshold):.4f}</td><td>{int(count)}</td></tr>"
        for name, threshold, count in zip(names, region.thresholds, region.class_counts, strict=True)
    ]
    head = "<th>class</th><th>confidence threshold</th><th>calibration points behind it</th>"
    return (
        f"<p>{where} = {asked}: the paper's region admits an input if q′ is at least "
        f"{region.min_rescaled_similarity:.4g} and its confidence reaches the threshold of the predicted class. "
        f"{message}</p>" + _table(head, lines, "counts")
    )


# --- Lanes -----------------------------------------------------------------------------------------------------------


def _lanes(evaluation: Evaluation, guards: FreshGuards, own: Mapping[str, OwnDecisions], texts: bool) -> Iterator[str]:
    yield (
        "<p>What may be done with each input: act on <b>trusted</b> ones; on <b>certified</b> ones while the stream "
        "looks like the certification set; have the others looked at. Examples are the first inputs of each lane.</p>"
    )
    for name, data in evaluation.data_sets.items():
        decisions, n_inputs, n_unread = own[name].by_policy, evaluation.n_inputs(name), evaluation.unread.get(name, 0)
        found = lanes(data, decisions)
        lines = [
            f"<tr><td>{lane.name}</td><td>{lane.n:,}</td><td>{share_text(lane.n / n_inputs)}</td>"
            f"<td>{_right(lane)}</td></tr>"
            for lane in found
        ]
        if n_unread:
            share = share_text(n_unread / n_inputs)
            lines.append(f"<tr><td>{UNREAD}</td><td>{n_unread:,}</td><td>{share}</td><td>{ABSENT}</td></tr>")
        kind = evaluation.kinds[name]
        said = {} if kind == CLASSES else Overview.of(guards.classifier, decisions, guards).lines(kind)
        yield (
            f"<h3>{_escape(name)}</h3>"
            + _table("<th>lane</th><th>inputs</th><th>share</th><th>right</th>", lines, "counts")
            + "".join(f"<p><b>{topic}:</b> {_escape(text)}.</p>" for topic, text in said.items() if topic != "lanes")
        )
        for lane in found:
            reasons = "".join(_reason(example, texts) for example in lane.examples)
            yield f"<h4>{lane.name}</h4><ul>{reasons}</ul>" if reasons else ""


def _right(lane: Lane) -> str:
    """The accuracy in a lane."""
    if not lane.n:
        return ABSENT
    return UNKNOWN if lane.n_correct is None else f"{lane.n_correct / lane.n:.3f}"


def _given(label: Any) -> str:
    """The given label of an input, if it has one."""
    return "" if label is None else f", given label {_escape(label)}"


def _reason(example: Reasoned, texts: bool) -> str:
    quoted = "" if example.text is None or not texts else f" “{_escape(shortened(example.text, _SHORT_TEXT))}”"
    return (
        f"<li><b>{_escape(example.prediction)}</b>{_given(example.label)}, id {_escape(example.id)}: "
        f"{_escape(example.reason)}.{quoted}</li>"
    )


# --- Plots -----------------------------------------------------------------------------------------------------------


def _pictures(
    evaluation: Evaluation, classifier: SDMClassifier | SDMEnsemble, own: Mapping[str, OwnDecisions]
) -> Iterator[str]:
    history = TrainingHistoryDisplay.from_estimator(classifier)
    yield _figure("Training: loss, accuracy and similarity by epoch.", history)
    for name, decided in own.items():
        yield f"<h3>{_escape(name)}</h3>"
        for caption, display in pictures(evaluation, classifier, name, decided.at_alpha):
            yield _figure(caption, display)


def _figure(caption: str, display: Any) -> str:
    """A display as an inline image."""
    import matplotlib.pyplot as plt

    figure = display.plot().figure_
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight", dpi=_DPI)
    plt.close(figure)
    data = base64.b64encode(_in_few_colours(file)).decode()
    text = _escape(caption)
    return f"<figure><img alt='{text}' src='data:image/png;base64,{data}'><figcaption>{text}</figcaption></figure>"


def _in_few_colours(picture: io.BytesIO) -> bytes:
    """The image with a palette, which takes a third of the bytes and looks the same."""
    from PIL import Image  # comes with matplotlib

    smaller = io.BytesIO()
    Image.open(picture).convert("RGB").quantize(_COLOURS).save(smaller, format="png", optimize=True)
    return smaller.getvalue()


# --- Examples --------------------------------------------------------------------------------------------------------


def _examples(
    evaluation: Evaluation,
    classifier: SDMClassifier | SDMEnsemble,
    own: Mapping[str, OwnDecisions],
    texts: bool,
) -> Iterator[str]:
    yield (
        "<p>Admitted or rejected as the model itself would, by its policy. + marks a training example that vouches for "
        "the answer: its label and prediction both match it.</p>"
    )
    for name, data in evaluation.data_sets.items():
        n_errors, groups = examples(classifier, data, own[name].at_alpha)
        against = "" if n_errors is None else f"<p>{n_errors} admitted against their given label.</p>"
        yield f"<h3>{_escape(name)}</h3>{against}"
        for group in groups:
            cards = "".join(_card(example, texts) for example in group.examples)
            counts = f"{len(group.examples)} of {group.n_total}"
            yield f"<h4>{_escape(group.caption)} <small>{counts}</small></h4>{cards}"


def _card(example: Example, texts: bool) -> str:
    decision = example.explanation.decision
    verdict = "admitted" if decision["admitted"] else "rejected"
    reason = f"{decision['lane']}: {decision['reason']}"
    exemplars = "".join(
        f"<li>{'+' if point.vouches else '−'} <b>{_escape(point.label)}</b> (predicted {_escape(point.prediction)}), "
        f"distance {point.distance:.4g}, id {_escape(point.id)}{_quoted(point.text if texts else None)}</li>"
        for point in example.explanation.exemplars
    )
    return (
        f"<article class='{verdict}'><p><b>{_escape(decision['predictions'])}</b> {verdict}"
        f"{_given(example.label)}; confidence {decision['confidence']:.3f}, q {decision['similarity']}, d "
        f"{decision['distance_quantile']:.3f}, q′ {decision['rescaled_similarity']:.1f}; id {_escape(example.id)}</p>"
        f"<p>{_escape(reason)}</p>{_quoted(example.text if texts else None)}<ol>{exemplars}</ol></article>"
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
    return resources.files("torchsdm.evaluation").joinpath("report.css").read_text(encoding="utf-8")


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
<body><h1>{title}</h1>{opening}<nav>{links}</nav>{body}</body></html>
"""
