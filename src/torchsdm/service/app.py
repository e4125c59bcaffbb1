"""Decisions over HTTP: ``POST /decide`` and ``POST /explain`` take texts or states, ``GET /model`` describes the model.

Requests are answered one at a time: each uses all cores, so two at once would only be slower.
"""

from __future__ import annotations

import logging
import socket
import threading
from typing import Any

from torchsdm._version import __version__
from torchsdm.application import SavedModel, answer_rows, given_block
from torchsdm.errors import InvalidInputError, MissingExtraError, TorchSDMError
from torchsdm.validation import check_positive

_LOGGER = logging.getLogger(__name__)


def create_app(saved: SavedModel, max_inputs: int = 256, *, texts: bool = False) -> Any:
    """The service as an ASGI application, for uvicorn or any other server.

    Explanations include training texts only if ``texts`` is true.
    """
    try:
        from fastapi import Body, FastAPI
        from fastapi.exceptions import RequestValidationError
        from fastapi.responses import JSONResponse
        from starlette.exceptions import HTTPException
    except ImportError as error:
        raise MissingExtraError("fastapi", "serve", "sdm serve") from error

    one_at_a_time = threading.Lock()

    async def refuse(_: Any, error: Exception) -> Any:
        return JSONResponse({"error": str(error)}, status_code=422)

    async def refuse_body(_: Any, __: Exception) -> Any:
        return JSONResponse({"error": "The body of a request must be a JSON object."}, status_code=422)

    async def refuse_request(_: Any, error: Any) -> Any:
        return JSONResponse({"error": f"{error.detail}."}, status_code=error.status_code, headers=error.headers)

    def health() -> dict[str, str]:
        return {"status": "ok"}

    def model() -> dict[str, Any]:
        origin = saved.classifier.states_origin_
        regions = saved.classifier.models_[0].calibration.regions
        return {
            "classes": saved.classifier.classes_.tolist(),
            "regions": [{"alpha": region.alpha, "found": region.found} for region in regions],
            "n_features": saved.classifier.n_features_in_,
            "language_model": None if origin is None else origin.model.reference,
        }

    def decide(request: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        with one_at_a_time:
            block = given_block(saved, **_checked(request, max_inputs))
            return {"decisions": answer_rows(saved.classifier, block)}

    def explain(request: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        k = request.pop("k", 5)
        check_positive(k, "k", "/explain", integer=True)
        with one_at_a_time:
            block = given_block(saved, **_checked(request, max_inputs))
            return {"explanations": answer_rows(saved.classifier, block, k=k, calibration=True, texts=texts)}

    app = FastAPI(title="torchsdm", version=__version__)
    app.add_exception_handler(TorchSDMError, refuse)
    app.add_exception_handler(RequestValidationError, refuse_body)
    app.add_exception_handler(HTTPException, refuse_request)
    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/model", model, methods=["GET"])
    app.add_api_route("/decide", decide, methods=["POST"])
    app.add_api_route("/explain", explain, methods=["POST"])
    return app


def _checked(request: dict[str, Any], max_inputs: int) -> dict[str, Any]:
    """Check that a request has one kind of input, and not too many."""
    if set(request) not in ({"texts"}, {"hidden_states"}, {"texts", "answers"}):
        raise InvalidInputError(
            f'A request needs "texts" (and "answers", if those are judged) or "hidden_states". Got {sorted(request)}.'
        )
    inputs = request.get("texts", request.get("hidden_states"))
    if not isinstance(inputs, list) or not 1 <= len(inputs) <= max_inputs:
        raise InvalidInputError(f"A request needs a list of 1 to {max_inputs} inputs.")
    return request


def run_service(saved: SavedModel, host: str, port: int, max_inputs: int = 256, *, texts: bool = False) -> None:
    """Answer requests until interrupted."""
    app = create_app(saved, max_inputs, texts=texts)
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("uvicorn", "serve", "sdm serve") from error
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InvalidInputError(f"Cannot listen on {host}, port {port}: {error}. Choose another.") from error
    with listening:
        _LOGGER.info("listening on http://%s:%d", host, listening.getsockname()[1])
        uvicorn.Server(uvicorn.Config(app, log_level="info")).run([listening])
