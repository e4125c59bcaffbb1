"""The application: routes, and what every request passes on its way to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from torchsdm import __version__
from torchsdm.service import inference_protocol, inspector, routes
from torchsdm.service.documentation import described
from torchsdm.service.failures import answer_failures
from torchsdm.service.metrics import MeasuredRequests, Metrics
from torchsdm.service.security import BodyLimit, Gate, SecurityHeaders
from torchsdm.service.serving import Serving
from torchsdm.service.settings import ServiceSettings

ROUTERS = (
    routes.decisions.router,
    routes.changes.router,
    routes.model.router,
    routes.guard.router,
    routes.health.router,
    inference_protocol.router,
    inspector.router,
)


def create_app(path: str | Path, settings: ServiceSettings, **opening: Any) -> FastAPI:
    """The service of a saved model. The model is opened now, and warmed when the application starts."""
    metrics = Metrics()
    serving = Serving(Path(path), settings, metrics, **opening)

    inspecting = inspector.Inspector(serving)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        serving.start()
        inspecting.queue.start()
        yield
        inspecting.queue.close()
        serving.close()

    no_pages: Any = {"docs_url": None, "redoc_url": None}  # they would load scripts from elsewhere
    app = FastAPI(title="torchsdm", version=__version__, lifespan=lifespan, redirect_slashes=False, **no_pages)
    app.state.serving, app.state.inspector = serving, inspecting
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/page", inspector.files)
    described(app, serving)
    answer_failures(app)
    # What is added last is passed first: a request is counted, then checked by its head, then read.
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(Gate, settings=settings)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(MeasuredRequests, metrics=metrics)
    return app
