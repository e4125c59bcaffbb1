"""Option values, apart from the code behind them so that the command can list them without importing it."""

from __future__ import annotations

SEGMENTS = ("sentences", "paragraphs", "fields")  #: kinds of segments to summarise states over
PROMPT_NAMES = ("sentiment", "factcheck", "verify-answer", "document")  #: prompts that come with the package
LANES = ("trusted", "certified", "review", "unfamiliar")  #: of decisions, the most reliable first
CONTROLS = ("groups", "predictions", "all")  #: for whom a certificate holds
POLICIES = ("certified", "trusted")  #: which lanes are admitted
