"""A model behind an application: wrong values are told, and what fails once does not end the service."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from torchsdm.application import LiveModel

testclient = pytest.importorskip("fastapi.testclient")

STATE = [0.0, 1.0, 2.0, 3.0]
HUGE = 10**400  # no float
TENSOR = {"name": "hidden_states", "shape": [1, 4], "datatype": "FP32", "data": STATE}


@pytest.fixture
def model(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "model")


def serve(path, **settings):
    from torchsdm.service import ServiceSettings, create_app

    return testclient.TestClient(create_app(path, ServiceSettings(**settings)), base_url="http://127.0.0.1")


def wait_for(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def changing(**change):
    return {"changes": [change], "who": "Ada", "why": "looked at it"}


def test_a_value_that_cannot_be_used_is_told_and_changes_nothing(model):
    wrong = [
        *(changing(what="remove", ids=[one]) for one in (None, {}, [1], True, 10**30)),
        *(changing(what="relabel", ids=[one], labels=[1]) for one in (None, {}, 10**30)),
        changing(what="add", hidden_states=[[HUGE, 0, 0, 0]], labels=[1]),
        changing(what="recalibrate", min_class_count=10**30),
    ]
    with serve(model) as client:
        for body in wrong:
            answer = client.post("/v1/exemplars", json=body)
            assert answer.status_code == 422 and list(answer.json()) == ["error"], body
        assert client.get("/v1/changes").json() == {"version": 0, "changes": []}
        tensor = {**TENSOR, "data": [HUGE, 0, 0, 0]}
        answer = client.post("/v2/models/model/infer", json={"inputs": [tensor]})
        assert answer.status_code == 422 and "inputs.hidden_states" in answer.json()["error"]


def test_the_client_of_kserve_may_name_the_model_and_leave_parameters_null(model):
    body = {"id": "7", "model_name": "model", "inputs": [{**TENSOR, "parameters": None}], "parameters": None}
    with serve(model) as client:
        answer = client.post("/v2/models/model/infer", json=body)
        assert answer.status_code == 200 and answer.json()["id"] == "7"
        assert client.post("/v2/models/model/infer", json={**body, "wings": 2}).status_code == 422


def test_a_length_that_is_no_length_is_told(model):
    with serve(model) as client:
        for length in ("9" * 5000, "x", "-1", "100000"):
            headers = {"inference-header-content-length": length}
            answer = client.post("/v2/models/model/infer", json={"inputs": [TENSOR]}, headers=headers)
            assert answer.status_code == 422 and "inference-header-content-length" in answer.json()["error"]


def test_an_output_that_does_not_exist_is_told_before_the_guard_sees_the_inputs(model):
    with serve(model) as client:
        wanted = {"inputs": [TENSOR], "outputs": [{"name": "lane"}, {"name": "wings"}]}
        answer = client.post("/v2/models/model/infer", json=wanted)
        assert answer.status_code == 422 and "There is no output 'wings'" in answer.json()["error"]
        assert client.get("/v1/guard").json()["guard"]["n_seen"] == 0
        assert "torchsdm_decisions_total{" not in client.get("/metrics").text


def test_a_model_that_cannot_be_written_is_served(model, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    before = sorted(model.rglob("*"))
    with serve(model) as client:
        assert client.post("/v1/decide", json={"hidden_states": [STATE]}).status_code == 200
        assert client.get("/v1/review").json()["n"] == 0 and client.get("/v1/review/points").status_code == 200
        answer = client.post("/v1/exemplars", json=changing(what="remove", ids=[1]))
        assert answer.status_code == 422 and "opened for reading" in answer.json()["error"]
    assert sorted(model.rglob("*")) == before


def test_watching_goes_on_after_any_failure(model, monkeypatch):
    monkeypatch.setattr("torchsdm.service.serving._WATCH_SECONDS", 0.01)
    looks = []

    def refresh():
        looks.append(1)
        raise RuntimeError("a kernel failed")  # as torch raises

    with serve(model, watch=True) as client:
        monkeypatch.setattr(client.app.state.serving.live, "refresh", refresh)
        wait_for(lambda: len(looks) > 3)


def test_a_model_that_cannot_be_warmed_is_told(model, monkeypatch, caplog):
    def fail(*_, **__):
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr("torchsdm.service.serving._decide_once", fail)
    with serve(model) as client:
        wait_for(lambda: "never becomes ready" in caplog.text)
        assert client.get("/v1/health/ready").status_code == 503


def test_after_another_model_took_the_place_the_map_is_of_that_one_and_changes_go_there(model, other, tmp_path):
    """Both have version 0, and the path is a link that is switched, as deployments do."""
    link, new = tmp_path / "link", shutil.copytree(other, tmp_path / "new")
    link.symlink_to(model)
    with serve(link) as client:
        assert len(client.get("/v1/map").json()["points"]["labels"]) == client.get("/v1/model").json()["n_calibration"]
        (tmp_path / "next").symlink_to(new)
        (tmp_path / "next").rename(link)
        assert client.post("/v1/reload", json={}).json() == {"version": 0, "reloaded": True}
        assert len(client.get("/v1/map").json()["points"]["labels"]) == client.get("/v1/model").json()["n_calibration"]
        for number in (1, 2):
            add = changing(what="add", hidden_states=[[9.0, 9.0, 9.0, number]], labels=[1])
            assert client.post("/v1/exemplars", json=add).json()["version"] == number
    assert [LiveModel.open(path, writable=False).snapshot.version for path in (model, new)] == [0, 2]
