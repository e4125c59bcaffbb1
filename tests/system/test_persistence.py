"""Saved models: the same answers after loading, and clear errors for everything that can be wrong with a directory."""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
import textwrap
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs

import warm_process
from small import small_settings
from torchsdm import SDMClassifier, SDMEnsemble, load
from torchsdm.core import SDMDecisions
from torchsdm.errors import InvalidInputError, ModelFileError, TorchSDMError
from torchsdm.model import directory as persistence
from torchsdm.model.directory import CONFIG_NAME
from warm_process import WarmProcess, strict

pytestmark = pytest.mark.filterwarnings("ignore::torchsdm.errors.SDMWarning")

SETTINGS = small_settings(alpha=0.8, n_rounds=2, max_epochs=4, learning_rate=2e-2)


def assert_same_decisions(a: SDMDecisions, b: SDMDecisions) -> None:
    for field in fields(SDMDecisions):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if left is None:
            assert right is None
            continue
        assert left.dtype == right.dtype, field.name
        np.testing.assert_array_equal(left, right, err_msg=field.name)


@pytest.fixture(scope="module")
def data():
    X, y = make_blobs(200, n_features=5, centers=3, cluster_std=2.0, random_state=0)
    return X.astype(np.float32), np.array(["no", "yes", "später"])[y]


@pytest.fixture(scope="module")
def classifier(data):
    X, y = data
    return SDMClassifier(**SETTINGS).fit(
        X, y, ids=[f"d{i}" for i in range(len(X))], texts=[f"text {i}" for i in range(len(X))]
    )


@pytest.fixture
def saved(classifier, tmp_path):
    classifier.save(tmp_path / "model")
    return tmp_path / "model"


def file_of(directory: Path, name: str) -> Path:
    return directory / json.loads((directory / CONFIG_NAME).read_text())["files"][name]["file"]


def test_a_loaded_model_decides_and_explains_the_same(classifier, saved, data):
    loaded = SDMClassifier.load(saved)
    assert_same_decisions(loaded.decide(data[0]), classifier.decide(data[0]))
    assert [e.to_dict() for e in loaded.explain(data[0][:5])] == [e.to_dict() for e in classifier.explain(data[0][:5])]
    assert loaded.get_params() == classifier.get_params()
    assert loaded.history_.to_dicts() == classifier.history_.to_dicts()


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, 7]),
        np.array([True, False]),
        np.array(["a", "bc"]),
        np.array(["a", "bc"], dtype=object),
        np.array([1.0, 2.0]),
    ],
    ids=["int", "bool", "str", "object", "float"],
)
def test_labels_come_back_with_their_type(labels, data, tmp_path):
    X, y = data
    y = labels[(y == "yes").astype(int)]
    classifier = SDMClassifier(**{**SETTINGS, "n_rounds": 1}).fit(X, y)
    classifier.save(tmp_path)
    predictions = SDMClassifier.load(tmp_path).predict(X)
    assert predictions.dtype == classifier.predict(X).dtype
    np.testing.assert_array_equal(predictions, classifier.predict(X))


def test_an_ensemble_survives(data, tmp_path):
    ensemble = SDMEnsemble(**SETTINGS).fit(*data)
    ensemble.save(tmp_path)
    assert_same_decisions(SDMEnsemble.load(tmp_path).decide(data[0]), ensemble.decide(data[0]))
    assert type(load(tmp_path)) is SDMEnsemble
    with pytest.raises(ModelFileError, match="SDMEnsemble"):
        SDMClassifier.load(tmp_path)


def test_load_opens_whichever_kind_was_saved(saved, classifier, data, tmp_path):
    opened = load(saved)
    assert type(opened) is SDMClassifier
    assert_same_decisions(opened.decide(data[0]), classifier.decide(data[0]))
    with pytest.raises(InvalidInputError, match="trained on states only"):
        load(saved, model="a/language-model")
    with pytest.raises(ModelFileError, match="missing"):
        load(tmp_path)


