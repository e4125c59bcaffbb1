"""Words to choose from, apart from the code behind them: the command lists them without importing it."""

from __future__ import annotations

SEGMENTS = ("sentences", "paragraphs", "fields")  #: kinds of segments that states can be summarised over
PROMPT_NAMES = ("sentiment", "factcheck", "verify-answer", "document")  #: prompts that come with the package
