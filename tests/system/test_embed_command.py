"""``sdm embed`` as a person runs it: in a process of its own, killed, resumed, given nonsense."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest

import tiny_models
import warm_process
from sdm_command import call, refused
from small import write_jsonl
from torchsdm import read_states
from torchsdm.errors import TorchSDMError
from torchsdm.hidden_states.model_source import converted, find_model
from warm_process import ONE_THREAD, SDM, WarmProcess

WORDS = ["the", "a", "film", "plot", "is", "was", "not", "very", "good", "bad", "long", "short"]
WORDS += ["funny", "sad", "and", "but"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny decoder with a chat template, as a directory."""
    return tiny_models.save_model(tmp_path_factory.mktemp("model"), *tiny_models.phi3())


@pytest.fixture
def reviews(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {"id": f"r{i}", "text": " ".join(rng.choice(WORDS, rng.integers(3, 30))), "label": int(rng.integers(2))}
        for i in range(300)
    ]
    return write_jsonl(tmp_path / "reviews.jsonl", rows)


def arguments_of(reviews, output, model):
    return ("embed", reviews, "-o", output, "-m", model, "-p", "sentiment", "--shard-size", 16)


def embed(reviews, output, model, *more):
    return call(*arguments_of(reviews, output, model), *more)


def test_states_are_written_and_read_back(reviews, model, tmp_path):
    done = embed(reviews, tmp_path / "states", model, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["documents"], summary["extracted"], summary["documents_cut"]) == (300, 300, 0)
    data = read_states(tmp_path / "states")
    assert data.hidden_states.shape[0] == 300 and data.label_logits.shape == (300, 2)
    assert data.ids[:2] == ["r0", "r1"] and set(data.labels.tolist()) == {0, 1}
    assert data.origin.prompt.template.startswith("Here is a movie review.")
    again = embed(reviews, tmp_path / "states", model)
    assert again.returncode == 0 and "0 extracted now; 300 by an earlier run" in again.stdout


def test_killed_at_any_moment_it_goes_on_where_it_stopped(reviews, model, tmp_path):
    assert embed(reviews, tmp_path / "whole", model).returncode == 0
    broken = tmp_path / "broken"
    counts = []
    for n_shards in (1, 4, 9):
        running = WarmProcess(SDM, *arguments_of(reviews, broken, model), env={**os.environ, **ONE_THREAD})
        while running.poll() is None and len(list(broken.glob("[!.]*.safetensors"))) < n_shards:
            time.sleep(0.0005)
        running.send_signal(signal.SIGKILL)
        running.wait()
        manifest = broken / "manifest.json"
        counts.append(len(json.loads(manifest.read_text(encoding="utf-8"))["shards"]) if manifest.exists() else 0)
    assert counts[-1] < 19, "it was never interrupted"
    assert counts == sorted(counts)
    n_blocks = len(list(broken.glob("[!.]*.safetensors")))  # one more, perhaps, than the manifest names
    final = embed(reviews, broken, model, "--json")
    assert final.returncode == 0, final.stderr
    assert n_blocks >= 9 and json.loads(final.stdout)["extracted"] == 300 - 16 * n_blocks
    whole = [path for path in (tmp_path / "whole").iterdir() if path.suffix in (".safetensors", ".jsonl")]
    assert len(whole) == 2 * 19
    for path in whole:
        assert (broken / path.name).read_bytes() == path.read_bytes(), path.name
    assert not list(broken.glob(".writing-*"))


