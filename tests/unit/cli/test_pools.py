"""``sdm train --control pooled --pools FILE``: small classes taken together, and said so."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from small import quiet
from torchsdm import SDMClassifier
from torchsdm.cli.command import sdm
from torchsdm.errors import InvalidInputError

NAMES = [f"intent {number}" for number in range(8)]
QUICK = ("--rounds", 1, "--epochs", 8, "--filters", 16, "--learning-rate", 0.01, "--seed", 0, "--alpha", 0.9)


def run(*words):
    with quiet():
        done = CliRunner().invoke(sdm, [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 8, 1200)
    X = 5 * np.eye(8)[y] + rng.standard_normal((1200, 8))
    np.savez(tmp_path / "train.npz", hidden_states=X.astype(np.float32), labels=np.array(NAMES)[y])
    (tmp_path / "pools.json").write_text(json.dumps({"first": NAMES[:4], "last": NAMES[4:]}))
    return tmp_path


def test_pools_of_a_file_are_certified_and_said(data):
    pools = ("--control", "pooled", "--pools", data / "pools.json")
    said = run("train", data / "train.npz", "-o", data / "model", *QUICK, *pools)
    assert "for every pool of true classes and of predicted classes" in said
    assert "taken together, in 2 pools: any of 4 ('intent 0', 'intent 1', 'intent 2', ...)" in said
    assert SDMClassifier.load(data / "model").certificate_.pools == ((0, 1, 2, 3), (4, 5, 6, 7))
    shown = json.loads(run("train", data / "train.npz", "-o", data / "other", *QUICK, *pools, "--json"))
    pooled = [group["labels"] for group in shown["certificate"]["groups"] if group["kind"] == "class"]
    assert pooled == [NAMES[:4], NAMES[4:]]


@pytest.mark.parametrize(
    ("content", "control", "words"),
    [
        ('{"first": ["intent 0"]}', "pooled", "must name every class"),
        ('{"first": "intent 0"}', "pooled", "lists of classes by name"),
        ("[1, 2", "pooled", "cannot be read as JSON"),
        ("{}", "groups", "'pools' are for control 'pooled' or 'auto'. Got control 'groups'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(content, control, words, data):
    (data / "pools.json").write_text(content)
    with pytest.raises(InvalidInputError, match=words):
        run("train", data / "train.npz", "-o", data / "m", "--control", control, "--pools", data / "pools.json")
    assert not (data / "m").exists()
