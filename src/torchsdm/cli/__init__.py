"""The command ``sdm``: one module a verb; each parses, calls and prints."""

from torchsdm.cli.command import main

__all__ = [
    "main",
]
