"""What routes share: the model that is served, strict JSON, and the refusals that OpenAPI describes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, ClassVar

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from torchsdm.service.schemas import ErrorAnswer
from torchsdm.service.serving import Serving


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
    serving: Serving = request.app.state.serving
    return serving


ServingModel = Annotated[Serving, Depends(_serving)]


class StrictRequest(Request):
    """A request whose body is strict JSON, which pydantic reads several times faster than the standard library."""

    async def n_json_bytes(self) -> int:
        """How much of the body is JSON."""
        return len(await self.body())

    async def json(self) -> Any:
        """The value of the body; NaN and infinity are not JSON."""
        body = (await self.body())[: await self.n_json_bytes()]
        try:
            return from_json(body, allow_inf_nan=False, cache_strings="none")
        except ValueError as error:
            raise HTTPException(422, f"The body is not JSON: {error}") from error


class StrictRoute(APIRoute):
    """A route that reads its body so."""

    request_class: ClassVar[type[StrictRequest]] = StrictRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(self.request_class(request.scope, request.receive))

        return handle_strictly
