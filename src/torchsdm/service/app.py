"""The application: routes, and what every request passes on its way to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from torchsdm import __version__
from torchsdm.service import inference_protocol, inspector, routes
from torchsdm.service.documentation import ABOUT, describe
from torchsdm.service.failures import answer_failures
from torchsdm.service.metrics import Metrics
from torchsdm.service.security import BodyLimit, Envelope, Gate
from torchsdm.service.serving import Serving
from torchsdm.service.settings import ServiceSettings


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

    app = FastAPI(
        title="torchsdm",
        description=ABOUT,
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.serving, app.state.inspector = serving, inspecting
    for router in (*routes.routers, inference_protocol.router, inspector.router):
        app.include_router(router)
    app.mount("/page", inspector.files)
    describe(app, serving)
    answer_failures(app)
    # What is added last is passed first: a request is counted, then checked by its head, then read.
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(Gate, settings=settings)
    app.add_middleware(Envelope, metrics=metrics)
    return app
