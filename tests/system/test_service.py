"""``sdm serve`` as a server of its own: its answers are the library's, and wrong requests are told so."""

from __future__ import annotations

import json
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import json_schema
import warm_process
from served import free_port, save_states_model, save_text_model, server
from torchsdm import SDMClassifier
from torchsdm.application import decision_schema
from torchsdm.estimators.text_classifier import SDMTextClassifier
from warm_process import SDM

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

RNG = np.random.default_rng(0)
TEXTS = [  # without near copies: at a distance of almost 0 the last bits of states would decide
    f"the {''.join(RNG.choice(list('abcdefghij'), 12))} was {'great and lovely' if number % 2 else 'awful and dull'}"
    for number in range(110)
]
NEW = TEXTS[80:]
STATES = (RNG.normal(size=(400, 4)) + 2.0 * (np.arange(400) % 2)[:, None]).astype(np.float32)


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    return save_text_model(tmp_path_factory.mktemp("service"), TEXTS[:80], [0, 1] * 40)


@pytest.fixture(scope="module")
def states_model(tmp_path_factory):
    return save_states_model(tmp_path_factory.mktemp("service"), STATES, np.arange(400) % 2)


@pytest.fixture(scope="module")
def texts(text_model):
    with server(text_model, "--max-inputs", "40", "--batch-tokens", "1") as running:  # each text is read alone
        yield running


@pytest.fixture(scope="module")
def states(states_model):
    with server(states_model) as running:
        yield running


def numbered(rows):
    return json.loads(json.dumps([{"id": number, "line": None, **row} for number, row in enumerate(rows)]))


# --- Answers ---------------------------------------------------------------------------------------------------------


def test_decisions_and_explanations_of_states_are_the_library_s_to_the_bit(states, states_model):
    model = SDMClassifier.load(states_model)
    status, answer = states.ask("/v1/decide", {"hidden_states": STATES[:80].tolist()})
    assert status == 200 and answer == {"version": 0, "decisions": numbered(model.decide(STATES[:80]).to_dicts())}
    status, answer = states.ask("/v1/explain", {"hidden_states": STATES[:2].tolist(), "k": 3})
    expected = numbered([one.to_dict(texts=False) for one in model.explain(STATES[:2], 3)])
    assert status == 200 and answer == {"version": 0, "explanations": expected}
    assert len(expected[0]["exemplars"]) == 3


def test_decisions_and_explanations_of_texts_are_the_library_s_to_the_bit(texts, text_model):
    model = SDMTextClassifier.load(text_model, batch_tokens=1)
    status, answer = texts.ask("/v1/decide", {"texts": NEW})
    assert status == 200 and answer["decisions"] == numbered(model.decide(NEW).to_dicts())
    status, answer = texts.ask("/v1/explain", {"texts": NEW[:2]})
    assert status == 200
    assert answer["explanations"] == numbered([one.to_dict(texts=False) for one in model.explain(NEW[:2])])
    assert not any(text in json.dumps(answer) for text in TEXTS)  # without --texts


def test_rows_have_the_shape_of_the_schema(texts):
    rows = texts.ask("/v1/decide", {"texts": [*NEW[:3], None]})[1]["decisions"]
    rows += texts.ask("/v1/explain", {"texts": NEW[:3]})[1]["explanations"]
    assert [row["lane"] for row in rows].count("rejected") == 1
    assert not [problem for row in rows for problem in json_schema.problems(row, decision_schema())]


@pytest.mark.parametrize("seed", range(3))
def test_answers_do_not_depend_on_who_else_asks(states, states_model, texts, text_model, seed):
    """Clients at the same time, each with requests of random sizes: every answer is what the library says."""
    rng = np.random.default_rng(seed)
    of_states = numbered(SDMClassifier.load(states_model).decide(STATES).to_dicts())
    of_texts = numbered(SDMTextClassifier.load(text_model, batch_tokens=1).decide(NEW).to_dicts())

    def asked(job):
        kind, rows = job
        server, inputs, known = (states, STATES, of_states) if kind else (texts, NEW, of_texts)
        given = [inputs[row].tolist() if kind else inputs[row] for row in rows]
        route, key = ("/v1/explain", "explanations") if len(rows) == 1 else ("/v1/decide", "decisions")
        status, answer = server.ask(route, {"hidden_states" if kind else "texts": given})
        expected = [{**known[row], "id": number} for number, row in enumerate(rows)]
        return status == 200 and [{name: row[name] for name in expected[0]} for row in answer[key]] == expected

    jobs = [(kind, rng.integers(0, 400 if kind else 30, rng.integers(1, 12))) for kind in rng.integers(0, 2, 60)]
    calm = [job for job in jobs if len(job[1])]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(asked, calm))


