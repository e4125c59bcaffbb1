"""What an experiment looks at once states are there and the classifier is trained: one function for each study."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from torchsdm.baselines import SDMRule
from torchsdm.core import Decisions
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.evaluation import Entrant, Evaluation, Grid, ResultRow, ResultTable, paper_entrants
from torchsdm.experiments.claims import REGION, Claim, all_hold, paper_claims
from torchsdm.experiments.specification import Experiment
from torchsdm.states import LabelledStates
from torchsdm.validation import Array

_MAIN = (
    *("softmax ≥ α", "temperature ≥ α", "APS", "RAPS", "VBLL ≥ α"),
    *("softmax(z′) ≥ α", "softmax(d·z′) ≥ α", "sdm(z′) ≥ α", REGION),
)
LOWER = "SDM_HR lower"


@dataclass(frozen=True)
class Prepared:
    """What every study starts from."""

    experiment: Experiment
    model: str
    """What the language model is called."""
    pool: LabelledStates
    tests: Mapping[str, LabelledStates]
    classifier: SDMClassifier
    """Fitted on the pool, all rounds kept."""
    directory: Path
    """Where networks that are trained keep their checkpoints."""

    @property
    def roles(self) -> dict[str, str]:
        """The role of each test set."""
        return {data.name: data.role for data in self.experiment.tests}

    @property
    def calibration(self) -> LabelledStates:
        """The calibration set of the classifier."""
        return calibration_part(self.pool, self.classifier)

    @property
    def calibration_name(self) -> str:
        """What the calibration set is called: as in the paper, after the data set that the pool is of."""
        return f"{(self.experiment.test('in distribution') or self.experiment.tests)[0].name} calibration"


@dataclass(frozen=True)
class Section:
    """A table with a heading and a sentence or two."""

    title: str
    table: ResultTable | Grid
    text: str = ""


@dataclass(frozen=True)
class Findings:
    """What a study found."""

    sections: Sequence[Section]
    claims: Sequence[Claim] = field(default_factory=tuple)
    evaluation: Evaluation | None = None
    """Of all estimators, where the study made one."""


def estimators(prepared: Prepared) -> Findings:
    """The tables of the paper: every estimator on every data set, and the SDM rules on the calibration set."""
    experiment, alpha = prepared.experiment, prepared.experiment.alpha
    entrants = paper_entrants(
        prepared.pool,
        prepared.classifier,
        groups=experiment.groups,
        name=prepared.model,
        n_hidden=experiment.n_hidden,
        checkpoint=prepared.directory / "networks",
    )
    evaluation = Evaluation(entrants, prepared.tests, alpha, {"experiment": experiment.name})
    roles = prepared.roles
    rows = list(zip(evaluation.table.rows, list(entrants) * len(prepared.tests), strict=True))
    plain = [(row, one) for row, one in rows if roles[row.dataset] != "shuffled"]
    shuffled = [(row, one) for row, one in rows if roles[row.dataset] == "shuffled"]
    sections = [
        _section("Main table", [row for row, one in plain if row.estimator in _MAIN and not _is_generative(one)]),
        Section("Calibration set", _calibration_table(prepared), "Accuracies on the set that the region was found on."),
        _section("All estimators", [row for row, one in plain if one.group not in ("vbll", "today")]),
        _section("Words shuffled", [row for row, one in shuffled if one.group not in ("vbll", "today")]),
        _section("Bayesian last layers", [row for row, one in rows if one.group == "vbll"]),
        _section("What one would pick today", [row for row, one in rows if one.group == "today"]),
    ]
    claims = paper_claims(evaluation, roles, _round_points(prepared.classifier))
    return Findings([section for section in sections if section is not None], claims, evaluation)


def ablation(prepared: Prepared) -> Findings:
    """The adaptor g replaced by the identity: hidden states are matched as they are."""
    settings = {**prepared.experiment.training, "adaptor": "identity"}
    identity = SDMClassifier(**settings, checkpoint=prepared.directory / "identity")
    identity._draw_seed = lambda: prepared.classifier.random_seed_  # type: ignore[method-assign]  # the same splits
    identity.fit(prepared.pool)
    rows = []
    for name, classifier in (("learned g", prepared.classifier), ("g = identity", identity)):
        part = {prepared.calibration_name: calibration_part(prepared.pool, classifier)}
        rows += _region_rows(prepared, classifier, f"{prepared.model} + SDM, {name}", {**part, **prepared.tests})
    half = len(rows) // 2
    learned, without = rows[:half], rows[half:]
    shares = [(a.accuracy.marginal.share, b.accuracy.marginal.share) for a, b in zip(learned, without, strict=True)]
    fewer = [with_g >= without_g for with_g, without_g in shares if with_g or without_g]
    admitted = tuple(
        f"{a.dataset}: {a.accuracy.marginal.share:.1%} with a learned g, {b.accuracy.marginal.share:.1%} without"
        for a, b in zip(learned, without, strict=True)
    )
    claims = [
        all_hold("ablation", f"Without a learned g, {REGION} stays at or above α or rejects all.", without),
        Claim(
            "ablation′",
            "Without a learned g, no more points are admitted on most of the data sets.",
            sum(fewer) > len(fewer) / 2 if fewer else None,
            admitted,
        ),
    ]
    ordered = [row for pair in zip(learned, without, strict=True) for row in pair]
    return Findings([Section("Without a learned g", ResultTable(ordered))], claims)


def sample_size(prepared: Prepared) -> Findings:
    """The lower estimator, which allows for the number of calibration points that an answer rests on."""
    rows: list[ResultRow] = []
    lines, outside = [], []
    for name, data in prepared.tests.items():
        decisions = prepared.classifier.decide(data.hidden_states).at(prepared.experiment.alpha)
        lower = _lower(decisions)
        for estimator, one in ((REGION, decisions), (LOWER, lower)):
            rows.append(_row(prepared, one, data, name, estimator))
        fewest = decisions.effective_sample_sizes.min(axis=1)
        lines.append(
            [name, f"{np.median(fewest):.0f}", f"{np.median(decisions.dkw_epsilon):.3f}", f"{(fewest == 0).mean():.1%}"]
        )
        outside.append(f"{name}: {int((lower.admitted & ~decisions.admitted).sum())}")
    columns = ["data set", "median of n̂_min", "median of ε", "share with n̂_min = 0"]
    claims = [
        all_hold(
            "sample size", f"{LOWER} is at or above α or rejects all.", [row for row in rows if row.estimator == LOWER]
        ),
        Claim(
            "sample size′",
            f"{LOWER} admits nothing that {REGION} rejects.",
            all(line.endswith(": 0") for line in outside),
            tuple(outside),
        ),
    ]
    sections = [
        Section("With and without the effective sample size", ResultTable(rows)),
        Section("Effective sample sizes", Grid(columns, lines), "Of the points decided on, at α."),
    ]
    return Findings(sections, claims)


def ensemble(prepared: Prepared) -> Findings:
    """All J rounds together: admitted only where all agree and all admit."""
    n_rounds = len(prepared.classifier.round_models_)
    of_all = SDMEnsemble.from_classifier(prepared.classifier)
    rows: list[ResultRow] = []
    for name, data in prepared.tests.items():
        decisions = prepared.classifier.decide(data.hidden_states).at(prepared.experiment.alpha)
        rows.append(_row(prepared, decisions, data, name, REGION))
        rows.append(_row(prepared, _lower(decisions), data, name, LOWER))
        together = SDMRule(of_all, "region lower").fit().decide(data.hidden_states).at(prepared.experiment.alpha)
        rows.append(_row(prepared, together, data, name, f"all {n_rounds} rounds"))
    regions = [
        [name, f"{accuracy:.3f}", "∞" if np.isinf(q) else f"{q:.4g}"]
        for name, accuracy, q in _round_points(prepared.classifier)
    ]
    of_rounds = [row for row in rows if row.estimator.startswith("all ")]
    lower = [row for row in rows if row.estimator == LOWER]
    fewer = all(a.accuracy.marginal.share <= b.accuracy.marginal.share for a, b in zip(of_rounds, lower, strict=True))
    shares = tuple(
        f"{a.dataset}: {a.accuracy.marginal.share:.1%} of all rounds, {b.accuracy.marginal.share:.1%} of the best"
        for a, b in zip(of_rounds, lower, strict=True)
    )
    claims = [
        all_hold("ensemble", "The ensemble of all rounds is at or above α or rejects all.", of_rounds),
        Claim("ensemble′", "The ensemble admits no more than the lower estimator of the best round.", fewer, shares),
    ]
    sections = [
        Section("The best round and all rounds", ResultTable(rows)),
        Section("Rounds", Grid(["round", "accuracy over its calibration set", "q′_min"], regions)),
    ]
    return Findings(sections, claims)


def updatability(prepared: Prepared) -> Findings:
    """Part of a shifted set added to the support: under its labels, and under a label outside the classes."""
    shifted = prepared.experiment.test("shifted")
    name = prepared.experiment.updates.data or (shifted[0].name if shifted else None)
    if name is None:
        raise InvalidInputError("The study 'updatability' needs a test set whose role is 'shifted', or updates.data.")
    data = prepared.tests[name]
    order = np.random.default_rng(prepared.classifier.random_seed_).permutation(len(data))
    n_added = int(prepared.experiment.updates.share * len(data))
    if not 0 < n_added < len(data):
        raise InvalidInputError(f"updates.share = {prepared.experiment.updates.share:g} of {len(data)} adds {n_added}.")
    added, rest = data.take(np.sort(order[:n_added])), data.take(np.sort(order[n_added:]))
    outside = _outside_label(prepared.classifier.classes_)
    labels = np.asarray(added.labels)
    updated = {
        "before": prepared.classifier,
        f"{n_added} added": _with_support(prepared.classifier, added, labels),
        f"{n_added} added, recalibrated": _with_support(prepared.classifier, added, labels).recalibrate(),
        f"{n_added} added as {outside!r}": _with_support(prepared.classifier, added, [outside] * n_added),
    }
    others = [one.name for one in prepared.experiment.test("in distribution") if one.name != name]
    inside = {other: prepared.tests[other] for other in others}
    looked_at = {f"rest of {name}": rest, **inside}
    rows = []
    changed = []
    for when, classifier in updated.items():
        rows += _region_rows(prepared, classifier, when, looked_at)
        same = classifier.predict(rest.hidden_states) == prepared.classifier.predict(rest.hidden_states)
        changed.append(f"{when}: {int((~same).sum())} of {len(rest)} predictions differ")
    of_rest = [row for row in rows if row.dataset.startswith("rest of ")]
    shares = [row.accuracy.marginal.share for row in of_rest]
    admitted = tuple(f"{row.model}: {row.accuracy.marginal.share:.2%} admitted" for row in of_rest)
    claims = [
        Claim(
            "update",
            "Adding to the support never changes a prediction.",
            all(": 0 of" in line for line in changed),
            tuple(changed),
        ),
        all_hold("update′", f"After the update, {REGION} is at or above α or rejects all.", of_rest[1:]),
        Claim(
            "update″",
            "Added under a label outside the classes, it makes its like be admitted no more than before.",
            shares[3] <= shares[0],
            admitted,
        ),
    ]
    text = f"{n_added} inputs of {name} drawn at random are added; the rows are of what is left, before and after."
    ordered = [row for one in looked_at for row in rows if row.dataset == one]
    return Findings([Section("Before and after an update", ResultTable(ordered), text)], claims)


def alphas(prepared: Prepared) -> Findings:
    """A region for each of several alphas, and the one nearest 1 that each point lies in."""
    wanted = list(prepared.experiment.alphas)
    classifier = copy.copy(prepared.classifier)
    classifier.recalibrate(alpha=wanted)
    rows, assigned = [], []
    for name, data in prepared.tests.items():
        decisions = classifier.decide(data.hidden_states)
        for alpha in wanted:
            row = ResultRow.of(
                decisions,
                data.labels,
                alpha,
                dataset=name,
                model=f"{prepared.model} + SDM",
                estimator=f"{REGION}, α = {alpha:g}",
            )
            rows.append(row)
        shares = [f"{np.isclose(decisions.admitted_alpha, alpha).mean():.1%}" for alpha in wanted]
        assigned.append([name, *shares, f"{(~decisions.admitted).mean():.1%}"])
    names = classifier.classes_.tolist()
    regions = [
        [
            f"{region.alpha:g}",
            f"{region.min_rescaled_similarity:.4g}" if region.found else "∞",
            *(f"{float(threshold):.3f}" if region.found else "∞" for threshold in region.thresholds),
            *(str(int(count)) for count in region.class_counts),
        ]
        for region in classifier.regions_
    ]
    columns = ["α", "q′_min", *(f"ψ of {label}" for label in names), *(f"points of {label}" for label in names)]
    claims = [all_hold("alphas", f"{REGION} is at or above each α or rejects all.", rows)]
    sections = [
        Section("Regions", Grid(columns, regions), "Thresholds, and the calibration points that each region rests on."),
        Section("A range of α", ResultTable(rows)),
        Section(
            "The α nearest 1 that admits a point",
            Grid(["data set", *(f"α = {alpha:g}" for alpha in wanted), "none"], assigned),
        ),
    ]
    return Findings(sections, claims)


#: The function of each study.
FUNCTIONS: dict[str, Callable[[Prepared], Findings]] = {
    "estimators": estimators,
    "ablation": ablation,
    "sample size": sample_size,
    "ensemble": ensemble,
    "updatability": updatability,
    "alphas": alphas,
}


def calibration_part(pool: LabelledStates, classifier: SDMClassifier) -> LabelledStates:
    """The rows of a pool that a classifier calibrated on."""
    chosen = set(classifier.model_.calibration_examples.all()[0])
    return pool.take([row for row, name in enumerate(pool.ids or []) if name in chosen])


def _is_generative(entrant: Entrant) -> bool:
    return entrant.group == "vbll" and entrant.estimator.kind == "generative"


def _section(title: str, rows: Sequence[ResultRow]) -> Section | None:
    return Section(title, ResultTable(rows)) if rows else None


def _row(prepared: Prepared, decisions: Decisions, data: LabelledStates, name: str, estimator: str) -> ResultRow:
    return ResultRow.of(
        decisions,
        data.labels,
        prepared.experiment.alpha,
        dataset=name,
        model=f"{prepared.model} + SDM",
        estimator=estimator,
    )


def _region_rows(
    prepared: Prepared, classifier: SDMClassifier, model: str, data_sets: Mapping[str, LabelledStates]
) -> list[ResultRow]:
    alpha = prepared.experiment.alpha
    return [
        ResultRow.of(
            classifier.decide(data.hidden_states), data.labels, alpha, dataset=name, model=model, estimator=REGION
        )
        for name, data in data_sets.items()
    ]


def _calibration_table(prepared: Prepared) -> ResultTable:
    """The SDM rules on the calibration set, with q'_min beside the region's."""
    region = prepared.classifier.region_
    q_min = f"{region.min_rescaled_similarity:.4g}" if region.found else "∞"
    rules = {
        "no reject": "no reject",
        "softmax": "softmax(z′) ≥ α",
        "softmax of d·z": "softmax(d·z′) ≥ α",
        "sdm": "sdm(z′) ≥ α",
        "region": f"{REGION}, q′_min = {q_min}",
    }
    model = f"{prepared.model} + SDM"
    entrants = [Entrant(model, label, SDMRule(prepared.classifier, rule).fit()) for rule, label in rules.items()]
    return Evaluation(entrants, {prepared.calibration_name: prepared.calibration}, prepared.experiment.alpha).table


def _round_points(classifier: SDMClassifier) -> list[tuple[str, float, float]]:
    """Accuracy over its calibration set and q'_min of each round."""
    return [
        (
            f"round {number}",
            float((model.calibration.predictions == model.calibration.labels).double().mean()),
            float(model.calibration.regions[0].min_rescaled_similarity),
        )
        for number, model in enumerate(classifier.round_models_, start=1)
    ]


def _lower(decisions: Decisions) -> Decisions:
    """The decisions as the lower estimator takes them."""
    return replace(
        decisions,
        admitted=decisions.admitted_lower,
        admitted_alpha=decisions.admitted_lower_alpha,
        admitted_at=decisions.admitted_lower_at,
    )


def _with_support(classifier: SDMClassifier, added: LabelledStates, labels: Any) -> SDMClassifier:
    """A copy of the classifier with points added to its support; updates replace what they change, so it is cheap."""
    updated = copy.copy(classifier)
    return updated.add_exemplars(added.hidden_states, labels, ids=[f"added-{name}" for name in added.ids or []])


def _outside_label(classes: Array) -> Any:
    return "outside" if classes.dtype.kind in "OUS" else int(classes.max()) + 1