def test_updates_work_on_a_loaded_model_and_survive(saved, data):
    X, _ = data
    loaded = SDMClassifier.load(saved)
    loaded.add_exemplars(X[:3] + 0.01, ["other", "yes", 7], texts=["x", "y", "z"], allow_new_labels=True)
    loaded.remove_exemplars([loaded.model_.examples.all()[0][0]])
    loaded.save(saved)  # over the files it is mapped from
    again = SDMClassifier.load(saved)
    assert_same_decisions(again.decide(X), loaded.decide(X))
    labels = {exemplar.label for explanation in again.explain(X[:3], k=3) for exemplar in explanation.exemplars}
    assert {"other", 7} <= labels
    loaded.recalibrate(0.7)
    again.recalibrate(0.7)
    assert_same_decisions(again.decide(X), loaded.decide(X))


def test_the_support_is_memory_mapped(data, tmp_path):
    """Loading a support of 80 MB without checking digests must not bring it into memory."""
    X, y = data
    classifier = SDMClassifier(**{**SETTINGS, "n_rounds": 1, "n_filters": 1000}).fit(X, y)
    wide = np.repeat(X, 100, axis=0) + 0.5  # no point of the certification set may be added
    classifier.add_exemplars(wide, np.repeat(y, 100))
    classifier.save(tmp_path / "model")
    code = f"""
        from torchsdm.model.directory import mapped_tensors, read_model
        def rss():  # anonymous memory, not pages of mapped files
            return int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1]) * 1024
        stored = read_model({str(tmp_path / "model")!r}, ["SDMClassifier"], lambda one: one, verify=False)
        before = rss()
        exemplars = mapped_tensors(stored.files["support-exemplars"])["exemplars"]
        assert exemplars.numel() * 4 > 80_000_000, exemplars.shape
        float(exemplars.sum())
        print((rss() - before) / (exemplars.numel() * 4))
    """
    done = warm_process.run(textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.2


def test_metadata_is_plain_sqlite(saved, classifier):
    connection = sqlite3.connect(file_of(saved, "support-examples"))
    rows = connection.execute("SELECT position, id, label, text FROM examples ORDER BY position").fetchall()
    connection.close()
    ids, texts = classifier.model_.examples.all()
    assert [row[1] for row in rows] == ids
    assert [row[3] for row in rows] == texts
    assert {row[2] for row in rows} == {"no", "yes", "später"}


def test_config_is_strict_json_and_says_what_it_is(data, tmp_path):
    classifier = SDMClassifier(**{**SETTINGS, "alpha": 1.0}).fit(*data)  # hardly a region at alpha = 1: infinities
    classifier.save(tmp_path)
    config = strict((tmp_path / CONFIG_NAME).read_text())
    assert config["format"] == "torchsdm"
    assert config["format_version"] == 3
    assert config["library_version"]
    assert len(config["data_fingerprint"]) == 64


def test_no_file_is_a_pickle(saved):
    for path in saved.iterdir():
        head = path.read_bytes()[:2]
        assert head != b"PK"
        assert head[:1] != b"\x80" or head[1] not in range(2, 6)  # a protocol of pickle


# --- damage ----------------------------------------------------------------------------------------------------------

DATA_FILES = [
    "adaptor",
    *("support", "support-exemplars", "support-examples"),
    *("calibration", "calibration-exemplars", "calibration-examples"),
    *("certification", "certification-exemplars", "certification-examples"),
]


@pytest.mark.parametrize("name", DATA_FILES)
def test_a_truncated_file_is_named(saved, name):
    path = file_of(saved, name)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ModelFileError, match=path.name):
        SDMClassifier.load(saved)
    with pytest.raises(ModelFileError, match=path.name):
        SDMClassifier.load(saved, verify=False)


@pytest.mark.parametrize("name", DATA_FILES)
def test_a_flipped_bit_is_named(saved, name):
    path = file_of(saved, name)
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=path.name):
        SDMClassifier.load(saved)


def test_digests_of_large_files_are_checked_only_when_asked(saved, monkeypatch):
    path = file_of(saved, "support-exemplars")
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(persistence, "VERIFIED_BYTES", len(content) - 1)
    SDMClassifier.load(saved)
    with pytest.raises(ModelFileError, match=path.name):
        SDMClassifier.load(saved, verify=True)
    monkeypatch.setattr(persistence, "VERIFIED_BYTES", len(content))
    with pytest.raises(ModelFileError, match=path.name):
        SDMClassifier.load(saved)
    SDMClassifier.load(saved, verify=False)


@pytest.mark.parametrize("name", DATA_FILES)
def test_a_missing_file_is_named(saved, name):
    path = file_of(saved, name)
    path.unlink()
    with pytest.raises(ModelFileError, match=path.name):
        SDMClassifier.load(saved)


