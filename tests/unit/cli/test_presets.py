"""``sdm train``: a preset fills in what is not given."""

from __future__ import annotations

import inspect

import pytest
from click.testing import CliRunner

from torchsdm import SDMClassifier, SDMEnsemble
from torchsdm.cli.command import sdm
from torchsdm.settings import PAPER

DEFAULTS = {name: one.default for name, one in inspect.signature(SDMClassifier).parameters.items()}


def test_the_papers_settings_are_known_and_can_be_changed():
    assert PAPER.keys() <= DEFAULTS.keys()
    papers = SDMClassifier.paper(0.9, n_rounds=3)
    assert papers.get_params() == {**DEFAULTS, **PAPER, "alpha": 0.9, "n_rounds": 3}
    assert isinstance(SDMEnsemble.paper(), SDMEnsemble)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {}),
        (
            ("--filters", 7, "--patience", 0),
            {"n_filters": 7, "patience": None, "training": "sdm"},
        ),  # which patience is of
        (("--training", "linear", "--patience", 3), {"patience": 3}),
        (("--class-weight", "balanced"), {"class_weight": "balanced"}),
        (("--class-weight", "0=2", "--class-weight", "1=1.5"), {"class_weight": {"0": 2.0, "1": 1.5}}),
        (("--preset", "paper"), PAPER),
        (("--preset", "paper", "--filters", 7), {**PAPER, "n_filters": 7}),
        (("--preset", "paper", "--certification-size", 0.25), {**PAPER, "certification_size": 0.25}),
        (("--certification-size", 0), {"certification_size": None}),
    ],
)
def test_what_is_given_wins_over_the_preset(words, expected, insects, tmp_path, monkeypatch):
    import numpy as np

    np.savez(tmp_path / "data.npz", hidden_states=insects.X, labels=insects.y)
    seen = {}

    def fit(self, *_, **__):
        seen.update(self.get_params())
        raise KeyboardInterrupt

    monkeypatch.setattr(SDMClassifier, "fit", fit)
    CliRunner().invoke(sdm, ["train", str(tmp_path / "data.npz"), "-o", str(tmp_path / "model"), *map(str, words)])
    kept = {name: seen[name] for name in DEFAULTS if name not in ("checkpoint", "verbose")}
    plain = {name: value for name, value in DEFAULTS.items() if name in kept}
    assert kept == {**plain, **expected}


def test_a_preset_may_stand_in_a_settings_file(insects, tmp_path, monkeypatch):
    import numpy as np

    np.savez(tmp_path / "data.npz", hidden_states=insects.X, labels=insects.y)
    (tmp_path / "settings.toml").write_text('[train]\npreset = "paper"\nfilters = 9\n')
    seen = {}
    monkeypatch.setattr(SDMClassifier, "fit", lambda self, *_, **__: seen.update(self.get_params()) or 1 / 0)
    words = ["--config", tmp_path / "settings.toml", "train", tmp_path / "data.npz", "-o", tmp_path / "model"]
    CliRunner().invoke(sdm, [*map(str, words)])
    assert (seen["n_filters"], seen["n_rounds"], seen["learning_rate"]) == (9, 10, 1e-5)
