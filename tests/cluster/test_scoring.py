"""Decisions on a cluster: the bytes that one process writes, whatever is lost or killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from victims import kill_worker, lose_node

import tiny_models
from sdm_command import call, good, refused
from small import small_settings, write_jsonl
from torchsdm import HiddenStateExtractor, SDMClassifier, SDMTextClassifier
from torchsdm.application import scoring

SDM = "from torchsdm.cli import main; main()"
N, D = 9000, 16  # nine blocks
WORDS = ["the", "a", "film", "plot", "is", "was", "not", "very", "good", "bad", "long", "short", "funny", "sad"]


@pytest.fixture(scope="module", autouse=True)
def threads():
    """Two threads, and so two processors for each replica: three of them fill the cluster."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def driver(*arguments):
    """The command in a process of its own, to be killed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}  # torch obeys both
    return subprocess.Popen(
        [sys.executable, "-c", SDM, *map(str, arguments)], stdout=subprocess.DEVNULL, env=environment
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model of states, states to decide on with a bad row among them, and what one process decides."""
    folder = tmp_path_factory.mktemp("scoring")
    rng = np.random.default_rng(2)
    labels = rng.integers(2, size=600)
    SDMClassifier(0.8, n_filters=8, n_rounds=1, training="sdm", max_epochs=4, learning_rate=1e-2, random_state=0).fit(
        (rng.normal(size=(600, D)) + labels[:, None]).astype(np.float32), labels
    ).save(folder / "model")
    states = (rng.normal(size=(N, D)) + rng.integers(2, size=(N, 1))).round(3)
    lines = [json.dumps({"id": f"i{i}", "hidden_states": row}) for i, row in enumerate(states.tolist())]
    lines[1500], lines[4000] = "{broken", '{"id": "nan", "hidden_states": [' + ", ".join(["NaN"] * D) + "]}"
    (folder / "states.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    good("predict", folder / "model", folder / "states.jsonl", "-o", folder / "alone.jsonl")
    return folder


@pytest.fixture
def command(place, tmp_path, nodes):
    return ["predict", place / "model", place / "states.jsonl", "-o", tmp_path / "out.jsonl", "--ray", nodes.address]


def assert_same(place, tmp_path):
    assert (tmp_path / "out.jsonl").read_bytes() == (place / "alone.jsonl").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]  # nothing is left of the work


def killed(command, tmp_path):
    """Kill a job once two blocks are there; how many it left."""
    parts = tmp_path / "out.jsonl.parts"
    running = driver(*command)
    while running.poll() is None and not (parts / "block-00000001.jsonl").exists():
        time.sleep(0.001)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    n_left = len(list(parts.glob("block-*.jsonl")))
    assert 2 <= n_left < 9 and not (tmp_path / "out.jsonl").exists()
    return n_left


def blocks_written(monkeypatch):
    """The numbers of the blocks that are kept from now on."""
    written, original = [], scoring._FinishedBlocks.write

    def write(self, number, answered):
        written.append(number)
        original(self, number, answered)

    monkeypatch.setattr(scoring._FinishedBlocks, "write", write)
    return written


def test_what_is_lost_is_decided_again(ray, nodes, command, place, tmp_path, monkeypatch):
    """A replica is killed after the second block, and the node of another one after the fourth."""
    original, killed = scoring._FinishedBlocks.write, []

    def write(self, number, answered):
        original(self, number, answered)
        if number in (1, 3):
            killed.append(number)
            kill_worker("_Replica") if number == 1 else lose_node(nodes, "_Replica")

    monkeypatch.setattr(scoring._FinishedBlocks, "write", write)
    done = good(*command)
    assert killed == [1, 3]
    assert f"of {N} inputs admitted" in done.stdout
    assert "2 of 9000 rows" in done.stderr.replace(",", "")
    assert_same(place, tmp_path)


