"""``sdm serve`` as a server of its own: its answers are the library's, and wrong requests are told so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

import tiny_models
import warm_process
from torchsdm import SDMClassifier
from torchsdm.estimators.text_classifier import SDMTextClassifier
from warm_process import SDM, WarmProcess

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

RNG = np.random.default_rng(0)
TEXTS = [  # without near copies: at a distance of almost 0 the last bits of states would decide
    f"the {''.join(RNG.choice(list('abcdefghij'), 12))} was {'great and lovely' if number % 2 else 'awful and dull'}"
    for number in range(84)
]
NEW = TEXTS[80:]
STATES = (RNG.normal(size=(80, 4)) + 2.0 * (np.arange(80) % 2)[:, None]).astype(np.float32)


def settings():
    return SDMClassifier(0.8, n_filters=8, n_rounds=1, max_epochs=5, learning_rate=0.01, random_state=0)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def server(model, *options):
    """The address of a server in a process of its own, which is stopped whatever happens."""
    port = free_port()
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    running = WarmProcess(SDM, "serve", model, "--port", port, *options, env={**os.environ, **threads})
    try:
        until = time.monotonic() + 60
        while ask(f"http://127.0.0.1:{port}/health")[0] != 200:
            assert running.poll() is None and time.monotonic() < until, "it did not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(timeout=20)


def ask(address, body=None):
    """Status and JSON of an answer; 0 where nobody answers. A body that is not bytes is sent as JSON."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError:
        return 0, None


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    language_model = tiny_models.save_model(folder / "bert", *tiny_models.bert())
    SDMTextClassifier(language_model, classifier=settings()).fit(TEXTS[:80], [n % 2 for n in range(80)]).save(
        folder / "model"
    )
    return folder / "model"


@pytest.fixture(scope="module")
def texts(text_model):
    with server(text_model, "--max-inputs", "4") as address:
        yield address


@pytest.fixture(scope="module")
def states_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("service") / "model"
    settings().fit(STATES, np.arange(80) % 2).save(path)
    return path


@pytest.fixture(scope="module")
def states(states_model):
    with server(states_model) as address:
        yield address


def numbered(rows):
    return json.loads(json.dumps([{"id": number, **row} for number, row in enumerate(rows)]))


