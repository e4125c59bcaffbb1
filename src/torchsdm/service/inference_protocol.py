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
from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from torchsdm import __version__
from torchsdm.application import AnswerRequest
from torchsdm.errors import InvalidInputError
from torchsdm.service.failures import JSONAnswer
from torchsdm.service.routes.access import REFUSALS, ServingModel, body_of, new_router, strict_json, validated
from torchsdm.service.schemas import ErrorAnswer
from torchsdm.service.serving import Served, Serving
from torchsdm.wording import shortened

router = new_router(prefix="/v2", tags=["Open Inference Protocol"])

HEADER_LENGTH = "inference-header-content-length"  #: bytes of the JSON in front of binary tensors
_DIGITS = 20  # of a length in bytes
_NUMPY = {"BOOL": "?", "INT64": "<i8", "FP64": "<f8", "FP32": "<f4"}

#: What goes beyond the protocol; clients also write null where there is nothing.
Parameters = Annotated[dict[str, Any], BeforeValidator(lambda given: {} if given is None else given)]


class Tensor(BaseModel):
    """A tensor: name, shape, type of its elements, and the elements, row by row; nested lists are taken, too."""

    model_config = ConfigDict(extra="forbid")

    name: str
    shape: list[Annotated[int, Field(ge=0)]]
    datatype: str
    parameters: Parameters = {}
    data: Annotated[list[Any] | None, WithJsonSchema({"type": "array"})] = None


class OutputWanted(BaseModel):
    """An output that is asked for."""

    model_config = ConfigDict(extra="forbid")

    name: str
    parameters: Parameters = {}


class InferRequest(BaseModel):
    """Inputs to decide on."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = None
    model_name: str | None = Field(None, description="As in the path; KServe's client repeats it.")
    parameters: Parameters = {}
    inputs: list[Tensor]
    outputs: list[OutputWanted] | None = Field(None, description="By default all.")


class InferAnswer(BaseModel):
    """The fields of the decisions as tensors."""

    model_name: str
    model_version: str = Field(description="Version of the support that was asked.")
    id: str | None = None
    outputs: list[Tensor]


# --- About the server and the model ----------------------------------------------------------------------------------


@router.get("", summary="About the server")
async def server() -> dict[str, Any]:
    """Name and version of the server, and the protocol's extensions that it knows."""
    return {"name": "torchsdm", "version": __version__, "extensions": ["binary_tensor_data"]}


@router.get("/health/live", summary="Whether it runs")
async def live(serving: ServingModel) -> Response:
    """200 as long as somebody answers."""
    return _health(serving.worker.is_alive, "live")


@router.get("/health/ready", summary="Whether it is warm")
async def ready(serving: ServingModel) -> Response:
    """200 from when the model has decided once."""
    return _health(serving.is_ready, "ready")


@router.get("/models/{name}", summary="What the model takes and gives", responses={404: {"model": ErrorAnswer}})
async def model(name: str, serving: ServingModel) -> dict[str, Any]:
    """Inputs and outputs with their types and shapes; -1 is any number."""
    served = _named(serving, name)
    classifier = served.saved.classifier
    shape = [-1] * (classifier.input_ndim_ - 1) + [classifier.n_features_in_]
    inputs = [{"name": "hidden_states", "datatype": "FP32", "shape": shape}]
    words = ("texts", *(("answers",) if served.asks_for_answers else ())) if served.reads_texts else ()
    inputs = [*({"name": one, "datatype": "BYTES", "shape": [-1]} for one in words), *inputs]
    tensors = await _outputs(served)
    return {
        "name": name,
        "versions": [str(served.version)],
        "platform": "torchsdm",
        "inputs": inputs,
        "outputs": [{"name": one.name, "datatype": one.datatype, "shape": [-1, *one.shape[1:]]} for one in tensors],
    }


@router.get("/models/{name}/ready", summary="Whether the model is warm", responses={404: {"model": ErrorAnswer}})
async def model_ready(name: str, serving: ServingModel) -> Response:
    """200 from when the model has decided once."""
    _named(serving, name)
    return JSONAnswer({"name": name, "ready": serving.is_ready}, 200 if serving.is_ready else 503)


# --- Deciding --------------------------------------------------------------------------------------------------------


