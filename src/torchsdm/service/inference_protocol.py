"""The Open Inference Protocol v2, which clients of KServe and Triton speak.

Inputs are tensors: ``texts`` (BYTES), with ``answers`` (BYTES) if those are judged, or ``hidden_states`` (FP32).
Outputs are named as the fields of a decision. A tensor has a value for every input, so what a decision does not have
(``null`` in ``/v1/decide``) is ``null`` for numbers in JSON, NaN in binary, -1 for counts and "" for words.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Depends
from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from torchsdm import __version__
from torchsdm.application import AnswerRequest
from torchsdm.errors import InvalidInputError
from torchsdm.service.failures import JSONAnswer
from torchsdm.service.routes import HEADER_LENGTH, REFUSALS, ServingModel, StrictRequest, StrictRoute, refusals
from torchsdm.service.schemas import StrictBody
from torchsdm.service.serving import Served

_NUMPY = {"BOOL": "?", "INT64": "<i8", "FP64": "<f8", "FP32": "<f4"}

#: What goes beyond the protocol; clients also write null where there is nothing.
Parameters = Annotated[dict[str, Any], BeforeValidator(lambda given: {} if given is None else given)]


class Tensor(StrictBody):
    """A tensor: name, shape, type of its elements, and the elements, row by row; nested lists are taken, too."""

    name: str
    shape: list[Annotated[int, Field(ge=0)]]
    datatype: str
    parameters: Parameters = Field({})
    data: Annotated[list[Any] | None, WithJsonSchema({"type": "array"})] = None


class OutputWanted(StrictBody):
    """A requested output."""

    name: str
    parameters: Parameters = Field({})


class InferRequest(StrictBody):
    """Inputs to decide on."""

    id: str | None = None
    model_name: str | None = Field(None, description="As in the path; KServe's client repeats it.")
    parameters: Parameters = Field({})
    inputs: list[Tensor]
    outputs: list[OutputWanted] | None = Field(None, description="By default all.")


class InferAnswer(BaseModel):
    """The fields of the decisions as tensors."""

    model_name: str
    model_version: str = Field(description="Version of the support that was asked.")
    id: str | None = None
    outputs: list[Tensor]


async def _served(name: str, serving: ServingModel) -> Served:
    served = serving.served
    if name != served.name:
        raise HTTPException(404, f"There is no model {name!r} here; it is {served.name!r}")
    return served


NamedModel = Annotated[Served, Depends(_served)]
router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"], route_class=StrictRoute)
_NAMED = refusals({404: "The service has no model of this name.", 422: "The request cannot be used."})
_UNAVAILABLE: dict[int | str, dict[str, Any]] = {503: {"description": "Unavailable."}}
_BINARY: dict[str, Any] = {"content": {"application/octet-stream": {}}}  # JSON, and binary tensors behind it


# --- About the server and the model ----------------------------------------------------------------------------------


@router.get("")
async def describe_server() -> dict[str, Any]:
    """Name and version of the server, and the extensions of the protocol that it supports."""
    return {"name": "torchsdm", "version": __version__, "extensions": ["binary_tensor_data"]}


@router.get("/health/live", responses=_UNAVAILABLE)
async def liveness(serving: ServingModel) -> Response:
    """200 while requests are answered."""
    return _health({"live": serving.worker.is_alive})


@router.get("/health/ready", responses=_UNAVAILABLE)
async def readiness(serving: ServingModel) -> Response:
    """200 from the model's first decision."""
    return _health({"ready": serving.is_ready})


@router.get("/models/{name}/ready", responses=_NAMED | _UNAVAILABLE)
async def model_readiness(served: NamedModel, serving: ServingModel) -> Response:
    """200 from the model's first decision."""
    return _health({"name": served.name, "ready": serving.is_ready})


def _health(said: dict[str, Any]) -> Response:
    return JSONAnswer(said, 200 if list(said.values())[-1] else 503)


