"""What an experiment examines once it has states and a trained classifier: one function per study."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from research.experiments.claims import Claim, all_hold, paper_claims
from research.experiments.specification import Experiment
from research.experiments.stranger_scores import stranger_scores
from torchsdm.baselines import SDMRule
from torchsdm.core import Decisions, SDMDecisions
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.evaluation import (
    SDM_RULES,
    UNLISTED,
    Basis,
    Entrant,
    EstimatorKey,
    Evaluation,
    Grid,
    ResultRow,
    ResultTable,
    Rule,
    classifier_entrants,
    paper_entrants,
    share_text,
)
from torchsdm.validation import Array

_MAIN = {  # the rules of the main table
    *(Rule.SOFTMAX, Rule.TEMPERATURE, Rule.APS, Rule.RAPS, Rule.VBLL),
    *(Rule.ADAPTOR_SOFTMAX, Rule.DISTANCE_SOFTMAX, Rule.SDM, Rule.REGION),
    *(Rule.CERTIFIED, Rule.CERTIFIED_SOFTMAX),
}
_REGION = EstimatorKey(Basis.SDM, Rule.REGION)
_LOWER = EstimatorKey(Basis.SDM, Rule.REGION_LOWER)


@dataclass(frozen=True)
class Prepared:
    """What every study starts from."""

    experiment: Experiment
    model: str
    """Name of the language model."""
    pool: LabelledStates
    tests: Mapping[str, LabelledStates]
    classifier: SDMClassifier
    """Fitted on the pool, all rounds kept."""
    directory: Path
    """Where trained networks keep their checkpoints."""
    background: Array | None = None
    """Hidden states of the test sets whose role is 'background', (M, D)."""

    @property
    def roles(self) -> dict[str, str]:
        """The role of each test set; rows of a set whose labels are not classes are strangers."""
        given = {data.name: data.role for data in self.experiment.tests}
        apart = {f"{name}, strangers": role if role == "shuffled" else "strangers" for name, role in given.items()}
        return {name: role for name, role in {**apart, **given}.items() if name in self.tests}

    @cached_property
    def entrants(self) -> list[Entrant]:
        """The estimators that the experiment compares, fitted once for all studies."""
        return paper_entrants(
            self.pool,
            self.classifier,
            groups=self.experiment.groups,
            name=self.model,
            n_hidden=self.experiment.n_hidden,
            checkpoint=self.directory / "networks",
        )

    @property
    def calibration(self) -> LabelledStates:
        """The calibration set of the classifier."""
        return calibration_part(self.pool, self.classifier)

    @property
    def calibration_name(self) -> str:
        """Name of the calibration set: as in the paper, after the pool's data set."""
        return f"{(self.experiment.test('in distribution') or self.experiment.tests)[0].name} calibration"


@dataclass(frozen=True)
class Section:
    """A table with a heading and a sentence or two."""

    title: str
    table: ResultTable | Grid
    text: str = ""
    on_page: bool = True
    """Whether the results page shows it; the report has everything."""


@dataclass(frozen=True)
class Findings:
    """What a study found."""

    sections: Sequence[Section]
    claims: Sequence[Claim] = field(default_factory=tuple)
    evaluation: Evaluation | None = None
    """Of all estimators, if the study made one."""


def estimators(prepared: Prepared) -> Findings:
    """The tables of the paper: every estimator on every data set, and the SDM rules on the calibration set."""
    experiment, alpha = prepared.experiment, prepared.experiment.alpha
    settings = {"experiment": experiment.name}
    evaluation = Evaluation(prepared.entrants, prepared.tests, alpha, settings, prepared.classifier)
    roles = prepared.roles
    all_results = evaluation.results()
    results = [(one, row) for one, row in all_results if roles[row.dataset] != "strangers"]
    plain = [(one, row) for one, row in results if roles[row.dataset] != "shuffled"]
    shuffled = [(one, row) for one, row in results if roles[row.dataset] == "shuffled"]
    main = [row for one, row in plain if one.key.rule in _MAIN and one.key.basis is not Basis.GENERATIVE_VBLL]
    others = {
        "All estimators": [row for one, row in plain if one.group not in ("vbll", "today")],
        "Words shuffled": [row for one, row in shuffled if one.group not in ("vbll", "today")],
        "Bayesian last layers": [row for one, row in results if one.group == "vbll"],
        "What you would pick today": [row for one, row in results if one.group == "today"],
    }
    sections = [
        *([Section("Main table", ResultTable(main))] if main else []),
        *_calibration_section(prepared),
        *_of_strangers(evaluation, [row for _, row in all_results if roles[row.dataset] == "strangers"]),
        *(Section(title, ResultTable(rows), on_page=False) for title, rows in others.items() if rows),
    ]
    claims = paper_claims(evaluation, roles, _round_points(prepared.classifier))
    return Findings(sections, claims, evaluation)


