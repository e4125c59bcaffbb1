"""Audit the labels of a file: read it, judge every row by what has not seen its label, write the list."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torchsdm.application.answers import check_output, write_rows
from torchsdm.application.train import read_training
from torchsdm.data import Columns
from torchsdm.hidden_states import HiddenStateExtractor

if TYPE_CHECKING:
    from torchsdm.evaluation import LabelAudit

_ROWS_AT_ONCE = 1000  # written


def audit_data(
    data: str,
    output: Path | None = None,
    *,
    columns: Columns = Columns(),  # noqa: B008  # frozen
    extractor: HiddenStateExtractor | None = None,
    n_neighbors: int = 20,
    n_folds: int = 5,
    random_state: int = 0,
) -> LabelAudit:
    """Audit labelled texts or states; ``output`` gets all rows, most contradicted first. See ``audit_labels``."""
    from torchsdm.evaluation import audit_labels, check_auditable

    if output is not None:
        check_output(output)
    pool = read_training(data, columns, extractor, partial(check_auditable, n_folds=n_folds))
    audited = audit_labels(pool, n_neighbors=n_neighbors, n_folds=n_folds, random_state=random_state, verbose=True)
    if output is not None:
        starts = range(0, len(audited.rows), _ROWS_AT_ONCE)
        write_rows(output, ([one.to_dict() for one in audited.rows[start : start + _ROWS_AT_ONCE]] for start in starts))
    return audited
