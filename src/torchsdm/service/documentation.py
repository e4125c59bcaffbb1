"""The description of the interface for programs, ``/openapi.json``, with examples that can be sent as they are.

The examples are for the model that is served: texts if it reads texts, else states of its width, and its labels.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from torchsdm.application import decision_schema
from torchsdm.service.inference_protocol import InferRequest
from torchsdm.service.security import needs_token
from torchsdm.service.serving import Served, Serving
from torchsdm.service.settings import ServiceSettings

_ABOUT = """\
Which answers of a model may be acted on, and why. Every answer names the `version` of the support that it was decided
with. What goes wrong is answered with `{"error": "..."}`: 401 without a token, 413 for a body that is too large, 415
for one that is not JSON, 422 for one that cannot be used, 429 when too many requests wait, 503 before the model is warm
and when the service ends.
"""
_REFERENCE = "#/components/schemas/"


def described(app: FastAPI, serving: Serving) -> None:
    """Have an application describe itself, with examples for the model that it serves."""

    @lru_cache(maxsize=1)
    def of_model(served: Served) -> dict[str, Any]:
        schema = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
        schema["components"]["schemas"] |= _shared_schemas()
        schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                operation["security"] = _security(method.upper(), path, serving.settings)
        for (method, path), examples in all_examples(served).items():
            body = schema["paths"][path][method]["requestBody"]["content"]["application/json"]
            body["examples"] = {name: {"value": value} for name, value in examples.items()}
        return schema

    app.openapi = lambda: of_model(serving.served)  # type: ignore[method-assign]


def _security(method: str, path: str, settings: ServiceSettings) -> list[dict[str, list[str]]]:
    """What OpenAPI says of the token: demanded, not demanded by this service but perhaps by others, or never."""
    if not needs_token(method, path, is_local=False):
        return []
    demanded = settings.token is not None and needs_token(method, path, settings.is_local)
    return [{"token": []}] if demanded else [{}, {"token": []}]


def all_examples(served: Served) -> dict[tuple[str, str], dict[str, Any]]:
    """Bodies that can be sent, by method and path, each under a name. In their order they are a story."""
    classifier = served.saved.classifier
    shape = (1,) * (classifier.input_ndim_ - 2)
    state: Any = [0.0] * classifier.n_features_in_
    for _ in shape:
        state = [state]
    inputs: dict[str, Any] = {"texts": ["A film to remember."]} if served.reads_texts else {"hidden_states": [state]}
    if served.asks_for_answers:
        inputs["answers"] = ["Yes"]
    tensors = [
        {"name": name, "shape": [1], "datatype": "BYTES", "data": values}
        if name != "hidden_states"
        else {"name": name, "shape": [1, *shape, classifier.n_features_in_], "datatype": "FP32", "data": values}
        for name, values in inputs.items()
    ]
    examples: dict[tuple[str, str], dict[str, Any]] = {
        ("post", "/v1/decide"): {"one input": inputs},
        ("post", "/v1/explain"): {"the three nearest examples": {**inputs, "k": 3}},
        ("post", "/v2/models/{name}/infer"): {
            "all outputs": {"inputs": tensors},
            "two outputs": {"id": "42", "inputs": tensors, "outputs": [{"name": "predictions"}, {"name": "lane"}]},
        },
    }
    example = {"what": "add", **inputs, "labels": [classifier.classes_[0].item()], "ids": ["example"]}
    relabelled = {"what": "relabel", "ids": ["example"], "labels": [classifier.classes_[-1].item()]}
    undo = {"what": "undo", "version": served.version + 3}
    signed = {"who": "Ada", "why": "looked at it"}
    examples |= {
        ("post", "/v1/preview"): {
            "an example to add": {"changes": [example]},
            "and the region recomputed": {"changes": [example, {"what": "recalibrate"}]},
        },
        ("post", "/v1/exemplars"): {
            "add": {"changes": [example], **signed, "key": "3f1c"},
            "relabel": {"changes": [relabelled], **signed},
            "remove": {"changes": [{"what": "remove", "ids": ["example"]}], **signed},
            "undo the removal": {"changes": [undo], "who": "Ada", "why": "too soon"},
        },
        ("post", "/v1/recalibrate"): {"as before": {**signed}, "for another alpha": {"alpha": 0.9, **signed}},
    }
    if served.guard is not None:
        examples["post", "/v1/guard"] = {"after a look": {"reason": "a new source of texts, certified on Monday"}}
    return examples


def _shared_schemas() -> dict[str, Any]:
    """The schema of a decision, and the body that FastAPI does not read, as components."""
    text = json.dumps(decision_schema()).replace("#/$defs/", f"{_REFERENCE}Decision-")
    decision = json.loads(text)
    parts = decision.pop("$defs")
    decision.pop("$schema")
    schemas = {"Decision": decision, **{f"Decision-{name}": part for name, part in parts.items()}}
    infer = InferRequest.model_json_schema(ref_template=f"{_REFERENCE}{{model}}")
    return {**schemas, **infer.pop("$defs"), InferRequest.__name__: infer}
