"""What these tests share, among themselves and with those of the package: its conftest also gives them a cache."""

from __future__ import annotations

from conftest import shared_data, shared_paper  # noqa: F401  (fixtures)
from torchsdm.evaluation.metrics import Cell, SelectiveAccuracy
from torchsdm.evaluation.tables import UNLISTED, ResultRow

CELLS = SelectiveAccuracy(
    {0: Cell(50, 40, 39, 0.4), 1: Cell(50, 0, 0, 0.0)},
    {0: Cell(60, 38, 38, 0.38), 1: Cell(40, 2, 1, 0.02)},
    Cell(100, 40, 39, 0.4),
)


def result_row(dataset, model="m", estimator="e", *, key=UNLISTED, alpha=0.95):
    """A row of a table of results whose cells are ``CELLS``."""
    return ResultRow(dataset, model, estimator, alpha, CELLS, key)