def _of_strangers(evaluation: Evaluation, rows: Sequence[ResultRow]) -> list[Section]:
    """What is admitted of strangers by each estimator, and what the classifier does with them; nothing for none."""
    if not rows:
        return []
    admitted = [
        [row.dataset, row.model, row.estimator, f"{cell.n_total:,}", f"{cell.n_admitted:,}", share_text(cell.share)]
        for row in rows
        for cell in [row.accuracy.marginal]
    ]
    overviews = {name: one.lines(evaluation.kinds[name]) for name, one in evaluation.overviews().items()}
    topics = ["admitted", "lanes", "not admitted", "predictions", "drift"]
    names = list(dict.fromkeys(row.dataset for row in rows))
    text = "Inputs without labels, or with labels outside the classes. Of the latter, every admitted one is a mistake."
    return [
        Section(
            "Strangers",
            Grid(["data set", *topics], [[name, *(overviews[name][topic] for topic in topics)] for name in names]),
            f"{text} By the classifier itself; drift is what its guard would say.",
        ),
        Section(
            "Strangers, all estimators",
            Grid(["data set", "model", "estimator", "inputs", "admitted", "share"], admitted),
        ),
    ]


def strangers(prepared: Prepared) -> Findings:
    """What is admitted of inputs that belong and of strangers, and which scores tell them apart.

    With a background, a second classifier is trained that is shown it; the splits are the same.
    """
    experiment, roles, entrants = prepared.experiment, prepared.roles, list(prepared.entrants)
    classifiers = {f"{prepared.model} + SDM": prepared.classifier}
    if prepared.background is not None:
        shown = experiment.classifier(checkpoint=prepared.directory / "background")
        shown.fit(prepared.pool, background=prepared.background, seed=prepared.classifier.random_seed_)
        called = f"{prepared.model} + SDM, {len(prepared.background)} strangers shown"
        classifiers[called] = shown
        of_shown = [one for one in classifier_entrants(shown) if one.key.rule in (Rule.CERTIFIED, Rule.REGION)]
        entrants += [Entrant(called, one.name, one.estimator) for one in of_shown]
    inside, outside = (
        {name: data for name, data in prepared.tests.items() if roles[name] == role}
        for role in ("in distribution", "strangers")
    )
    admitted = [
        [name, entrant.model, entrant.name, *_shares(entrant, data, outside)]
        for name, data in inside.items()
        for entrant in entrants
    ]
    shares = {
        called: {
            name: float(classifier.decide(data.hidden_states).admitted.mean())
            for name, data in {**inside, **outside}.items()
        }
        for called, classifier in classifiers.items()
    }
    scores = [
        [
            name,
            stranger,
            called if is_own else "hidden states",
            score.name,
            f"{score.auroc:.3f}",
            f"{score.fpr_at_95:.3f}",
        ]
        for called, classifier in classifiers.items()
        for name, data in inside.items()
        for stranger, others in outside.items()
        for score in stranger_scores(classifier, prepared.pool, data, others)
        for is_own in [score.of == "classifier"]
        if is_own or classifier is prepared.classifier  # the others do not learn from strangers
    ]
    promises = [
        f"{called}: {classifier.certificate_.holds_for(classifier.classes_.tolist())}"
        for called, classifier in classifiers.items()
        if classifier.certificate_ is not None
    ]
    columns = ["data set", "model", "rule", "accuracy of all", "admitted", "right among them"]
    return Findings(
        [
            Section(
                "Admitted, and strangers kept out",
                Grid([*columns, *(f"{name} not admitted" for name in outside)], admitted),
                " ".join(promises),
            ),
            Section(
                "Scores that tell strangers",
                Grid(["data set", "strangers", "of", "score", "AUROC", "FPR at 95 %"], scores),
                "AUROC is the probability that an input that belongs scores higher than a stranger; FPR the share of "
                "strangers that pass where 95 % of the inputs that belong do.",
            ),
        ],
        [
            Claim(
                "strangers",
                "Of strangers, a smaller share is admitted than of inputs that belong.",
                all(share[a] > share[b] for share in shares.values() for a in inside for b in outside),
                tuple(
                    f"{called}: {', '.join(f'{share:.1%} of {name}' for name, share in of.items())}"
                    for called, of in shares.items()
                ),
            )
        ],
    )


