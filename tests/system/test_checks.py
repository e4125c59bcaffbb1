"""Spot checks of a service that is killed between draw and verdict: what was told is there."""

from __future__ import annotations

import numpy as np
import pytest

import tiny_models
from served import save_text_model, server
from small import quietly

RNG = np.random.default_rng(0)
SEEN = tiny_models.TEXT.split()  # other words would look alike to the language model, and be copies
ENDS = ["dull dull dull late", "fine better good fine"]
TEXTS = [f"{' '.join(RNG.choice(SEEN, 3))} {ENDS[n % 2]}" for n in range(400)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return quietly(lambda: save_text_model(tmp_path_factory.mktemp("checks"), TEXTS, [n % 2 for n in range(400)]))


def test_draws_and_verdicts_survive_kill_9(model):
    with server(model, "--check-rate", "1") as running:
        rows = running.ask("/v1/decide", {"texts": TEXTS[:100]})[1]["decisions"]
        running.kill()
    n = sum(row["admitted"] for row in rows)
    assert n > 20
    with server(model) as running:
        state = running.ask("/v1/checks?most=500")[1]
        assert state["checks"]["n_drawn"] == n == len(state["waiting"]) and not state["drawing"]
        verdicts = [{"check": one["check"], "right": one["prediction"] == 0} for one in state["waiting"][:-1]]
        told = running.ask("/v1/checks", {"verdicts": verdicts, "who": "Ada"})[1]
        running.kill()
    assert told["taken"] == n - 1 and told["checks"]["raised"]
    with server(model) as running:
        assert running.ask("/v1/checks")[1]["checks"] == told["checks"]
        assert running.metric("torchsdm_checks_raised") == 1 == running.metric("torchsdm_checks_waiting")
        rows = running.ask("/v1/decide", {"texts": TEXTS[:100]})[1]["decisions"]
        assert not any(row["admitted"] for row in rows if row["prediction"] == 1)
