"""An evaluation as one HTML file: what it comes to, tables, plots, telling examples, and where numbers come from.

It opens with a sentence per data set, their lanes, and what to do next; the tables of estimators come after. The report
is self-contained: styles and images are inline. Its size is bounded for any amount of data: examples are
few and shortened, and plots draw at most a few thousand points.

The page is in ``templates``, which escape every value; here is what they show.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchsdm.core import Decisions, SDMDecisions, Target, target_of
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.evaluation._opening import UNPROMISED, Verdict, next_steps, promise_text, verdicts
from torchsdm.evaluation.displays._drawing import some_rows
from torchsdm.evaluation.displays.alpha import AlphaDisplay, CostDisplay
from torchsdm.evaluation.displays.distance import DistanceDisplay
from torchsdm.evaluation.displays.partition import PartitionDisplay
from torchsdm.evaluation.displays.reliability import ReliabilityDisplay
from torchsdm.evaluation.displays.risk_coverage import RiskCoverageDisplay
from torchsdm.evaluation.displays.training_history import TrainingHistoryDisplay
from torchsdm.evaluation.evaluation import Evaluation
from torchsdm.evaluation.strangers import CLASSES, FreshGuards, Overview
from torchsdm.evaluation.tables import ABSENT, REJECTED, UNKNOWN, ResultRow, Stratum, accuracy_text, share_text, strata
from torchsdm.files import replace_file, strict_json
from torchsdm.settings import LANES
from torchsdm.settings import REJECTED as UNREAD
from torchsdm.validation import Array, check_label_array, check_path
from torchsdm.wording import LANE_MEANS, described, shortened

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_TEXT = 400  #: characters shown of a text
_SHORT_TEXT = 120  # the same beside a reason
_FOLDED = 16  # groups, above which a table of them is folded away
_LABELLED = 6  # percent of a bar, above which a part has room for its number
_COSTS = "What alpha costs"
_SECTIONS = (  # each has a template in templates/sections
    *("What is promised", _COSTS, "Results", "Lanes", "Region", "Ordering and calibration", "Plots", "Examples"),
    "Where the numbers come from",
)
_EXAMPLES = 3  # per kind and data set
_EXEMPLARS = 3  # per example
_PARTITIONS = 12  # classes, each with a panel; with more there is no plot of the partition
_CURVES = 6  # per plot; more cannot be told apart
_ALPHAS = np.round(np.arange(0.70, 1.0, 0.02), 2)
_PICTURE_ROWS = 20_000  # inputs in plots that need their own decisions
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
    found = verdicts(evaluation, classifier, own, guards)
    costs = _costs(classifier, prices)
    page = _environment().get_template("report.html")
    return page.render(
        title=title,
        texts=texts,
        evaluation=evaluation,
        names=classifier.classes_.tolist(),
        sections=[name for name in _SECTIONS if name != _COSTS or costs is not None],
        verdicts=found,
        legend=_legend(found),
        steps=next_steps(found, classifier, evaluation.settings.get("model")),
        promise=promise_text(classifier),
        tested=[one for one in _tested(classifier) if one[-1]],
        warnings=classifier.warnings(),
        costs=costs,
        results=evaluation.table,
        lanes=[(name, _lanes(evaluation, name, decided)) for name, decided in own.items()],
        overviews={
            name: Overview.of(classifier, decided, guards).lines(kind)
            for (name, decided), kind in zip(own.items(), evaluation.kinds.values(), strict=True)
            if kind != CLASSES
        },
        models=classifier.models_,
        summaries=evaluation.summaries(),
        plots=_pictures(evaluation, classifier, own),
        examples=[(name, *_examples(classifier, evaluation, name, decided)) for name, decided in own.items()],
        facts=_facts(evaluation, classifier),
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("torchsdm.evaluation")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "accuracy": accuracy_text,
        "anchor": lambda name: name.lower().replace(" ", "-"),
        "bar": _bar,
        "described": described,
        "interval": _interval,
        "number": _number,
        "of": target_of,
        "share": share_text,
        "shortened": shortened,
        "strata": _shown_strata,
        "thousands": "{:,}".format,
    }
    environment.globals |= {
        "absent": ABSENT,
        "folded": _FOLDED,
        "longest": MAX_TEXT,
        "longest_beside": _SHORT_TEXT,
        "rejected": REJECTED,
        "unknown": UNKNOWN,
        "unread": UNREAD,
    }
    return environment


# --- The opening -----------------------------------------------------------------------------------------------------


def _bar(one: Verdict) -> Iterator[dict[str, Any]]:
    """The part of each lane, in percent, with its number where there is room for it."""
    start = 0.0
    for lane, n in one.lanes.items():
        share = 100 * n / sum(one.lanes.values())
        number = f"{share:.0f}" if round(share) < 100 or share == 100 else ">99"
        yield {"lane": lane, "n": n, "start": start, "share": share, "number": number if share >= _LABELLED else ""}
        start += share


def _legend(found: Sequence[Verdict]) -> dict[str, str]:
    unpromised = any(one.standing == UNPROMISED for one in found)
    means = LANE_MEANS | ({"trusted": "admitted, without a promise"} if unpromised else {})
    return {lane: meaning for lane, meaning in means.items() if any(one.lanes[lane] for one in found)}


# --- Tables ----------------------------------------------------------------------------------------------------------


def _tested(classifier: SDMClassifier | SDMEnsemble) -> Iterator[tuple[str, str, Target, list[tuple[Any, str]]]]:
    """The groups of the certificate, and those of each region: title, last column, target, and rows with its values."""
    names, certificate = classifier.classes_.tolist(), classifier.certificate_
    if certificate is not None and classifier.lane_rule_.certificate is not None:
        title = "On the certification set, " + ("of the certified rule" if certificate.found else "of the safest rule")
        bounds = [(group, f"{group.lower_bound:.3f}") for group in certificate.groups]
        yield title, "exact lower bound", certificate.target, bounds
        if certificate.windows:
            bounds = [(window, f"{window.lower_bound:.3f}") for window in certificate.windows]
            yield "Windows of the score that hold, the surest first", "exact lower bound", certificate.target, bounds
    for number, model in enumerate(classifier.models_, start=1):
        for region in model.calibration.regions:
            of_round = f"round {number}, " if len(classifier.models_) > 1 else ""
            asked = described(region.target, names)
            title = f"On the calibration set, which the region was found on: {of_round}α = {asked}"
            groups = model.calibration.groups(region) if region.found else ()
            yield title, "95 % interval", region.target, [(one, _interval(one.interval)) for one in groups]


def _interval(interval: tuple[float, float] | None, digits: int = 3) -> str:
    return ABSENT if interval is None else f"{interval[0]:.{digits}f}–{interval[1]:.{digits}f}"


def _shown_strata(row: ResultRow) -> list[Stratum]:
    """The marginal stratum first, as the last of many columns are out of sight; no y without classes."""
    shown = (one for one in strata(row) if one.kind != "class" or row.accuracy.labels == CLASSES)
    return sorted(shown, key=lambda stratum: stratum.kind != "all")


def _admitted(decisions: SDMDecisions, alpha: float) -> Array:
    """What the policy admits or, of a model of several alphas, the region of one of them (N,)."""
    return decisions.without_class_values().at(alpha).admitted


def _number(value: float | int | str | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


# --- Plots -----------------------------------------------------------------------------------------------------------


def _costs(classifier: SDMClassifier | SDMEnsemble, prices: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What each alpha would admit and, with prices, cost; None where nothing can be certified."""
    if not isinstance(classifier, SDMClassifier):
        if prices is not None:
            raise InvalidInputError("'prices' of write_report must be None: an ensemble has no alpha to choose.")
        return None
    points = classifier.model_.certification
    if prices is None and (points is None or not len(points.labels) or len(classifier.classes_) > _FOLDED):
        return None  # of many classes the curve takes long
    display = CostDisplay.from_estimator(classifier, **(prices or {}))
    costs = "." if display.choice is None else ", and what it would cost per input."
    return {"choice": display.choice, "caption": "What would be admitted at each α" + costs, "image": _image(display)}


