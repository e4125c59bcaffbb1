"""A served model is changed: over HTTP, from the shell and by another model in its place; nothing is lost."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import warm_process
from sdm_command import good
from served import save_states_model, server, small_classifier
from torchsdm import SDMClassifier
from warm_process import SDM

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

RNG = np.random.default_rng(0)
LABELS = np.arange(300) % 2
STATES = (RNG.normal(size=(300, 4)) + 2.0 * LABELS[:, None]).astype(np.float32)
NEW = (RNG.normal(size=(40, 4)) + 1.0).astype(np.float32)
SIGNED = {"who": "Ada", "why": "a test"}
TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_states_model(tmp_path_factory.mktemp("changes"), STATES, LABELS)


@pytest.fixture
def model(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def add(first, last, **more):
    return {
        "changes": [
            {
                "what": "add",
                "hidden_states": NEW[first:last].tolist(),
                "labels": [0] * (last - first),
                "ids": [f"new-{number}" for number in range(first, last)],
                **more,
            }
        ],
        **SIGNED,
    }


def decided(running):
    """Version and decisions on the new inputs."""
    status, answer = running.ask("/v1/decide", {"hidden_states": NEW.tolist()})
    assert status == 200
    return answer["version"], answer["decisions"]


def by_library(path):
    return [{"id": number, **row} for number, row in enumerate(SDMClassifier.load(path).decide(NEW).to_dicts())]


def signals(rows):
    return [(row["similarity"], row["nearest_distance"], row["confidence"]) for row in rows]


def test_changes_are_in_use_and_on_disk_when_they_are_answered(model):
    with server(model) as running:
        version, before = decided(running)
        assert version == 0
        status, answer = running.ask("/v1/exemplars", add(0, 20))
        assert status == 200 and answer["version"] == 1
        (change,) = answer["changes"]
        assert (change["what"], change["n"], change["who"], change["why"]) == ("add", 20, "Ada", "a test")
        version, after = decided(running)
        assert version == 1 and signals(after) != signals(before) and signals(after) == signals(by_library(model))
        relabelled = {"what": "relabel", "ids": ["new-1", "new-2"], "labels": [1, 1]}
        removed = {"what": "remove", "ids": ["new-3"]}
        status, answer = running.ask("/v1/exemplars", {"changes": [relabelled, removed], **SIGNED})
        assert status == 200 and [one["version"] for one in answer["changes"]] == [2, 3]
        assert running.ask("/v1/recalibrate", {"alpha": 0.75, **SIGNED})[1]["version"] == 4
        assert running.ask("/v1/model")[1]["regions"][0]["alpha"] == 0.75
        assert signals(decided(running)[1]) == signals(by_library(model))
        status, answer = running.ask(
            "/v1/exemplars", {"changes": [{"what": "undo", "version": v} for v in (4, 3, 2, 1)], **SIGNED}
        )
        assert status == 200 and answer["version"] == 8
        version, undone = decided(running)
        assert version == 8 and signals(undone) == signals(before)
        history = running.ask("/v1/changes")[1]["changes"]
        assert [one["what"] for one in history] == ["add", "relabel", "remove", "recalibrate", *["undo"] * 4]
        assert [one["undone_by"] for one in history[:4]] == [8, 7, 6, 5]
        assert [one["version"] for one in running.ask("/v1/changes?after=6")[1]["changes"]] == [7, 8]


def test_a_preview_says_what_a_change_would_do_and_writes_nothing(model):
    with server(model) as running:
        change = add(0, 20)["changes"]
        status, answer = running.ask("/v1/preview", {"changes": change})
        assert status == 200 and answer["version"] == 0
        assert (answer["before"]["n_support"], answer["after"]["n_support"]) == (112, 132)
        assert answer["before"]["admitted_share"] != answer["after"]["admitted_share"]
        assert running.ask("/v1/changes")[1] == {"version": 0, "changes": []}
        assert decided(running)[0] == 0
        running.ask("/v1/exemplars", {"changes": change, **SIGNED})
        assert running.ask("/v1/model")[1]["n_support"] == 132
        status, refused = running.ask("/v1/preview", {"changes": change})
        assert status == 422 and "must be new" in refused["error"]


def test_a_change_sent_again_with_its_key_is_no_second_change(model):
    with server(model) as running:
        first = running.ask("/v1/exemplars", {**add(0, 5), "key": "k-1"})
        assert running.ask("/v1/exemplars", {**add(0, 5), "key": "k-1"}) == first
        status, answer = running.ask("/v1/exemplars", {**add(5, 9), "key": "k-1"})
        assert status == 422 and "k-1" in answer["error"]
        assert running.ask("/v1/model")[1]["n_support"] == 117


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"changes": [], **SIGNED}, "changes: "),
        ({"changes": [{"what": "explode"}], **SIGNED}, "what"),
        ({"changes": [{"what": "remove", "ids": ["nobody"]}], **SIGNED}, "nobody"),
        ({"changes": [{"what": "remove", "ids": ["nobody"]}]}, "who: "),
        ({"changes": [{"what": "remove", "ids": ["nobody"]}], "who": " ", "why": ""}, "nobody"),
        ({"changes": [{"what": "undo", "version": 3}], **SIGNED}, "3"),
        ({"changes": [{"what": "undo", "version": 1}, {"what": "recalibrate"}], **SIGNED}, "cannot be combined"),
        (add(0, 2, labels=[0]), "labels: there must be 2"),
        (add(0, 2, labels=[0, 7]), "labels: 7 (1 example) is not a class"),
        (add(0, 2, labels=[0, "1"]), "labels: '1' (1 example) is not a class of the model; 1 is."),
        (add(0, 1, hidden_states=[[1, 2]]), "4"),
        (add(0, 1, hidden_states=[[1, 2, 3, None]]), "hidden_states"),
        (add(0, 1, hidden_states=[[1, 2, 3, 1e60]]), "NaN or infinity"),
        (add(0, 1, hidden_states=STATES[:1].tolist()), "Already in"),
        ({"changes": [{"what": "recalibrate", "alpha": 3.0}], **SIGNED}, "alpha"),
        ({"changes": [{"what": "recalibrate", "policy": "none"}], **SIGNED}, "policy"),
    ],
)
def test_a_change_that_cannot_be_made_is_told_and_changes_nothing(unchanged, body, said):
    status, answer = unchanged.ask("/v1/exemplars", body)
    assert status == 422 and said in answer["error"], answer
    assert unchanged.ask("/v1/changes")[1] == {"version": 0, "changes": []}


@pytest.fixture(scope="module")
def unchanged(saved, tmp_path_factory):
    path = tmp_path_factory.mktemp("unchanged") / "model"
    shutil.copytree(saved, path)
    with server(path) as running:
        yield running


def test_a_token_is_demanded_for_writes_alone(model, tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    for options, env in ((("--token-file", file), {}), ((), {"TORCHSDM_TOKEN": TOKEN})):
        with server(model, *options, env=env) as running:
            assert decided(running)[0] == 0
            for path in ("/v1/exemplars", "/v1/recalibrate", "/v1/guard", "/v1/reload"):
                assert running.ask(path, {})[0] == 401
            assert running.ask("/v1/exemplars", add(0, 1), token="f" * 16)[0] == 401
            assert running.ask("/v1/reload", {}, token=TOKEN) == (200, {"version": 0, "reloaded": False})


def test_an_address_that_others_can_reach_needs_a_token(model):
    done = warm_process.run(SDM, "serve", model, "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 1 and "a token is needed" in done.stderr and done.stderr.count("\n") == 1


def test_what_was_acknowledged_survives_a_kill(model):
    acknowledged = []
    with server(model) as running, ThreadPoolExecutor(4) as pool:

        def keep_adding(worker):
            for number in range(worker * 10, worker * 10 + 10):
                status, answer = running.ask("/v1/exemplars", {**add(number, number + 1), "key": f"key-{number}"})
                if status == 200:
                    acknowledged.append((answer["version"], f"new-{number}"))

        adding = [pool.submit(keep_adding, worker) for worker in range(4)]
        running.wait_for(lambda: len(acknowledged) >= 5)
        running.kill()
        for one in adding:
            one.result()
    assert 5 <= len(acknowledged) < 40
    with server(model) as running:
        history = running.ask("/v1/changes")[1]["changes"]
        known = {one["version"]: one["key"] for one in history}
        assert all(known[version] == name.replace("new", "key") for version, name in acknowledged)
        n_support = running.ask("/v1/model")[1]["n_support"]
        assert n_support == 112 + len(history)
        assert len(history) - len(acknowledged) in range(5)  # at most one of each client was written and not told
        assert signals(decided(running)[1]) == signals(by_library(model))


@pytest.mark.parametrize("watches", [True, False])
def test_changes_from_the_shell_are_taken_in(model, tmp_path, watches):
    np.savez(tmp_path / "more.npz", hidden_states=NEW[:20], labels=np.zeros(20, dtype=int))
    with server(model, *["--watch"] * watches) as running:
        before = signals(decided(running)[1])
        good("update", model, "--add", tmp_path / "more.npz")
        expected = signals(by_library(model))
        assert expected != before
        if watches:
            running.wait_for(lambda: signals(decided(running)[1]) == expected)
        else:
            assert signals(decided(running)[1]) == before
            status, answer = running.ask("/v1/reload", {})
            assert status == 200 and answer["reloaded"]
            assert running.ask("/v1/reload", {})[1] == {**answer, "reloaded": False}
        version, after = decided(running)
        assert signals(after) == expected
        assert running.ask("/v1/exemplars", add(20, 21))[1]["version"] == version + 1  # and it can still write


def test_another_model_takes_the_place_without_a_dropped_request(model):
    with server(model, "--watch") as running:
        _, before = decided(running)
        small_classifier(random_state=3).fit(STATES, LABELS).save(model)
        expected, seen, is_done = signals(by_library(model)), [], threading.Event()

        def keep_asking():
            while not is_done.is_set():
                status, answer = running.ask("/v1/decide", {"hidden_states": NEW.tolist()})
                seen.append((status, signals(answer["decisions"])))

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(keep_asking) for _ in range(4)]
            try:
                running.wait_for(lambda: any(rows == expected for _, rows in seen))
            finally:
                is_done.set()
            for one in asking:
                one.result()
        assert {status for status, _ in seen} == {200} and len(seen) > 4
        assert {str(rows) for _, rows in seen} <= {str(signals(before)), str(expected)}  # one model or the other
        assert running.metric("torchsdm_reloads_total") == 1


def test_a_damaged_model_does_not_take_the_place(model):
    with server(model, "--watch") as running:
        version, before = decided(running)
        config = model / "config.json"
        config.write_text(config.read_text()[:-50])
        running.wait_for(lambda: "is served on" in running.process.stderr)
        after, rows = decided(running)
        assert after == version and signals(rows) == signals(before)
        assert running.ask("/v1/reload", {})[0] == 503


def test_an_alarm_outlives_a_change(model, tmp_path):
    file = tmp_path / "guard.json"
    with server(model, "--guard", file) as running:
        running.ask("/v1/decide", {"hidden_states": (NEW + 9).tolist()})
        assert running.ask("/v1/guard")[1]["guard"]["raised"]
        running.ask("/v1/exemplars", add(0, 5))
        state = running.ask("/v1/guard")[1]["guard"]
        assert state["raised"] and state["n_seen"] == 0 and state["resets"][-1]["n_seen"] == 40
        assert not any(row["admitted"] and row["lane"] != "trusted" for row in decided(running)[1])
        running.kill()
    with server(model, "--guard", file) as running:
        assert running.ask("/v1/guard")[1]["guard"]["raised"]
        assert not running.ask("/v1/guard", {"reason": "looked at"})[1]["guard"]["raised"]