def test_training_texts_are_given_only_by_a_server_that_may(text_model):
    with server(text_model, "--texts") as running:
        status, answer = running.ask("/v1/explain", {"texts": NEW[:1]})
        assert running.ask("/v1/model")[1]["shows_texts"]
    (row,), (expected,) = answer["explanations"], SDMTextClassifier.load(text_model).explain(NEW[:1])
    assert status == 200 and row["text"] == NEW[0]
    for points in ("exemplars", "calibration_points"):
        assert [point["text"] for point in row[points]] == [point.text for point in getattr(expected, points)]


def test_the_model_says_what_it_is(texts, states, text_model):
    status, answer = texts.ask("/v1/model")
    assert status == 200 and answer["language_model"] == str(text_model.with_name("bert")) and answer["reads_texts"]
    assert answer["classes"] == [0, 1] and answer["regions"][0]["alpha"] == 0.8 and not answer["shows_texts"]
    answer = states.ask("/v1/model")[1]
    assert answer["n_features"] == 4 and answer["language_model"] is None and answer["version"] == 0
    assert (answer["name"], answer["kind"], answer["n_support"]) == ("model", "SDMClassifier", 150)


def test_one_empty_text_among_a_hundred_is_one_rejected_row(states, text_model):
    with server(text_model) as running:
        inputs = [*TEXTS[:50], "", *TEXTS[50:99]]
        status, answer = running.ask("/v1/decide", {"texts": inputs})
    assert status == 200 and len(answer["decisions"]) == 100
    rejected = [row for row in answer["decisions"] if row["lane"] == "rejected"]
    assert [(row["id"], row["reason"]) for row in rejected] == [(50, "empty text")]
    assert [row["id"] for row in answer["decisions"]] == list(range(100))
    far = [[1, 2, 3, 4], [1, 2, 3, "x"], [1e39, 0, 0, 0]]
    rows = states.ask("/v1/decide", {"hidden_states": far})[1]["decisions"]
    assert [row["lane"] == "rejected" for row in rows] == [False, True, True]


def test_no_inputs_have_no_answers(texts, states):
    for running, body in ((texts, {"texts": []}), (states, {"hidden_states": []})):
        assert running.ask("/v1/decide", body) == (200, {"version": 0, "decisions": []})
        assert running.ask("/v1/explain", body) == (200, {"version": 0, "explanations": []})


# --- Wrong requests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"", "body"),
        (b"{", "line 1 column 1"),
        (b"[1]", "body"),
        (b"null", "body"),
        (b"\xff", "line 1 column 1"),
        (b'{"hidden_states": [[NaN, 0, 0, 0]]}', "line 1 column 21"),
        (b'{"hidden_states": [[Infinity, 0, 0, 0]]}', "line 1 column 21"),
        (b'{"texts": ' + b"[" * 100_000, "line 1"),
        (b'{"texts": ["\\ud800"]}', "line 1"),
        ({}, "give"),
        ({"texts": "one"}, "texts"),
        ({"texts": None}, "give"),
        ({"texts": ["a"] * 41}, "at most 40"),
        ({"texts": [1]}, "not a string: row 1"),
        ({"texts": [None]}, "row 1"),
        ({"texts": [""]}, "empty text"),
        ({"texts": ["a"], "wings": 2}, "wings"),
        ({"texts": ["a"], "hidden_states": [[1]]}, "give"),
        ({"texts": ["a"], "answers": ["b", "c"]}, "nswers"),
        ({"texts": ["a"], "answers": 1}, "answers"),
        ({"hidden_states": [[1, 2]]}, "features"),
        ({"hidden_states": [1, 2]}, "states"),
        ({"hidden_states": [["a"]]}, "None of the inputs"),
        ({"hidden_states": [{}]}, "None of the inputs"),
    ],
)
def test_a_wrong_request_is_told_in_one_sentence_with_the_place(texts, body, place):
    for route in ("/v1/decide", "/v1/explain"):
        status, answer = texts.ask(route, body)
        assert status == 422 and list(answer) == ["error"], route
        assert answer["error"].endswith(".") and "\n" not in answer["error"] and place in answer["error"], answer


