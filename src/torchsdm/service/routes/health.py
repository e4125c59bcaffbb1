"""``GET /v1/health``, ``/v1/health/live``, ``/v1/health/ready`` and ``/metrics``."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from torchsdm.service.failures import JSONAnswer
from torchsdm.service.routes.access import ServingModel, new_router
from torchsdm.service.schemas import ErrorAnswer, HealthAnswer

router = new_router(tags=["health"])
_NOT_YET: dict[int | str, Any] = {503: {"model": ErrorAnswer, "description": "Not yet, or no longer."}}


@router.get("/v1/health/live", response_model=HealthAnswer, responses=_NOT_YET, summary="Whether it runs")
async def live(serving: ServingModel) -> Response:
    """200 as long as somebody answers; if not, the service should be started again."""
    return _health(serving.worker.is_alive, "ok", "Nobody answers requests any more.")


@router.get("/v1/health/ready", response_model=HealthAnswer, responses=_NOT_YET, summary="Whether it is warm")
@router.get("/v1/health", response_model=HealthAnswer, responses=_NOT_YET, summary="Whether it is warm")
async def ready(serving: ServingModel) -> Response:
    """200 from when the model has decided once until the service ends."""
    return _health(serving.is_ready, "ok", "The model is not warm yet.", serving.served.version)


@router.get("/metrics", response_class=Response, summary="Numbers for Prometheus")
async def metrics(serving: ServingModel) -> Response:
    """Requests, latency, lanes, q = 0, d = 0, the guard, the queue and the version, in Prometheus' text format."""
    return serving.metrics.answer()


def _health(is_good: bool, said: str, otherwise: str, version: int | None = None) -> Response:
    if not is_good:
        return JSONAnswer({"error": otherwise}, 503)
    return JSONAnswer({"status": said, "version": version})