def test_a_damaged_config_is_named(saved):
    path = saved / CONFIG_NAME
    text = path.read_text()
    for broken in (
        text[: len(text) // 2],
        "",
        "[]",
        "{}",
        text.replace('"torchsdm"', '"other"'),
        text.replace("0.8", "NaN"),
    ):
        path.write_text(broken)
        with pytest.raises(ModelFileError, match=r"config\.json"):
            SDMClassifier.load(saved)


def test_a_config_of_the_future_is_refused(saved):
    path = saved / CONFIG_NAME
    path.write_text(path.read_text().replace('"format_version": 3', '"format_version": 5'))
    with pytest.raises(ModelFileError, match="Upgrade"):
        SDMClassifier.load(saved)


def test_every_key_of_the_config_is_checked(saved):
    path = saved / CONFIG_NAME
    config = json.loads(path.read_text())
    for key in config:
        if key == "library_version":
            continue
        path.write_text(json.dumps({name: value for name, value in config.items() if name != key}))
        with pytest.raises(ModelFileError, match=r"config\.json"):
            SDMClassifier.load(saved)


def test_a_config_cannot_point_elsewhere(saved, tmp_path):
    path = saved / CONFIG_NAME
    config = json.loads(path.read_text())
    config["files"]["adaptor"]["file"] = "../" + config["files"]["adaptor"]["file"]
    path.write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=r"config\.json"):
        SDMClassifier.load(saved)


def test_nothing_there_and_something_else_there(tmp_path, classifier):
    with pytest.raises(ModelFileError, match="absent"):
        SDMClassifier.load(tmp_path / "absent")
    with pytest.raises(ModelFileError, match=r"config\.json is missing"):
        SDMClassifier.load(tmp_path)
    (tmp_path / CONFIG_NAME).write_text('{"model_type": "bert"}')
    with pytest.raises(ModelFileError, match="is not a torchsdm config; left untouched"):
        classifier.save(tmp_path)
    assert (tmp_path / CONFIG_NAME).read_text() == '{"model_type": "bert"}'
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFileError, match="is a file"):
        classifier.save(tmp_path / "file")


def test_saving_replaces_a_model_but_never_mixes_with_other_files(saved, classifier, tmp_path):
    (saved / "report.html").write_text("beside the model")
    classifier.save(saved)
    assert (saved / "report.html").read_text() == "beside the model"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "states-0123456789ab.safetensors").write_text("mine")
    (tmp_path / "data" / "notes.txt").write_text("mine")
    with pytest.raises(ModelFileError, match=r"other than a model, such as 'notes\.txt'; left untouched"):
        classifier.save(tmp_path / "data")
    assert {path.read_text() for path in (tmp_path / "data").iterdir()} == {"mine"}