@pytest.mark.parametrize("k", [0, -1, "x", None, 1.5, [1], True, 10**9])
def test_a_wrong_number_of_exemplars_is_told_in_one_sentence(states, k):
    status, answer = states.ask("/v1/explain", {"hidden_states": STATES[:1].tolist(), "k": k})
    assert status == 422 and answer["error"].startswith("k: ")


def test_texts_for_a_model_of_states_and_unknown_routes_are_refused(states):
    status, answer = states.ask("/v1/decide", {"texts": ["a"]})
    assert status == 422 and "Give hidden_states" in answer["error"]
    for path, method, status in (
        ("/nowhere", "GET", 404),
        ("/decide", "POST", 404),  # as it was called before there were versions
        ("/v1/decide", "GET", 405),
        ("/v1/decide/", "DELETE", 404),
        ("/v2/models/other", "GET", 404),
        ("/docs", "GET", 404),  # its page would load scripts from elsewhere
    ):
        got, answer = states.ask(path, {} if method == "POST" else None, method=method)
        assert got in (status, 405) and list(answer) == ["error"] and answer["error"].endswith("."), path
    assert states.ask("/v1/health") == (200, {"status": "ok", "version": 0})  # after all of that


def test_a_port_in_use_is_one_sentence(states_model):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = warm_process.run(SDM, "serve", states_model, "--port", taken.getsockname()[1])
    assert done.returncode == 1 and done.stderr.startswith("sdm: Cannot listen on 127.0.0.1, port ")
    assert done.stderr.count("\n") == 1 and done.stderr.endswith(". Choose another.\n")


# --- The description -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["states", "texts"])
def test_every_example_of_the_description_can_be_sent(kind, text_model, states_model, tmp_path):
    shutil.copytree(text_model if kind == "texts" else states_model, tmp_path / "model")
    with server(tmp_path / "model") as running:
        paths = running.ask("/openapi.json")[1]["paths"]
        sent = []
        for path, operations in paths.items():
            for method, operation in operations.items():
                content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
                bodies = [one["value"] for one in content.get("examples", {}).values()]
                assert bodies or method == "get" or path == "/v1/reload", path
                for body in bodies or [None if method == "get" else {}]:
                    status, _, answer = running.raw(path.replace("{name}", "model"), body)
                    assert status == 200, (path, body, answer)
                    sent.append((method, path))
    assert len(sent) > 25 and ("post", "/v1/exemplars") in sent and ("post", "/v2/models/{name}/infer") in sent


# --- The guard -------------------------------------------------------------------------------------------------------

CALM, FAR = STATES[:20].tolist(), (STATES[:40] + 9).tolist()


def test_an_alarm_lasts_until_it_is_reset(states_model, tmp_path):
    model, file = tmp_path / "model", tmp_path / "guard.json"
    shutil.copytree(states_model, model)
    with server(model, "--guard", file) as running:
        before = running.ask("/v1/decide", {"hidden_states": CALM})[1]["decisions"]
        assert "certified" in {row["lane"] for row in before}
        running.ask("/v1/decide", {"hidden_states": FAR})
        state = running.ask("/v1/guard")[1]["guard"]
        assert state["raised"] and state["n_seen"] == 60 and running.metric("torchsdm_guard_raised") == 1
        after = running.ask("/v1/decide", {"hidden_states": CALM})[1]["decisions"]
        assert [row["admitted"] for row in after] == [row["lane"] == "trusted" for row in before]
        explained = running.ask("/v1/explain", {"hidden_states": CALM})[1]["explanations"]
        shown = ("admitted", "lane", "reason", "certified")
        assert [[row[key] for key in shown] for row in explained] == [[row[key] for key in shown] for row in after]
        assert running.ask("/v1/guard")[1]["guard"]["n_seen"] == 80  # explaining is not part of the stream
        assert running.ask("/v1/guard", {"reason": " "})[0] == 422
        assert running.ask("/v1/guard", {})[0] == 422
    with server(model, "--guard", file) as running:  # a new service knows
        known = running.ask("/v1/guard")[1]["guard"]
        assert (known["raised_at"], known["raised_by"]) == (state["raised_at"], state["raised_by"])
        answer = running.ask("/v1/guard", {"reason": "looked at", "who": "Ada", "key": "k"})[1]
        assert not answer["guard"]["raised"] and [one["n_seen"] for one in answer["guard"]["resets"]] == [80]
        change = running.ask("/v1/changes")[1]["changes"][-1]
        assert (change["what"], change["who"], change["why"]) == ("guard_reset", "Ada", "looked at")
        assert change["version"] == answer["version"] == 1
        assert running.ask("/v1/guard", {"reason": "looked at", "who": "Ada", "key": "k"})[1] == answer  # sent again
        assert running.ask("/v1/guard", {"reason": "another", "who": "Ada", "key": "k"})[0] == 422
        assert running.ask("/v1/decide", {"hidden_states": CALM})[1]["decisions"] == before