@router.get("/models/{name}", responses=_NAMED)
async def describe_tensors(served: NamedModel) -> dict[str, Any]:
    """Inputs and outputs with their types and shapes; -1 is any number."""
    classifier = served.saved.classifier
    shape = [-1] * (classifier.input_ndim_ - 1) + [classifier.n_features_in_]
    outputs = await _outputs(served)
    words = [name for name, is_read in (("texts", served.reads_texts), ("answers", served.asks_for_answers)) if is_read]
    return {
        "name": served.name,
        "versions": [str(served.version)],
        "platform": "torchsdm",
        "inputs": [
            *({"name": one, "datatype": "BYTES", "shape": [-1]} for one in words),
            {"name": "hidden_states", "datatype": "FP32", "shape": shape},
        ],
        "outputs": [{"name": one.name, "datatype": one.datatype, "shape": [-1, *one.shape[1:]]} for one in outputs],
    }


# --- Deciding --------------------------------------------------------------------------------------------------------


@router.post(
    "/models/{name}/infer",
    response_model=InferAnswer,
    responses={200: _BINARY} | _NAMED | REFUSALS,
    openapi_extra={"requestBody": _BINARY},
)
async def infer(asked: InferRequest, request: StrictRequest, served: NamedModel, serving: ServingModel) -> Response:
    """The decision of each input, a tensor for each field. The drift guard watches them as with `/v1/decide`."""
    inputs = _inputs(asked, memoryview(await request.body())[await request.n_json_bytes() :])
    if asked.outputs:  # looked at before the guard sees the inputs
        outputs = [one.name for one in await _outputs(served)]
        unknown = next((one.name for one in asked.outputs if one.name not in outputs), None)
        if unknown is not None:
            raise InvalidInputError(f"There is no output {unknown!r}. The outputs are {', '.join(outputs)}.")
    version, rows = await serving.ask(inputs, request)
    serving.metrics.count_rows(rows)
    known = {one.name: one for one in output_tensors(rows)}
    head: dict[str, Any] = {"model_name": served.name, "model_version": str(version)}
    head |= {} if asked.id is None else {"id": asked.id}
    return _written(head, [(known[one], is_binary) for one, is_binary in _wanted(asked, known) if one in known])


async def _outputs(served: Served) -> list[Output]:
    return output_tensors([await asyncio.to_thread(lambda: served.example)])


def _inputs(asked: InferRequest, raw: memoryview) -> AnswerRequest:
    given: dict[str, Any] = {}
    for tensor in asked.inputs:
        size = tensor.parameters.get("binary_data_size")
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(raw)):
            raise InvalidInputError(f"inputs.{tensor.name}: binary_data_size is {size!r}, but {len(raw)} bytes follow.")
        binary, raw = (None, raw) if size is None else (raw[:size], raw[size:])
        expected = _DATATYPES.get(tensor.name)
        if expected is None or tensor.name in given:
            raise InvalidInputError(
                f"inputs.{tensor.name}: inputs are texts (BYTES), answers (BYTES) and hidden_states (FP32), each once."
            )
        if tensor.datatype != expected:
            raise InvalidInputError(f"inputs.{tensor.name}: the datatype must be {expected}. Got {tensor.datatype!r}.")
        given[tensor.name] = _numbers(tensor, binary) if expected == "FP32" else _words(tensor, binary)
    if len(raw):
        raise InvalidInputError(f"{len(raw)} bytes follow the tensors that the request names.")
    if ("texts" in given) == ("hidden_states" in given) or ("answers" in given and "texts" not in given):
        raise InvalidInputError("inputs: give texts (with answers, if those are judged) or hidden_states.")
    return AnswerRequest(**given)


_DATATYPES = {"texts": "BYTES", "answers": "BYTES", "hidden_states": "FP32"}


def _numbers(tensor: Tensor, binary: memoryview | None) -> Any:
    """A tensor of float32; a row that has no numbers stays as it is, to be rejected by itself."""
    place, shape = f"inputs.{tensor.name}", tuple(tensor.shape)
    if len(shape) not in (2, 3):
        raise InvalidInputError(f"{place}: the shape must be [inputs, width]. Got {list(shape)}.")
    if binary is not None:
        if len(binary) != 4 * math.prod(shape):
            raise InvalidInputError(f"{place}: {len(binary)} bytes are not {list(shape)} numbers of float32.")
        return np.frombuffer(binary, dtype="<f4").reshape(shape)
    flat = _flattened(tensor.data or [])
    if len(flat) != math.prod(shape):
        raise InvalidInputError(f"{place}: {len(flat)} elements are not of shape {list(shape)}.")
    try:
        with np.errstate(over="ignore"):  # infinite then, and rejected
            return np.array(flat, dtype=np.float64).astype(np.float32).reshape(shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"{place}: the elements must be numbers: {error}.") from error


