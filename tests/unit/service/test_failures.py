"""Whatever goes wrong is one sentence; what nobody thought of has an id that is in the log."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import pytest

pytest.importorskip("fastapi")

from fastapi import FastAPI

from torchsdm.errors import BackboneError, InvalidInputError, ModelFileError, ModelInUseError
from torchsdm.service.batching import Abandoned, Closed, QueueFull
from torchsdm.service.failures import JSONAnswer, answer_failures
from torchsdm.service.metrics import Metrics
from torchsdm.service.security import SECURITY_HEADERS, Envelope


def failing(error):
    app = FastAPI()
    answer_failures(app)
    app.add_middleware(Envelope, metrics=Metrics())

    @app.get("/")
    async def fail():
        raise error

    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "http_version": "1.1"}
    asyncio.run(app({**scope, "scheme": "http", "server": ("127.0.0.1", 1), "root_path": ""}, receive, send))
    body = json.loads(b"".join(message.get("body", b"") for message in sent[1:]))
    return sent[0]["status"], body, {name.decode(): value.decode() for name, value in sent[0]["headers"]}


def test_what_nobody_thought_of_has_an_id_that_is_in_the_log(caplog):
    with caplog.at_level(logging.ERROR, logger="torchsdm"):
        status, body, headers = failing(ZeroDivisionError("secret"))
    assert headers.items() >= SECURITY_HEADERS.items()
    assert status == 500 and list(body) == ["error"] and "secret" not in body["error"]
    name = re.search(r"failure (\w{12})\.", body["error"])[1]
    (record,) = caplog.records
    assert name in record.getMessage() and "GET '/" in record.getMessage()
    assert record.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidInputError("no"), 422),
        (BackboneError("no"), 503),
        (ModelFileError("no"), 503),
        (ModelInUseError("no"), 409),
        (Closed(), 503),
        (Abandoned(), 499),
    ],
)
def test_what_is_known_has_its_status(error, status, caplog):
    got, body, _ = failing(error)
    assert got == status and list(body) == ["error"] and not caplog.records


def test_a_full_queue_has_a_time():
    status, body, headers = failing(QueueFull(7))
    assert (status, headers["retry-after"]) == (429, "7") and "7 s" in body["error"]


def test_an_answer_is_strict_json():
    assert JSONAnswer({"a": float("nan"), "b": [float("-inf"), 1.5]}).body == b'{"a":null,"b":[null,1.5]}'
