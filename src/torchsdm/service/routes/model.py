"""``GET /v1/model``."""

from __future__ import annotations

import asyncio
from typing import Any

from torchsdm.service.routes.access import ServingModel, new_router
from torchsdm.service.schemas import ModelAnswer

router = new_router(prefix="/v1", tags=["model"])


@router.get("/model", response_model=ModelAnswer, summary="What the model is")
async def model(serving: ServingModel) -> dict[str, Any]:
    """Classes, sizes, certificate, regions, warnings and language model of the model that answers."""
    served = serving.served
    description = await asyncio.to_thread(lambda: served.description)
    return {"name": served.name, **description, "shows_texts": serving.settings.texts}
