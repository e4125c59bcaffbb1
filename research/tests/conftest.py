"""What these tests share, among themselves and with those of the package: its conftest also gives them a cache."""

from __future__ import annotations

import json

from conftest import shared_data, shared_paper  # noqa: F401  (fixtures)


def write_rows(path, rows):
    """Write rows as JSON lines, and give back the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
