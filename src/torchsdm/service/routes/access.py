"""How a route gets at the model, and how it reads a body."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from torchsdm.service.schemas import ErrorAnswer
from torchsdm.service.serving import Serving

REFUSALS: dict[int | str, dict[str, Any]] = {
    422: {"model": ErrorAnswer, "description": "The request cannot be used; the sentence names the place."},
    429: {"model": ErrorAnswer, "description": "Too many requests wait; Retry-After says when to come back."},
}


async def _serving(request: Request) -> Serving:  # async: FastAPI would call it in a thread otherwise
    serving: Serving = request.app.state.serving
    return serving


ServingModel = Annotated[Serving, Depends(_serving)]
Body = TypeVar("Body", bound=BaseModel)


class _StrictRequest(Request):
    """A request whose body is strict JSON, read several times faster than with the standard library."""

    async def json(self) -> Any:
        """The value of the body; NaN and infinity are not JSON."""
        return strict_json(await self.body())


def strict_json(body: bytes) -> Any:
    """A value from JSON; anything else is refused, with the place."""
    try:
        return from_json(body, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise HTTPException(422, f"The body is not JSON: {error}") from error


def body_of(name: str) -> dict[str, Any]:
    """What OpenAPI says of a body that a function reads itself: the name of its schema."""
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def validated(kind: type[Body], value: Any) -> Body:
    """A body of a kind; one of another shape is refused, with the place, as FastAPI does."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False)) from error


class _StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return handle_strictly


def new_router(**options: Any) -> APIRouter:
    """A router whose bodies are strict JSON."""
    return APIRouter(route_class=_StrictRoute, **options)