@router.post(
    "/models/{name}/infer",
    response_model=InferAnswer,
    responses={404: {"model": ErrorAnswer}, **REFUSALS},
    openapi_extra=body_of("InferRequest"),
    summary="Decide on inputs",
)
async def infer(name: str, request: Request, serving: ServingModel) -> Response:
    """The decision of each input, a tensor for each field. The drift guard watches these inputs as `/v1/decide`'s."""
    served = _named(serving, name)
    asked, raw = _parsed(request, await request.body())
    inputs = _inputs(asked, raw)
    if asked.outputs:  # looked at before the guard sees the inputs
        outputs = [one.name for one in await _outputs(served)]
        unknown = next((one.name for one in asked.outputs if one.name not in outputs), None)
        if unknown is not None:
            raise InvalidInputError(f"There is no output {unknown!r}. The outputs are {', '.join(outputs)}.")
    answered = await serving.ask(inputs, request.state)
    serving.count_rows(answered.rows)
    known = {one.name: one for one in output_tensors(answered.rows)}
    head: dict[str, Any] = {"model_name": name, "model_version": str(answered.version)}
    head |= {} if asked.id is None else {"id": asked.id}
    return _written(head, [(known[one], is_binary) for one, is_binary in _wanted(asked, known) if one in known])


async def _outputs(served: Served) -> list[Output]:
    """The outputs, as they are for one input."""
    return output_tensors([await asyncio.to_thread(lambda: served.example)])


def _named(serving: Serving, name: str) -> Served:
    served = serving.served
    if name != served.name:
        raise HTTPException(404, f"There is no model {name!r} here; it is {served.name!r}")
    return served


def _health(is_good: bool, name: str) -> Response:
    return JSONAnswer({name: is_good}, 200 if is_good else 503)


def _parsed(request: Request, body: bytes) -> tuple[InferRequest, memoryview]:
    """The JSON of a request, and the binary tensors behind it."""
    length = request.headers.get(HEADER_LENGTH, str(len(body)))
    if not length.isdecimal() or len(length) > _DIGITS or int(length) > len(body):
        raise HTTPException(
            422, f"The header {HEADER_LENGTH} must be the length of the JSON. Got {shortened(length)!r}"
        )
    end = int(length)
    return validated(InferRequest, strict_json(body[:end])), memoryview(body)[end:]


def _inputs(asked: InferRequest, raw: memoryview) -> AnswerRequest:
    """The tensors of a request as inputs."""
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
        is_table = isinstance(values[0], dict)  # and so is every other, of a rejected input, too
        flat = [one for value in values for one in value.values()] if is_table else values
        shape = [len(rows), len(flat) // len(rows)] if is_table else [len(rows)]
        datatype = _datatype(name, flat)
        outputs.append(Output(name, shape, datatype, _filled(flat, datatype)))
    return outputs


def _datatype(name: str, values: Sequence[Any]) -> str:
    """The type of a field's elements. Labels are words, of whatever type they are: a rejected input has none."""
    if name in _WORDS:
        return "BYTES"
    known = {type(value) for value in values} - {type(None)}
    return "BOOL" if known == {bool} else "INT64" if name in _COUNTS else "FP64"


_WORDS = ("id", "predictions", "certificate", "lane", "reason")
_COUNTS = ("similarity", "nearest_index", "effective_sample_sizes", "member")


def _filled(values: Sequence[Any], datatype: str) -> list[Any]:
    """Elements, and what stands for those that are missing."""
    if datatype == "BYTES":
        return ["" if value is None else str(value) for value in values]
    none = {"BOOL": False, "INT64": -1}.get(datatype)
    return [none if value is None else value for value in values]


def _wanted(asked: InferRequest, known: Iterable[str]) -> list[tuple[str, bool]]:
    """The outputs that are asked for, by default all, and whether each is to be binary."""
    usual = asked.parameters.get("binary_data_output", False)
    if asked.outputs is None:
        return [(name, usual is True) for name in known]
    return [(one.name, one.parameters.get("binary_data", usual) is True) for one in asked.outputs]


def _written(head: Mapping[str, Any], tensors: Sequence[tuple[Output, bool]]) -> Response:
    """An answer in JSON, with the binary tensors behind it if any are wanted."""
    outputs, binaries = [], []
    for tensor, is_binary in tensors:
        described: dict[str, Any] = {"name": tensor.name, "shape": tensor.shape, "datatype": tensor.datatype}
        if is_binary:
            binaries.append(_as_bytes(tensor))
            outputs.append({**described, "parameters": {"binary_data_size": len(binaries[-1])}})
        else:
            outputs.append({**described, "data": tensor.data})
    body = {**head, "outputs": outputs}
    if not binaries:
        return JSONAnswer(body)
    text = to_json(body, inf_nan_mode="null")
    return Response(
        b"".join([text, *binaries]),
        media_type="application/octet-stream",
        headers={HEADER_LENGTH: str(len(text))},
    )


def _as_bytes(tensor: Output) -> bytes:
    data = tensor.data
    if tensor.datatype != "BYTES":
        return np.array(data, dtype=_NUMPY[tensor.datatype]).tobytes()  # None becomes NaN
    words = [word.encode() for word in data]
    return b"".join(part for word in words for part in (len(word).to_bytes(4, "little"), word))
