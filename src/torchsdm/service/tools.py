"""The model as tools for agents, over the Model Context Protocol: decide, explain, teach.

An agent that wants to act on an answer asks first: ``decide`` says whether it is admitted, and why; ``explain`` shows
the training examples that the decision rests on. With ``writable``, ``add_example`` teaches the model what a person
found out. Decisions are the rows that the command and the HTTP service give.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torchsdm.application import LiveModel, answer_rows, change_requests, given_block, summary, with_rejected
from torchsdm.errors import InvalidInputError, MissingExtraError, TorchSDMError

MOST_TEXTS = 256  #: in one call
MOST_EXAMPLES = 1000  #: of an explanation
_INSTRUCTIONS = """Decides which classifications of texts may be acted on. Ask `decide` before acting: act only where
`admitted` is true, and tell a person the `reason` where it is not. `explain` shows the training examples behind a
decision. `describe_model` says what the labels are and what is promised."""


def create_tools(live: LiveModel, *, texts: bool = False, writable: bool = False, who: str = "an agent") -> Any:
    """An MCP server whose tools ask a model.

    Parameters
    ----------
    live : LiveModel
        A model that reads texts.
    texts : bool
        Whether explanations quote training texts.
    writable : bool
        Whether there is a tool that adds an example to the support.
    who : str
        Who changes the model then, for its history.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError as error:
        raise MissingExtraError("mcp", "mcp", "sdm mcp") from error
    if live.snapshot.saved.text_classifier is None:
        raise InvalidInputError(f"{live.snapshot.saved.path} was trained on states only: agents can give it no texts.")
    server = MCPServer("torchsdm", instructions=_INSTRUCTIONS)
    one_at_a_time = threading.Lock()  # a decision uses all cores

    def answered(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """An answer, or an error that the agent can read."""
        try:
            with one_at_a_time:
                live.refresh()
                return ask()
        except TorchSDMError as error:
            raise ToolError(error.what) from error

    @server.tool()
    def decide(texts: list[str], answers: list[str] | None = None) -> dict[str, Any]:
        """Decide which classifications may be acted on: a row for each text, with `admitted`, its lane and the reason.

        Models that judge another model's answers need those too, one for each text.
        """

        def ask() -> dict[str, Any]:
            rows = _rows(live, texts, answers)
            return {"version": live.snapshot.version, "decisions": rows}

        return answered(ask)

    quotes = texts

    @server.tool()
    def explain(text: str, answer: str | None = None, k: int = 5) -> dict[str, Any]:
        """A decision with what it rests on: the k nearest training examples, and calibration points like the text."""

        def ask() -> dict[str, Any]:
            if not 1 <= k <= MOST_EXAMPLES:
                raise InvalidInputError(f"'k' must be at least 1 and at most {MOST_EXAMPLES}. Got {k}.")
            rows = _rows(live, [text], None if answer is None else [answer], k=k, calibration=True, texts=quotes)
            return {"version": live.snapshot.version, "explanation": rows[0]}

        return answered(ask)

    @server.tool()
    def describe_model() -> dict[str, Any]:
        """What the labels are, what is promised about admitted decisions, and what the model warns of."""

        def ask() -> dict[str, Any]:
            saved = live.snapshot.saved
            facts = summary(saved.classifier, saved.path)
            return {"version": live.snapshot.version, **{name: facts[name] for name in _FACTS}}

        return answered(ask)

    if writable:

        @server.tool()
        def add_example(
            text: str,
            label: str,
            why: str,
            answer: str | None = None,
            allow_new_label: bool = False,
            key: str | None = None,
        ) -> dict[str, Any]:
            """Add a text with the label that a person gave it to the support. Say why; it can be undone.

            With `allow_new_label` the label may be none of the classes: inputs near such an example are then trusted
            less. Called again with the same `key`, of your choice, it is no second change.
            """

            def ask() -> dict[str, Any]:
                saved = live.snapshot.saved
                names = {str(one): one for one in saved.classifier.classes_.tolist()}
                example = {"texts": [text], "answers": None if answer is None else [answer]}
                added = {"what": "add", **example, "labels": [names.get(label, label)]}
                requests = change_requests(saved, [{**added, "allow_new_labels": allow_new_label}])
                (change,) = live.make(requests, who=who, why=why, key=key)
                return {"version": change.version, "added": change.n}

            return answered(ask)

    return server


_FACTS = ("classes", "policy", "certificate", "regions", "warnings")


def _rows(live: LiveModel, given: list[str], answers: list[str] | None, **wanted: Any) -> list[dict[str, Any]]:
    """A row for each text; those that cannot be decided on are rejected, with the reason."""
    if len(given) > MOST_TEXTS:
        raise InvalidInputError(f"At most {MOST_TEXTS} texts in one call. Got {len(given)}.")
    if not given:
        return []
    bad: dict[int, Any] = {}
    saved = live.snapshot.saved
    block = given_block(saved, texts=given, answers=answers, bad=bad)
    answered = answer_rows(saved.classifier, block, **wanted)
    return [row for rows in with_rejected([(block.numbers or (), answered)], bad) for row in rows]
