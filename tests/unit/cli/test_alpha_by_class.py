"""``--alpha CLASS=ALPHA``: train, recalibrate and certify with a target for each class."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from small import quiet
from torchsdm import SDMClassifier
from torchsdm.cli.command import sdm
from torchsdm.errors import InvalidInputError

NAMES = np.array(["ham", "spam"])
QUICK = ("--rounds", 1, "--epochs", 5, "--filters", 16, "--learning-rate", 0.01, "--seed", 0)
ALPHA = ("--alpha", "spam=0.9", "--alpha", "ham=0.8")


def run(*words):
    with quiet():
        done = CliRunner().invoke(sdm, [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 2, 2000)
    X = rng.standard_normal((2000, 4)) + 2.4 * (numbers[:, None] - 0.5) * np.array([1, 1, 0, 0])
    np.savez(folder / "train.npz", hidden_states=X.astype(np.float32), labels=NAMES[numbers])
    (folder / "said.txt").write_text(run("train", folder / "train.npz", "-o", folder / "model", *QUICK, *ALPHA))
    return folder


def test_train_says_and_keeps_the_targets(folder):
    model = SDMClassifier.load(folder / "model")
    assert model.alpha == {"spam": 0.9, "ham": 0.8} and model.certificate_.target == (0.8, 0.9)
    said = (folder / "said.txt").read_text()
    assert "right at least as often as asked (0.8 for 'ham', 0.9 for 'spam')" in said
    assert "region at alpha 0.8 for 'ham', 0.9 for 'spam'" in said


def test_recalibrate_and_certify_take_them(folder, tmp_path):
    alpha = ("--alpha", "spam=0.85", "--alpha", "ham=0.75")
    for verb in ("recalibrate", "certify"):
        result = json.loads(run(verb, folder / "model", *alpha, "-o", tmp_path / verb, "--json"))
        by_class = [{"label": "ham", "alpha": 0.75}, {"label": "spam", "alpha": 0.85}]
        assert result["certificate"]["class_alphas"] == by_class and result["certificate"]["alpha"] == 0.75
        assert result["certificate"]["looks"] == 2
    assert SDMClassifier.load(tmp_path / "recalibrate").region_.target == (0.75, 0.85)


def test_choosing_one_alpha_for_such_a_model(folder, tmp_path):
    prices = ("--cost-error", 5, "--cost-review", 1)
    result = json.loads(run("choose", folder / "model", *prices, "-o", tmp_path / "chosen", "--json"))
    assert result["certificate"]["class_alphas"] is None and result["certificate"]["alpha"] == result["choice"]["alpha"]


@pytest.mark.parametrize(
    ("alpha", "words"),
    [
        (("spam=0.9",), "Nothing was given for 'ham'"),
        (("spam=0.9", "hamm=0.9"), "Did you mean 'ham'"),
        (("spam=0.9", "0.8"), "not both"),
        (("spam=0.9", "spam=0.8"), "once for every class"),
        (("spam=0.9", "ham=0.2"), "must be in"),
    ],
)
def test_what_makes_no_sense_is_refused(folder, tmp_path, alpha, words):
    given = [word for one in alpha for word in ("--alpha", one)]
    for verb in (("train", folder / "train.npz", *QUICK), ("recalibrate", folder / "model")):
        with pytest.raises(InvalidInputError, match=words):
            run(*verb, "-o", tmp_path / "refused", *given)
    assert not (tmp_path / "refused").exists()


def test_texts_are_not_read_for_classes_that_are_not_there(tmp_path):
    rows = [{"text": f"text {i}", "label": "ham" if i % 2 else "spam"} for i in range(20)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("-m", tmp_path / "no-such-model", "-o", tmp_path / "model", "--alpha", "spam=0.9", "--alpha", "hma=0.9")
    with pytest.raises(InvalidInputError, match="Did you mean 'ham'"):
        run("train", tmp_path / "texts.jsonl", *given)


def test_control_of_all_takes_one_alpha_and_a_certificate_one_target(folder, tmp_path):
    with pytest.raises(InvalidInputError, match="control 'all', which takes all answers together"):
        run("train", folder / "train.npz", "-o", tmp_path / "m", *ALPHA, "--control", "all")
    with pytest.raises(InvalidInputError, match="--alpha takes one number, or CLASS=NUMBER"):
        run("certify", folder / "model", "--alpha", 0.9, "--alpha", 0.8)
