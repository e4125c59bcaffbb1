"""The model as tools for agents, over the Model Context Protocol: decide, explain, teach.

An agent that wants to act on an answer asks first: ``decide`` says whether it is admitted, and why; ``explain`` shows
the training examples that the decision rests on. With ``writable``, ``add_example`` teaches the model what a person
found out. Decisions are the rows that the command and the HTTP service give.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from torchsdm.application import AnswerRequest, LiveModel, ModelChecks, answer_requests, change_requests, summary
from torchsdm.errors import InvalidInputError, TorchSDMError, import_extra
from torchsdm.service.settings import MOST_EXAMPLES, MOST_INPUTS

_FACTS = ("classes", "policy", "certificate", "regions", "warnings")
_INSTRUCTIONS = """Decides which classifications of texts may be acted on. Ask `decide` before acting: act only where
`admitted` is true, and tell a person the `reason` where it is not. `explain` shows the training examples behind a
decision. `describe_model` says what the labels are and what is promised."""


def create_tools(live: LiveModel, *, texts: bool = False, writable: bool = False, who: str = "an agent") -> Any:
    """An MCP server whose tools ask a model that reads texts; explanations quote training texts if ``texts`` is set.

    With ``writable``, there is a tool that adds an example to the support, in the name of ``who``.
    """
    mcp = import_extra("mcp.server", "mcp", "sdm mcp")
    exceptions = import_extra("mcp.server.mcpserver.exceptions", "mcp", "sdm mcp")
    if live.snapshot.saved.text_classifier is None:
        raise InvalidInputError(f"{live.snapshot.saved.path} was trained on states only: agents can give it no texts.")
    server = mcp.MCPServer("torchsdm", instructions=_INSTRUCTIONS)
    one_at_a_time = threading.Lock()  # a decision uses all cores

    def tool(ask: Callable[..., dict[str, Any]]) -> None:
        """Register a tool, whose errors the agent can read."""

        @functools.wraps(ask)
        def answer(*given: Any, **named: Any) -> dict[str, Any]:
            try:
                with one_at_a_time:
                    live.refresh()
                    return {"version": live.snapshot.version, **ask(*given, **named)}
            except TorchSDMError as error:
                raise exceptions.ToolError(error.what) from error

        server.tool()(answer)

    def rows(request: AnswerRequest) -> list[dict[str, Any]]:
        """A row for each text; those that cannot be decided on are rejected, with the reason."""
        (answer,) = answer_requests(live.snapshot.saved, [request], texts=texts)
        if isinstance(answer, TorchSDMError):
            raise answer
        return ModelChecks(live.path).demote(answer)

    @tool
    def decide(texts: list[str], answers: list[str] | None = None) -> dict[str, Any]:
        """Decide which classifications may be acted on: a row for each text, with `admitted`, its lane and the reason.

        Models that judge another model's answers need those too, one for each text.
        """
        if len(texts) > MOST_INPUTS:
            raise InvalidInputError(f"At most {MOST_INPUTS} texts in one call. Got {len(texts)}.")
        return {"decisions": rows(AnswerRequest(texts, answers))}

    @tool
    def explain(text: str, answer: str | None = None, k: int = 5) -> dict[str, Any]:
        """A decision with what it rests on: the k nearest training examples, and calibration points like the text."""
        if not 1 <= k <= MOST_EXAMPLES:
            raise InvalidInputError(f"'k' must be at least 1 and at most {MOST_EXAMPLES}. Got {k}.")
        (row,) = rows(AnswerRequest([text], None if answer is None else [answer], k=k))
        return {"explanation": row}

    @tool
    def describe_model() -> dict[str, Any]:
        """What the labels are, what is promised about admitted decisions, and the model's warnings."""
        saved = live.snapshot.saved
        facts = summary(saved.classifier, saved.path)
        return {name: facts[name] for name in _FACTS}

    def add_example(
        text: str,
        label: str,
        why: str,
        answer: str | None = None,
        allow_new_label: bool = False,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Add a text with the label that a person gave it to the support. Say why; it can be undone.

        With `allow_new_label` the label may be outside the classes: inputs near such an example are then trusted less.
        Called again with the same `key`, of your choice, it makes no second change.
        """
        saved = live.snapshot.saved
        names = {str(one): one for one in saved.classifier.classes_.tolist()}
        example = {
            "texts": [text],
            "answers": None if answer is None else [answer],
            "labels": [names.get(label, label)],
        }
        added = {"what": "add", **example, "allow_new_labels": allow_new_label}
        (change,) = live.make(change_requests(saved, [added]), who=who, why=why, key=key)
        return {"version": change.version, "added": change.n}

    if writable:
        tool(add_example)
    return server
