"""Files that earlier versions wrote are still read, to the bit: states, guard, checkpoint, export.

Models have tests of their own, in tests/unit/model.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from small import small_settings
from torchsdm import DriftGuard, SDMClassifier, SDMEnsemble
from torchsdm.data import Document
from torchsdm.data.store import FolderWriter, StatesFolder
from torchsdm.model import sdm_numpy
from torchsdm.training import stored_epochs

FIXTURES = Path(__file__).parents[1] / "fixtures"
IDS = ["a", "b", 3, "3", "é", -5, 2**62]
TEXTS = ["plain", "Grüße, 世界", "two\nlines", "\u2028", '"\\', " ", "last"]
LABELS = ["yes", "no", "yes", "no", "yes", "no", "no"]


@pytest.fixture
def kept(tmp_path):
    """A copy of a fixture, which may be written to."""
    return lambda name: Path(shutil.copytree(FIXTURES / name, tmp_path / name))


def test_a_folder_of_states_of_format_1(kept):
    folder = kept("states-format-1")
    states = StatesFolder.open(folder / "states", verify=True)
    states.check_complete()
    expected, arrays = np.load(folder / "expected.npz"), states.arrays()
    for name in ("hidden_states", "label_logits"):
        np.testing.assert_array_equal(arrays[name], expected[name])
        assert arrays[name].dtype == np.float32
    rows = [(row["id"], row["text"], row["label"]) for rows in states.block_examples() for row in rows]
    assert rows == list(zip(IDS, TEXTS, LABELS, strict=True))
    assert states.origin.model.reference == "a/model" and states.origin.pooling.parts == ("final", "mean")

    documents = [Document(*row) for row in zip(TEXTS, IDS, LABELS, strict=True)]
    with FolderWriter(folder / "states", states.origin, "d00", 7, 3) as writer:  # the run could be resumed
        assert writer.n_finished == 3 and writer.has(documents[:3])


def test_a_guard_of_format_1_goes_on_as_it_would_have_gone_on_then(kept):
    folder = kept("guard-format-1")
    classifier = SDMClassifier.load(FIXTURES / "model-format-3" / "classifier")
    guard = DriftGuard.load(folder / "guard.json", DriftGuard.from_classifier(classifier).fingerprint)
    assert not guard.raised and guard.n_seen == 30 and guard.resets[0].reason == "a calm afternoon"
    guard.update(classifier.decide(np.load(folder / "expected.npz")["X"]))
    assert guard.raised_at == 37
    assert json.loads(guard.to_json()) == json.loads((folder / "after.json").read_text(encoding="utf-8"))


@pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")
def test_a_checkpoint_of_format_2_is_resumed(kept):
    folder = kept("checkpoint-format-2")
    data, checkpoint = np.load(folder / "data.npz"), folder / "checkpoint"
    assert stored_epochs(checkpoint) == 6 + 3
    written = {name: _records(checkpoint / f"{name}.safetensors") for name in ("round-000", "current-001")}
    with safe_open(checkpoint / "round-000.safetensors", framework="pt") as archive:
        best = {key.removeprefix("best:"): archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118

    settings = small_settings(n_filters=4, n_rounds=2, max_epochs=6, random_state=5)
    ensemble = SDMEnsemble(0.75, checkpoint=checkpoint, **settings).fit(data["X"], data["y"])
    losses = [record.calibration_balanced_loss for record in ensemble.history_]
    assert losses[:9] == [record["calibration_balanced_loss"] for name in written for record in written[name]]
    assert len(losses) == 12  # three epochs were left
    weights = ensemble.models_[0].adaptor.state_dict()
    assert best and all(torch.equal(weights[name], tensor) for name, tensor in best.items())


def _records(path):
    with safe_open(path, framework="pt") as archive:
        return json.loads(archive.metadata()["facts"])["records"]


def test_an_export_of_format_1_decides_as_it_did(kept):
    folder = kept("numpy-export-format-1")
    expected = np.load(folder / "expected.npz")
    decisions = sdm_numpy.load(folder).decide(expected["X"])
    assert set(expected["lane"]) >= {"trusted", "certified", "unfamiliar"}
    for name in set(expected.files) - {"X"}:
        np.testing.assert_array_equal(getattr(decisions, name), expected[name], err_msg=name)
