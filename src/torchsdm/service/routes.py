"""The routes under ``/v1``, and ``/metrics``, and what all routes share: the model, strict JSON, and refusals.

FastAPI describes each route by its name and its docstring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from torchsdm.application import AnswerRequest
from torchsdm.service import schemas
from torchsdm.service.failures import JSONAnswer, refusal
from torchsdm.service.schemas import ErrorAnswer
from torchsdm.service.serving import Serving
from torchsdm.wording import shortened

HEADER_LENGTH = "inference-header-content-length"  #: bytes of the JSON in front of binary tensors
_DIGITS = 20  # of a length in bytes


def refusals(said: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of refusals, by their status."""
    return {status: {"model": ErrorAnswer, "description": text} for status, text in said.items()}


REFUSALS = refusals(
    {
        422: "The request cannot be used; the sentence names the place.",
        429: "Too many requests are waiting; Retry-After says when to try again.",
    }
)


async def _serving(request: Request) -> Serving:  # async: FastAPI would call it in a thread otherwise
    return request.app.state.serving


ServingModel = Annotated[Serving, Depends(_serving)]


class StrictRequest(Request):
    """A request whose body is strict JSON, which pydantic reads several times faster than the standard library.

    Binary tensors may follow the JSON, if a header says how long that is.
    """

    async def n_json_bytes(self) -> int:
        """How much of the body is JSON."""
        n_bytes = len(await self.body())
        length = self.headers.get(HEADER_LENGTH, str(n_bytes))
        if not length.isdecimal() or len(length) > _DIGITS or int(length) > n_bytes:
            said = f"The header {HEADER_LENGTH} must be the length of the JSON. Got {shortened(length)!r}"
            raise HTTPException(422, said)
        return int(length)

    async def json(self) -> Any:
        """The value of the body; NaN and infinity are not JSON."""
        body = (await self.body())[: await self.n_json_bytes()]
        try:
            return from_json(body, allow_inf_nan=False, cache_strings="none")
        except ValueError as error:
            raise HTTPException(422, f"The body is not JSON: {error}") from error


