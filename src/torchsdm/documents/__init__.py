"""Texts with labels, ids and answers, checked, and the formats they come in."""

from torchsdm.documents._class_names import named, parquet_class_names
from torchsdm.documents._data_files import DataFiles, is_data
from torchsdm.documents._lines import Row, Unreadable, json_rows, readable_rows, usual_keys
from torchsdm.documents._sources import csv_rows, open_parquet
from torchsdm.documents.document import BadRow, BadRows, Document
from torchsdm.documents.documents import Documents

__all__ = [
    "BadRow",
    "BadRows",
    "DataFiles",
    "Document",
    "Documents",
    "Row",
    "Unreadable",
    "csv_rows",
    "is_data",
    "json_rows",
    "named",
    "open_parquet",
    "parquet_class_names",
    "readable_rows",
    "usual_keys",
]
