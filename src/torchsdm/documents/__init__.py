"""Texts with labels, ids and answers, checked, and the formats they come in."""

from torchsdm.documents._class_names import named, parquet_class_names
from torchsdm.documents._lines import json_lines
from torchsdm.documents._sources import csv_rows
from torchsdm.documents.document import Document
from torchsdm.documents.documents import Documents

__all__ = [
    "Document",
    "Documents",
    "csv_rows",
    "json_lines",
    "named",
    "parquet_class_names",
]
