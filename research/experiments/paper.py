"""The values printed in the paper's tables, to compare measured ones with.

``paper_values.csv`` has one line per row of a table and stratum, with accuracy and share as printed: ``R`` if all
inputs were rejected, ``-`` if the data have no such input, ``1.`` as well as ``1.00``, ``<0.01``. Its columns
``basis``, ``kl_factor`` and ``rule`` are the values of an ``EstimatorKey``; strata are named as in
``ResultTable.to_dicts``. The sources:

- ``calibration``: the rules over an SDM adaptor on the calibration set, with q′_min;
- ``sentiment``, ``factcheck``: language model, CNN and SDM adaptor on Sentiment and SentimentOOD, and on Factcheck;
- ``factcheck shuffled``: the same on FactcheckShuffled, which has no input of class 1;
- ``vbll factcheck``: Bayesian last layers on Factcheck, its calibration set, and FactcheckShuffled, where class 1 is
  printed as ``R`` even without rejection;
- ``agnews``: AGNews with its four classes, published with the authors' code, which gives q′_min as about 22.7;
- ``ablation``: the identity in place of the adaptor's convolution, published there too, only over all inputs.

Three tables are empty in the copy of the paper's LaTeX that the file was made from, so their values are missing: the
main table (a selection of rows of the sentiment, factcheck and VBLL tables), shuffled sentiment, and Bayesian last
layers on sentiment.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchsdm.evaluation import Basis, EstimatorKey, Rule

_MODELS = {
    "microsoft/Phi-3.5-mini-instruct": "Phi3.5",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "Mixtral8x7B",
}


@dataclass(frozen=True)
class PrintedCell:
    """Accuracy of the admitted inputs of a stratum and their share of all inputs, as printed."""

    accuracy: str
    share: str


@dataclass(frozen=True)
class PrintedRow:
    """One estimator on one data set."""

    source: str
    dataset: str
    language_model: str
    key: EstimatorKey
    alpha: float
    min_rescaled_similarity: float | None
    """q′_min of the region, infinite if none was found; None if it is not printed."""
    cells: Mapping[tuple[str, int | None], PrintedCell]
    """By stratum and label: ``("class", 0)``, ``("prediction", 0)``, ..., ``("all", None)``."""


def printed_rows(
    *,
    dataset: str | None = None,
    language_model: str | None = None,
    key: EstimatorKey | None = None,
    alpha: float | None = None,
    source: str | None = None,
) -> list[PrintedRow]:
    """The rows with these values, in the order of the tables; None matches anything.

    Parameters
    ----------
    dataset : str, optional
        Such as 'SentimentOOD' or, for the rows on the calibration set, 'Sentiment calibration'.
    language_model : str, optional
        'Phi3.5' or 'Mixtral8x7B'.
    key : EstimatorKey, optional
        The estimator: its basis, its rule and, for Bayesian last layers, the factor of the KL term.
    alpha : float, optional
        0.95, or 0.94 for a few rows.
    source : str, optional
        One of those above.

    Returns
    -------
    list of PrintedRow
        Empty if the paper prints no such row.

    Examples
    --------
    >>> region = EstimatorKey(Basis.SDM, Rule.REGION)
    >>> (row,) = printed_rows(dataset="SentimentOOD", language_model="Mixtral8x7B", key=region)
    >>> row.cells["class", 0]
    PrintedCell(accuracy='0.9487', share='0.01')
    """
    wanted = {"dataset": dataset, "language_model": language_model, "key": key, "alpha": alpha, "source": source}
    given = {name: value for name, value in wanted.items() if value is not None}
    return [row for row in _all_rows() if all(getattr(row, name) == value for name, value in given.items())]


def paper_model(reference: str) -> str | None:
    """The name in the paper's tables of a language model on the hub; None if it is not in them."""
    return _MODELS.get(reference)


@cache
def _all_rows() -> tuple[PrintedRow, ...]:
    file = Path(__file__).with_name("paper_values.csv")
    cells: dict[tuple[str, ...], dict[tuple[str, int | None], PrintedCell]] = {}
    for line in csv.reader(file.read_text(encoding="utf-8").splitlines()[1:]):
        *values, stratum, label, accuracy, share = line
        of_row = cells.setdefault(tuple(values), {})
        of_row[stratum, int(label) if label else None] = PrintedCell(accuracy, share)
    return tuple(
        PrintedRow(
            source,
            dataset,
            language_model,
            EstimatorKey(Basis(basis), Rule(rule), _number(kl_factor)),
            float(alpha),
            _number(similarity),
            of_row,
        )
        for (source, dataset, language_model, basis, kl_factor, rule, alpha, similarity), of_row in cells.items()
    )


def _number(text: str) -> float | None:
    return float(text) if text else None