def _pictures(
    evaluation: Evaluation, classifier: SDMClassifier | SDMEnsemble, own: Mapping[str, SDMDecisions]
) -> Iterator[tuple[str, Iterator[tuple[str, str]]]]:
    """The plots of training, and of each data set by its name, each with its caption."""
    history = TrainingHistoryDisplay.from_estimator(classifier)
    yield "", iter([("Training: loss, accuracy and similarity by epoch.", _image(history))])
    for name, decided in own.items():
        drawn = displays_of(evaluation, classifier, name, decided)
        yield name, ((caption, _image(display)) for caption, display in drawn)


def _image(display: Any) -> str:
    """A display as a PNG in base64, with a palette, which takes a third of the bytes and looks the same."""
    import matplotlib.pyplot as plt
    from PIL import Image  # comes with matplotlib

    drawn, smaller = io.BytesIO(), io.BytesIO()
    figure = display.plot().figure_
    figure.savefig(drawn, format="png", bbox_inches="tight", dpi=_DPI)
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(_COLOURS).save(smaller, format="png", optimize=True)
    return base64.b64encode(smaller.getvalue()).decode()


def displays_of(
    evaluation: Evaluation, classifier: SDMClassifier | SDMEnsemble, name: str, decided: SDMDecisions
) -> Iterator[tuple[str, Any]]:
    """The displays of a data set with captions, by what the classifier decides on it; without classes, of distances."""
    alpha, data = evaluation.alpha, evaluation.data_sets[name]
    rows = some_rows(len(data), _PICTURE_ROWS)
    of_all = "" if len(rows) == len(data) else f" {len(rows):,} of {len(data):,} inputs, drawn at random."
    own = decided[rows] if of_all else decided
    labels = _truth(evaluation, name)
    if labels is not None:
        curves = iter(_curves(evaluation, name).items())
        while some := dict(islice(curves, _CURVES)):
            caption = "Risk against coverage, each estimator by its own score; the marker shows what it admits."
            yield caption, RiskCoverageDisplay.from_predictions(some, labels, alpha=alpha)
        caption = f"Accuracy against confidence sdm(z′).{of_all}"
        yield caption, ReliabilityDisplay.from_predictions(own, labels[rows], alpha=alpha)
    if isinstance(classifier, SDMClassifier):  # an ensemble has no region, and no distances, of its own
        if labels is not None and len(own.classes) <= _PARTITIONS:
            region = next(region for region in classifier.regions_ if abs(region.alpha - alpha) < 1e-9)
            caption = (
                f"Partition: rescaled similarity q′ against confidence, by true class; the region is shaded.{of_all}"
            )
            yield caption, PartitionDisplay.from_predictions(own, labels[rows], region=region)
        caption = f"Distance to the nearest training example, compared with calibration points.{of_all}"
        yield caption, DistanceDisplay.from_predictions(own, ecdfs=classifier.model_.calibration.ecdfs, name=name)
    if labels is not None:
        caption = f"Accuracy and admitted share of the paper's region across α.{of_all}"
        yield caption, _of_alphas(classifier, own, data.take(rows).hidden_states, labels[rows])