def test_another_prompt_model_or_input_is_refused(reviews, model, tmp_path):
    states = tmp_path / "states"
    assert embed(reviews, states, model).returncode == 0
    prompt = call("embed", reviews, "-o", states, "-m", model, "-p", "factcheck")
    other = tiny_models.save_model(tmp_path / "other", *tiny_models.phi3(seed=1))
    backbone = embed(reviews, states, other)
    lines = reviews.read_text(encoding="utf-8").splitlines()
    reviews.write_text("\n".join([*lines[:-1], lines[-1].replace("r299", "r999")]) + "\n", encoding="utf-8")
    documents = embed(reviews, states, model)
    for done, what in (
        (prompt, "prompt template"),
        (backbone, "model fingerprint"),
        (documents, "documents fingerprint"),
    ):
        refused(done, f"was made with a different {what}")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"text": "fine"}\n{"text": ""}\n{"text": "good"}\n{"review": 1}\n', "empty text: line 2; no text: line 4"),
        ('{"text": "fine"}\nnot json\n', "line 2: not valid JSON"),
        ("", "is empty"),
        ('{"review": "fine"}\n', "no column 'text'"),
        ('{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n', "duplicate id: line 2"),
    ],
)
def test_bad_documents_are_one_sentence_with_the_line(content, expected, model, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(content, encoding="utf-8")
    done = call("embed", path, "-o", tmp_path / "states", "-m", model)
    refused(done, expected)
    assert not (tmp_path / "states").exists()


def test_problems_can_be_skipped_and_are_counted(model, tmp_path):
    path = tmp_path / "some.csv"
    path.write_text('text,label\nfine,1\n"",0\n"two\nlines",1\n', encoding="utf-8")
    done = call("embed", path, "-o", tmp_path / "states", "-m", model, "--skip-problems")
    assert done.returncode == 0 and "1 skipped (empty text: line 3)" in done.stdout
    assert "--skip-problems" in call("embed", path, "-o", tmp_path / "more", "-m", model).stderr
    assert read_states(tmp_path / "states").labels.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-m", "no/such-model"], "'no/such-model' is neither a directory"),
        (["-m", "package:no_such_package"], "pip install --no-deps no-such-package"),
        (["-m", "MODEL", "-p", "sentimental"], "must be one of 'sentiment'"),
        (["-m", "MODEL", "-p", "{document} {dokument}"], "Got {dokument}"),
        (["-m", "MODEL", "--max-tokens", "5", "-p", "sentiment"], "The prompt alone takes"),
        (["-m", "MODEL", "--layer", "99"], "'layer'"),
        (["-m", "MODEL", "--layer", "1,last"], "'--layer' must be numbers of layers, comma-separated. Got '1,last'"),
        (["-m", "MODEL", "--parts", "final,median"], "'parts'"),
        (["-m", "MODEL", "--device", "cuda:7"], "'device'"),
        (["-m", "MODEL", "--prompt-file", "nowhere.txt"], "cannot be read as a template"),
    ],
)
def test_bad_settings_are_one_sentence(arguments, expected, reviews, model, tmp_path):
    arguments = [str(model) if argument == "MODEL" else argument for argument in arguments]
    refused(call("embed", reviews, "-o", tmp_path / "states", *arguments), expected)
    with pytest.raises(TorchSDMError):  # with --debug it goes through, and Python shows the traceback
        call("--debug", "embed", reviews, "-o", tmp_path / "states", *arguments)


def test_progress_is_shown_on_a_terminal_only(reviews, model, tmp_path):
    piped = warm_process.run(SDM, *arguments_of(reviews, tmp_path / "piped", model))
    assert piped.returncode == 0 and "doc/s" not in piped.stdout + piped.stderr
    terminal, worker = pty.openpty()
    fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [sys.executable, "-c", SDM, *map(str, arguments_of(reviews, tmp_path / "shown", model))]
    running = subprocess.Popen(command, stdout=worker, stderr=worker)
    os.close(worker)
    shown = b""
    try:
        while block := os.read(terminal, 4096):
            shown += block
    except OSError:  # how Linux says that the other side has closed
        pass
    finally:
        os.close(terminal)
    assert running.wait() == 0
    text = shown.decode()
    assert "300/300" in text and "doc/s" in text and "<00:00" in text  # the rate, and the time that remains


def test_the_command_is_installed():
    script = Path(sys.executable).with_name("sdm")
    if not script.exists():
        pytest.skip("the package is not installed beside this interpreter")
    done = subprocess.run([script, "embed", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "sdm embed reviews.jsonl" in done.stdout


def test_a_gguf_file_is_converted_once_and_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSDM_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF" + bytes(5000))
    calls = []

    def convert(source, directory):
        calls.append(source)
        directory.mkdir()
        (directory / "config.json").write_text("{}")
        if len(calls) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted(find_model(str(file)), convert)
    assert not list((tmp_path / "cache" / "models").glob("tiny-*/*"))  # nothing half done is taken for a model
    directory = converted(find_model(str(file)), convert)
    assert converted(find_model(str(file)), convert) == directory and len(calls) == 2
    file.write_bytes(b"GGUF" + bytes(4999) + b"x")
    assert converted(find_model(str(file)), convert) != directory and len(calls) == 3
