"""``POST /v1/decide`` and ``POST /v1/explain``."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from torchsdm.application import AnswerRequest
from torchsdm.service.failures import JSONAnswer
from torchsdm.service.routes.access import REFUSALS, ServingModel, new_router
from torchsdm.service.schemas import DecideAnswer, DecideRequest, ExplainAnswer, ExplainRequest, Inputs

router = new_router(prefix="/v1", tags=["decisions"], responses=REFUSALS)


@router.post("/decide", response_model=DecideAnswer, summary="Decide on inputs")
async def decide(request: DecideRequest, http: Request, serving: ServingModel) -> Response:
    """A decision for each input, in order; an input that cannot be read is a row of the lane `rejected`.

    The drift guard watches these inputs, in the order of their arrival.
    """
    answered = await serving.ask(_asked(request), http.state)
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


def _asked(inputs: Inputs, k: int = 0) -> AnswerRequest:
    return AnswerRequest(inputs.texts, inputs.answers, inputs.hidden_states, k)
