"""Audit the labels of a file: read it, judge every row by what has not seen its label, write the list."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsdm.application.answers import check_output, write_rows
from torchsdm.application.train import read_training
from torchsdm.data import Columns, LabelledStates
from torchsdm.hidden_states import HiddenStateExtractor
from torchsdm.validation import as_list

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
    certification_size: float | None = 0.25,
    random_state: int = 0,
) -> LabelAudit:
    """Audit labelled texts or states. See ``audit_labels``.

    ``output`` gets all rows, most contradicted first, and at the end those that were set aside.
    """
    from torchsdm.evaluation import audit_labels, check_auditable

    if output is not None:
        check_output(output)
    pool = read_training(data, columns, extractor, partial(check_auditable, n_folds=n_folds))
    audited = audit_labels(
        pool,
        n_neighbors=n_neighbors,
        n_folds=n_folds,
        certification_size=certification_size,
        random_state=random_state,
        verbose=True,
    )
    if output is not None:
        write_rows(output, _blocks(audited, pool))
    return audited


def _blocks(audited: LabelAudit, pool: LabelledStates) -> Iterator[list[dict[str, Any]]]:
    """The rows of the output, some at a time; of those that were set aside it is only said which they are."""
    judged, apart = audited.rows, audited.set_aside.tolist()
    for start in range(0, len(judged), _ROWS_AT_ONCE):
        yield [{**one.to_dict(), "set_aside": False} for one in judged[start : start + _ROWS_AT_ONCE]]
    ids = range(len(pool)) if pool.ids is None else as_list(pool.ids, "ids", "audit_data")
    labels = as_list(pool.labels, "labels", "audit_data")
    unknown = dict.fromkeys(judged[0].to_dict())
    for start in range(0, len(apart), _ROWS_AT_ONCE):
        yield [
            {**unknown, "row": row, "place": pool.place(row), "id": ids[row], "label": labels[row], "set_aside": True}
            for row in apart[start : start + _ROWS_AT_ONCE]
        ]
