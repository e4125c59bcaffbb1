"""The command ``sdm``: one module per verb; each parses, calls and prints."""

from torchsdm.cli.command import main

__all__ = [
    "main",
]