def test_a_killed_job_goes_on_with_what_is_missing(nodes, command, place, tmp_path, monkeypatch, ray):
    n_before, written = killed(command, tmp_path), blocks_written(monkeypatch)
    other = call(*command[:3], "-k", "0", *command[3:])
    refused(other, "has the decisions of another job")
    good(*command)
    assert written == list(range(n_before, 9))  # nothing is decided twice, and nothing left out
    assert_same(place, tmp_path)


def test_a_folder_is_one_input_also_after_a_kill(nodes, command, place, tmp_path, monkeypatch, ray):
    """Files of several lengths, one of them deeper; a file that came in between is noticed."""
    folder, alone = tmp_path / "data", tmp_path / "alone.jsonl"
    (folder / "day=1").mkdir(parents=True)
    lines = (place / "states.jsonl").read_bytes().splitlines(keepends=True)
    cuts = {
        "day=1/part-1.jsonl": (0, 1),
        "part-0.jsonl": (1, 1300),
        "part-2.jsonl": (1300, 6000),
        "part-3.jsonl": (6000, N),
    }
    for name, (first, stop) in cuts.items():
        (folder / name).write_bytes(b"".join(lines[first:stop]))
    (folder / "_SUCCESS").touch()
    good("predict", place / "model", folder, "-o", alone)
    rows = [json.loads(line) for line in alone.read_text(encoding="utf-8").splitlines()]
    expected = [json.loads(line) for line in (place / "alone.jsonl").read_text(encoding="utf-8").splitlines()]
    without_place = {"reason": "", "line": 0}
    assert [row | without_place for row in rows] == [row | without_place for row in expected]
    assert [row["line"] for row in rows[1299:1302]] == [1299, 1, 2]
    assert [row["reason"].partition(":")[0] for row in rows if row["lane"] == "rejected"] == [
        "part-2.jsonl line 201",
        "part-2.jsonl line 2701",
    ]

    command = [*command[:2], folder, *command[3:]]
    n_before, written = killed(command, tmp_path), blocks_written(monkeypatch)
    (folder / "part-1.jsonl").write_bytes(b"")
    refused(call(*command), "the input has changed since (new: part-1.jsonl). Remove it to start over.")
    (folder / "part-1.jsonl").unlink()
    done = good(*command)
    assert written == list(range(n_before, 9))
    assert f"of {N} inputs admitted" in done.stdout
    assert (tmp_path / "out.jsonl").read_bytes() == alone.read_bytes()
    assert not (tmp_path / "out.jsonl.parts").exists()


def test_the_same_over_a_support_on_shards(ray, command, place, tmp_path):
    good(*command, "--shards", "2")
    assert_same(place, tmp_path)
    refused(call(*command[:-2], "--shards", "2"), "--shards needs a cluster")


def test_an_error_of_a_replica_is_ours(ray, command, tmp_path):
    rows = [[0.0] * D, [float("nan")] * D]
    text = "".join(f"{json.dumps({'id': i, 'hidden_states': row})}\n" for i, row in enumerate(rows))
    (tmp_path / "strange.jsonl").write_text(text, encoding="utf-8")
    done = call(*command[:2], tmp_path / "strange.jsonl", *command[3:], "--strict")
    refused(done, "strange.jsonl, line 2: the states contain NaN or infinity")


