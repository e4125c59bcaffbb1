"""Spot checks of a served model: drawn inside decide, judged and reset over HTTP, and an alarm demotes at once."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import tiny_models
from small import quietly, small_settings
from torchsdm import SDMClassifier, SDMEnsemble, SDMTextClassifier
from torchsdm.application import LiveModel, ModelChecks, check_model
from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.wording import REASONS

testclient = pytest.importorskip("fastapi.testclient")

RNG = np.random.default_rng(0)
WORDS = ["dull dull dull late", "fine better good fine"]
SEEN = tiny_models.TEXT.split()  # other words would look alike to the language model, and be copies
TEXTS = [f"{' '.join(RNG.choice(SEEN, 3))} {WORDS[n % 2]}" for n in range(600)]
NEW = TEXTS[500:]
SIGNED = {"who": "Ada"}


@pytest.fixture(scope="module")
def trained_on_texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checking")
    language_model = tiny_models.save_model(folder / "bert", *tiny_models.bert())
    classifier = SDMTextClassifier(language_model, classifier=SDMClassifier(0.8, **small_settings()))
    quietly(lambda: classifier.fit(TEXTS[:500], [n % 2 for n in range(500)])).save(folder / "model")
    return folder / "model"


@pytest.fixture
def model(trained_on_texts, tmp_path):
    return shutil.copytree(trained_on_texts, tmp_path / "model")


def serve(path, **settings):
    from torchsdm.service import ServiceSettings, create_app

    return testclient.TestClient(create_app(path, ServiceSettings(**settings)), base_url="http://127.0.0.1")


def decide(client, texts=NEW):
    return client.post("/v1/decide", json={"texts": texts}).json()["decisions"]


def status(client, most=0):
    return client.get(f"/v1/checks?most={most}").json()


def judge(client, verdicts):
    return client.post("/v1/checks", json={"verdicts": verdicts, **SIGNED})


def metric(client, name):
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"torchsdm_checks_{name} "))


def numbers(client, name):
    return [metric(client, one) for one in name.split()]


def test_nothing_is_drawn_or_written_unless_it_is_switched_on(model):
    with serve(model) as client:
        decide(client)
        told = status(client)
        assert (told["drawing"], told["checks"]["n_admitted"], told["waiting"]) == (False, 0, [])
    assert not (model / "changes" / "checks.sqlite").exists()


def test_admitted_answers_to_texts_are_drawn_and_wait_with_their_text(model):
    with serve(model, check_rate=1.0) as client:
        rows = decide(client)
        client.post("/v1/explain", json={"texts": NEW, "k": 1})  # no part of the stream
        width = client.get("/v1/model").json()["n_features"]
        assert client.post("/v1/decide", json={"hidden_states": [[0.0] * width] * 3}).status_code == 200
        told = status(client, 500)
        admitted = [(text, row) for text, row in zip(NEW, rows, strict=True) if row["admitted"]]
        waiting = [(one["text"], one["prediction"], one["probability"]) for one in told["waiting"]]
        assert waiting == [(t, r["prediction"], r["probabilities"][str(r["prediction"])]) for t, r in admitted]
        assert len(waiting) > 50 and [one["check"] for one in told["waiting"]] == list(range(1, len(waiting) + 1))
        assert len(status(client, 3)["waiting"]) == 3 and status(client)["waiting"] == []
        assert numbers(client, "drawn waiting checked wrong raised") == [len(waiting), len(waiting), 0, 0, 0]


def test_a_share_is_drawn_and_a_number_a_week(model):
    with serve(model, check_rate=0.2) as client:
        decide(client)
        n, drawn = (status(client)["checks"][name] for name in ("n_admitted", "n_drawn"))
        assert n > 50 and 0 < drawn < 0.5 * n
    with serve(model, check_per_week=1) as client:
        decide(client)
        assert status(client)["checks"]["n_drawn"] - drawn < 0.3 * n


def test_verdicts_raise_an_alarm_that_demotes_at_once_until_a_reset(model):
    with serve(model, check_rate=1.0) as client:
        before = decide(client)
        waiting = status(client, 500)["waiting"]
        verdicts = [{"check": one["check"], "right": one["prediction"] == 0} for one in waiting]
        answer = judge(client, verdicts).json()
        assert (answer["taken"], answer["known"], answer["late"]) == (len(waiting), 0, 0)
        assert "prediction 1" in answer["raised"] and answer["checks"]["raised_by"][0] == "prediction 1"
        again = judge(client, verdicts).json()
        assert (again["taken"], again["known"], again["raised"]) == (0, len(waiting), [])
        assert again["checks"] == answer["checks"]
        n_wrong = sum(one["prediction"] == 1 for one in waiting)
        assert numbers(client, "drawn waiting checked wrong raised") == [len(waiting), 0, len(waiting), n_wrong, 1]

        after = decide(client)
        reason = REASONS["checks of one"].format(label=1)
        for old, new in zip(before, after, strict=True):
            if old["admitted"] and old["prediction"] == 1:
                assert (new["admitted"], new["lane"], new["reason"]) == (False, "review", reason)
        assert not any(row["admitted"] for row in after if row["prediction"] == 1)
        explained = client.post("/v1/explain", json={"texts": NEW}).json()["explanations"]
        assert [row["lane"] for row in explained] == [row["lane"] for row in after]
        infer = {"inputs": [{"name": "texts", "shape": [len(NEW)], "datatype": "BYTES", "data": NEW}]}
        outputs = client.post("/v2/models/model/infer", json=infer).json()["outputs"]
        assert next(one for one in outputs if one["name"] == "lane")["data"] == [row["lane"] for row in after]

        assert client.post("/v1/checks/reset", json={"reason": " ", **SIGNED}).status_code == 422
        told = client.post("/v1/checks/reset", json={"reason": "looked at", **SIGNED}).json()
        assert not told["checks"]["raised"] and told["checks"]["resets"][-1]["reason"] == "looked at"
        assert [row["lane"] for row in decide(client)] == [row["lane"] for row in before]
        assert metric(client, "raised") == 0


def test_a_verdict_that_cannot_be_used_is_told(model):
    with serve(model, check_rate=1.0) as client:
        decide(client)
        first = {"check": 1, "right": True}
        for wrong in ({"check": 7000, "right": True}, {"check": 0, "right": True}, {"check": 2, "label": "spam"}):
            answer = judge(client, [first, wrong])
            assert answer.status_code == 422 and answer.json()["error"]
        for body in (
            {"verdicts": [first]},
            {"verdicts": [{**first, "wings": 2}], **SIGNED},
            {"verdicts": [first], "who": " "},
        ):
            assert client.post("/v1/checks", json=body).status_code == 422
        assert client.get("/v1/checks?most=501").status_code == 422
        assert status(client)["checks"]["n_checked"] == 0
        label = status(client, 1)["waiting"][0]["prediction"]
        assert judge(client, [{"check": 1, "label": label}, {"check": 2}]).json()["taken"] == 1


def test_a_shell_and_a_service_share_the_stream(model):
    with serve(model, check_rate=1.0) as client:
        decide(client)
        waiting = status(client, 500)["waiting"]
        other, classifier = ModelChecks(model), LiveModel.open(model, writable=False).snapshot.saved.classifier
        verdicts = [{"check": one["check"], "right": one["prediction"] == 0} for one in waiting]
        other.judge(classifier, verdicts, "ada")
        assert not any(row["admitted"] for row in decide(client) if row["prediction"] == 1)
        check_model(model, reason="looked at", who="ada")
        assert any(row["admitted"] for row in decide(client) if row["prediction"] == 1)


def test_a_new_certificate_ends_the_stream(model):
    with serve(model, check_rate=1.0) as client:
        decide(client)
        assert judge(client, [{"check": 1, "right": False}]).status_code == 200
        change = {"alpha": 0.7, "who": "Ada", "why": "less will do"}
        assert quietly(lambda: client.post("/v1/recalibrate", json=change)).status_code == 200
        told = status(client, 500)
        assert (told["checks"]["n_checked"], told["checks"]["n_waiting"], told["waiting"]) == (0, 0, [])
        assert judge(client, [{"check": 2, "right": True}]).json()["late"] == 1
        decide(client)
        assert status(client)["checks"]["groups"][-1]["target"] == 0.7 and status(client)["checks"]["n_waiting"] > 0


def test_answers_do_not_fail_with_the_checks(model, monkeypatch, caplog):
    def fail(*_, **__):
        raise ModelFileError("the disk is gone")

    with serve(model, check_rate=1.0) as client:
        before = decide(client)
        waiting = status(client, 500)["waiting"]
        judge(client, [{"check": one["check"], "right": one["prediction"] == 0} for one in waiting])
        decide(client)
        monkeypatch.setattr(ModelChecks, "alarm", fail)
        monkeypatch.setattr(ModelChecks, "draw", fail)
        rows = [decide(client) for _ in range(2)][-1]
        assert len(rows) == len(before) and not any(row["admitted"] for row in rows if row["prediction"] == 1)
        assert caplog.text.count("the disk is gone") == 1


def test_what_cannot_be_drawn_from_is_told_at_the_start(model, trained, tmp_path, monkeypatch):
    from torchsdm.service import ServiceSettings, create_app

    X, y = np.random.default_rng(0).normal(size=(120, 3)).astype(np.float32), np.arange(120) % 2
    quietly(lambda: SDMEnsemble(0.8, **small_settings(n_rounds=2)).fit(X, y)).save(tmp_path / "ensemble")
    for path, settings, said in (
        (tmp_path / "ensemble", {"check_rate": 0.1}, "An ensemble is not certified"),
        (trained, {"check_per_week": 5}, "nobody could read"),
        (model, {"check_rate": 1.5}, "'rate'"),
        (model, {"check_rate": -1}, "'check_rate'"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            create_app(path, ServiceSettings(**settings))
    monkeypatch.setattr("torchsdm.service.serving.os.access", lambda *_: False)
    with pytest.raises(InvalidInputError, match="cannot be written"):
        create_app(model, ServiceSettings(check_rate=0.1))
    with serve(tmp_path / "ensemble") as client:
        assert status(client) == {"version": 0, "checks": None, "drawing": False, "waiting": []}
