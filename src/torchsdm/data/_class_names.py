"""Names of the classes of a Hugging Face dataset, whose rows have only their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchsdm.files import parse_json

NO_LABEL = -1  # by which a dataset marks a row without a label


def class_names(features: Any) -> dict[str, Sequence[str]]:
    """The names by column, from the features of a dataset, or what it writes of them into a file."""
    columns = features.items() if isinstance(features, Mapping) else ()
    return {column: names for column, feature in columns if (names := feature_names(feature)) is not None}


def feature_names(feature: Any) -> Sequence[str] | None:
    """The names of a ``ClassLabel``; None for any other feature, and if its names are just the numbers."""
    stored = feature if isinstance(feature, Mapping) else {}
    kind = stored.get("_type", type(feature).__name__)
    names = stored.get("names") or getattr(feature, "names", None)
    if kind != "ClassLabel" or not isinstance(names, Sequence) or list(names) == [str(n) for n in range(len(names))]:
        return None
    return names


def parquet_class_names(schema: Any) -> dict[str, Sequence[str]]:
    """The names by column that a dataset wrote into the schema of a Parquet file."""
    try:
        return class_names(parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, ValueError):  # a file of another origin
        return {}


def named(names: Sequence[str], label: Any) -> Any:
    """The name of a class number; None if a row has no label."""
    if label == NO_LABEL:
        return None
    return names[label] if isinstance(label, int) and 0 <= label < len(names) else label