def test_a_failed_save_leaves_the_old_model(saved, classifier, data, monkeypatch):
    X, y = data
    expected = classifier.decide(X)
    other = SDMClassifier(**SETTINGS).fit(X + 1, y)

    def full_disk(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    for step in ("save_file", "_write_table", "strict_json"):
        with monkeypatch.context() as patch:
            patch.setattr(f"torchsdm.model.directory.{step}", full_disk)
            with pytest.raises(OSError, match="No space"):
                other.save(saved)
        assert_same_decisions(SDMClassifier.load(saved).decide(X), expected)
    other.save(saved)  # and what the failed ones left is cleaned up
    assert len([path for path in saved.iterdir() if path.is_file()]) == 12
    assert [path.name for path in (saved / "changes").iterdir()] == ["writer.lock"]
    assert_same_decisions(SDMClassifier.load(saved).decide(X), other.decide(X))


def test_a_readme_that_is_not_ours_is_left_alone(classifier, tmp_path):
    (tmp_path / "README.md").write_text("my project")
    classifier.save(tmp_path)
    assert (tmp_path / "README.md").read_text() == "my project"
    classifier.save(tmp_path / "model")
    card = tmp_path / "model" / "README.md"
    card.write_text(card.read_text() + "my notes")
    classifier.save(tmp_path / "model")
    assert card.read_text().endswith("my notes")


def test_places_that_cannot_be_written_or_read(classifier, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFileError, match="cannot be written"):
        classifier.save(tmp_path / "file" / "model")
    for path in (None, 3):
        with pytest.raises(TorchSDMError, match="'path'"):
            classifier.save(path)
        with pytest.raises(TorchSDMError, match="'path'"):
            SDMClassifier.load(path)
    classifier.save(tmp_path / "model")
    with pytest.raises(TorchSDMError, match=r"'device' of SDMClassifier\.load"):
        SDMClassifier.load(tmp_path / "model", device="gpu")
    with pytest.raises(TorchSDMError, match="parquet"):
        classifier.export_support(tmp_path / "support.csv")


# --- crashes ---------------------------------------------------------------------------------------------------------

SAVING = """
    import sys
    import numpy as np, torch
    torch.set_num_threads(1)
    from torchsdm import SDMClassifier
    model = SDMClassifier.load(sys.argv[1])
    other = SDMClassifier.load(sys.argv[2])
    print("ready", flush=True)
    while True:  # until killed
        other.save(sys.argv[1])
        model.save(sys.argv[1])
"""


def test_kill_9_while_saving_leaves_the_old_model_or_the_new_one(classifier, data, tmp_path):
    X, _ = data
    target, second = tmp_path / "model", tmp_path / "second"
    classifier.save(target)
    other = SDMClassifier.load(target)
    other.add_exemplars(X[:50] + 0.01, ["elsewhere"] * 50, allow_new_labels=True)
    other.save(second)
    lengths = {len(classifier.support_), len(other.support_)}
    seen = set()
    rng = np.random.default_rng(0)
    for _ in range(8):
        process = WarmProcess(textwrap.dedent(SAVING), target, second)
        while process.poll() is None and process.stdout != "ready\n":
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.stderr
        loaded = SDMClassifier.load(target)  # checks every digest
        seen.add(len(loaded.support_))
        assert len(loaded.support_) in lengths
        assert len(loaded.model_.examples.all()[0]) == len(loaded.support_)
    assert seen  # and a save after all those kills cleans up
    classifier.save(target)
    named = {entry["file"] for entry in json.loads((target / CONFIG_NAME).read_text())["files"].values()}
    left = {path.name for path in target.iterdir()} - {CONFIG_NAME, "README.md"}
    assert named <= left
    assert not [name for name in left if name.startswith(".writing")]


# --- the hub ---------------------------------------------------------------------------------------------------------


def test_pretrained_roundtrip_offline(classifier, data, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    classifier.save_pretrained(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "library_name: torchsdm" in card
    assert classifier.data_fingerprint_ in card
    assert_same_decisions(SDMClassifier.from_pretrained(tmp_path / "model").decide(data[0]), classifier.decide(data[0]))


def test_from_pretrained_says_that_a_name_cannot_be_had(tmp_path):
    with pytest.raises(ModelFileError, match="nobody/nothing"):
        SDMClassifier.from_pretrained("nobody/nothing", local_files_only=True, cache_dir=tmp_path)
    with pytest.raises(TorchSDMError, match="no such"):
        SDMClassifier.from_pretrained("no such directory, no such name")


def test_push_to_hub_uploads_the_directory(classifier, monkeypatch):
    """The hub itself cannot be reached from a test; what would be sent to it can be looked at."""
    sent = {}

    class Api:
        def __init__(self, token=None):
            pass

        def create_repo(self, repo_id, **kwargs):
            return type("Repo", (), {"repo_id": repo_id})

        def upload_folder(self, *, folder_path, **kwargs):
            loaded = SDMClassifier.load(folder_path)
            sent.update(
                kwargs, classes=loaded.classes_.tolist(), names=sorted(p.name for p in Path(folder_path).iterdir())
            )
            return "the address of a commit"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    assert classifier.push_to_hub("me/model") == "the address of a commit"
    assert sent["repo_id"] == "me/model"
    assert sent["classes"] == ["no", "später", "yes"]
    assert {"README.md", "config.json"} < set(sent["names"])
    assert "*.safetensors" in sent["delete_patterns"]  # what an older version left


def test_export_to_parquet(classifier, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    classifier.export_support(tmp_path / "support.parquet")
    table = pq.read_table(tmp_path / "support.parquet").to_pydict()
    assert table["id"] == classifier.model_.examples.all()[0]
    np.testing.assert_array_equal(np.array(table["exemplar"], dtype=np.float32), classifier.support_.exemplars.numpy())
    assert torch.equal(
        torch.tensor([classifier.classes_.tolist().index(label) for label in table["label"]]),
        classifier.support_.labels,
    )
