"""``sdm mcp`` asked by a real client of the Model Context Protocol, over standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from served import save_text_model
from small import quietly
from torchsdm.application import LiveModel, ModelChecks
from torchsdm.model import Offered

mcp = pytest.importorskip("mcp", reason="the extra 'mcp' is not installed")

RNG = np.random.default_rng(0)
TEXTS = [
    f"the {''.join(RNG.choice(list('abcdefghij'), 12))} was {'great and lovely' if number % 2 else 'awful and dull'}"
    for number in range(84)
]
NEW = TEXTS[80:]


@pytest.fixture
def model(tmp_path):
    return save_text_model(tmp_path, TEXTS[:80], ["bad", "good"] * 40)


@asynccontextmanager
async def agent(model, *options):
    """A client with the tools of ``sdm mcp`` in a process of its own."""
    started = mcp.StdioServerParameters(
        command=str(Path(sys.executable).with_name("sdm")),
        args=["mcp", str(model), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    async with mcp.Client(mcp.stdio_client(started)) as client:
        yield client


def test_decisions_and_explanations_are_the_library_s(model):
    async def ask():
        async with agent(model, "--texts") as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            decided = await client.call_tool("decide", {"texts": [*NEW, "  "]})
            explained = await client.call_tool("explain", {"text": NEW[0], "k": 3})
            described = await client.call_tool("describe_model", {})
            return names, decided, explained, described

    names, decided, explained, described = asyncio.run(ask())
    assert names == {"decide", "explain", "describe_model"}
    own = LiveModel.open(model, writable=False).snapshot.saved.text_classifier
    rows = decided.structured_content["decisions"]
    expected = own.decide(NEW).to_dicts()
    assert [{key: row[key] for key in expected[0]} for row in rows[:4]] == expected
    assert rows[4]["lane"] == "rejected" and rows[4]["admitted"] is False and "empty" in rows[4]["reason"]
    examples = explained.structured_content["explanation"]["exemplars"]
    assert [one["text"] for one in examples] == [one.text for one in own.explain(NEW[:1], 3)[0].exemplars]
    assert described.structured_content["classes"] == ["bad", "good"]
    assert {one.structured_content["version"] for one in (decided, explained, described)} == {0}


def test_an_example_is_added_only_where_that_is_allowed_and_can_be_undone(model):
    async def teach(*options):
        async with agent(model, *options) as client:
            asked = {"text": "a film about nothing at all", "label": "bad", "why": "a user said so", "key": "k"}
            misspelt = await client.call_tool("add_example", {**asked, "label": "Bad"})
            return misspelt, [await client.call_tool("add_example", asked) for _ in range(2)]

    n_before = len(LiveModel.open(model, writable=False).snapshot.saved.classifier.models_[0].support)
    assert asyncio.run(teach())[1][0].is_error  # no such tool
    misspelt, taught = asyncio.run(teach("--writable"))
    assert misspelt.is_error and "'Bad' (1 example) is not a class of the model; 'bad' is" in misspelt.content[0].text
    assert [one.structured_content for one in taught] == [{"version": 1, "added": 1}] * 2  # the second is a retry
    with LiveModel.open(model) as live:
        change = live.changes()[-1]
        assert change.what == "add" and change.why == "a user said so" and change.who.endswith("through an agent")
        assert live.snapshot.saved.classifier.models_[0].examples.all()[1][-1] == "a film about nothing at all"
        live.undo(1, who="test", why="not true")
        assert len(live.snapshot.saved.classifier.models_[0].support) == n_before


def test_a_class_that_is_a_number_is_named_by_its_text(tmp_path):
    """Labels are texts in the protocol, whatever the classes are."""
    numbered = save_text_model(tmp_path, TEXTS[:80], [0, 1] * 40)

    async def teach():
        async with agent(numbered, "--writable") as client:
            return await client.call_tool("add_example", {"text": "a quite new film", "label": "1", "why": "seen"})

    assert asyncio.run(teach()).structured_content == {"version": 1, "added": 1}
    changed = LiveModel.open(numbered, writable=False).snapshot.saved.classifier
    assert changed.support_.labels[-1] == changed.classes_.tolist().index(1)


def test_wrong_calls_are_told_what_is_wrong(model):
    async def ask():
        async with agent(model) as client:
            return [
                await client.call_tool("explain", {"text": NEW[0], "k": 0}),
                await client.call_tool("explain", {"text": NEW[0], "k": 1001}),
                await client.call_tool("decide", {"texts": ["x"] * 300}),
                await client.call_tool("decide", {"texts": [NEW[0]], "answers": ["yes"]}),
            ]

    answers = asyncio.run(ask())
    assert all(one.is_error for one in answers)
    said = [one.content[0].text for one in answers]
    assert (
        "'k' must be at least 1" in said[0]
        and "at most 1000" in said[1]
        and "At most 256 texts" in said[2]
        and "Traceback" not in "".join(said)
    )


def test_an_alarm_of_the_spot_checks_demotes_for_agents_too(tmp_path):
    texts = [f"the thing {n} was {'great and lovely' if n % 2 else 'awful and dull'}" for n in range(400)]
    model = quietly(lambda: save_text_model(tmp_path, texts, ["bad", "good"] * 200))
    classifier = LiveModel.open(model, writable=False).snapshot.saved.classifier
    checks = ModelChecks(model)

    async def ask():
        async with agent(model) as client:
            decided = []
            for _ in range(2):
                decided.append(
                    (await client.call_tool("decide", {"texts": texts[:20]})).structured_content["decisions"]
                )
                checks.draw(classifier, [Offered("good")] * 40, "by hand", rate=1.0)
                checks.judge(classifier, [{"check": n, "right": False} for n in range(1, 41)], "ada")
            return decided

    before, after = asyncio.run(ask())
    assert any(row["admitted"] for row in before if row["prediction"] == "good")
    assert not any(row["admitted"] for row in after if row["prediction"] == "good")
