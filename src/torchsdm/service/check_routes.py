"""The routes of spot checks: how they stand, what waits for a verdict, verdicts, reset."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field, StrictBool, StrictInt, StrictStr

from torchsdm.service.routes import REFUSALS, ServingModel, StrictRoute
from torchsdm.service.schemas import Record, StrictBody, _Answer

router = APIRouter(prefix="/v1/checks", route_class=StrictRoute, tags=["spot checks"], responses=REFUSALS)
_MOST = 500  # answers of one request


class ChecksAnswer(_Answer):
    """Spot check status, as in ``torchsdm.application.check_state``; null where nothing is certified."""

    checks: Record | None
    drawing: bool = Field(description="Whether this service draws answers.")
    waiting: list[Record] = Field(description="Answers that wait for a verdict, oldest first.")


class Verdict(StrictBody):
    """What a person found out about an answer that was drawn."""

    check: StrictInt = Field(description="The number of the answer.")
    right: StrictBool | None = Field(None, description="Whether it is right; null leaves it waiting.")
    label: StrictStr | StrictBool | int | float | None = Field(None, description="Or the label that is right.")


class Verdicts(StrictBody):
    """Verdicts: all of them are taken in, or none."""

    verdicts: list[Verdict]
    who: StrictStr = Field(description="Who checked.")


class VerdictsAnswer(ChecksAnswer):
    """What became of them."""

    taken: int
    known: int = Field(description="Had the same verdict already.")
    late: int = Field(description="About an earlier certificate.")
    raised: list[str] = Field(description="About which they raised an alarm.")


class ChecksReset(StrictBody):
    """Start again without verdicts."""

    reason: StrictStr = Field(description="Why.")
    who: StrictStr = Field("unknown", description="Who resets them.")


@router.get("", response_model=ChecksAnswer)
def spot_check_status(serving: ServingModel, most: Annotated[int, Query(ge=0, le=_MOST)] = 0) -> dict[str, Any]:
    """How the spot checks stand; with `most`, the answers that wait for a verdict."""
    return {"version": serving.served.version, **serving.checking.state(most)}


@router.post("", response_model=VerdictsAnswer)
def judge_answers(request: Verdicts, serving: ServingModel) -> dict[str, Any]:
    """Say whether answers that were drawn are right. Answered when it is safe on disk; sent again, it is known."""
    judged = serving.checking.judge([one.model_dump() for one in request.verdicts], request.who)
    return {"version": serving.served.version, **judged}


@router.post("/reset", response_model=ChecksAnswer)
def reset_spot_checks(request: ChecksReset, serving: ServingModel) -> dict[str, Any]:
    """Start again without verdicts. If the alarm was right, certify again on new labelled data first."""
    return {"version": serving.served.version, **serving.checking.reset(request.reason, request.who)}
