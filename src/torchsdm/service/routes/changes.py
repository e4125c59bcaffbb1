"""``POST /v1/exemplars``, ``/v1/preview``, ``/v1/recalibrate`` and ``/v1/reload``, ``GET /v1/changes``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query

from torchsdm.service.routes.access import REFUSALS, ServingModel, new_router
from torchsdm.service.schemas import (
    ChangesAnswer,
    ErrorAnswer,
    ExemplarsRequest,
    PreviewAnswer,
    PreviewRequest,
    RecalibrateRequest,
    ReloadAnswer,
)

router = new_router(prefix="/v1", tags=["changes"])
_WRITES: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorAnswer, "description": "The service has a token, and the request does not."},
    409: {"model": ErrorAnswer, "description": "Somebody else is changing the model; the sentence says who."},
    **REFUSALS,
}


@router.post("/preview", response_model=PreviewAnswer, responses=REFUSALS, summary="What changes would do")
async def preview(request: PreviewRequest, serving: ServingModel) -> dict[str, Any]:
    """Sizes of the sets and admitted shares before and after the changes. Nothing is written."""
    version, (before, after) = await serving.preview([change.model_dump() for change in request.changes])
    return {"version": version, "before": before, "after": after}


@router.post("/exemplars", response_model=ChangesAnswer, responses=_WRITES, summary="Change the model's examples")
async def exemplars(request: ExemplarsRequest, serving: ServingModel) -> dict[str, Any]:
    """Add, relabel and remove examples, recalibrate, or undo. Answered when the changes are safe on disk and in use."""
    changes = [change.model_dump() for change in request.changes]
    made = await serving.change(changes, who=request.who, why=request.why, key=request.key)
    return {"version": made[-1]["version"], "changes": made}


@router.post("/recalibrate", response_model=ChangesAnswer, responses=_WRITES, summary="Recompute the region")
async def recalibrate(request: RecalibrateRequest, serving: ServingModel) -> dict[str, Any]:
    """Recompute the region, for another alpha or after changes; the same as `recalibrate` among the changes."""
    settings = request.model_dump(exclude={"who", "why", "key"})
    change = {"what": "recalibrate", **settings}
    made = await serving.change([change], who=request.who, why=request.why, key=request.key)
    return {"version": made[-1]["version"], "changes": made}


@router.get("/changes", response_model=ChangesAnswer, summary="Who changed what, when and why")
async def changes(serving: ServingModel, after: Annotated[int, Query(ge=0)] = 0) -> dict[str, Any]:
    """The history of the model, oldest first; only changes after a version, if one is given."""
    made = serving.live.changes(after)
    return {"version": serving.served.version, "changes": [change.to_dict() for change in made]}


@router.post("/reload", response_model=ReloadAnswer, responses=_WRITES, summary="Take in what others wrote")
async def reload(serving: ServingModel) -> dict[str, Any]:
    """Serve the model, or the changes, that others wrote into the directory. Requests are answered meanwhile."""
    is_new = await serving.reload()
    return {"version": serving.served.version, "reloaded": is_new}
