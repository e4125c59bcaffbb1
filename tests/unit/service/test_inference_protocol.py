"""Tensors in, tensors out: the Open Inference Protocol."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

pytest.importorskip("fastapi")

from torchsdm.errors import InvalidInputError
from torchsdm.service import inference_protocol as protocol
from torchsdm.service.inference_protocol import InferRequest, OutputWanted, Tensor


def inputs(tensors, raw=b""):
    return protocol._inputs(InferRequest(inputs=tensors), memoryview(raw))


def words(*values):
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


STATES = {"name": "hidden_states", "shape": [2, 3], "datatype": "FP32"}
TEXTS = {"name": "texts", "shape": [2], "datatype": "BYTES"}
ROW = {
    "id": 0,
    "prediction": 7,
    "admitted": True,
    "admitted_alpha": 0.9,
    "probabilities": {"7": 0.75, "8": 0.25},
    "lane": "certified",
    "similarity": 12,
    "effective_sample_sizes": {"7": 3, "8": 4},
    "nearest_distance": 1.5,
    "certificate": None,
}
REJECTED = {
    "id": 1,
    "prediction": None,
    "admitted": False,
    "admitted_alpha": None,
    "probabilities": {"7": None, "8": None},
    "lane": "rejected",
    "similarity": None,
    "effective_sample_sizes": {"7": None, "8": None},
    "nearest_distance": None,
    "certificate": None,
}


@pytest.mark.parametrize("data", [[1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]], [[[1], [2], [3]], [[4], [5], [6]]]])
def test_states_may_be_flat_or_nested(data):
    states = inputs([{**STATES, "data": data}]).hidden_states
    assert states.dtype == np.float32 and states.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_states_may_be_bytes():
    given = np.arange(6, dtype="<f4").reshape(2, 3)
    states = inputs([{**STATES, "parameters": {"binary_data_size": 24}}], given.tobytes()).hidden_states
    assert np.array_equal(states, given)


def test_texts_may_be_strings_or_bytes():
    assert inputs([{**TEXTS, "data": ["a", None]}]).texts == ["a", None]
    assert inputs([{**TEXTS, "shape": [2, 1], "data": [["a"], ["b"]]}]).texts == ["a", "b"]
    raw = words("é".encode(), b"")
    sent = {**TEXTS, "parameters": {"binary_data_size": len(raw)}}
    assert inputs([sent], raw).texts == ["é", ""]


def test_texts_and_answers_follow_one_another():
    texts, answers = words(b"q", b"r"), words(b"yes", b"no")
    tensors = [
        {**TEXTS, "name": name, "parameters": {"binary_data_size": len(raw)}}
        for name, raw in (("texts", texts), ("answers", answers))
    ]
    asked = inputs(tensors, texts + answers)
    assert (asked.texts, asked.answers) == (["q", "r"], ["yes", "no"])


@pytest.mark.parametrize(
    ("tensors", "raw", "said"),
    [
        ([], b"", "give texts"),
        ([{**STATES, "name": "x", "data": []}], b"", "inputs.x"),
        ([{**STATES, "datatype": "FP64", "data": []}], b"", "must be FP32"),
        ([{**STATES, "data": [1, 2]}], b"", "2 elements are not of shape"),
        ([{**STATES, "data": [1, 2, 3, 4, 5, "x"]}], b"", "must be numbers"),
        ([{**STATES, "data": [1, 2, 3, 4, 5, {}]}], b"", "must be numbers"),
        ([{**STATES, "shape": [6], "data": [1, 2, 3, 4, 5, 6]}], b"", "shape must be"),
        ([{**STATES, "parameters": {"binary_data_size": 24}}], b"short", "5 bytes follow"),
        ([{**STATES, "parameters": {"binary_data_size": 5}}], b"short", "are not"),
        ([{**STATES, "parameters": {"binary_data_size": "5"}}], b"short", "binary_data_size"),
        ([{**STATES, "parameters": {"binary_data_size": True}}], b"s", "binary_data_size"),
        ([{**TEXTS, "data": ["a", "b"]}], b"more", "4 bytes follow"),
        ([{**TEXTS, "parameters": {"binary_data_size": 5}}], words(b"abc")[:5], "ends within a word"),
        ([{**TEXTS, "parameters": {"binary_data_size": 12}}], words(b"\xff\xff", b"a") + b"\0", "UTF-8"),
        ([{**TEXTS, "data": ["a"]}], b"", "1 elements are not of shape"),
        ([{**TEXTS, "data": ["a", "b"]}] * 2, b"", "each once"),
        ([{**TEXTS, "data": ["a", "b"]}, {**STATES, "data": [0] * 6}], b"", "give texts"),
    ],
)
def test_a_wrong_tensor_is_named(tensors, raw, said):
    with pytest.raises(InvalidInputError, match=said):
        inputs(tensors, raw)


def test_every_field_is_a_tensor():
    tensors = {one.name: one for one in protocol.output_tensors([ROW, REJECTED])}
    assert list(tensors) == list(ROW)
    shown = {name: (one.datatype, one.shape, one.data) for name, one in tensors.items()}
    assert shown == {
        "id": ("BYTES", [2], ["0", "1"]),
        "prediction": ("BYTES", [2], ["7", ""]),
        "admitted": ("BOOL", [2], [True, False]),
        "admitted_alpha": ("FP64", [2], [0.9, None]),
        "probabilities": ("FP64", [2, 2], [0.75, 0.25, None, None]),
        "lane": ("BYTES", [2], ["certified", "rejected"]),
        "similarity": ("INT64", [2], [12, -1]),
        "effective_sample_sizes": ("INT64", [2, 2], [3, 4, -1, -1]),
        "nearest_distance": ("FP64", [2], [1.5, None]),
        "certificate": ("BYTES", [2], ["", ""]),
    }
    assert protocol.output_tensors([]) == []


def test_outputs_may_be_bytes():
    tensors = protocol.output_tensors([ROW, REJECTED])
    chosen = [one for one in tensors if one.name in ("admitted", "probabilities", "similarity", "lane")]
    answer = protocol._written({"model_name": "m"}, [(one, one.name != "lane") for one in chosen])
    length = int(answer.headers[protocol.HEADER_LENGTH])
    head, raw = json.loads(answer.body[:length]), answer.body[length:]
    sizes = [one.get("parameters", {}).get("binary_data_size", 0) for one in head["outputs"]]
    assert sizes == [2, 32, 0, 16] and len(raw) == 50
    assert head["outputs"][2]["data"] == ["certified", "rejected"]
    assert raw[:2] == b"\1\0" and np.frombuffer(raw[34:], "<i8").tolist() == [12, -1]
    assert np.array_equal(np.frombuffer(raw[2:34], "<f8"), [0.75, 0.25, np.nan, np.nan], equal_nan=True)
    assert protocol._as_bytes(chosen[2]) == words(b"certified", b"rejected")


@pytest.mark.parametrize(
    ("own", "of_all", "expected"),
    [
        ({}, {}, False),
        ({}, {"binary_data_output": True}, True),
        ({"binary_data": False}, {"binary_data_output": True}, False),
    ],
)
def test_who_asks_for_bytes_gets_them(own, of_all, expected):
    asked = InferRequest(inputs=[], parameters=of_all, outputs=[OutputWanted(name="lane", parameters=own)])
    assert protocol._wanted(asked, ["id", "lane"]) == [("lane", expected)]


def test_all_outputs_are_wanted_unless_some_are():
    asked = InferRequest(inputs=[], parameters={"binary_data_output": True})
    assert protocol._wanted(asked, ["id", "lane"]) == [("id", True), ("lane", True)]
    assert protocol._wanted(InferRequest(inputs=[]), ["id"]) == [("id", False)]


def test_a_tensor_that_is_none_is_refused():
    with pytest.raises(ValueError, match="shape"):
        Tensor(name="x", shape=[-1], datatype="FP32")