def _words(tensor: Tensor, binary: memoryview | None) -> list[Any]:
    """A tensor of words, one for each input; in binary, each has its length in front."""
    place, shape = f"inputs.{tensor.name}", tuple(tensor.shape)
    if not shape or math.prod(shape) != shape[0]:
        raise InvalidInputError(f"{place}: the shape must be [inputs] or [inputs, 1]. Got {list(shape)}.")
    words = _flattened(tensor.data or []) if binary is None else list(_read_words(binary, place))
    if len(words) != shape[0]:
        raise InvalidInputError(f"{place}: {len(words)} elements are not of shape {list(shape)}.")
    return words


def _read_words(binary: memoryview, place: str) -> Iterator[str]:
    while len(binary):
        length = int.from_bytes(binary[:4], "little")
        word, binary = binary[4 : 4 + length], binary[4 + length :]
        if len(word) != length:
            raise InvalidInputError(f"{place}: the binary data ends within a word.")
        try:
            yield str(word, "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"{place}: the words must be UTF-8: {error}.") from error


def _flattened(values: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        flat += _flattened(value) if isinstance(value, list) else [value]
    return flat


# --- Answering -------------------------------------------------------------------------------------------------------


class Output(NamedTuple):
    """A tensor of an answer."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


def output_tensors(rows: Sequence[Mapping[str, Any]]) -> list[Output]:
    """The fields of decisions as tensors: (N,), or (N, C) if there is a value for each class."""
    outputs = []
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        shape = [len(rows)]
        if isinstance(values[0], dict):  # and so is every other, of a rejected input, too
            values = [one for value in values for one in value.values()]
            shape.append(len(values) // len(rows))
        if name in _WORDS:  # labels, too, of whatever type they are: a rejected input has none
            words = ["" if value is None else str(value) for value in values]
            outputs.append(Output(name, shape, "BYTES", words))
            continue
        is_bool = {type(value) for value in values} - {type(None)} == {bool}
        datatype = "BOOL" if is_bool else "INT64" if name in _COUNTS else "FP64"
        missing = {"BOOL": False, "INT64": -1}.get(datatype)
        outputs.append(Output(name, shape, datatype, [missing if value is None else value for value in values]))
    return outputs


_WORDS = ("id", "prediction", "certificate", "lane", "reason")
_COUNTS = ("similarity", "nearest_index", "effective_sample_sizes", "member")


def _wanted(asked: InferRequest, known: Iterable[str]) -> list[tuple[str, bool]]:
    usual = asked.parameters.get("binary_data_output", False)
    if asked.outputs is None:
        return [(name, usual is True) for name in known]
    return [(one.name, one.parameters.get("binary_data", usual) is True) for one in asked.outputs]


def _written(head: Mapping[str, Any], tensors: Sequence[tuple[Output, bool]]) -> Response:
    """An answer in JSON, with the binary tensors behind it if any are wanted."""
    outputs, binaries = [], []
    for tensor, is_binary in tensors:
        described = tensor._asdict()
        if is_binary:
            del described["data"]
            binaries.append(_as_bytes(tensor))
            described["parameters"] = {"binary_data_size": len(binaries[-1])}
        outputs.append(described)
    body = {**head, "outputs": outputs}
    if not binaries:
        return JSONAnswer(body)
    text = to_json(body, inf_nan_mode="null")
    headers = {HEADER_LENGTH: str(len(text)), "content-type": "application/octet-stream"}
    return Response(b"".join([text, *binaries]), headers=headers)


def _as_bytes(tensor: Output) -> bytes:
    data = tensor.data
    if tensor.datatype != "BYTES":
        return np.array(data, dtype=_NUMPY[tensor.datatype]).tobytes()  # None becomes NaN
    words = [word.encode() for word in data]
    return b"".join(part for word in words for part in (len(word).to_bytes(4, "little"), word))
