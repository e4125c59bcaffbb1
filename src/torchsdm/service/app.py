"""Decisions over HTTP: ``POST /decide`` and ``POST /explain`` take texts or states, ``GET /model`` describes the model.

Requests are answered one at a time: each uses all cores, so two at once would only be slower.
"""

from __future__ import annotations

import copy
import logging
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from torchsdm._version import __version__
from torchsdm.application import (
    SavedModel,
    answer_rows,
    guard_state,
    open_guard,
    readable_block,
    summary,
    with_rejected,
)
from torchsdm.errors import InvalidInputError, MissingExtraError, ModelFileError, TorchSDMError
from torchsdm.validation import check_positive

_LOGGER = logging.getLogger(__name__)


def create_app(saved: SavedModel, max_inputs: int = 256, *, texts: bool = False, guard_file: Path | None = None) -> Any:
    """The service as an ASGI application, for uvicorn or any other server.

    Explanations include training texts only if ``texts`` is true. A drift guard watches the inputs of ``/decide``, in
    the order of the requests; with ``guard_file`` it continues where an earlier service stopped. ``/explain`` answers
    as ``/decide`` would, but its inputs are not part of the stream.
    """
    try:
        from fastapi import Body, FastAPI
        from fastapi.exceptions import RequestValidationError
        from fastapi.responses import JSONResponse
        from starlette.exceptions import HTTPException
    except ImportError as error:
        raise MissingExtraError("fastapi", "serve", "sdm serve") from error

    one_at_a_time = threading.Lock()
    guard = open_guard(saved.classifier, guard_file)

    if guard is not None and guard_file is not None:
        guard.save(guard_file)  # who cannot write should know at the start

    def keep_guard() -> None:
        """Save the guard. Answers do not wait for a disk: a guard that cannot be written goes on in memory."""
        if guard is not None and guard_file is not None:
            try:
                guard.save(guard_file)
            except ModelFileError as error:
                _LOGGER.error("the drift guard is not saved: %s", error)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        yield
        keep_guard()

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
        facts = summary(saved.classifier, saved.path)
        return {
            **{name: facts[name] for name in ("classes", "policy", "certificate", "regions", "warnings")},
            "n_features": saved.classifier.n_features_in_,
            "language_model": None if origin is None else origin.model.reference,
        }

    def answers(request: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
        """A row for each input of a request; those that cannot be decided on are rejected."""
        inputs = _checked(request, max_inputs)
        if not any(inputs.values()):
            return []
        bad: dict[int, Any] = {}
        block = readable_block(saved, bad, **inputs)
        answered = answer_rows(saved.classifier, block, **wanted)
        return [row for rows in with_rejected([answered], bad) for row in rows]

    def decide(request: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        with one_at_a_time:
            was_raised = guard is not None and guard.raised
            rows = answers(request, guard=guard)
            if guard is not None and guard.raised and not was_raised:
                _LOGGER.warning("the drift guard was raised at input %d by %s", guard.raised_at, guard.raised_by)
                keep_guard()
            return {"decisions": rows}

    def watching() -> dict[str, Any]:
        with one_at_a_time:
            return {"guard": None if guard is None else guard_state(guard)}

    def reset(request: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        if guard is None:
            raise InvalidInputError("An ensemble has no drift guard to reset.")
        if set(request) != {"reason"}:
            raise InvalidInputError(
                f'To reset the drift guard, give its "reason" and nothing else. Got {sorted(request)}.'
            )
        with one_at_a_time:
            guard.reset(request["reason"])
            keep_guard()
            return {"guard": guard_state(guard)}

    def explain(request: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        k = request.pop("k", 5)
        check_positive(k, "k", "/explain", integer=True)
        with one_at_a_time:
            onlooker = copy.copy(guard)  # explains what /decide would answer, and leaves the stream as it is
            return {"explanations": answers(request, k=k, calibration=True, texts=texts, guard=onlooker)}

    app = FastAPI(title="torchsdm", version=__version__, lifespan=lifespan)
    app.add_exception_handler(TorchSDMError, refuse)
    app.add_exception_handler(RequestValidationError, refuse_body)
    app.add_exception_handler(HTTPException, refuse_request)
    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/model", model, methods=["GET"])
    app.add_api_route("/decide", decide, methods=["POST"])
    app.add_api_route("/explain", explain, methods=["POST"])
    app.add_api_route("/guard", watching, methods=["GET"])
    app.add_api_route("/guard/reset", reset, methods=["POST"])
    return app


def _checked(request: dict[str, Any], max_inputs: int) -> dict[str, Any]:
    """Check that a request has one kind of input, and not too many."""
    if set(request) not in ({"texts"}, {"hidden_states"}, {"texts", "answers"}):
        raise InvalidInputError(
            f'A request needs "texts" (and "answers", if those are judged) or "hidden_states". Got {sorted(request)}.'
        )
    inputs = request.get("texts", request.get("hidden_states"))
    if not isinstance(inputs, list) or len(inputs) > max_inputs:
        raise InvalidInputError(f"A request needs a list of at most {max_inputs} inputs.")
    return request


def run_service(
    saved: SavedModel,
    host: str,
    port: int,
    max_inputs: int = 256,
    *,
    texts: bool = False,
    guard_file: Path | None = None,
) -> None:
    """Answer requests until interrupted."""
    app = create_app(saved, max_inputs, texts=texts, guard_file=guard_file)
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