def close(answer, expected):
    """Equal, but for the last digits of numbers: another process may round otherwise."""
    if isinstance(expected, dict):
        return answer.keys() == expected.keys() and all(close(answer[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(answer) == len(expected) and all(map(close, answer, expected))
    if isinstance(expected, float):
        return answer == pytest.approx(expected, rel=1e-4, abs=1e-5)
    return answer == expected


def test_decisions_on_texts_are_the_library_s(texts, text_model):
    status, answer = ask(f"{texts}/decide", {"texts": NEW})
    expected = SDMTextClassifier.load(text_model).decide(NEW).to_dicts()
    assert status == 200 and close(answer, {"decisions": numbered(expected)})


def test_explanations_of_texts_are_the_library_s(texts, text_model):
    status, answer = ask(f"{texts}/explain", {"texts": NEW[:2], "k": 3})
    explanations = SDMTextClassifier.load(text_model).explain(NEW[:2], 3)
    assert status == 200
    assert close(answer, {"explanations": numbered([one.to_dict(texts=False) for one in explanations])})
    assert len(answer["explanations"][0]["exemplars"]) == 3
    assert not any(text in json.dumps(answer) for text in TEXTS)


def test_training_texts_are_given_only_by_a_server_that_may(text_model):
    with server(text_model, "--texts") as address:
        status, answer = ask(f"{address}/explain", {"texts": NEW[:1]})
    (row,), (expected,) = answer["explanations"], SDMTextClassifier.load(text_model).explain(NEW[:1])
    assert status == 200 and row["text"] == NEW[0]
    for points in ("exemplars", "calibration_points"):
        assert [point["text"] for point in row[points]] == [point.text for point in getattr(expected, points)]


def test_decisions_and_explanations_of_states_are_the_library_s(states, states_model):
    model = SDMClassifier.load(states_model)
    status, answer = ask(f"{states}/decide", {"hidden_states": STATES.tolist()})
    assert status == 200 and close(answer, {"decisions": numbered(model.decide(STATES).to_dicts())})
    status, answer = ask(f"{states}/explain", {"hidden_states": STATES[:2].tolist()})
    assert status == 200
    expected = [one.to_dict(texts=False) for one in model.explain(STATES[:2])]
    assert close(answer, {"explanations": numbered(expected)})


def test_the_model_says_what_it_is(texts, states, text_model):
    status, answer = ask(f"{texts}/model")
    assert status == 200 and answer["language_model"] == str(text_model.with_name("bert"))
    assert answer["classes"] == [0, 1] and answer["regions"][0]["alpha"] == 0.8
    assert ask(f"{states}/model")[1] | {"regions": [], "certificate": None, "warnings": []} == {
        "classes": [0, 1],
        "regions": [],
        "certificate": None,
        "warnings": [],
        "policy": "certified",
        "n_features": 4,
        "language_model": None,
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b"\xff",
        b'{"hidden_states": [[NaN, 0, 0, 0]]}',
        {},
        {"texts": "one"},
        {"texts": None},
        {"texts": ["a"] * 5},
        {"texts": [1]},
        {"texts": [None]},
        {"texts": [""]},
        {"texts": ["a"], "wings": 2},
        {"texts": ["a"], "hidden_states": [[1]]},
        {"texts": ["a"], "answers": ["b", "c"]},
        {"texts": ["a"], "answers": 1},
        {"hidden_states": [[1, 2]]},
        {"hidden_states": [1, 2]},
        {"hidden_states": [[1], [1, 2]]},
        {"hidden_states": [["a"]]},
        {"hidden_states": [{}]},
    ],
)
def test_a_wrong_request_is_told_in_one_sentence(texts, body):
    for route in ("decide", "explain"):
        status, answer = ask(f"{texts}/{route}", body)
        assert 400 <= status < 500 and list(answer) == ["error"], route
        assert isinstance(answer["error"], str) and answer["error"].endswith(".") and "\n" not in answer["error"]


def test_no_inputs_have_no_answers(texts, states):
    for address, body in ((texts, {"texts": []}), (states, {"hidden_states": []})):
        assert ask(f"{address}/decide", body) == (200, {"decisions": []})
        assert ask(f"{address}/explain", body) == (200, {"explanations": []})


@pytest.mark.parametrize("k", [0, -1, "x", None, 1.5, [1], True])
def test_a_wrong_number_of_exemplars_is_told_in_one_sentence(states, k):
    status, answer = ask(f"{states}/explain", {"hidden_states": STATES[:1].tolist(), "k": k})
    assert status == 422 and "'k'" in answer["error"]


def test_texts_for_a_model_of_states_and_unknown_routes_are_refused(states):
    status, answer = ask(f"{states}/decide", {"texts": ["a"]})
    assert status == 422 and "Give hidden_states" in answer["error"]
    assert ask(f"{states}/nowhere")[0] == 404 and ask(f"{states}/decide")[0] == 405
    assert ask(f"{states}/health") == (200, {"status": "ok"})  # after all of that


def test_a_port_in_use_is_one_sentence(states_model):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = warm_process.run(SDM, "serve", states_model, "--port", taken.getsockname()[1])
    assert done.returncode == 1 and done.stderr.startswith("sdm: Cannot listen on 127.0.0.1, port ")
    assert done.stderr.count("\n") == 1 and done.stderr.endswith(". Choose another.\n")


# --- The guard -------------------------------------------------------------------------------------------------------

CALM, FAR = STATES[:20].tolist(), (STATES[:40] + 9).tolist()


@pytest.fixture(scope="module")
def certified_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("service") / "model"
    rng = np.random.default_rng(1)
    labels = np.arange(400) % 2
    X = (rng.normal(size=(400, 4)) + 2.0 * labels[:, None]).astype(np.float32)
    settings().fit(X, labels).save(path)
    return path


def test_an_alarm_lasts_until_it_is_reset(certified_model, tmp_path):
    file = tmp_path / "guard.json"
    with server(certified_model, "--guard", file) as address:
        before = ask(f"{address}/decide", {"hidden_states": CALM})[1]["decisions"]
        assert "certified" in {row["lane"] for row in before}
        ask(f"{address}/decide", {"hidden_states": FAR})
        state = ask(f"{address}/guard")[1]["guard"]
        assert state["raised"] and state["n_seen"] == 60
        after = ask(f"{address}/decide", {"hidden_states": CALM})[1]["decisions"]
        assert [row["admitted"] for row in after] == [row["lane"] == "trusted" for row in before]
        explained = ask(f"{address}/explain", {"hidden_states": CALM})[1]["explanations"]
        shown = ("admitted", "lane", "reason", "certified")
        assert [[row[key] for key in shown] for row in explained] == [[row[key] for key in shown] for row in after]
        assert ask(f"{address}/guard")[1]["guard"]["n_seen"] == 80  # explaining is not part of the stream
        assert ask(f"{address}/guard/reset", {"reason": " "})[0] == 422
        assert ask(f"{address}/guard/reset", {})[0] == 422
    with server(certified_model, "--guard", file) as address:  # a new service knows
        known = ask(f"{address}/guard")[1]["guard"]
        assert (known["raised_at"], known["raised_by"]) == (state["raised_at"], state["raised_by"])
        state = ask(f"{address}/guard/reset", {"reason": "looked at"})[1]["guard"]
        assert not state["raised"] and [one["n_seen"] for one in state["resets"]] == [80]
        assert ask(f"{address}/decide", {"hidden_states": CALM})[1]["decisions"] == before


def test_requests_at_the_same_time_are_one_stream(certified_model):
    with server(certified_model) as address, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda row: ask(f"{address}/decide", {"hidden_states": [row]}), CALM))
        assert [status for status, _ in answers] == [200] * len(CALM)
        assert ask(f"{address}/guard")[1]["guard"]["n_seen"] == len(CALM)


def test_a_guard_that_cannot_be_written_is_told_at_the_start(certified_model, tmp_path):
    done = warm_process.run(SDM, "serve", certified_model, "--port", free_port(), "--guard", tmp_path / "no" / "guard")
    assert done.returncode == 1 and "there is no directory" in done.stderr


def test_a_disk_that_fails_later_costs_no_answer(certified_model, tmp_path):
    folder = tmp_path / "guards"
    folder.mkdir()
    with server(certified_model, "--guard", folder / "guard") as address:
        shutil.rmtree(folder)
        status, answer = ask(f"{address}/decide", {"hidden_states": FAR})
        assert status == 200 and len(answer["decisions"]) == len(FAR)
        assert ask(f"{address}/guard")[1]["guard"]["raised"]
        assert ask(f"{address}/guard/reset", {"reason": "looked at"})[0] == 200