def _shares(entrant: Entrant, data: LabelledStates, outside: Mapping[str, LabelledStates]) -> list[str]:
    """Accuracy, admitted share and accuracy of the admitted; then what is not admitted of each set of strangers."""
    decided = entrant.decide(data)
    right, admitted = decided.predictions == np.asarray(data.labels), decided.admitted
    among = f"{right[admitted].mean():.3f}" if admitted.any() else "–"
    kept_out = [1 - entrant.decide(others).admitted.mean() for others in outside.values()]
    return [f"{right.mean():.3f}", f"{admitted.mean():.3f}", among, *(f"{share:.3f}" for share in kept_out)]


def ablation(prepared: Prepared) -> Findings:
    """The adaptor g replaced by the identity: hidden states are matched as they are."""
    identity = prepared.experiment.classifier(adaptor="identity", checkpoint=prepared.directory / "identity")
    identity.fit(prepared.pool, seed=prepared.classifier.random_seed_)  # the same splits

    def rows(classifier: SDMClassifier, name: str, basis: Basis) -> list[ResultRow]:
        part = {prepared.calibration_name: calibration_part(prepared.pool, classifier)}
        model, key = f"{prepared.model} + SDM, {name}", EstimatorKey(basis, Rule.REGION)
        return [
            _region_row(prepared, classifier, data, data_set, model, key)
            for data_set, data in {**part, **prepared.tests}.items()
        ]

    learned = rows(prepared.classifier, "learned g", Basis.SDM)
    without = rows(identity, "g = identity", Basis.IDENTITY_SDM)
    pairs = list(zip(learned, without, strict=True))  # of each data set
    shares = {a.dataset: (a.accuracy.marginal.share, b.accuracy.marginal.share) for a, b in pairs}
    fewer = [with_g >= without_g for with_g, without_g in shares.values() if with_g or without_g]
    claims = [
        all_hold("ablation", f"Without a learned g, {Rule.REGION} is at or above α or rejects all.", without),
        Claim(
            "ablation′",
            "Without a learned g, no more points are admitted on most data sets.",
            sum(fewer) > len(fewer) / 2 if fewer else None,
            tuple(f"{name}: {a:.1%} with a learned g, {b:.1%} without" for name, (a, b) in shares.items()),
        ),
    ]
    return Findings([Section("Without a learned g", ResultTable([row for pair in pairs for row in pair]))], claims)


def sample_size(prepared: Prepared) -> Findings:
    """The lower estimator: d is lowered by a heuristic, the less the more calibration points have a smaller q'."""
    pairs: list[tuple[ResultRow, ResultRow]] = []  # the region and its lower estimator on each data set
    lines = []
    n_beyond: dict[str, int] = {}  # inputs that the lower estimator admits and the region does not
    for name, data in prepared.tests.items():
        decisions = _of_region(prepared.classifier, data).at(prepared.experiment.alpha)
        lower = _lower(decisions)
        pairs.append((_row(prepared, decisions, data, name, _REGION), _row(prepared, lower, data, name, _LOWER)))
        n_beyond[name] = int((lower.admitted & ~decisions.admitted).sum())
        fewest = decisions.effective_sample_sizes.min(axis=1)
        lines.append(
            [name, f"{np.median(fewest):.0f}", f"{np.median(decisions.dkw_epsilon):.3f}", f"{(fewest == 0).mean():.1%}"]
        )
    columns = ["data set", "median of n̂_min", "median of ε", "share with n̂_min = 0"]
    claims = [
        all_hold("sample size", f"{Rule.REGION_LOWER} is at or above α or rejects all.", [lower for _, lower in pairs]),
        Claim(
            "sample size′",
            f"{Rule.REGION_LOWER} admits nothing that {Rule.REGION} rejects.",
            not any(n_beyond.values()),
            tuple(f"{name}: {number}" for name, number in n_beyond.items()),
        ),
    ]
    sections = [
        Section("With and without the effective sample size", ResultTable([row for pair in pairs for row in pair])),
        Section("Effective sample sizes", Grid(columns, lines), "Of the points decided on, at α."),
    ]
    return Findings(sections, claims)


