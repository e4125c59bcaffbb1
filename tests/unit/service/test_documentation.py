"""The description of the interface: complete, resolvable, and every write behind the token."""

from __future__ import annotations

import asyncio
import json
import re

import numpy as np
import pytest

pytest.importorskip("fastapi")

from torchsdm import SDMClassifier, SDMEnsemble
from torchsdm.service import ServiceSettings, create_app
from torchsdm.service.schemas import ExemplarsRequest

RNG = np.random.default_rng(0)
STATES = (RNG.normal(size=(120, 3)) + 2.0 * (np.arange(120) % 2)[:, None]).astype(np.float32)
SETTINGS = {"n_filters": 4, "n_rounds": 2, "training": "sdm", "max_epochs": 2, "random_state": 0}


@pytest.fixture(scope="module", params=[SDMClassifier, SDMEnsemble])
def app(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("app") / "model"
    request.param(0.8, **SETTINGS).fit(STATES, np.where(np.arange(120) % 2, "yes", "no")).save(path)
    app = create_app(path, ServiceSettings(token="0123456789abcdef"))
    yield app
    app.state.serving.close()


def test_every_reference_leads_somewhere(app):
    schema = app.openapi()
    text = json.dumps(schema)
    for name in set(re.findall(r'"#/([^"]+)"', text)):
        part = schema
        for key in name.split("/"):
            part = part[key]
    assert "$defs" not in text and schema["openapi"].startswith("3.1")
    fields = schema["components"]["schemas"]["Decision-decision"]["properties"]
    assert {"similarity", "distance_quantile", "lane"} <= fields.keys()


def test_what_fastapi_reads_names_one_type_at_a_time(app):
    schemas = app.openapi()["components"]["schemas"]
    ours = {name for name in schemas if name.split("-")[0] == "Decision"}  # added after FastAPI has read the others
    read = json.dumps({name: schema for name, schema in schemas.items() if name not in ours})
    assert '"type": "' in read and '"type": [' not in read


def test_the_examples_are_of_the_shape_that_is_described(app):
    for name, example in app.openapi()["paths"]["/v1/exemplars"]["post"]["requestBody"]["content"]["application/json"][
        "examples"
    ].items():
        changes = ExemplarsRequest.model_validate(example["value"]).changes
        assert changes[0].what == name.split()[0]


def test_bodies_are_described_as_they_are(app):
    paths = app.openapi()["paths"]
    infer = paths["/v2/models/{name}/infer"]["post"]
    for content in (infer["requestBody"]["content"], infer["responses"]["200"]["content"]):
        assert content.keys() == {"application/json", "application/octet-stream"}
    assert infer["requestBody"]["required"] and paths["/metrics"]["get"]["responses"]["200"]["content"].keys() == {
        "text/plain"
    }
    refused = [
        (path, status, body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2])
        for path, operations in paths.items()
        for operation in operations.values()
        for status, body in operation["responses"].items()
        if status >= "400" and "content" in body
    ]
    assert len(refused) > 30 and {name for _, _, name in refused} == {"ErrorAnswer"}


def test_whatever_is_not_known_as_a_question_needs_the_token(app):
    questions = {"/v1/decide", "/v1/explain", "/v1/preview", "/v2/models/{name}/infer"}
    writes = {path for path, methods in app.openapi()["paths"].items() if "post" in methods} - questions
    assert writes == {"/v1/exemplars", "/v1/recalibrate", "/v1/guard", "/v1/reload", "/v1/checks", "/v1/checks/reset"}

    async def status(path):
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message):
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        await app({**scope, "http_version": "1.1", "scheme": "http", "root_path": ""}, receive, send)
        return sent[0]["status"]

    for path in writes:
        assert asyncio.run(status(path)) == 401
    for path in questions:
        assert asyncio.run(status(path.replace("{name}", "model"))) == 422  # an empty request

    described = app.openapi()
    assert described["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            is_refused = path in writes and method == "post"
            assert (operation["security"] == [{"token": []}]) == is_refused, (method, path)
            assert ("401" in operation["responses"]) == bool(operation["security"]), (method, path)


@pytest.mark.parametrize(
    ("settings", "question", "write"),
    [
        ({}, [{}, {"token": []}], [{}, {"token": []}]),
        ({"host": "0.0.0.0", "token": "0123456789abcdef"}, [{"token": []}], [{"token": []}]),
    ],
)
def test_the_description_says_where_this_service_wants_its_token(app, settings, question, write):
    other = create_app(app.state.serving.path, ServiceSettings(**settings))
    paths = other.openapi()["paths"]
    assert paths["/v1/decide"]["post"]["security"] == paths["/v1/model"]["get"]["security"] == question
    assert paths["/v1/exemplars"]["post"]["security"] == write
    assert paths["/v1/health/live"]["get"]["security"] == paths["/v2/health/ready"]["get"]["security"] == []
    other.state.serving.close()
