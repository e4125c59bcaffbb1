"""Everything that goes wrong is answered in one shape, ``{"error": "..."}``: one sentence, never a traceback."""

from __future__ import annotations

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

_PLACE = 100  # characters of the place that a message names
_STATUS: dict[type[TorchSDMError], int] = {
    ModelInUseError: 409,
    BackboneError: 503,
    ModelFileError: 503,
}  # not the request's fault


class JSONAnswer(Response):
    """Strict JSON: NaN and infinity are null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of plain values."""
        return to_json(content, inf_nan_mode="null")


def refusal(status: int, what: str, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that says why there is no other."""
    return JSONAnswer({"error": what}, status, headers)


def answer_failures(app: FastAPI) -> None:
    """Have an application answer its exceptions; of several handlers, the one of the closest class is called."""

    @app.exception_handler(TorchSDMError)
    async def known(_: Request, error: TorchSDMError) -> Response:
        return refusal(next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 422), str(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        """Name the first place where a request has another shape."""
        first, *others = error.errors()
        place = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
        n = len(others)
        more = f" There {'is 1 more problem' if n == 1 else f'are {n} more problems'}." if others else ""
        return refusal(422, f"{shortened(place, _PLACE)}: {first['msg'].rstrip('.')}.{more}")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        """Answer what FastAPI and Starlette refuse: unknown paths and methods above all."""
        path, said = shortened(request.url.path, _PLACE), str(error.detail).rstrip(".")
        if error.status_code == 405:
            said = f"{path} does not take {request.method}. /openapi.json has the routes"
        elif error.detail == "Not Found":
            said = f"There is nothing at {path}. /openapi.json has the routes"
        return refusal(error.status_code, f"{said}.", error.headers)

    @app.exception_handler(QueueFull)
    async def full(_: Request, error: QueueFull) -> Response:
        said = f"Too many requests are waiting. Try again in {error.seconds} s."
        return refusal(429, said, {"retry-after": str(error.seconds)})

    @app.exception_handler(Closed)
    async def closing(_: Request, __: Closed) -> Response:
        return refusal(503, "The service is shutting down.", {"retry-after": "5"})

    @app.exception_handler(Abandoned)
    async def abandoned(_: Request, __: Abandoned) -> Response:
        return refusal(499, "The client left before the answer.")  # only the metrics see it