def test_nobody_is_asked_about_nothing(nodes, command, place, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    done = good(*command[:2], tmp_path / "empty.jsonl", *command[3:])
    assert "0 inputs" in done.stdout and (tmp_path / "out.jsonl").read_bytes() == b""


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A tiny language model, a classifier over its states, and texts to decide on, some of them unusable."""
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(0)
    language_model = tiny_models.save_model(folder / "lm", *tiny_models.phi3())
    said = [" ".join(rng.choice(WORDS, rng.integers(3, 20))) for _ in range(700)]
    rows = [{"id": f"r{i}", "text": text, "label": int("good" in text)} for i, text in enumerate(said)]
    rows[400]["text"], rows[650]["id"] = " ", "r3"
    write_jsonl(folder / "texts.jsonl", rows)
    extractor = HiddenStateExtractor(str(language_model), "sentiment")
    classifier = SDMClassifier(0.8, **small_settings(max_epochs=2))
    few = rows[:300]
    SDMTextClassifier(extractor, classifier=classifier, cache=False).fit(
        [row["text"] for row in few], [row["label"] for row in few]
    ).save(folder / "model")
    return folder


def test_texts_are_read_on_the_cluster(ray, nodes, texts, tmp_path):
    alone, there = tmp_path / "alone.parquet", tmp_path / "there.parquet"
    command = ["predict", texts / "model", texts / "texts.jsonl", "--texts"]
    good(*command, "-o", alone)
    done = good(*command, "-o", there, "--ray", nodes.address)
    assert "2 of 700 rows" in done.stderr.replace(",", "")
    assert there.read_bytes() == alone.read_bytes()


def test_texts_of_several_files_are_cut_into_the_blocks_of_one_process(ray, nodes, texts, tmp_path):
    lines = (texts / "texts.jsonl").read_bytes().splitlines(keepends=True)
    for number, (first, stop) in enumerate([(0, 300), (300, 310), (310, 700)]):
        (tmp_path / f"texts-{number}.jsonl").write_bytes(b"".join(lines[first:stop]))
    alone, there, one = (tmp_path / f"{name}.parquet" for name in ("alone", "there", "one"))
    command = ["predict", texts / "model", tmp_path / "texts-*.jsonl", "-k", 1]
    good(*command, "-o", alone)
    done = good(*command, "-o", there, "--ray", nodes.address)
    assert "texts-2.jsonl line 91: empty text; texts-2.jsonl line 341: duplicate id" in done.stderr
    assert there.read_bytes() == alone.read_bytes()
    good("predict", texts / "model", texts / "texts.jsonl", "-k", 1, "-o", one)
    pq = pytest.importorskip("pyarrow.parquet")
    said = pq.read_table(one).drop_columns(["reason", "line"])
    assert pq.read_table(there).drop_columns(["reason", "line"]).equals(said)


def folder_bytes(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_hidden_states_are_the_same_also_after_a_kill(ray, nodes, texts, tmp_path):
    """``sdm embed`` on the cluster, killed with a few shards done, finished there; the files of one process."""
    rows = [json.loads(line) for line in (texts / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    usable = [row for i, row in enumerate(rows) if i not in (400, 650)]
    source = write_jsonl(tmp_path / "reviews.jsonl", usable)
    settings = [source, "-m", texts / "lm", "-p", "sentiment", "--shard-size", 70]
    good("embed", *settings, "-o", tmp_path / "alone")
    there = tmp_path / "there"
    command = ["embed", *settings, "-o", there, "--ray", nodes.address]
    running = driver(*command)
    while running.poll() is None and not (there / "examples-00001.jsonl").exists():
        time.sleep(0.001)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    n_before = len(json.loads((there / "manifest.json").read_text(encoding="utf-8"))["shards"])
    assert 1 <= n_before < 10
    done = good(*command, "--json")
    counts = json.loads(done.stdout)
    assert counts["documents"] == len(usable)
    assert counts["extracted"] <= len(usable) - 70 * n_before
    assert folder_bytes(there) == folder_bytes(tmp_path / "alone")


def test_a_text_classifier_is_fitted_on_the_cluster(ray, nodes, texts, tmp_path):
    rows = [json.loads(line) for line in (texts / "texts.jsonl").read_text(encoding="utf-8").splitlines()[:400]]
    said, labels = [row["text"] for row in rows], [row["label"] for row in rows]
    settings = small_settings(n_rounds=2, max_epochs=2)

    def fit(backend, cache):
        made = SDMTextClassifier(
            str(texts / "lm"), "sentiment", SDMClassifier(0.8, **settings), cache=cache, backend=backend
        )
        return made.fit(said, labels).classifier_

    alone, there = fit(None, False), fit(nodes.address, tmp_path / "cache")
    np.testing.assert_array_equal(alone.support_.exemplars.numpy(), there.support_.exemplars.numpy())
    assert there.backend == nodes.address and alone.backend is None