class StrictRoute(APIRoute):
    """A route that reads its body so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly


decisions = APIRouter(prefix="/v1", route_class=StrictRoute, tags=["decisions"], responses=REFUSALS)
changes = APIRouter(prefix="/v1", route_class=StrictRoute, tags=["changes"], responses=REFUSALS)
model = APIRouter(prefix="/v1", route_class=StrictRoute, tags=["model"])
health = APIRouter(tags=["health"])
routers = (decisions, changes, model, health)
_IN_USE = refusals({409: "Another process is changing the model; the sentence names it."})
_UNAVAILABLE = refusals({503: "Unavailable."})


# --- Decisions -------------------------------------------------------------------------------------------------------


@decisions.post("/decide", response_model=schemas.DecideAnswer)
async def decide(request: schemas.Inputs, http: Request, serving: ServingModel) -> Response:
    """A decision for each input, in order; an input that cannot be read is a row in the lane `rejected`.

    The drift guard watches these inputs, in the order of their arrival. If the service was started with
    `--guard-by-source`, each of `sources` has a guard of its own.
    """
    version, rows = await serving.ask(_inputs(request), http)
    serving.metrics.count_rows(rows)
    return JSONAnswer({"version": version, "decisions": rows})


@decisions.post("/explain", response_model=schemas.ExplainAnswer)
async def explain(request: schemas.ExplainRequest, http: Request, serving: ServingModel) -> Response:
    """The decision of each input with the training examples and calibration points behind it.

    The decisions are those of `/v1/decide`; the drift guard does not count these inputs. The texts of examples are
    included only if the service was started with `--texts`.
    """
    version, rows = await serving.ask(_inputs(request, request.k), http)
    return JSONAnswer({"version": version, "explanations": rows})


def _inputs(given: schemas.Inputs, k: int = 0) -> AnswerRequest:
    return AnswerRequest(given.texts, given.answers, given.hidden_states, k, given.sources)


# --- Changes ---------------------------------------------------------------------------------------------------------


@changes.post("/preview", response_model=schemas.PreviewAnswer)
async def preview_changes(request: schemas.PreviewRequest, serving: ServingModel) -> dict[str, Any]:
    """Set sizes and admitted shares before and after the changes. Nothing is written."""
    version, (before, after) = await serving.preview([change.model_dump() for change in request.changes])
    return {"version": version, "before": before, "after": after}


@changes.post("/exemplars", response_model=schemas.ChangesAnswer, responses=_IN_USE)
async def change_examples(request: schemas.ExemplarsRequest, serving: ServingModel) -> dict[str, Any]:
    """Add, relabel and remove examples, recalibrate, or undo. Answered when the changes are safe on disk and in use."""
    made = [change.model_dump() for change in request.changes]
    return await serving.change(made, who=request.who, why=request.why, key=request.key)


@changes.post("/recalibrate", response_model=schemas.ChangesAnswer, responses=_IN_USE)
async def recalibrate(request: schemas.RecalibrateRequest, serving: ServingModel) -> dict[str, Any]:
    """Recompute the region, for another alpha or after changes; the same as the change `recalibrate`."""
    change = {"what": "recalibrate", **request.model_dump(exclude={"who", "why", "key"})}
    return await serving.change([change], who=request.who, why=request.why, key=request.key)


@changes.get("/changes", response_model=schemas.ChangesAnswer)
async def list_changes(serving: ServingModel, after: Annotated[int, Query(ge=0)] = 0) -> dict[str, Any]:
    """Who changed what, when and why, oldest first; with `after`, only changes later than that version."""
    made = serving.live.changes(after)
    return {"version": serving.served.version, "changes": [change.to_dict() for change in made]}


@changes.post("/reload", response_model=schemas.ReloadAnswer, responses=_IN_USE)
async def reload_from_disk(serving: ServingModel) -> dict[str, Any]:
    """Reload the model, or the changes, that another process wrote. Requests are answered meanwhile."""
    is_new = await serving.reload()
    return {"version": serving.served.version, "reloaded": is_new}


# --- The model and its guard -----------------------------------------------------------------------------------------


@model.get("/model", response_model=schemas.ModelAnswer)
async def describe_model(serving: ServingModel) -> dict[str, Any]:
    """Classes, sizes, certificate, regions, warnings and language model of the served model."""
    served = serving.served
    description = await asyncio.to_thread(lambda: served.description)
    return {**description, "shows_texts": serving.settings.texts}


@model.get("/guard", response_model=schemas.GuardAnswer, responses=REFUSALS)
async def drift_guard_status(serving: ServingModel) -> dict[str, Any]:
    """Whether the alarm is raised, since which input, and how far the guard is from its threshold."""
    return await serving.guard()


@model.post("/guard", response_model=schemas.GuardAnswer, responses=REFUSALS | _IN_USE)
async def reset_drift_guard(request: schemas.GuardReset, serving: ServingModel) -> dict[str, Any]:
    """Restart the stream, or that of one source. If the alarm was right, certify again on new labelled data first."""
    return await serving.reset_guard(request.reason, who=request.who, key=request.key, source=request.source)


# --- Health ----------------------------------------------------------------------------------------------------------


@health.get("/v1/health/live", response_model=schemas.HealthAnswer, responses=_UNAVAILABLE)
async def liveness(serving: ServingModel) -> Response:
    """200 while requests are answered; otherwise, restart the service."""
    if not serving.worker.is_alive:
        return refusal(503, "The worker stopped.")
    return JSONAnswer({"status": "ok", "version": None})


@health.get("/v1/health/ready", response_model=schemas.HealthAnswer, responses=_UNAVAILABLE)
@health.get("/v1/health", response_model=schemas.HealthAnswer, responses=_UNAVAILABLE)
async def readiness(serving: ServingModel) -> Response:
    """200 from the model's first decision until the service shuts down."""
    if not serving.is_ready:
        return refusal(503, "The model is not ready.")
    return JSONAnswer({"status": "ok", "version": serving.served.version})


@health.get("/metrics", response_class=PlainTextResponse)
async def metrics(serving: ServingModel) -> Response:
    """Requests, latency, lanes, q = 0, d = 0, drift guard, queue and version, in Prometheus' text format."""
    return serving.metrics.answer()
