"""The studies' own arithmetic, and the documentation's figures against the results they were written from."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.fixture(scope="module")
def guard():
    spec = importlib.util.spec_from_file_location("guard_study", STUDIES / "guard.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results(guard):
    return json.loads(guard.RESULTS.read_text(encoding="utf-8"))


def points(rng, n, shift=0.0):
    distance = rng.gamma(3, 1, n) + shift
    return SimpleNamespace(nearest_distance=distance, confidence=1 / (1 + distance), similarity=rng.poisson(3, n))


def test_the_page_says_what_the_results_say(guard, results):
    page = guard.PAGE.read_text(encoding="utf-8")
    written = page.partition(guard.BEGIN)[2].partition(guard.END)[0]
    assert written.strip() == guard.section(results)


def test_the_picture_shows_the_turn_and_the_alarm(guard, results, tmp_path):
    turn, n_before = results["turn"], results["n_before_turn"]
    largest = np.max(list(turn["log10_martingale_third"].values()), axis=0)
    assert np.flatnonzero(largest >= 2)[0] + 1 == turn["raised_at"] > n_before
    guard.draw(results, tmp_path / "guard.svg")
    assert f"alarm at input {turn['raised_at']}" in (tmp_path / "guard.svg").read_text(encoding="utf-8")


def test_streams_that_never_raise_count_as_infinitely_late(guard):
    found = guard.delays([(3, "confidence"), (None, None), (3, "similarity"), (2, "confidence")])
    assert found["raised_by"] == {"confidence": 2, "similarity": 1}
    delays = guard.all_delays([{"kind": json.loads(json.dumps(found))}], "kind")
    assert delays == [2, 3, 3, math.inf]
    assert [guard.quantile(delays, share) for share in (0.5, 0.75, 0.9)] == [3, 3, math.inf]


def test_delays_are_counted_from_the_turn(guard):
    rng = np.random.default_rng(0)
    sets = [points(rng, 300), points(rng, 250), points(rng, 60, shift=50.0), points(rng, 300)]
    ends = guard.streams(*sets, seed=0, n_streams=5)
    for kind in ("after_shift", "after_turn"):
        delays = guard.all_delays([ends], kind)
        assert len(delays) == 5 and 1 <= delays[0] <= delays[-1] < 20
    assert [ends[kind]["n_inputs"] for kind in ("before_turn", "calm", "simulated", "calibration_reused")] == [
        *(200, 250, 10_000, 550)
    ]
    assert {ends[kind]["alarms"] for kind in ("before_turn", "calm", "simulated", "calibration_reused")} == {0}
    turn = guard.one_turn(*sets[:3], seed=0)
    assert turn["raised_at"] - guard.N_BEFORE_TURN in guard.all_delays([ends], "after_turn")


def test_without_data_the_study_says_what_it_needs():
    environment = {name: value for name, value in os.environ.items() if name != "TORCHSDM_DATA"}
    done = subprocess.run([sys.executable, STUDIES / "guard.py"], capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "mixtral32_pool" in done.stderr and "Traceback" not in done.stderr
