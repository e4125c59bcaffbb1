"""The ledger of looks in a file: shared by processes, without texts, and never a reason to stop."""

from __future__ import annotations

import contextvars
import json
import multiprocessing
import warnings

import numpy as np
import pytest

from sdm_command import good
from small import write_jsonl
from torchsdm import SDMClassifier
from torchsdm.application import LedgerFile, ledger_file
from torchsdm.errors import CertificateWarning
from torchsdm.trust import Look, keys_of

KEYS = keys_of(np.random.default_rng(0).normal(size=(300, 8)))
OTHERS = keys_of(np.random.default_rng(1).normal(size=(300, 8)))


def test_another_process_knows_what_was_asked_and_inspected(tmp_path):
    here, there = (LedgerFile(tmp_path / "cache" / "ledger.jsonl") for _ in range(2))
    assert here.ask(Look(KEYS, "first", 0.1)) == {}
    assert there.ask(Look(KEYS[:50], "second", 0.05)) == {"first": 0.1}
    assert here.ask(Look(KEYS, "first", 0.1)) == {"second": 0.05}  # asked again
    assert here.spent(OTHERS) == {} and not there.inspected(OTHERS).any()
    here.inspect(OTHERS[:10])
    assert there.inspected(OTHERS).tolist() == [True] * 10 + [False] * 290
    assert len((tmp_path / "cache" / "ledger.jsonl").read_bytes().splitlines()) == 3


def ask_many(path, number):
    ledger = LedgerFile(path)
    for turn in range(10):
        ledger.ask(Look(KEYS, f"{number} {turn}", 0.01))


def test_processes_that_ask_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=ask_many, args=(tmp_path / "ledger.jsonl", number)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(LedgerFile(tmp_path / "ledger.jsonl").spent(KEYS)) == 30


def test_damaged_lines_are_one_warning_and_the_others_count(tmp_path):
    path = tmp_path / "ledger.jsonl"
    LedgerFile(path).ask(Look(KEYS, "first", 0.1))
    whole = path.read_bytes()
    path.write_bytes(b"\xff\n[]\n{}\n" + whole + whole.replace(b"first", b"cut")[:-20])
    ledger = LedgerFile(path)
    with pytest.warns(CertificateWarning, match="is damaged: 3 of its lines cannot be read"):
        assert ledger.ask(Look(KEYS, "second", 0.1)) == {"first": 0.1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(ledger.spent(KEYS)) == {"first", "second"}
    with pytest.warns(CertificateWarning, match="is damaged: 4"):
        assert set(LedgerFile(path).spent(KEYS)) == {"first", "second"}


def test_a_ledger_that_cannot_be_written_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    ledger = LedgerFile(tmp_path / "file" / "ledger.jsonl")
    with pytest.warns(CertificateWarning, match="cannot be (read|written)"):
        ledger.ask(Look(KEYS, "first", 0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ledger.ask(Look(KEYS, "second", 0.1)) == {"first": 0.1}  # in memory


def test_the_older_half_is_dropped_when_it_grows_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_file, "_MOST_BYTES", 20_000)
    ledger = LedgerFile(tmp_path / "ledger.jsonl")
    for number in range(40):
        ledger.ask(Look(keys_of(np.random.default_rng(number).normal(size=(100, 8))), str(number), 0.1))
    assert ledger.path.stat().st_size < 22_000
    again = LedgerFile(ledger.path)
    first, last = (keys_of(np.random.default_rng(number).normal(size=(100, 8))) for number in (0, 39))
    assert again.spent(first) == {} and again.spent(last) == {"39": 0.1}


@pytest.fixture
def command(tmp_path, monkeypatch):
    """The command as if in a process of its own, and a file of states."""
    monkeypatch.setenv("TORCHSDM_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    X = rng.normal(size=(400, 8)) + 4 * y[:, None] * np.eye(8)[0]
    rows = [{"hidden_states": x.tolist(), "label": int(one), "text": "secret"} for x, one in zip(X, y, strict=True)]
    data = write_jsonl(tmp_path / "data.jsonl", rows)
    return lambda verb, *words: contextvars.Context().run(good, verb, data, *words)


def test_a_second_training_on_the_same_file_is_a_second_look(tmp_path, command):
    def looks(seed):
        done = command("train", "-o", tmp_path / f"model-{seed}", "--seed", seed, "--alpha", "0.8", "--json")
        return json.loads(done.stdout)["certificate"]["looks"]

    assert [looks(seed) for seed in (0, 1)] == [1, 2]
    assert b"secret" not in (tmp_path / "cache" / "ledger.jsonl").read_bytes()


def test_a_training_after_an_audit_certifies_with_what_was_set_aside(tmp_path, command):
    command("audit", "-o", tmp_path / "all.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()]
    command("train", "-o", tmp_path / "model", "--seed", "5", "--alpha", "0.8")
    model = SDMClassifier.load(tmp_path / "model")
    assert sorted(model.certification_rows_.tolist()) == sorted(row["row"] for row in rows if row["set_aside"])
