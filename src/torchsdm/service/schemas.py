"""The shapes of requests and answers. A decision has the shape of ``torchsdm.application.decision_schema``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, WithJsonSchema, model_validator

from torchsdm.service.settings import MOST_EXAMPLES


def _listed(*types: str) -> dict[str, Any]:
    """A list of values of these types, each named alone: the oldest FastAPI that we support reads no list of types."""
    return {"type": "array", "items": {"anyOf": [{"type": one} for one in types]}}


# What is in a list is looked at later, row by row: one that cannot be used does not cost the others their answers.
Texts = Annotated[list[Any], WithJsonSchema(_listed("string", "null"))]
Sources = Annotated[list[StrictStr | None], WithJsonSchema(_listed("string", "null"))]
States = Annotated[list[Any], WithJsonSchema({"type": "array", "items": _listed("number", "array")})]
Labels = Annotated[list[Any], WithJsonSchema(_listed("string", "number", "boolean"))]
Ids = Annotated[list[Any], WithJsonSchema(_listed("string", "integer"))]
Decision = Annotated[dict[str, Any], WithJsonSchema({"$ref": "#/components/schemas/Decision"})]
Record = dict[str, Any]
Key = Annotated[
    StrictStr | None,
    Field(description="Your choice; a request repeated with its key makes no second change."),
]


class StrictBody(BaseModel):
    """A request: a key that is not known is an error, since it may be a known one misspelt."""

    model_config = ConfigDict(extra="forbid")


class Inputs(StrictBody):
    """Inputs: texts, with answers if those are judged, or hidden states."""

    texts: Texts | None = Field(None, description="One text for each input.")
    answers: Texts | None = Field(None, description="The answers to judge, if the model judges answers.")
    hidden_states: States | None = Field(None, description="One state for each input, as the model was trained on.")

    sources: Sources | None = Field(
        None, description="Where each input comes from, if the service guards the inputs of each source by itself."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Inputs:
        if (self.texts is None) == (self.hidden_states is None) or (self.answers is not None and self.texts is None):
            raise ValueError('give "texts" (with "answers", if those are judged) or "hidden_states"')
        if self.sources is not None and len(self.sources) != len(self.texts or self.hidden_states or ()):
            raise ValueError('"sources" must have one source for each input')
        return self


class ExplainRequest(Inputs):
    """Inputs to explain."""

    k: Annotated[StrictInt, Field(ge=1, le=MOST_EXAMPLES)] = Field(5, description="How many training examples to show.")


class _Answer(BaseModel):
    version: int = Field(description="Version of the support that answers.")


class DecideAnswer(_Answer):
    """A decision for each input."""

    decisions: list[Decision]


class ExplainAnswer(_Answer):
    """A decision for each input, with the examples behind it."""

    explanations: list[Decision]


class ModelAnswer(_Answer):
    """What the model is, as in ``torchsdm.application.summary``."""

    name: str = Field(description="Its name in the routes of the Open Inference Protocol.")
    kind: str
    classes: list[Any]
    n_features: int
    n_support: int
    n_calibration: int
    n_certification: int
    policy: str
    certificate: Record | None
    regions: list[Record]
    warnings: list[Record]
    language_model: str | None
    reads_texts: bool
    shows_texts: bool


class GuardAnswer(_Answer):
    """Drift guard status, as in ``torchsdm.application.guard_state``; null for an ensemble."""

    guard: Record | None


class GuardReset(StrictBody):
    """Restart the guard's stream."""

    reason: StrictStr = Field(description="Why, for the log of changes.")
    who: StrictStr = Field("unknown", description="Who resets it.")
    source: StrictStr | None = Field(None, description="Restart the stream of this source alone.")
    key: Key = None


class _Examples(Inputs):
    """Labelled examples: all of them are added, or none."""

    labels: Labels = Field(description="One label for each example.")
    ids: Ids | None = Field(None, description="One new id for each example; by default they are numbered on.")
    keep_repeated: StrictBool = Field(False, description="Add them even if the model has them already.")


class Add(_Examples):
    """Add examples to the support."""

    what: Literal["add"]
    allow_new_labels: StrictBool = Field(False, description="Allow labels outside the model's classes.")


class AddCalibration(_Examples):
    """Add examples to the calibration set."""

    what: Literal["add_calibration"]


class Relabel(StrictBody):
    """Change the labels of examples, in whichever set has them."""

    what: Literal["relabel"]
    ids: Ids
    labels: Labels
    allow_new_labels: StrictBool = Field(False, description="Allow labels outside the model's classes.")


class Remove(StrictBody):
    """Remove examples, from whichever set has them."""

    what: Literal["remove"]
    ids: Ids


class _Calibration(StrictBody):
    alpha: float | list[float] | dict[str, float] | None = Field(
        None, description="Target accuracy: one, several, or one for each class. Default: as before."
    )
    min_class_count: Annotated[StrictInt, Field(ge=0, lt=2**31)] | None = None
    policy: StrictStr | None = Field(None, description="Which lanes are admitted. Default: as before.")


class Recalibrate(_Calibration):
    """Recompute the region, for another alpha or after changes."""

    what: Literal["recalibrate"] = "recalibrate"


class Undo(StrictBody):
    """Undo the last change, or the last several in one request; or undo an undo."""

    what: Literal["undo"]
    version: Annotated[StrictInt, Field(ge=1)] = Field(description="The version that the change made.")


class _Signed(StrictBody):
    """What every change has."""

    who: StrictStr = Field(description="Who makes it.")
    why: StrictStr = Field(description="Why.")
    key: Key = None


Edit: TypeAlias = Add | AddCalibration | Relabel | Remove | Recalibrate


class ExemplarsRequest(_Signed):
    """Changes that are made in one step: all or none. Undo cannot be combined with others."""

    changes: list[Annotated[Edit | Undo, Field(discriminator="what")]] = Field(min_length=1)


class RecalibrateRequest(_Signed, _Calibration):
    """Recompute the region."""


class PreviewRequest(StrictBody):
    """Changes to try; nothing is written."""

    changes: list[Annotated[Edit, Field(discriminator="what")]] = Field(min_length=1)


class PreviewAnswer(_Answer):
    """How many points each set has and what share is admitted, before and after the changes."""

    before: Record
    after: Record


class Change(BaseModel):
    """A change that was made."""

    version: int = Field(description="Version of the support after it.")
    at: str = Field(description="When: UTC, ISO 8601.")
    who: str
    why: str
    what: str
    n: int = Field(description="How many points it concerns.")
    key: str | None
    undone_by: int | None
    details: Record
    together_with: int


class ChangesAnswer(_Answer):
    """Changes, oldest first."""

    changes: list[Change]


class ReloadAnswer(_Answer):
    """Whether the model's directory had anything new."""

    reloaded: bool


class HealthAnswer(BaseModel):
    """Whether the service answers requests."""

    status: str
    version: int | None = None


class ErrorAnswer(BaseModel):
    """What went wrong."""

    error: str
