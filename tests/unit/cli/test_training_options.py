"""``sdm evaluate`` and ``sdm report`` train other estimators on the data that ``sdm train`` was given."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from small import quiet
from torchsdm import SDMClassifier, read_states
from torchsdm.cli.command import sdm
from torchsdm.errors import InvalidInputError
from torchsdm.evaluation import Evaluation, classifier_entrants, paper_entrants

QUICK = ("--rounds", 1, "--epochs", 8, "--filters", 8, "--learning-rate", 0.01, "--alpha", 0.8, "--seed", 0)


def run(*words):
    with quiet():
        return CliRunner().invoke(sdm, [*map(str, words)], catch_exceptions=False).stdout


@pytest.fixture(scope="module")
def folder(insects, tmp_path_factory):
    """A model with a separate calibration set, and its data."""
    folder = tmp_path_factory.mktemp("calibrated")
    for name, rows in (("train", slice(100)), ("calibration", slice(100, 180)), ("test", slice(180, 240))):
        np.savez(folder / f"{name}.npz", hidden_states=insects.X[rows], labels=insects.y[rows])
    run("train", folder / "train.npz", "--calibration", folder / "calibration.npz", "-o", folder / "model", *QUICK)
    return folder


def test_evaluate_trains_on_the_training_set_and_calibrates_on_the_calibration_set(folder):
    given = ("--training", folder / "train.npz", "--calibration", folder / "calibration.npz", "--groups", "cnn")
    rows = json.loads(run("evaluate", folder / "model", folder / "test.npz", *given, "--json"))
    classifier = SDMClassifier.load(folder / "model")
    training, calibration, test = (read_states(folder / f"{name}.npz") for name in ("train", "calibration", "test"))
    trained = paper_entrants(training, classifier, calibration=calibration, groups=["cnn"], name="states")
    entrants = [*classifier_entrants(classifier, name="states"), *trained]
    assert rows == json.loads(Evaluation(entrants, {"test": test}, 0.8).table.to_json())


def test_report_does_so_too(folder, tmp_path):
    pytest.importorskip("matplotlib")
    given = ("--training", folder / "train.npz", "--calibration", folder / "calibration.npz", "--groups", "cnn")
    run("report", folder / "model", folder / "test.npz", "-o", tmp_path / "report.html", *given)
    assert "states + CNN" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "expected"), [("training", "'calibration' of paper_entrants"), ("calibration", "only with training data")]
)
def test_one_without_the_other_is_refused(folder, given, expected):
    file = folder / f"{given.replace('training', 'train')}.npz"
    with pytest.raises(InvalidInputError, match=expected):
        run("evaluate", folder / "model", folder / "test.npz", f"--{given}", file)