def test_one_source_that_turns_does_not_stop_the_others(states_model, tmp_path):
    model, file = tmp_path / "model", tmp_path / "guards.json"
    shutil.copytree(states_model, model)

    def decide(running, rows, sources):
        return running.ask("/v1/decide", {"hidden_states": rows, "sources": sources})[1]["decisions"]

    with server(model, "--guard", file, "--guard-by-source") as running:
        before = decide(running, CALM, ["mail"] * len(CALM))
        assert "certified" in {row["lane"] for row in before}
        decide(running, FAR, ["forum"] * len(FAR))
        state = running.ask("/v1/guard")[1]["guard"]
        assert [(one["source"], one["raised"]) for one in state["sources"]] == [("mail", False), ("forum", True)]
        assert state["raised"] and state["source"] == "forum" and state["n_seen"] == 60
        assert running.metric("torchsdm_guard_sources_raised") == 1
        assert decide(running, CALM, ["mail"] * len(CALM)) == before
        admitted = [row["admitted"] for row in decide(running, CALM, ["forum"] * len(CALM))]
        assert admitted == [row["lane"] == "trusted" for row in before]
        assert running.ask("/v1/decide", {"hidden_states": CALM, "sources": ["mail"]})[0] == 422
        assert running.ask("/v1/guard", {"reason": "why", "source": "news"})[0] == 422
    with server(model, "--guard", file, "--guard-by-source") as running:  # a new service knows
        assert running.ask("/v1/guard")[1]["guard"]["n_raised"] == 1
        answer = running.ask("/v1/guard", {"reason": "cleaned", "source": "forum", "who": "Ada"})[1]["guard"]
        assert not answer["raised"] and answer["resets"][-1]["source"] == "forum"
        assert running.ask("/v1/changes")[1]["changes"][-1]["why"] == "cleaned"
        assert decide(running, CALM, ["forum"] * len(CALM)) == before
    with server(states_model) as running:
        assert running.ask("/v1/decide", {"hidden_states": CALM, "sources": ["mail"] * len(CALM)})[0] == 422


def test_requests_at_the_same_time_are_one_stream(states_model):
    with server(states_model) as running, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda row: running.ask("/v1/decide", {"hidden_states": [row]}), CALM))
        assert [status for status, _ in answers] == [200] * len(CALM)
        assert running.ask("/v1/guard")[1]["guard"]["n_seen"] == len(CALM)
        assert running.metric("torchsdm_decisions_total") == len(CALM)


def test_a_guard_that_cannot_be_written_is_told_at_the_start(states_model, tmp_path):
    done = warm_process.run(SDM, "serve", states_model, "--port", free_port(), "--guard", tmp_path / "no" / "guard")
    assert done.returncode == 1 and "there is no directory" in done.stderr


def test_a_disk_that_fails_later_costs_no_answer(states_model, tmp_path):
    model, folder = tmp_path / "model", tmp_path / "guards"
    shutil.copytree(states_model, model)
    folder.mkdir()
    with server(model, "--guard", folder / "guard") as running:
        shutil.rmtree(folder)
        status, answer = running.ask("/v1/decide", {"hidden_states": FAR})
        assert status == 200 and len(answer["decisions"]) == len(FAR)
        assert running.ask("/v1/guard")[1]["guard"]["raised"]
        assert running.ask("/v1/guard", {"reason": "looked at"})[0] == 200
