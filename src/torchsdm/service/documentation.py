"""What ``/openapi.json`` says beyond what FastAPI finds out: the rule for tokens, the schema of a decision, examples.

The examples are for the model that is served: texts if it reads texts, else states of its width, and its labels.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from torchsdm.application import decision_schema
from torchsdm.service.security import needs_token
from torchsdm.service.serving import Served, Serving

ABOUT = """\
Which answers of a model may be acted on, and why. Every answer names the `version` of the support that it rests
on. Errors are `{"error": "..."}`: 401 without a token, 413 for a body that is too large, 415 for one that is not
JSON, 422 for one that cannot be used, 429 when too many requests are waiting, 503 before the model is ready and while
the service shuts down.
"""
_NO_TOKEN = {
    "description": "The service has a token, and the request does not.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}},
}


def describe(app: FastAPI, serving: Serving) -> None:
    """Extend an application's description of itself."""

    def security(method: str, path: str) -> list[dict[str, list[str]]]:
        """A token: required by this service, or perhaps by one that others can reach, or never."""
        if not needs_token(method, path, is_local=False):
            return []
        settings = serving.settings
        is_required = settings.token is not None and needs_token(method, path, settings.is_local)
        return [{"token": []}] if is_required else [{}, {"token": []}]

    @lru_cache(maxsize=1)
    def of_model(served: Served) -> dict[str, Any]:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        # The schema of a decision stays in one file, and has components of its own here.
        decision = json.loads(json.dumps(decision_schema()).replace("#/$defs/", "#/components/schemas/Decision-"))
        parts, _ = decision.pop("$defs"), decision.pop("$schema")
        schema["components"]["schemas"] |= {"Decision": decision}
        schema["components"]["schemas"] |= {f"Decision-{name}": part for name, part in parts.items()}
        schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        bodies = examples(served)
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                operation["security"] = security(method.upper(), path)
                if operation["security"]:
                    operation["responses"]["401"] = _NO_TOKEN
                if method == "post" and path in bodies:
                    content = operation["requestBody"]["content"]["application/json"]
                    content["examples"] = {name: {"value": value} for name, value in bodies[path].items()}
        return schema

    app.openapi = lambda: of_model(serving.served)  # type: ignore[method-assign]


def examples(served: Served) -> dict[str, dict[str, Any]]:
    """Bodies that can be posted, by path, each under a name. In their order they are a story."""
    classifier = served.saved.classifier
    shape = [*(1,) * (classifier.input_ndim_ - 1), classifier.n_features_in_]
    states = np.zeros(shape).tolist()
    inputs: dict[str, Any] = {"texts": ["A film to remember."]} if served.reads_texts else {"hidden_states": states}
    tensor = {"shape": [1], "datatype": "BYTES"} if served.reads_texts else {"shape": shape, "datatype": "FP32"}
    if served.asks_for_answers:
        inputs["answers"] = ["Yes"]
    tensors = [{"name": name, **tensor, "data": values} for name, values in inputs.items()]
    first, last = classifier.classes_[[0, -1]].tolist()
    add = {"what": "add", **inputs, "labels": [first], "ids": ["example"]}
    relabel = {"what": "relabel", "ids": ["example"], "labels": [last]}
    remove = {"what": "remove", "ids": ["example"]}
    signed = {"who": "Ada", "why": "reviewed"}
    posted: dict[str, dict[str, Any]] = {
        "/v1/decide": {"one input": inputs},
        "/v1/explain": {"the three nearest examples": {**inputs, "k": 3}},
        "/v2/models/{name}/infer": {
            "all outputs": {"inputs": tensors},
            "two outputs": {"id": "42", "inputs": tensors, "outputs": [{"name": "prediction"}, {"name": "lane"}]},
        },
        "/v1/preview": {
            "an example to add": {"changes": [add]},
            "and the region recomputed": {"changes": [add, {"what": "recalibrate"}]},
        },
        "/v1/exemplars": {
            "add": {"changes": [add], **signed, "key": "3f1c"},
            "relabel": {"changes": [relabel], **signed},
            "remove": {"changes": [remove], **signed},
            "undo the removal": {"changes": [{"what": "undo", "version": served.version + 3}], **signed},
        },
        "/v1/recalibrate": {"as before": signed, "for another alpha": {"alpha": 0.9, **signed}},
    }
    if served.guard is not None:
        posted["/v1/guard"] = {"after a new certification": {"reason": "a new source of texts, certified on Monday"}}
    if classifier.certificate_ is not None:
        posted["/v1/checks"] = {"none yet": {"verdicts": [], "who": "Ada"}}
        posted["/v1/checks/reset"] = {"after a new certification": {"reason": "certified on Monday", "who": "Ada"}}
    return posted
