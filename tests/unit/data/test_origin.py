"""The origin of hidden states: stored as ever, and compared in one way."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from torchsdm.data import ModelOrigin, PoolingOrigin, PromptOrigin, StatesOrigin
from torchsdm.errors import InvalidInputError

STORED = {  # as models and folders have it on disk
    "model": {"reference": "/a/model", "revision": None, "fingerprint": "f00", "dtype": "float32"},
    "prompt": {
        "template": "Is it good? {document}",
        "label_words": [["pos", "Yes"], ["neg", "No"]],
        "system": None,
        "use_chat": True,
        "chat_options": {"brief": True},
        "rendered": "Is it good? X",
    },
    "states": {"parts": ["final", "mean"], "layer": -1, "segments": None, "n_segments": 0, "max_tokens": 256},
}
ORIGIN = StatesOrigin(
    ModelOrigin("/a/model", None, "f00", "float32"),
    PromptOrigin(
        "Is it good? {document}", (("pos", "Yes"), ("neg", "No")), None, True, {"brief": True}, "Is it good? X"
    ),
    PoolingOrigin(("final", "mean"), -1, None, 0, 256),
)


def test_the_form_on_disk_is_what_it_was():
    assert ORIGIN.to_json() == STORED and list(ORIGIN.to_json()["prompt"]) == list(STORED["prompt"])
    assert StatesOrigin.from_json(json.loads(json.dumps(STORED))) == ORIGIN
    assert StatesOrigin.from_json({**STORED, "documents": {"fingerprint": "d00"}}) == ORIGIN  # of a folder
    assert ORIGIN.prompt.labels == ("pos", "neg")


@pytest.mark.parametrize(
    ("part", "change", "what"),
    [
        ("model", {"fingerprint": "f01"}, ("model fingerprint", "f00", "f01")),
        ("model", {"dtype": "bfloat16"}, ("model dtype", "float32", "bfloat16")),
        ("prompt", {"template": "{document}"}, ("prompt template", "Is it good? {document}", "{document}")),
        ("prompt", {"label_words": ()}, ("prompt label_words", (("pos", "Yes"), ("neg", "No")), ())),
        ("prompt", {"system": "Be brief."}, ("prompt system", None, "Be brief.")),
        ("prompt", {"use_chat": False}, ("prompt use_chat", True, False)),
        ("prompt", {"chat_options": {}}, ("prompt chat_options", {"brief": True}, {})),
        ("prompt", {"rendered": "Y"}, ("prompt rendered", "Is it good? X", "Y")),
        ("pooling", {"parts": ("mean",)}, ("states parts", ("final", "mean"), ("mean",))),
        ("pooling", {"layer": 1}, ("states layer", -1, 1)),
        ("pooling", {"segments": "fields"}, ("states segments", None, "fields")),
        ("pooling", {"n_segments": 3}, ("states n_segments", 0, 3)),
        ("pooling", {"max_tokens": 99}, ("states max_tokens", 256, 99)),
    ],
)
def test_a_difference_is_named(part, change, what):
    other = replace(ORIGIN, **{part: replace(getattr(ORIGIN, part), **change)})
    assert ORIGIN.difference(other) == what and other != ORIGIN
    assert other.difference(ORIGIN) == (what[0], what[2], what[1])


@pytest.mark.parametrize("place", ["reference", "revision"])
def test_where_the_model_lies_makes_no_difference(place):
    moved = replace(ORIGIN, model=replace(ORIGIN.model, **{place: "elsewhere"}))
    assert ORIGIN.difference(moved) is None and moved.identity() == ORIGIN.identity()
    assert place not in ORIGIN.identity()["model"] and ORIGIN.difference(ORIGIN) is None


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [],
        {},
        {"model": 3, "prompt": 4, "states": 5},
        {**STORED, "model": {**STORED["model"], "weights": 1}},
        {**STORED, "prompt": {**STORED["prompt"], "label_words": [["pos"]]}},
        {**STORED, "states": {"parts": ["mean"]}},
    ],
)
def test_what_is_no_origin_is_refused(stored):
    with pytest.raises(InvalidInputError, match="do not describe the origin of hidden states"):
        StatesOrigin.from_json(stored)