def _of_alphas(classifier: SDMClassifier | SDMEnsemble, own: SDMDecisions, states: Any, truth: Array) -> AlphaDisplay:
    """What the regions of other alphas admit; asks the classifier again only if they rest on other signals."""
    if isinstance(classifier, SDMEnsemble) or classifier.model_.outdated:
        return AlphaDisplay.from_estimator(classifier, states, truth, alphas=_ALPHAS)
    calibration = classifier.model_.calibration
    regions = calibration.with_regions(_ALPHAS.tolist(), calibration.min_class_count).regions
    return AlphaDisplay.from_regions(own, truth, regions=regions)


def _curves(evaluation: Evaluation, data_set: str) -> dict[str, Decisions]:
    """Labelled decisions of each entrant that rejects anything; entrants with the same name are numbered."""
    names = [f"{entrant.model}, {entrant.name}" for entrant in evaluation.entrants]
    n_named, curves = Counter(names), {}
    for position, name in enumerate(names):
        decisions = evaluation.decisions[position, data_set]
        if not decisions.admitted.all():
            curves[name if n_named[name] == 1 else f"{name} ({position + 1})"] = decisions
    return curves


# --- Lanes and examples ----------------------------------------------------------------------------------------------


def _lanes(evaluation: Evaluation, name: str, decisions: SDMDecisions) -> list[dict[str, Any]]:
    """Every lane, the most reliable first, with the first inputs in it and their reasons."""
    data, truth = evaluation.data_sets[name], _truth(evaluation, name)
    reasons = np.full(len(decisions), "") if decisions.reason is None else decisions.reason
    found = []
    for lane in LANES:
        rows = np.flatnonzero(decisions.lane == lane)
        n_correct = None if truth is None else int((decisions.predictions[rows] == truth[rows]).sum())
        examples = [
            {**_named(data, row), "prediction": decisions.predictions[row], "reason": str(reasons[row])}
            for row in rows[:_EXAMPLES].tolist()
        ]
        found.append({"name": lane, "n": len(rows), "n_correct": n_correct, "examples": examples})
    return found


