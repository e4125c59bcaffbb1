"""``POST /v1/decide`` and ``POST /v1/explain``."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.responses import Response

from torchsdm._json_states import states_from_json
from torchsdm.application import AnswerRequest
from torchsdm.service.failures import JSONAnswer
from torchsdm.service.routes.access import REFUSALS, ServingModel, body_of, new_router, strict_json, validated
from torchsdm.service.schemas import DecideAnswer, DecideRequest, ExplainAnswer, ExplainRequest, Inputs

router = new_router(prefix="/v1", tags=["decisions"], responses=REFUSALS)
_LONG = 100_000  # bytes of a body that is read in a thread: others are answered meanwhile


@router.post("/decide", response_model=DecideAnswer, summary="Decide on inputs", openapi_extra=body_of("DecideRequest"))
async def decide(request: Request, serving: ServingModel) -> Response:
    """A decision for each input, in order; an input that cannot be read is a row of the lane `rejected`.

    The drift guard watches these inputs, in the order of their arrival.
    """
    answered = await serving.ask(await _read(await request.body()), request.state)
    serving.count_rows(answered.rows)
    return JSONAnswer({"version": answered.version, "decisions": answered.rows})


@router.post("/explain", response_model=ExplainAnswer, summary="Decide on inputs and show why")
async def explain(request: ExplainRequest, http: Request, serving: ServingModel) -> Response:
    """The decision of each input with the training examples and calibration points behind it.

    Answers as `/v1/decide` would; the drift guard does not count these inputs. Texts of examples are given out only if
    the service was started with `--texts`.
    """
    answered = await serving.ask(_asked(request, request.k), http.state)
    return JSONAnswer({"version": answered.version, "explanations": answered.rows})


async def _read(body: bytes) -> AnswerRequest:
    """The inputs of a body. Rows of numbers are read at once, anything else by the strict parser."""
    states = states_from_json(body) if len(body) < _LONG else await asyncio.to_thread(states_from_json, body)
    if states is not None:
        return AnswerRequest(hidden_states=states)
    return _asked(validated(DecideRequest, strict_json(body)))


def _asked(inputs: Inputs, k: int = 0) -> AnswerRequest:
    return AnswerRequest(inputs.texts, inputs.answers, inputs.hidden_states, k)