def ensemble(prepared: Prepared) -> Findings:
    """All J rounds together: admitted only if all agree and all admit."""
    n_rounds = len(prepared.classifier.round_models_)
    of_all = SDMEnsemble.from_classifier(prepared.classifier)
    together_key = EstimatorKey(Basis.ALL_ROUNDS, Rule.REGION_LOWER)
    region_rows, lower_rows, together_rows = [], [], []
    for name, data in prepared.tests.items():
        decisions = _of_region(prepared.classifier, data).at(prepared.experiment.alpha)
        together = SDMRule(of_all, "region lower").fit().decide(data.hidden_states).at(prepared.experiment.alpha)
        region_rows.append(_row(prepared, decisions, data, name, _REGION))
        lower_rows.append(_row(prepared, _lower(decisions), data, name, _LOWER))
        together_rows.append(_row(prepared, together, data, name, together_key, f"all {n_rounds} rounds"))
    regions = [
        [name, f"{accuracy:.3f}", "∞" if np.isinf(q) else f"{q:.4g}"]
        for name, accuracy, q in _round_points(prepared.classifier)
    ]
    shares = {
        a.dataset: (a.accuracy.marginal.share, b.accuracy.marginal.share)
        for a, b in zip(together_rows, lower_rows, strict=True)
    }
    claims = [
        all_hold("ensemble", "The ensemble of all rounds is at or above α or rejects all.", together_rows),
        Claim(
            "ensemble′",
            "The ensemble admits no more than the lower estimator of the best round.",
            all(of_all_rounds <= of_best for of_all_rounds, of_best in shares.values()),
            tuple(f"{name}: {a:.1%} by all rounds, {b:.1%} by the best" for name, (a, b) in shares.items()),
        ),
    ]
    triples = zip(region_rows, lower_rows, together_rows, strict=True)  # of each data set
    sections = [
        Section("The best round and all rounds", ResultTable([row for rows in triples for row in rows])),
        Section("Rounds", Grid(["round", "accuracy on its calibration set", "q′_min"], regions)),
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
    before, as_outside = "before", f"{n_added} added as {outside!r}"
    updated = {
        before: prepared.classifier,
        f"{n_added} added": _with_support(prepared.classifier, added, labels),
        f"{n_added} added, recalibrated": _with_support(prepared.classifier, added, labels).recalibrate(),
        as_outside: _with_support(prepared.classifier, added, [outside] * n_added),
    }
    others = [one.name for one in prepared.experiment.test("in distribution") if one.name != name]
    inside = {other: prepared.tests[other] for other in others}
    looked_at = {f"rest of {name}": rest, **inside}
    tables = {
        where: {when: _region_row(prepared, classifier, part, where, when) for when, classifier in updated.items()}
        for where, part in looked_at.items()
    }
    of_rest = tables[f"rest of {name}"]
    shares = {when: row.accuracy.marginal.share for when, row in of_rest.items()}
    predictions = {when: classifier.predict(rest.hidden_states) for when, classifier in updated.items()}
    n_changed = {when: int((labels != predictions[before]).sum()) for when, labels in predictions.items()}
    claims = [
        Claim(
            "update",
            "Adding to the support never changes a prediction.",
            not any(n_changed.values()),
            tuple(f"{when}: {number} of {len(rest)} predictions differ" for when, number in n_changed.items()),
        ),
        all_hold(
            "update′",
            f"After the update, {Rule.REGION} is at or above α or rejects all.",
            [row for when, row in of_rest.items() if when != before],
        ),
        Claim(
            "update″",
            "After adding inputs under a label outside the classes, no more inputs like them are admitted.",
            shares[as_outside] <= shares[before],
            tuple(f"{when}: {share:.2%} admitted" for when, share in shares.items()),
        ),
    ]
    text = f"{n_added} random inputs of {name} are added; the rows show the rest, before and after."
    rows = [row for by_time in tables.values() for row in by_time.values()]
    return Findings([Section("Before and after an update", ResultTable(rows), text)], claims)


def alphas(prepared: Prepared) -> Findings:
    """One region for each of several alphas, and the largest alpha that admits each point."""
    wanted = list(prepared.experiment.alphas)
    classifier = copy.copy(prepared.classifier)
    classifier.recalibrate(alpha=wanted)
    rows, assigned = [], []
    for name, data in prepared.tests.items():
        decisions = _of_region(classifier, data)
        for alpha in wanted:
            row = ResultRow.of(
                decisions,
                data.labels,
                alpha,
                dataset=name,
                model=f"{prepared.model} + SDM",
                estimator=f"{Rule.REGION}, α = {alpha:g}",
                key=_REGION,
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
    claims = [all_hold("alphas", f"{Rule.REGION} is at or above each α or rejects all.", rows)]
    sections = [
        Section("Regions", Grid(columns, regions), "Thresholds, and the calibration points behind each region."),
        Section("A range of α", ResultTable(rows)),
        Section(
            "The largest α that admits a point",
            Grid(["data set", *(f"α = {alpha:g}" for alpha in wanted), "none"], assigned),
        ),
    ]
    return Findings(sections, claims)


#: The function of each study.
FUNCTIONS: dict[str, Callable[[Prepared], Findings]] = {
    "estimators": estimators,
    "strangers": strangers,
    "ablation": ablation,
    "sample size": sample_size,
    "ensemble": ensemble,
    "updatability": updatability,
    "alphas": alphas,
}


def calibration_part(pool: LabelledStates, classifier: SDMClassifier) -> LabelledStates:
    """The rows of a pool that a classifier was calibrated on."""
    return pool.take(classifier.calibration_rows_)


def _row(
    prepared: Prepared,
    decisions: Decisions,
    data: LabelledStates,
    name: str,
    key: EstimatorKey,
    estimator: str | None = None,
) -> ResultRow:
    """The row of decisions over the SDM adaptor; its estimator is named after its rule by default."""
    return ResultRow.of(
        decisions,
        data.labels,
        prepared.experiment.alpha,
        dataset=name,
        model=f"{prepared.model} + SDM",
        estimator=estimator or str(key.rule),
        key=key,
    )


def _region_row(
    prepared: Prepared,
    classifier: SDMClassifier,
    data: LabelledStates,
    name: str,
    model: str,
    key: EstimatorKey = UNLISTED,
) -> ResultRow:
    """The row of the region of any classifier, such as an updated one."""
    return ResultRow.of(
        _of_region(classifier, data),
        data.labels,
        prepared.experiment.alpha,
        dataset=name,
        model=model,
        estimator=str(Rule.REGION),
        key=key,
    )


def _calibration_table(prepared: Prepared) -> ResultTable:
    """The SDM rules on the calibration set, with q'_min in the region's name."""
    region = prepared.classifier.region_
    q_min = f"{region.min_rescaled_similarity:.4g}" if region.found else "∞"
    entrants = [
        Entrant(
            f"{prepared.model} + SDM",
            f"{rule}, q′_min = {q_min}" if rule is Rule.REGION else str(rule),
            SDMRule(prepared.classifier, name).fit(),
            key=EstimatorKey(Basis.SDM, rule),
        )
        for name, rule in SDM_RULES.items()
        if rule is not Rule.REGION_LOWER  # not printed in the paper
    ]
    return Evaluation(entrants, {prepared.calibration_name: prepared.calibration}, prepared.experiment.alpha).table


def _calibration_section(prepared: Prepared) -> list[Section]:
    """The SDM rules on the calibration set; nothing where that is the training set, out of fold."""
    if prepared.classifier.is_cross_fitted_:
        return []
    said = "Accuracies on the set that determined the region."
    return [Section("Calibration set", _calibration_table(prepared), said)]


def _round_points(classifier: SDMClassifier) -> list[tuple[str, float, float]]:
    """Each round's accuracy on its calibration set, and its q'_min."""
    return [
        (
            f"round {number}",
            float((model.calibration.predictions == model.calibration.labels).double().mean()),
            float(model.calibration.regions[0].min_rescaled_similarity),
        )
        for number, model in enumerate(getattr(classifier, "round_models_", ()), start=1)
    ]


def _of_region(classifier: SDMClassifier, data: LabelledStates) -> SDMDecisions:
    """Decisions by the paper's region, also for a classifier that has a certificate."""
    decisions = classifier.decide(data.hidden_states)
    return decisions.with_admission(decisions.admitted_at)


def _lower(decisions: SDMDecisions) -> SDMDecisions:
    """The decisions of the lower estimator."""
    return decisions.with_admission(decisions.admitted_lower_at)


def _with_support(classifier: SDMClassifier, added: LabelledStates, labels: Any) -> SDMClassifier:
    """A copy of the classifier with points added to its support; cheap, as updates replace only what they change."""
    updated = copy.copy(classifier)
    return updated.add_exemplars(
        added.hidden_states, labels, ids=[f"added-{name}" for name in added.ids or []], allow_new_labels=True
    )


def _outside_label(classes: Array) -> Any:
    return "outside" if classes.dtype.kind in "OUS" else int(classes.max()) + 1
