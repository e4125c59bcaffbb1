"""Texts with labels, ids and answers, checked, and the formats they come in."""

from torchsdm.documents._lines import json_lines
from torchsdm.documents.documents import Document, Documents

__all__ = [
    "Document",
    "Documents",
    "json_lines",
]
