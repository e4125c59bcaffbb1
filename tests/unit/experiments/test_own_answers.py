"""The language model's own answers: labels, its own opinion of them, and a run with a decoder."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tiny_models import phi3, save_model, tiny_backbone
from torchsdm import HiddenStateExtractor, LabelledStates
from torchsdm.errors import InvalidInputError
from torchsdm.experiments.own_answers import judge_own_answers
from torchsdm.experiments.run import run_experiment
from torchsdm.experiments.specification import load_experiment


def test_labels_say_whether_the_answer_is_right_and_logits_what_the_model_thinks_of_it():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(0, 3, (50, 4)).astype(np.float32), rng.choice([3, 7, 8, 9], 50)
    states = LabelledStates(rng.normal(size=(50, 6)), labels, label_logits=logits, logit_labels=(7, 3, 9, 8))
    judged = judge_own_answers(states)
    assert judged.logit_labels == (0, 1) and judged.hidden_states is states.hidden_states
    for row in range(50):
        weights = [math.exp(float(value)) for value in logits[row]]
        answer = max(range(4), key=lambda column: weights[column])
        p = weights[answer] / sum(weights)
        assert judged.labels[row] == int((7, 3, 9, 8)[answer] == labels[row])
        np.testing.assert_allclose(judged.label_logits[row], [math.log(1 - p), math.log(p)], rtol=1e-4, atol=1e-6)
    assert 0 < judged.labels.sum() < 50


def test_certainty_is_not_rounded_away():
    states = LabelledStates(np.zeros((1, 2)), [0], label_logits=[[80.0, 0.0]], logit_labels=(0, 1))
    np.testing.assert_allclose(judge_own_answers(states).label_logits, [[-80.0, 0.0]], atol=1e-6)


def test_without_answers_it_is_refused():
    with pytest.raises(InvalidInputError, match="give 'label_words' in the prompt"):
        judge_own_answers(LabelledStates(np.zeros((2, 2)), [0, 1]))


EXPERIMENT = """
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
        lines = (json.dumps(row) + "\n" for row in part)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "mine.toml").write_text(EXPERIMENT, encoding="utf-8")
    experiment = load_experiment(str(tmp_path / "mine.toml"))
    model = save_model(tmp_path / "model", *phi3())
    result = run_experiment(experiment, str(model), tmp_path / "run")
    logits = HiddenStateExtractor(tiny_backbone("phi3"), experiment.prompt).extract(texts[140:]).label_logits
    n_right = int((logits.argmax(axis=1) == [row["label"] for row in rows[140:]]).sum())
    of_tests = {one["name"]: one["labels"] for one in result["data"]}
    assert of_tests["same"] == {"0": len(texts) - 140 - n_right, "1": n_right}
    estimators = {(row[1], row[2]) for section in result["sections"] for row in section["rows"]}
    assert ("model", "certified softmax") in estimators and ("model + SDM", "certified") in estimators
