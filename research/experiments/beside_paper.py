"""Our accuracies and shares next to the paper's printed ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from research.experiments.paper import paper_model, printed_rows
from research.experiments.specification import FULL, Experiment
from research.experiments.studies import Section
from torchsdm.evaluation import EstimatorKey, Grid, ResultRow, ResultTable, accuracy_text, share_text, strata

_COLUMNS = ["dataset", "model", "estimator", "stratum", "ours", "paper", "our share", "paper's share"]


def beside_paper(sections: Iterable[Section], model: str | None, experiment: Experiment) -> Section | None:
    """The rows of some sections next to the printed ones; None if there is nothing to compare.

    Printed rows are matched by language model, data set, alpha, and the estimator's basis and rule. A row that appears
    in several tables is compared once.

    Parameters
    ----------
    sections : iterable of Section
    model : str or None
        The language model, as for ``HiddenStateExtractor``; only the paper's are compared.
    experiment : Experiment
        How it differs from the paper is stated above the table.
    """
    language_model = paper_model(model or "")
    if language_model is None:
        return None
    rows: dict[tuple[str, EstimatorKey, float], ResultRow] = {}
    for section in sections:
        if isinstance(section.table, ResultTable):
            for row in section.table.rows:
                rows.setdefault((row.dataset, row.key, row.alpha), row)
    lines = [line for row in rows.values() for line in _lines(row, language_model)]
    return Section("Compared with the paper", Grid(_COLUMNS, lines), _text(experiment)) if lines else None


def _lines(row: ResultRow, language_model: str) -> Iterator[list[str]]:
    """One line per stratum of a row that the paper also prints."""
    for printed in printed_rows(dataset=row.dataset, language_model=language_model, key=row.key, alpha=row.alpha):
        for stratum in strata(row):
            cell = printed.cells.get((stratum.kind, stratum.label))
            if cell is not None:
                yield [
                    *(row.dataset, row.model, row.estimator, stratum.name),
                    *(accuracy_text(stratum.cell, row.alpha), cell.accuracy),
                    *(share_text(stratum.cell.share), cell.share),
                ]


def _text(experiment: Experiment) -> str:
    text = "Accuracy of admitted inputs, and their share of all inputs; the paper's values as printed."
    variant = f"This is the variant {experiment.variant!r}, not the paper's full run."
    remarks = [f"{one.name}: {one.remark}" for one in (experiment.pool, *experiment.tests) if one.remark]
    return " ".join([text, *([] if experiment.variant == FULL else [variant]), *remarks])
