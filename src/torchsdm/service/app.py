"""The application, with what every request passes on its way, and the server: uvicorn with limits for heads."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from torchsdm import __version__
from torchsdm.application import ReviewQueue
from torchsdm.errors import InvalidInputError
from torchsdm.service import check_routes, inference_protocol, inspector, routes
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
    queue = ReviewQueue(serving.live, serving.between_batches, serving.write)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        serving.start()
        queue.start()
        yield
        queue.close()
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
    app.state.serving, app.state.queue = serving, queue
    for router in (*routes.routers, check_routes.router, inference_protocol.router, inspector.router):
        app.include_router(router)
    app.mount("/page", inspector.files)
    describe(app, serving)
    answer_failures(app)
    # What is added last is passed first: a request is counted, then checked by its head, then read.
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(Gate, settings=settings)
    app.add_middleware(Envelope, metrics=metrics)
    return app


_LOGGER = logging.getLogger(__name__)
_KEEP_ALIVE_SECONDS = 20  # that an idle connection is kept
_MAX_HEAD = 65_536  # bytes of a request's head


def run_service(path: str | Path, settings: ServiceSettings, **opening: Any) -> None:
    """Answer requests until interrupted; requests that have arrived by then are answered first."""
    with _listening(settings.host, settings.port) as listening:
        app = create_app(path, settings, **opening)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        _LOGGER.info("listening on http://%s:%d", host, listening.getsockname()[1])
        config = uvicorn.Config(
            app,
            http=_with_limited_heads(settings.body_seconds),
            ws="none",
            log_level="warning",
            access_log=False,  # /metrics has the numbers
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
        )
        uvicorn.Server(config).run([listening])


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
    except OSError as error:
        raise InvalidInputError(f"Cannot listen on {host}, port {port}: {error}. Choose another.") from error


def _with_limited_heads(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol, but a connection is closed if its next head does not end in time or is too long.

    A client that leaves takes its waiting request along; otherwise clients that give up and ask again would wait behind
    their own abandoned requests.
    """

    class LimitedHeads(HttpToolsProtocol):
        _limit: asyncio.TimerHandle | None = None  # while a head is awaited
        _n_bytes = 0  # since the beginning of a head

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # Head and body of an answer are written apart. Without this the body waits for the client to confirm the
            # head, for 40 ms. asyncio sets it only on sockets that were made with the protocol's number.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._limit = self.loop.call_later(seconds, transport.close)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._n_bytes = 0
            self._limit = self._limit or self.loop.call_later(seconds, self.transport.close)

        def on_headers_complete(self) -> None:
            self._end_limit()
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            self._n_bytes += len(data)
            super().data_received(data)
            if self._limit is not None and self._n_bytes > _MAX_HEAD and not self.transport.is_closing():
                self.send_400_response(f"A head may have at most {_MAX_HEAD} bytes.")

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_limit()
            super().connection_lost(exc)
            scope: Any = self.scope or {}  # of the last request; None before the first
            abandon = scope.get("state", {}).get("abandon")
            if abandon is not None:
                abandon()  # does nothing once the answer has begun

        def _end_limit(self) -> None:
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None

    return LimitedHeads
