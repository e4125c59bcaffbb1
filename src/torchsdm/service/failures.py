"""Everything that goes wrong is answered in one shape, ``{"error": "..."}``: one sentence, never a traceback."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from torchsdm.errors import BackboneError, ModelFileError, ModelInUseError, TorchSDMError
from torchsdm.service.batching import Abandoned, Closed, QueueFull
from torchsdm.wording import shortened

_LOGGER = logging.getLogger(__name__)
_PLACE = 100  # characters of the place that a message names


class JSONAnswer(Response):
    """Strict JSON: NaN and infinity are null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of plain values."""
        return to_json(content, inf_nan_mode="null")


def refusal(status: int, what: str, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that says why there is no other."""
    return JSONAnswer({"error": what}, status, dict(headers or {}))


def answer_failures(app: FastAPI) -> None:
    """Have an application answer its exceptions."""
    app.add_exception_handler(TorchSDMError, _unusable)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(QueueFull, _full)
    app.add_exception_handler(Closed, _closing)
    app.add_exception_handler(Abandoned, _abandoned)
    app.add_middleware(_Unexpected)


async def _unusable(_: Request, error: Exception) -> Response:
    """A request that cannot be used as it is; if it is not the request's fault, the service cannot answer it."""
    status = 422
    if isinstance(error, (BackboneError, ModelFileError)):
        status = 503
    elif isinstance(error, ModelInUseError):
        status = 409
    return refusal(status, str(error))


async def _malformed(_: Request, error: Exception) -> Response:
    """A body of another shape; the first place where it differs is named."""
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    first, *others = problems
    place = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
    more = (
        f" There {'is 1 more problem' if len(others) == 1 else f'are {len(others)} more problems'}." if others else ""
    )
    return refusal(422, f"{shortened(place, _PLACE)}: {first['msg'].rstrip('.')}.{more}")


async def _refused(request: Request, error: Exception) -> Response:
    """A path or a method that does not exist, and what the service refuses itself."""
    if not isinstance(error, HTTPException):
        raise error
    path = shortened(request.url.path, _PLACE)
    if error.status_code == 405:
        return refusal(405, f"{path} does not take {request.method}. /openapi.json has the routes.", error.headers)
    if error.detail == "Not Found":
        return refusal(404, f"There is nothing at {path}. /openapi.json has the routes.")
    return refusal(error.status_code, f"{str(error.detail).rstrip('.')}.", error.headers)


async def _full(_: Request, error: Exception) -> Response:
    seconds = error.seconds if isinstance(error, QueueFull) else 1
    return refusal(429, f"Too many requests wait. Come back in {seconds} s.", {"retry-after": str(seconds)})


async def _closing(_: Request, __: Exception) -> Response:
    return refusal(503, "The service is ending.", {"retry-after": "5"})


async def _abandoned(_: Request, __: Exception) -> Response:
    return refusal(499, "You left before the answer.")  # for the metrics: nobody reads it


class _Unexpected:
    """Whatever nobody thought of gets an id, which is in the log beside the traceback."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on."""
        has_begun = False

        async def noting_send(message: Any) -> None:
            nonlocal has_begun
            has_begun = has_begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, noting_send)
        except Exception:
            name = secrets.token_hex(6)
            _LOGGER.exception("failure %s: %s %r", name, scope.get("method"), scope.get("path"))
            if scope["type"] != "http" or has_begun:
                raise
            said = f"Something went wrong that should not have. The service's log has it as failure {name}."
            await refusal(500, said)(scope, receive, send)
