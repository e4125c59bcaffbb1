"""The studies of an experiment: every number against one computed apart, and the classifier left as it was."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from research.experiments.specification import DataSet, Experiment, Updates
from research.experiments.studies import (
    FUNCTIONS,
    Prepared,
    ablation,
    calibration_part,
    ensemble,
    estimators,
    sample_size,
    updatability,
)
from small import quiet
from torchsdm import LabelledStates, SDMClassifier, SDMEnsemble
from torchsdm.errors import InvalidInputError
from torchsdm.evaluation.metrics import Cell, SelectiveAccuracy
from torchsdm.evaluation.tables import Basis, EstimatorKey, ResultRow, ResultTable, Rule, strata
from torchsdm.hidden_states.prompts import task_prompt
from torchsdm.training.callbacks import stored_seed

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

ALPHA = 0.85
TRAINING = {
    "alpha": ALPHA,
    "n_filters": 8,
    "n_rounds": 4,
    "max_epochs": 4,
    "batch_size": 20,
    "learning_rate": 1e-2,
    "random_state": 7,
}
ALPHAS = (0.95, 0.7, 0.85)  # in no order
LOWER = "SDM_HR lower"
RULES = ("no reject", "softmax(z′) ≥ α", "softmax(d·z′) ≥ α", "sdm(z′) ≥ α", "SDM_HR")


def make_states(seed, n, labels, *, shift=0.0, prefix="p"):
    """Blobs around the corners of a simplex, some labels wrong, with the noisy word of a language model on each."""
    rng = np.random.default_rng(seed)
    n_classes = len(labels)
    numbers = rng.permutation(np.arange(n) % n_classes)
    X = 3.2 * np.eye(n_classes, 4)[numbers] + rng.standard_normal((n, 4)) + shift * np.array([0, 1, 1, 1])
    noisy = np.where(rng.random(n) < 0.02, (numbers + 1) % n_classes, numbers)
    logits = 2.0 * np.eye(n_classes)[numbers] + rng.standard_normal((n, n_classes))
    return LabelledStates(
        X.astype(np.float32),
        np.asarray(labels)[noisy],
        [f"{prefix}{row}" for row in range(n)],
        [f"text {prefix}{row}" for row in range(n)],
        logits.astype(np.float32),
        labels,
    )


def make_prepared(directory, labels=(0, 1, 2), training=TRAINING, **changes):
    """Three classes, and a test set of each role, drifting away from the pool."""
    pool = make_states(1, 300, labels)
    tests = {
        "inside": make_states(2, 150, labels, prefix="i"),
        "near": make_states(3, 90, labels, shift=0.7, prefix="n"),
        "mixed": make_states(4, 60, labels, shift=2.0, prefix="m"),
    }
    roles = {"inside": "in distribution", "near": "shifted", "mixed": "shuffled"}
    experiment = Experiment(
        name="blobs",
        title="Blobs",
        pool=DataSet(name="pool", role="pool", file="pool"),
        tests=tuple(DataSet(name=name, role=role, file=name) for name, role in roles.items()),
        prompt=task_prompt(None, "test"),
        training=training,
        n_hidden=8,
        alphas=ALPHAS,
        studies=tuple(FUNCTIONS),
    )
    with quiet():
        classifier = experiment.classifier().fit(pool, keep_rounds=True)
    return Prepared(replace(experiment, **changes), "LM", pool, tests, classifier, directory)


def snapshot(classifier, tests):
    """All that a classifier says of the test sets, and what it consists of."""
    arrays = {
        f"{name}.{column}": value
        for name, data in tests.items()
        for column, value in classifier.decide(data.hidden_states)._columns()
    }
    arrays["support"] = classifier.support_.exemplars.numpy().copy()
    arrays["labels"] = classifier.support_.labels.numpy().copy()
    arrays["q_min"] = np.array([region.min_rescaled_similarity for region in classifier.regions_])
    arrays["rounds"] = np.array([model.calibration.rescaled_similarity.numpy() for model in classifier.round_models_])
    arrays["round supports"] = np.array([len(model.support) for model in classifier.round_models_])
    return {name: np.array(value) for name, value in arrays.items()}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return make_prepared(tmp_path_factory.mktemp("blobs"))


def with_strangers(prepared, background=None):
    """The same with a test set of inputs that belong to no class, and perhaps a background."""
    rng = np.random.default_rng(9)
    far = LabelledStates((rng.standard_normal((80, 4)) - 4).astype(np.float32), None)
    tests = (*prepared.experiment.tests, DataSet(name="far", role="strangers", file="far"))
    experiment = replace(prepared.experiment, tests=tests, groups=("sdm", "today"))
    return replace(prepared, experiment=experiment, tests={**prepared.tests, "far": far}, background=background)


@pytest.fixture(scope="module")
def found(prepared):
    """What each study finds, and the classifier before and after each."""
    before = snapshot(prepared.classifier, prepared.tests)
    found, after = {}, {}
    with quiet():
        for study, function in FUNCTIONS.items():
            found[study] = function(with_strangers(prepared) if study == "strangers" else prepared)
            after[study] = snapshot(prepared.classifier, prepared.tests)
    return found, before, after


def section(findings, title):
    (one,) = [section for section in findings.sections if section.title == title]
    return one


def rows_of(findings, title):
    table = section(findings, title).table
    assert isinstance(table, ResultTable)
    return {(row.dataset, row.model, row.estimator): row for row in table.rows}


def claim(findings, key):
    (one,) = [claim for claim in findings.claims if claim.key == key]
    return one


def counts(row):
    return {(kind, label): (cell.n_total, cell.n_admitted, cell.n_correct) for kind, label, cell in strata(row)}


def counted(predictions, admitted, truth, classes):
    """The counts of a row, one input after the other."""
    expected = {("class", c): [0, 0, 0] for c in classes} | {("prediction", c): [0, 0, 0] for c in classes}
    expected["all", None] = [0, 0, 0]
    for p, a, y in zip(predictions, admitted, truth, strict=True):
        for key in (("class", y), ("prediction", p), ("all", None)):
            expected[key][0] += 1
            expected[key][1] += bool(a)
            expected[key][2] += bool(a) and p == y
    return {key: tuple(value) for key, value in expected.items()}


def assert_row(row, decisions, admitted, data, alpha=ALPHA):
    classes = decisions.classes.tolist()
    assert row.alpha == alpha
    assert counts(row) == counted(decisions.predictions.tolist(), admitted, np.asarray(data.labels).tolist(), classes)


# --- The classifier is left as it was ---------------------------------------------------------------------------------


@pytest.mark.parametrize("study", FUNCTIONS)
def test_no_study_changes_the_classifier(study, found):
    _, before, after = found
    assert before.keys() == after[study].keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[study][name], value, err_msg=name)


@pytest.mark.parametrize("study", FUNCTIONS)
def test_every_study_has_whole_tables_and_claims_with_evidence(study, found):
    findings = found[0][study]
    assert findings.sections and findings.claims
    for one in findings.sections:
        grid = one.table.grid() if isinstance(one.table, ResultTable) else one.table
        assert grid.rows and all(len(row) == len(grid.columns) for row in grid.rows), one.title
    for one in findings.claims:
        assert one.verdict in ("held", "not held", "not evaluated")
        assert one.evidence and all(isinstance(line, str) and line for line in one.evidence)


# --- Strangers --------------------------------------------------------------------------------------------------------


def test_shares_and_scores_of_strangers_are_those_of_the_decisions(prepared, found):
    looked_at = with_strangers(prepared)
    findings = found[0]["strangers"]
    rows = {tuple(row[:3]): row[3:] for row in section(findings, "Admitted, and strangers kept out").table.rows}
    inside, far = (prepared.classifier.decide(looked_at.tests[name].hidden_states) for name in ("inside", "far"))
    right, admitted = inside.predictions == looked_at.tests["inside"].labels, inside.admitted
    expected = [right.mean(), admitted.mean(), right[admitted].mean(), (~far.admitted).mean()]
    assert rows["inside", "LM + SDM", "SDM_HR"] == [f"{share:.3f}" for share in expected]
    scores = {tuple(row[2:4]): row[4:] for row in section(findings, "Scores that tell strangers").table.rows}
    auroc = (
        np.mean(inside.confidence[:, None] > far.confidence) + np.mean(inside.confidence[:, None] == far.confidence) / 2
    )
    assert scores["LM + SDM", "SDM confidence"][0] == f"{auroc:.3f}"
    assert ("hidden states", "Mahalanobis") in scores
    assert claim(findings, "strangers").held is bool(admitted.mean() > far.admitted.mean())


def test_a_background_is_shown_to_a_second_classifier(prepared):
    rng = np.random.default_rng(10)
    shown = with_strangers(prepared, (rng.standard_normal((40, 4)) - 4).astype(np.float32))
    (admitted, scores), before = FUNCTIONS["strangers"](shown).sections, len(prepared.classifier.support_)
    called = "LM + SDM, 40 strangers shown"
    assert called in {row[1] for row in admitted.table.rows} and called in {row[2] for row in scores.table.rows}
    assert [row[3] for row in scores.table.rows].count("Mahalanobis") == 1  # it learns nothing from strangers
    assert len(prepared.classifier.support_) == before


# --- Estimators -------------------------------------------------------------------------------------------------------


def test_no_row_of_the_evaluation_is_lost_or_told_twice(found):
    findings = found[0]["estimators"]
    titles = ["All estimators", "Words shuffled", "Bayesian last layers", "What you would pick today"]
    shown = [key for title in titles for key in rows_of(findings, title)]
    every = [(row.dataset, row.model, row.estimator) for row in findings.evaluation.table.rows]
    assert sorted(shown) == sorted(every) and len(set(every)) == len(every)
    assert {dataset for dataset, _, _ in rows_of(findings, "Words shuffled")} == {"mixed"}
    assert {dataset for dataset, _, _ in rows_of(findings, "All estimators")} == {"inside", "near"}


def test_the_main_table_has_the_papers_estimators(found):
    main = rows_of(found[0]["estimators"], "Main table")
    assert {dataset for dataset, _, _ in main} == {"inside", "near"}
    of_one = [(model, estimator) for dataset, model, estimator in main if dataset == "near"]
    plain = ["softmax ≥ α", "temperature ≥ α", "APS", "RAPS"]
    vbll = [(f"LM + discriminative VBLL, KL × {factor}", "VBLL ≥ α") for factor in (1, 50)]
    expected = [(model, rule) for model in ("LM", "LM + CNN") for rule in plain]
    assert of_one == [*expected, *vbll, *(("LM + SDM", rule) for rule in RULES[1:])]


def test_rows_of_a_study_have_the_keys_of_their_estimators(found):
    findings, sdm = found[0], Basis.SDM
    region, lower = EstimatorKey(sdm, Rule.REGION), EstimatorKey(sdm, Rule.REGION_LOWER)
    together = EstimatorKey(Basis.ALL_ROUNDS, Rule.REGION_LOWER)
    calibrated = [Rule.NO_REJECT, Rule.ADAPTOR_SOFTMAX, Rule.DISTANCE_SOFTMAX, Rule.SDM, Rule.REGION]
    expected = {
        ("estimators", "Calibration set"): [EstimatorKey(sdm, rule) for rule in calibrated],
        ("ablation", "Without a learned g"): [region, EstimatorKey(Basis.IDENTITY_SDM, Rule.REGION)] * 4,
        ("sample size", "With and without the effective sample size"): [region, lower] * 3,
        ("ensemble", "The best round and all rounds"): [region, lower, together] * 3,
        ("updatability", "Before and after an update"): [EstimatorKey()] * 8,
        ("alphas", "A range of α"): [region] * 9,
    }
    for (study, title), keys in expected.items():
        assert [row.key for row in section(findings[study], title).table.rows] == keys


def test_the_page_of_results_leaves_long_tables_to_the_report(found):
    shown = {one.title: one.on_page for one in found[0]["estimators"].sections}
    assert [title for title in shown if shown[title]] == ["Main table", "Calibration set"] and len(shown) == 6
    assert all(
        one.on_page for study, findings in found[0].items() if study != "estimators" for one in findings.sections
    )


def test_a_name_with_generative_in_it_takes_nothing_out_of_the_main_table(prepared):
    small = replace(prepared, model="my-generative-lm", experiment=replace(prepared.experiment, groups=("sdm",)))
    titles = [one.title for one in estimators(small).sections]
    assert "Main table" in titles


def test_rows_over_the_adaptor_are_those_of_its_signals(prepared, found):
    table = rows_of(found[0]["estimators"], "All estimators") | rows_of(found[0]["estimators"], "Words shuffled")
    for name, data in prepared.tests.items():
        own = prepared.classifier.decide(data.hidden_states)
        z, d, q = own.logits.astype(np.float64), own.distance_quantile[:, None], own.similarity[:, None]
        top = {
            "no reject": np.ones(len(data)),
            "softmax(z′) ≥ α": softmax_top(z),
            "softmax(d·z′) ≥ α": softmax_top(d * z),
            "sdm(z′) ≥ α": softmax_top(np.log(2 + q) * d * z),
        }
        for rule, confidence in top.items():
            assert np.abs(confidence - ALPHA).min() > 1e-9  # rounding decides nothing
            assert_row(table[name, "LM + SDM", rule], own, confidence >= ALPHA, data)
        assert_row(table[name, "LM + SDM", "SDM_HR"], own, own.admitted, data)
        assert_row(table[name, "LM + SDM", "SDM_HR lower"], own, own.admitted_lower, data)


def softmax_top(z):
    weights = np.exp(z - z.max(axis=1, keepdims=True))
    return weights.max(axis=1) / weights.sum(axis=1)


def test_the_calibration_table_is_that_of_the_model(prepared, found):
    one = section(found[0]["estimators"], "Calibration set")
    calibration, (region,) = prepared.classifier.model_.calibration, prepared.classifier.regions_
    y, y_hat = calibration.labels.numpy(), calibration.predictions.numpy()
    z, d = calibration.logits.double().numpy(), calibration.distance_quantile.numpy()[:, None]
    sdm = softmax_top(np.log(2 + calibration.similarity.numpy()[:, None]) * d * z)
    thresholds = region.thresholds.numpy()
    q = calibration.rescaled_similarity.numpy()
    admitted = {
        "no reject": np.ones(len(y), dtype=bool),
        "softmax(z′) ≥ α": softmax_top(z) >= ALPHA,
        "softmax(d·z′) ≥ α": softmax_top(d * z) >= ALPHA,
        "sdm(z′) ≥ α": sdm >= ALPHA,
        f"SDM_HR, q′_min = {region.min_rescaled_similarity:.4g}": (q >= region.min_rescaled_similarity)
        & (sdm >= thresholds[y_hat] - 1e-12),
    }
    assert region.found and len(one.table.rows) == len(admitted) == 5
    for row, (rule, chosen) in zip(one.table.rows, admitted.items(), strict=True):
        assert (row.dataset, row.model, row.estimator) == ("inside calibration", "LM + SDM", rule)
        assert counts(row) == counted(y_hat.tolist(), chosen, y.tolist(), [0, 1, 2]), rule


def test_the_calibration_part_is_what_was_calibrated_on_and_not_trained_on(prepared):
    part = prepared.calibration
    model = prepared.classifier.model_
    assert part.ids == model.calibration.known.examples.all()[0]
    assert not set(part.ids) & set(model.examples.all()[0]) and len(part) == 150
    np.testing.assert_array_equal(part.labels, model.calibration.labels.numpy())
    place = {name: row for row, name in enumerate(prepared.pool.ids)}
    rows = [place[name] for name in part.ids]
    np.testing.assert_array_equal(part.hidden_states, prepared.pool.hidden_states[rows])
    np.testing.assert_array_equal(part.label_logits, prepared.pool.label_logits[rows])
    assert part.texts == [f"text {name}" for name in part.ids]


def test_claims_over_rounds_are_those_of_the_rounds(prepared, found):
    evidence = claim(found[0]["estimators"], "d").evidence
    lines = []
    for number, model in enumerate(prepared.classifier.round_models_, start=1):
        right = (model.calibration.logits.argmax(1) == model.calibration.labels).sum().item() / 150
        q = model.calibration.regions[0].min_rescaled_similarity
        lines.append(f"round {number}: accuracy {right:.4f}, q′_min {'∞' if np.isinf(q) else f'{q:.4g}'}")
    assert list(evidence[2:]) == lines and evidence[0].startswith("τ = ") and "of all orders" in evidence[1]


def test_claims_of_the_estimators_follow_from_their_tables(found):
    findings = found[0]["estimators"]
    table = {(row.dataset, row.model, row.estimator): row for row in findings.evaluation.table.rows}
    holds = {key: not any(cell.is_below(ALPHA) for _, _, cell in strata(row)) for key, row in table.items()}
    adaptors = [
        key
        for key in holds
        if key[0] == "inside" and ("CNN" in key[1] or "VBLL" in key[1] or key[1].startswith("LM + SDM"))
    ]
    adaptors = [key for key in adaptors if key[2] not in ("no reject", "MAPIE risk control")]
    assert claim(findings, "a").held is all(holds[key] for key in adaptors)
    assert claim(findings, "b").held is holds["near", "LM + SDM", "SDM_HR"]
    falling = ("softmax ≥ α", "temperature ≥ α", "APS", "RAPS", "VBLL ≥ α")
    assert claim(findings, "b′").held is not any(holds[key] for key in holds if key[0] == "near" and key[2] in falling)
    share = table["mixed", "LM + SDM", "SDM_HR"].accuracy.marginal.share
    assert claim(findings, "c").held is (share <= 1 - ALPHA)
    assert claim(findings, "e").held


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """An experiment that asks for a certificate."""
    training = {**TRAINING, "certification_size": 0.25, "control": "all"}
    return make_prepared(tmp_path_factory.mktemp("certified"), training=training, groups=("sdm", "today"))


def test_the_paper_s_protocol_holds_nothing_out_and_certifies_nothing(prepared, found):
    classifier = prepared.classifier
    assert classifier.certification_size is None and classifier.certificate_ is None
    assert sorted([*classifier.training_rows_, *classifier.calibration_rows_]) == list(range(300))
    rows = found[0]["estimators"].evaluation.table
    assert not any("certified" in row.estimator for row in rows.rows) and rows.note == ""
    for data in prepared.tests.values():
        decisions = classifier.decide(data.hidden_states)
        np.testing.assert_array_equal(decisions.admitted, decisions.admitted_at[:, 0])


@pytest.mark.parametrize("study", FUNCTIONS)
def test_claims_about_the_paper_stay_about_the_region_beside_a_certificate(study, certified):
    classifier = certified.classifier
    assert len(classifier.certification_rows_) == 75 and classifier.certificate_.found
    own = {name: classifier.decide(data.hidden_states) for name, data in certified.tests.items()}
    assert any((one.admitted != one.admitted_at[:, 0]).any() for one in own.values())
    findings = FUNCTIONS[study](with_strangers(certified) if study == "strangers" else certified)
    tables = [one.table for one in findings.sections if isinstance(one.table, ResultTable)]
    shown = [row for table in tables for row in table.rows if row.estimator == str(Rule.REGION)]
    shown = [row for row in shown if row.dataset in own and row.key.basis is Basis.SDM and row.alpha == ALPHA]
    assert shown or study in ("strangers", "updatability", "alphas")
    for row in shown:
        assert row.accuracy.marginal.n_admitted == own[row.dataset].admitted_at[:, 0].sum()
    for one in findings.claims:
        assert not any("certified" in line for line in one.evidence)


# --- Ablation ---------------------------------------------------------------------------------------------------------


def test_ablation_is_a_classifier_with_the_identity(prepared, found):
    identity = SDMClassifier.paper(**TRAINING, adaptor="identity").fit(prepared.pool)
    place = {name: row for row, name in enumerate(prepared.pool.ids)}
    table = section(found[0]["ablation"], "Without a learned g").table
    by_name = {(row.dataset, row.model): row for row in table.rows}
    assert len(by_name) == len(table.rows) == 8
    for label, classifier in (("learned g", prepared.classifier), ("g = identity", identity)):
        ids = classifier.model_.calibration.known.examples.all()[0]
        part = prepared.pool.take([place[name] for name in ids])
        for name, data in {"inside calibration": part, **prepared.tests}.items():
            decisions = classifier.decide(data.hidden_states)
            assert_row(by_name[name, f"LM + SDM, {label}"], decisions, decisions.admitted, data)


def test_ablation_puts_both_of_a_data_set_side_by_side_and_judges_the_identity(found):
    findings = found[0]["ablation"]
    rows = section(findings, "Without a learned g").table.rows
    assert [row.dataset for row in rows[::2]] == [row.dataset for row in rows[1::2]]
    assert all("learned" in row.model for row in rows[::2]) and all("identity" in row.model for row in rows[1::2])
    below = [any(cell.is_below(ALPHA) for _, _, cell in strata(row)) for row in rows[1::2]]
    assert claim(findings, "ablation").held is not any(below)
    pairs = [(a.accuracy.marginal.share, b.accuracy.marginal.share) for a, b in zip(rows[::2], rows[1::2], strict=True)]
    fewer = claim(findings, "ablation′")
    told = [b <= a for a, b in pairs if a or b]  # nothing can be told where both reject all
    assert told and fewer.held is (sum(told) > len(told) / 2)
    expected = [
        f"{row.dataset}: {a:.1%} with a learned g, {b:.1%} without"
        for row, (a, b) in zip(rows[::2], pairs, strict=True)
    ]
    assert list(fewer.evidence) == expected


def test_ablation_without_a_seed_uses_that_of_the_classifier(tmp_path):
    # Otherwise the two have other training and calibration sets, and more than g differs.
    training = {**TRAINING, "random_state": None, "n_rounds": 1, "max_epochs": 1}
    unseeded = make_prepared(tmp_path, training=training)
    ablation(unseeded)
    assert stored_seed(tmp_path / "identity") == unseeded.classifier.random_seed_


def test_both_of_the_ablation_have_the_same_splits(prepared, found):
    assert found[0]["ablation"].claims  # the study was run
    assert stored_seed(prepared.directory / "identity") == prepared.classifier.random_seed_


@pytest.mark.parametrize(
    ("learned", "identity", "held"),
    [
        ((0, 0, 0, 0), (0, 0, 0, 0), None),  # both reject all everywhere
        ((0, 0, 0, 1), (0, 0, 0, 0), True),  # of one data set that tells, one
        ((0, 0, 0, 0), (0, 0, 0, 1), False),  # three that tell nothing do not outvote it
        ((2, 2, 0, 0), (2, 3, 0, 0), False),  # one of two is not most
        ((2, 2, 2, 0), (2, 1, 3, 0), True),
    ],
)
def test_ablation_leaves_out_data_sets_on_which_both_reject_all(learned, identity, held, prepared, monkeypatch):
    names = ["inside calibration", *prepared.tests]
    admitted = {
        Basis.SDM: dict(zip(names, learned, strict=True)),
        Basis.IDENTITY_SDM: dict(zip(names, identity, strict=True)),
    }

    def row(prepared, classifier, data, name, model, key):
        return ResultRow(name, model, "SDM_HR", ALPHA, selected(admitted[key.basis][name]), key)

    monkeypatch.setattr("research.experiments.studies._region_row", row)
    fewer = claim(ablation(prepared), "ablation′")
    assert fewer.held is held
    assert fewer.evidence == tuple(
        f"{name}: {a / 10:.1%} with a learned g, {b / 10:.1%} without"
        for name, a, b in zip(names, learned, identity, strict=True)
    )


def selected(number):
    """So many of ten admitted, all of them right."""
    cell = Cell(10, number, number, number / 10)
    return SelectiveAccuracy({0: cell}, {0: cell}, cell)


# --- Sample size ------------------------------------------------------------------------------------------------------


def test_the_lower_estimator_is_that_of_the_decisions(prepared, found):
    findings = found[0]["sample size"]
    table = rows_of(findings, "With and without the effective sample size")
    grid = {row[0]: row[1:] for row in section(findings, "Effective sample sizes").table.rows}
    assert len(table) == 6 and list(grid) == list(prepared.tests)
    for name, data in prepared.tests.items():
        own = prepared.classifier.decide(data.hidden_states)
        assert_row(table[name, "LM + SDM", "SDM_HR"], own, own.admitted, data)
        assert_row(table[name, "LM + SDM", LOWER], own, own.admitted_lower, data)
        fewest = own.effective_sample_sizes.min(axis=1)
        epsilon = np.minimum(1, np.sqrt(np.log(2 / (1 - ALPHA)) / (2 * np.maximum(fewest, 1e-300))))
        expected = [f"{np.median(fewest):.0f}", f"{np.median(epsilon):.3f}", f"{np.mean(fewest == 0):.1%}"]
        assert grid[name] == expected
    assert claim(findings, "sample size′").held
    assert claim(findings, "sample size′").evidence == tuple(f"{name}: 0" for name in prepared.tests)
    below = [any(cell.is_below(ALPHA) for _, _, cell in strata(row)) for key, row in table.items() if key[2] == LOWER]
    assert claim(findings, "sample size").held is not any(below)


def everything(decisions):
    """Decisions that admit all inputs."""
    all_of_them = np.ones_like(decisions.admitted)
    return replace(decisions, admitted=all_of_them, admitted_at=np.ones_like(decisions.admitted_at))


def test_a_lower_estimator_that_admits_more_is_not_within_the_region(prepared, monkeypatch):
    monkeypatch.setattr("research.experiments.studies._lower", everything)
    within = claim(sample_size(prepared), "sample size′")
    rejected = {
        name: int((~prepared.classifier.decide(data.hidden_states).admitted).sum())
        for name, data in prepared.tests.items()
    }
    assert all(rejected.values()) and within.held is False
    assert within.evidence == tuple(f"{name}: {number}" for name, number in rejected.items())


# --- Ensemble ---------------------------------------------------------------------------------------------------------


def test_the_ensemble_admits_where_all_rounds_agree_and_admit(prepared, found):
    findings = found[0]["ensemble"]
    table = rows_of(findings, "The best round and all rounds")
    public = SDMEnsemble.from_classifier(prepared.classifier)
    for name, data in prepared.tests.items():
        rounds = [model.decide(torch.as_tensor(data.hidden_states)) for model in prepared.classifier.round_models_]
        agree = np.all([one.predictions == rounds[0].predictions for one in rounds], axis=0)
        admitted = agree & np.all([one.admitted_lower for one in rounds], axis=0)
        together = public.decide(data.hidden_states)
        np.testing.assert_array_equal(together.admitted, admitted)
        assert_row(table[name, "LM + SDM", "all 4 rounds"], together, admitted, data)
        own = prepared.classifier.decide(data.hidden_states)
        assert_row(table[name, "LM + SDM", "SDM_HR"], own, own.admitted, data)
        assert_row(table[name, "LM + SDM", LOWER], own, own.admitted_lower, data)
        assert not (admitted & ~own.admitted_lower).any()  # the best round is one of them
    assert len(table) == 9 and claim(findings, "ensemble′").held
    of_all = claim(findings, "ensemble")
    assert of_all.statement == "The ensemble of all rounds is at or above α or rejects all."
    below = [
        any(cell.is_below(ALPHA) for _, _, cell in strata(table[name, "LM + SDM", "all 4 rounds"]))
        for name in prepared.tests
    ]
    assert of_all.held is not any(below)
    shares = {key: row.accuracy.marginal.share for key, row in table.items()}
    assert claim(findings, "ensemble′").evidence == tuple(
        f"{name}: {shares[name, 'LM + SDM', 'all 4 rounds']:.1%} by all rounds, "
        f"{shares[name, 'LM + SDM', LOWER]:.1%} by the best"
        for name in prepared.tests
    )


def test_an_ensemble_that_admits_more_than_the_best_round_is_told_so(prepared, monkeypatch):
    def nothing(decisions):
        none = np.zeros_like(decisions.admitted)
        return replace(decisions, admitted=none, admitted_at=np.zeros_like(decisions.admitted_at))

    monkeypatch.setattr("research.experiments.studies._lower", nothing)
    assert claim(ensemble(prepared), "ensemble′").held is False


def test_the_rounds_are_listed_with_accuracy_and_region(prepared, found):
    rows = section(found[0]["ensemble"], "Rounds").table.rows
    assert [row[0] for row in rows] == [f"round {number}" for number in range(1, 5)]
    for row, model in zip(rows, prepared.classifier.round_models_, strict=True):
        right = (model.calibration.logits.argmax(1) == model.calibration.labels).sum().item() / 150
        q = model.calibration.regions[0].min_rescaled_similarity
        assert list(row[1:]) == [f"{right:.3f}", "∞" if np.isinf(q) else f"{q:.4g}"]


# --- Updatability -----------------------------------------------------------------------------------------------------


def split_of_update(prepared, name, share):
    """Rows that are added and rows that are left, by the seed of the classifier."""
    data = prepared.tests[name]
    order = np.random.default_rng(prepared.classifier.random_seed_).permutation(len(data))
    n = int(share * len(data))
    return sorted(order[:n].tolist()), sorted(order[n:].tolist())


def check_update(prepared, findings, name, share, outside):
    data = prepared.tests[name]
    added, rest = split_of_update(prepared, name, share)
    n = len(added)
    assert set(added).isdisjoint(rest) and len(added) + len(rest) == len(data)
    X, y = data.hidden_states, np.asarray(data.labels)

    def copied():
        return copy.deepcopy(prepared.classifier)

    expected = {
        "before": copied(),
        f"{n} added": copied().add_exemplars(X[added], y[added]),
        f"{n} added, recalibrated": copied().add_exemplars(X[added], y[added]).recalibrate(),
        f"{n} added as {outside!r}": copied().add_exemplars(X[added], [outside] * n, allow_new_labels=True),
    }
    table = section(findings, "Before and after an update").table
    by_name = {(row.dataset, row.model): row for row in table.rows}
    looked_at = {f"rest of {name}": data.take(rest), "inside": prepared.tests["inside"]}
    assert len(by_name) == len(table.rows) == 8
    for where, part in looked_at.items():
        for when, classifier in expected.items():
            decisions = classifier.decide(part.hidden_states)
            assert_row(by_name[where, when], decisions, decisions.admitted, part)
    of_rest = {when: by_name[f"rest of {name}", when] for when in expected}
    assert claim(findings, "update").held
    assert claim(findings, "update").evidence == tuple(
        f"{when}: 0 of {len(rest)} predictions differ" for when in expected
    )
    below = [any(cell.is_below(ALPHA) for _, _, cell in strata(row)) for row in list(of_rest.values())[1:]]
    assert claim(findings, "update′").held is not any(below)
    judged = {line.partition(", SDM_HR")[0] for line in claim(findings, "update′").evidence}
    assert judged == {f"rest of {name}, {when}" for when in expected if when != "before"}
    shares = [row.accuracy.marginal.share for row in of_rest.values()]
    assert claim(findings, "update″").held is (shares[3] <= shares[0]) is True  # q can but fall
    assert claim(findings, "update″").evidence == tuple(
        f"{when}: {share:.2%} admitted" for when, share in zip(of_rest, shares, strict=True)
    )


def test_updates_are_those_of_a_copy(prepared, found):
    check_update(prepared, found[0]["updatability"], "near", 0.5, 3)


def test_updates_of_another_set_by_another_share(prepared):
    changed = replace(prepared, experiment=replace(prepared.experiment, updates=Updates("mixed", 0.2)))
    check_update(changed, updatability(changed), "mixed", 0.2, 3)


def test_a_set_that_is_part_of_the_support_is_not_looked_at_as_if_it_were_new(prepared):
    changed = replace(prepared, experiment=replace(prepared.experiment, updates=Updates("inside", 0.5)))
    rows = section(updatability(changed), "Before and after an update").table.rows
    assert {row.dataset for row in rows} == {"rest of inside"}, "half of 'inside' is in the support"


def test_a_data_set_may_be_called_like_a_part_of_another(prepared):
    # Names decide nothing: only the rest of 'near' is judged.
    inside, near, mixed = prepared.experiment.tests
    tests = (replace(inside, name="rest of the world: 0 of all"), near, mixed)
    states = {"rest of the world: 0 of all": prepared.tests["inside"], "near": prepared.tests["near"]}
    renamed = replace(prepared, experiment=replace(prepared.experiment, tests=tests), tests=states)
    named, plain = updatability(renamed), updatability(prepared)
    assert [one.held for one in named.claims] == [one.held for one in plain.claims]
    assert [one.evidence for one in named.claims] == [one.evidence for one in plain.claims]


def test_a_changed_prediction_is_counted(prepared, monkeypatch):
    def worse(classifier, added, labels):
        other = copy.copy(classifier)
        other.predict = lambda X: np.where(np.arange(len(X)) < 2, -1, classifier.predict(X))
        other.recalibrate = lambda: other
        return other

    monkeypatch.setattr("research.experiments.studies._with_support", worse)
    unchanged = claim(updatability(prepared), "update")
    assert unchanged.held is False
    numbers = [line.rpartition(": ")[2] for line in unchanged.evidence]
    assert numbers == ["0 of 45 predictions differ", *["2 of 45 predictions differ"] * 3]


def test_updates_need_a_shifted_set_and_something_to_add(prepared):
    inside = tuple(data for data in prepared.experiment.tests if data.role != "shifted")
    without = replace(prepared, experiment=replace(prepared.experiment, tests=inside))
    with pytest.raises(InvalidInputError, match="needs a test set whose role is 'shifted'"):
        updatability(without)
    nothing = replace(prepared, experiment=replace(prepared.experiment, updates=Updates("near", 0.001)))
    with pytest.raises(InvalidInputError, match=r"^updates\.share = 0\.001 of 90 adds 0\.$"):
        updatability(nothing)


# --- Alphas -----------------------------------------------------------------------------------------------------------


def test_each_alpha_has_the_region_of_a_recalibrated_copy(prepared, found):
    findings = found[0]["alphas"]
    table = rows_of(findings, "A range of α")
    regions = section(findings, "Regions").table
    assert list(regions.columns) == [
        "α",
        "q′_min",
        *(f"ψ of {c}" for c in range(3)),
        *(f"points of {c}" for c in range(3)),
    ]
    assert len(table) == 9 and [row[0] for row in regions.rows] == ["0.95", "0.7", "0.85"]
    admitted = {}
    for alpha, listed in zip(ALPHAS, regions.rows, strict=True):
        alone = copy.deepcopy(prepared.classifier).recalibrate(alpha=alpha)
        region = alone.region_
        if region.found:
            thresholds = [f"{value:.3f}" for value in region.thresholds.tolist()]
            expected = [f"{region.min_rescaled_similarity:.4g}", *thresholds]
        else:
            expected = ["∞"] * 4
        assert list(listed[1:]) == [*expected, *(str(count) for count in region.class_counts.tolist())]
        for name, data in prepared.tests.items():
            decisions = alone.decide(data.hidden_states)
            admitted[name, alpha] = decisions.admitted
            row = table[name, "LM + SDM", f"SDM_HR, α = {alpha:g}"]
            assert_row(row, decisions, decisions.admitted, data, alpha)
    below = [any(cell.is_below(row.alpha) for _, _, cell in strata(row)) for row in table.values()]
    assert claim(findings, "alphas").held is not any(below)
    # Each point belongs to the largest alpha that admits it.
    assigned = section(findings, "The largest α that admits a point").table
    assert list(assigned.columns) == ["data set", "α = 0.95", "α = 0.7", "α = 0.85", "none"]
    for row in assigned.rows:
        largest = np.max([np.where(admitted[row[0], alpha], alpha, 0.0) for alpha in ALPHAS], axis=0)
        assert list(row[1:]) == [f"{np.mean(largest == alpha):.1%}" for alpha in (*ALPHAS, 0.0)]


# --- Odd data ---------------------------------------------------------------------------------------------------------


def test_labels_of_text_have_an_outside_of_text(tmp_path):
    training = {**TRAINING, "n_rounds": 1, "max_epochs": 2}
    named = make_prepared(tmp_path, labels=("ant", "bee", "cat"), training=training)
    check_update(named, updatability(named), "near", 0.5, "outside")


@pytest.fixture(scope="module")
def hopeless(tmp_path_factory):
    """Labels that no state tells: no region is found, and everything is rejected."""
    training = {**TRAINING, "alpha": 0.999, "n_rounds": 2, "max_epochs": 1}
    made = make_prepared(
        tmp_path_factory.mktemp("hopeless"), training=training, groups=("sdm",), alphas=(0.999, 0.9999)
    )
    rng = np.random.default_rng(0)
    pool = replace(made.pool, labels=rng.permutation(made.pool.labels))
    one_class = made.tests["near"].take(np.flatnonzero(made.tests["near"].labels == 1))
    with quiet():
        classifier = made.experiment.classifier().fit(pool, keep_rounds=True)
    assert not classifier.region_.found
    return replace(made, pool=pool, classifier=classifier, tests={**made.tests, "near": one_class})


@pytest.mark.parametrize("study", FUNCTIONS)
def test_everything_is_rejected_and_a_class_is_absent(study, hopeless):
    findings = FUNCTIONS[study](hopeless)
    for one in findings.sections:
        if isinstance(one.table, ResultTable):
            chosen = [row for row in one.table.rows if "SDM_HR" in row.estimator or row.estimator.startswith("all ")]
            if study != "ablation":
                assert all(row.accuracy.marginal.n_admitted == 0 for row in chosen)
            for row in (row for row in one.table.rows if row.dataset == "near"):
                assert row.accuracy.by_class[0].is_absent and not row.accuracy.by_class[1].is_absent
    if study == "alphas":
        assert [row[1:5] for row in findings.sections[0].table.rows] == [["∞"] * 4] * 2
    if study == "ensemble":
        assert [row[2] for row in findings.sections[1].table.rows] == ["∞", "∞"]


# --- Parts ------------------------------------------------------------------------------------------------------------


def test_roles_and_names(prepared):
    assert prepared.roles == {"inside": "in distribution", "near": "shifted", "mixed": "shuffled"}
    assert prepared.calibration_name == "inside calibration"
    assert len(calibration_part(prepared.pool, prepared.classifier)) == 150


def test_the_calibration_set_is_called_after_the_set_that_the_pool_is_of(prepared):
    inside, near, mixed = prepared.experiment.tests
    other_order = replace(prepared, experiment=replace(prepared.experiment, tests=(near, inside, mixed)))
    assert other_order.calibration_name == "inside calibration"
    paper = replace(prepared, experiment=replace(prepared.experiment, tests=(near, mixed)))  # as in factcheck
    assert paper.calibration_name == "near calibration"