def _examples(
    classifier: SDMClassifier | SDMEnsemble, evaluation: Evaluation, name: str, decisions: SDMDecisions
) -> tuple[int | None, list[dict[str, Any]]]:
    """How many inputs are admitted against their given label, if they have any, and examples of every kind."""
    data, truth, admitted = evaluation.data_sets[name], _truth(evaluation, name), _admitted(decisions, evaluation.alpha)
    right = None if truth is None else decisions.predictions == truth
    kinds = {name: rows for name, rows in _kinds(decisions, admitted, right).items() if len(rows)}
    shown = [row for rows in kinds.values() for row in rows[:_EXAMPLES].tolist()]
    explained = iter(classifier.explain(data.take(shown).hidden_states, k=_EXEMPLARS) if shown else ())
    groups = [
        {
            "caption": caption,
            "n_total": len(rows),
            "examples": [{**_named(data, row), "explanation": next(explained)} for row in rows[:_EXAMPLES].tolist()],
        }
        for caption, rows in kinds.items()
    ]
    n_against = int((admitted if right is None else admitted & ~right).sum())
    return None if data.labels is None else n_against, groups


def _kinds(d: SDMDecisions, admitted: Array, right: Array | None) -> dict[str, Array]:
    """Rows of each kind of example, by caption; fewer where nobody knows whether they are right."""
    is_far, disagrees = d.distance_quantile == 0, d.similarity == 0
    kinds = {  # by what the rows are ordered, highest first, and which they are
        "Rejected: farther than all calibration points of some class (d = 0)": (d.nearest_distance, ~admitted & is_far),
        "Rejected: the nearest training example disagrees (q = 0)": (d.magnitude, ~admitted & disagrees & ~is_far),
    }
    if right is None:
        kinds = {"Admitted, highest q′ first": (d.rescaled_similarity, admitted), **kinds}
    else:
        left = ~admitted & right & ~d.out_of_distribution
        kinds = {
            "Admitted and right, highest q′ first": (d.rescaled_similarity, admitted & right),
            "Admitted and wrong, or mislabelled: look at these first": (d.confidence, admitted & ~right),
            **kinds,
            "Rejected although right, highest confidence first": (d.confidence, left),
        }
    return {name: np.flatnonzero(rows)[np.argsort(-by[rows], kind="stable")] for name, (by, rows) in kinds.items()}


def _truth(evaluation: Evaluation, name: str) -> Array | None:
    """The true classes; None if they are not known."""
    labels = evaluation.data_sets[name].labels
    return check_label_array(labels, "render_report") if evaluation.kinds[name] == CLASSES else None


def _named(data: LabelledStates, row: int) -> dict[str, Any]:
    text = None if data.texts is None else str(data.texts[row])
    label = None if data.labels is None else data.labels[row]
    return {"id": row if data.ids is None else data.ids[row], "text": text, "label": label}


def _facts(evaluation: Evaluation, classifier: SDMClassifier | SDMEnsemble) -> str:
    own = {
        "training_data_fingerprint": classifier.data_fingerprint_,
        "seed": classifier.random_seed_,
        "states_origin": None if classifier.states_origin_ is None else classifier.states_origin_.to_json(),
    }
    return strict_json({**evaluation.facts(), "classifier": own})
