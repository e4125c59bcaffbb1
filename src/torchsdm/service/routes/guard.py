"""``GET`` and ``POST /v1/guard``."""

from __future__ import annotations

from typing import Any

from torchsdm.service.routes.access import REFUSALS, ServingModel, new_router
from torchsdm.service.schemas import GuardAnswer, GuardReset

router = new_router(prefix="/v1/guard", tags=["guard"], responses=REFUSALS)


@router.get("", response_model=GuardAnswer, summary="What the drift guard has come to")
async def state(serving: ServingModel) -> dict[str, Any]:
    """Whether it is raised, since which input, and how far it is from its threshold."""
    version, guard = await serving.guard()
    return {"version": version, "guard": guard}


@router.post("", response_model=GuardAnswer, summary="Reset the drift guard")
async def reset(request: GuardReset, serving: ServingModel) -> dict[str, Any]:
    """Start its stream anew. If the alarm was right, certify again on new labelled data first."""
    version, guard = await serving.reset_guard(request.reason, who=request.who, key=request.key)
    return {"version": version, "guard": guard}
