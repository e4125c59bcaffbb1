"""The command ``sdm``: one module per kind of verb; each verb parses, calls and prints."""

from torchsdm.cli.command import main

__all__ = [
    "main",
]
