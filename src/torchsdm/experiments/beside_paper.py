"""Our accuracies and shares beside those that the paper prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchsdm.evaluation import EstimatorKey, Grid, ResultRow, ResultTable, accuracy_text, share_text, strata
from torchsdm.experiments.paper import paper_model, printed_rows
from torchsdm.experiments.specification import FULL, Experiment
from torchsdm.experiments.studies import Section

_COLUMNS = ["dataset", "model", "estimator", "stratum", "ours", "paper", "our share", "paper's share"]


def beside_paper(sections: Iterable[Section], model: str | None, experiment: Experiment) -> Section | None:
    """The rows of some sections beside the printed ones; None if there is nothing to compare.

    A printed row is found by its language model, data set and alpha, and by the estimator's basis and rule. A row that
    several tables show is compared once.

    Parameters
    ----------
    sections : iterable of Section
    model : str or None
        The language model, as ``HiddenStateExtractor`` takes it; only the paper's own are compared.
    experiment : Experiment
        What it does differently from the paper is said above the table.
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
    return Section("Beside the paper", Grid(_COLUMNS, lines), _text(experiment)) if lines else None


def _lines(row: ResultRow, language_model: str) -> Iterator[list[str]]:
    """A line for each stratum of a row that the paper prints, too."""
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
    text = "Accuracy among the admitted, and their share of all inputs; printed values as they stand in the paper."
    variant = f"This is the variant {experiment.variant!r}, not the paper's run."
    remarks = [f"{one.name}: {one.remark}" for one in (experiment.pool, *experiment.tests) if one.remark]
    return " ".join([text, *([] if experiment.variant == FULL else [variant]), *remarks])
