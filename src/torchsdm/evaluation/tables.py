"""Tables of results as in the paper: one row per data set, model and estimator, in several formats.

Tables show names, for readers. Code that depends on the estimator, such as which rows a claim covers, uses its key.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from torchsdm.core import Decisions
from torchsdm.errors import InvalidInputError, import_extra
from torchsdm.evaluation.metrics import Cell, SelectiveAccuracy, selective_accuracy
from torchsdm.evaluation.strangers import CLASSES, NONE, OUTSIDE
from torchsdm.files import strict_json
from torchsdm.wording import shortened


class _Named(Enum):
    def __str__(self) -> str:
        return str(self.value)


class Rule(_Named):
    """How an estimator admits. The value, also its ``str``, is its name in tables."""

    NO_REJECT = "no reject"
    SOFTMAX = "softmax ≥ α"
    TEMPERATURE = "temperature ≥ α"
    APS = "APS"
    RAPS = "RAPS"
    VBLL = "VBLL ≥ α"
    ADAPTOR_SOFTMAX = "softmax(z′) ≥ α"
    DISTANCE_SOFTMAX = "softmax(d·z′) ≥ α"
    SDM = "sdm(z′) ≥ α"
    REGION = "SDM_HR"
    REGION_LOWER = "SDM_HR lower"
    CERTIFIED = "certified"
    """The certificate of the SDM classifier itself."""
    EVERY_LEVEL = "every level"
    """What it promises in every window of the score; those below are scores of the same logits, certified alike."""
    CERTIFIED_SOFTMAX = "certified softmax"
    CERTIFIED_TEMPERATURE = "certified temp."
    CERTIFIED_ENERGY = "certified energy"


class Basis(_Named):
    """Where an estimator's logits come from: the language model itself, or a model trained on its hidden states."""

    LANGUAGE_MODEL = "language model"
    CNN = "CNN"
    DISCRIMINATIVE_VBLL = "discriminative VBLL"
    GENERATIVE_VBLL = "generative VBLL"
    SDM = "SDM"
    IDENTITY_SDM = "identity SDM"
    """SDM with the identity in place of the adaptor g."""
    ALL_ROUNDS = "all rounds of SDM"


@dataclass(frozen=True)
class EstimatorKey:
    """Basis and rule of an estimator; None if the estimator is not one of those listed."""

    basis: Basis | None = None
    rule: Rule | None = None
    kl_factor: float | None = None
    """The factor of the KL term of a Bayesian last layer."""


UNLISTED = EstimatorKey()  #: the key of any other estimator


REJECTED = "R"  #: in place of an accuracy if all inputs of the stratum were rejected
ABSENT = "-"  #: if the data have no such input
UNKNOWN = "?"  #: if some are admitted, and nobody knows their classes
_MOST_DIGITS = 8
BELOW = "↓"  #: after an accuracy below alpha


@dataclass(frozen=True)
class Grid:
    """Rows of texts under named columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_text(self, width: int | None = None) -> str:
        """For a terminal; with a ``width``, the widest columns are cut until the table is no wider."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.columns))]
        while width is not None and sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 1:
            widths[widths.index(max(widths))] -= 1
        padded = [
            "  ".join(
                (value if len(value) <= size else shortened(value, size)).ljust(size)
                for value, size in zip(line, widths, strict=True)
            )
            for line in lines
        ]
        return "\n".join(line.rstrip() for line in [padded[0], "-" * len(padded[0]), *padded[1:]])

    def to_markdown(self) -> str:
        """A table in Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join("| " + " | ".join(map(markdown_text, line)) + " |" for line in lines)


@dataclass(frozen=True)
class ResultRow:
    """One estimator on one data set."""

    dataset: str
    model: str
    estimator: str
    alpha: float
    accuracy: SelectiveAccuracy
    key: EstimatorKey = UNLISTED
    """Identifies the estimator in code; the names above are for readers."""

    @classmethod
    def of(
        cls,
        decisions: Decisions,
        labels: Any,
        alpha: float,
        *,
        dataset: str = "",
        model: str = "",
        estimator: str = "",
        key: EstimatorKey = UNLISTED,
    ) -> ResultRow:
        """The row of decisions on labelled inputs, as admitted at alpha."""
        return cls(dataset, model, estimator, float(alpha), selective_accuracy(decisions.at(alpha), labels), key)

    @property
    def lowest(self) -> Stratum | None:
        """The class or prediction of the lowest accuracy; None if none has an accuracy."""
        known = [stratum for stratum in strata(self) if stratum.kind != "all" and stratum.cell.accuracy is not None]
        return min(known, key=lambda stratum: float(stratum.cell.accuracy or 0.0), default=None)


class Stratum(NamedTuple):
    """Inputs with one true class, with one prediction, or all, in a row of results."""

    kind: str
    label: Any
    cell: Cell

    @property
    def name(self) -> str:
        """As in the header of a table."""
        return {"class": f"y={self.label}", "prediction": f"ŷ={self.label}"}.get(self.kind, "all")


def strata(row: ResultRow) -> Iterator[Stratum]:
    """The strata of a row, in the order of a table's columns."""
    for label, cell in row.accuracy.by_class.items():
        yield Stratum("class", label, cell)
    for label, cell in row.accuracy.by_prediction.items():
        yield Stratum("prediction", label, cell)
    yield Stratum("all", None, row.accuracy.marginal)


@dataclass(frozen=True)
class ResultTable:
    """Rows of results over the same classes.

    ``R`` in place of an accuracy means that all inputs were rejected, ``-`` that there were none, ``?`` that their
    classes are not known; ``↓`` follows an accuracy below alpha. A share is the admitted part of the stratum over all
    inputs of the data set.
    """

    rows: Sequence[ResultRow]
    note: str = ""
    """Sentences to print below the table, a line each."""

    def __post_init__(self) -> None:
        if not self.rows:
            raise InvalidInputError("'rows' of ResultTable must have at least one row.")
        classes = [list(row.accuracy.by_class) for row in self.rows]
        if any(other != classes[0] for other in classes):
            raise InvalidInputError("'rows' of ResultTable must have the same classes. Make separate tables.")

    def to_text(self, *, intervals: bool = False, digits: int = 2) -> str:
        """For a terminal; optionally with Wilson's 95 % intervals."""
        text = self.grid(intervals=intervals, digits=digits).to_text()
        width = len(text.partition("\n")[0])  # no wider than the table
        return "\n\n".join([text, *(textwrap.fill(line, width) for line in self.note.splitlines())])

    def to_narrow_text(
        self,
        *,
        intervals: bool = False,
        digits: int = 2,
        width: int = 100,
        beneath: Mapping[str, Mapping[str, str]] | None = None,
    ) -> str:
        """For a terminal, data set by data set: what is admitted, its accuracy, and the lowest of any stratum.

        Parameters
        ----------
        intervals : bool
            Also Wilson's 95 % intervals.
        digits : int
        width : int
            Of all lines, in characters.
        beneath : mapping, optional
            What to print below a data set, by topic.
        """
        by_data_set: dict[str, list[ResultRow]] = {}
        for row in self.rows:
            by_data_set.setdefault(row.dataset, []).append(row)
        parts = []
        for name, rows in by_data_set.items():
            head, grid = _narrow(rows, intervals, digits)
            parts.append("\n".join([shortened(f"{name}: {head}", width), "", grid.to_text(width)]))
            if topics := (beneath or {}).get(name):
                size = max(map(len, topics)) + 2
                lines = [
                    textwrap.fill(text, width, initial_indent=topic.ljust(size), subsequent_indent=" " * size)
                    for topic, text in topics.items()
                ]
                parts.append("\n".join(lines))
        legend = "share: admitted of all inputs."
        if any(row.accuracy.labels == CLASSES for row in self.rows):
            legend += (
                f" accuracy: right of the admitted; {REJECTED}: all rejected, {BELOW}: below alpha = "
                f"{self.rows[0].alpha:g}. lowest: of any class (y) or prediction (ŷ)."
            )
        return "\n\n".join([*parts, *(textwrap.fill(line, width) for line in [legend, *self.note.splitlines()])])

    def to_markdown(self, *, intervals: bool = False, digits: int = 2) -> str:
        """A table in Markdown."""
        text = self.grid(intervals=intervals, digits=digits).to_markdown()
        return "\n\n".join([text, *map(markdown_text, self.note.splitlines())])

    def to_latex(self, *, intervals: bool = False, digits: int = 2) -> str:
        """A booktabs table like the paper's, accuracies below alpha in a box (needs booktabs, xcolor and graphicx).

        The note is a comment, for the caption.
        """
        labels = list(self.rows[0].accuracy.by_class)
        n_strata = 2 * len(labels) + 1
        groups = [f"{of} {str(label).translate(_LATEX)}" for of in ("$y=$", "$\\hat{y}=$") for label in labels]
        groups += ["Marginal"]
        head = [
            "\\begin{tabular}{lll" + "cc" * n_strata + "}",
            "\\toprule",
            "& & & " + " & ".join(f"\\multicolumn{{2}}{{c}}{{{group}}}" for group in groups) + " \\\\",
            " ".join(f"\\cmidrule(r){{{4 + 2 * i}-{5 + 2 * i}}}" for i in range(n_strata)),
            "Dataset & Model & Estimator & " + " & ".join(["\\textsc{Acc.} & $n/|D|$"] * n_strata) + " \\\\",
            "\\midrule",
        ]
        body = []
        previous = None
        for row, cells in zip(self.rows, self._cells(_latex_accuracy, intervals, digits), strict=True):
            if previous not in (None, (row.dataset, row.model)):
                body.append("\\midrule")
            previous = (row.dataset, row.model)
            names = [name.translate(_LATEX) for name in cells[:3]]
            values = [value.replace("<", "$<$").replace(">", "$>$") for value in cells[3:]]
            body.append(" & ".join([*names, *values]) + " \\\\")
        note = [f"% {line}" for line in self.note.splitlines()]
        return "\n".join([*head, *body, "\\bottomrule", "\\end{tabular}", *note])

    def to_csv(self) -> str:
        """One line per row and stratum, with all digits."""
        return csv_text(self.to_dicts())

    def to_json(self) -> str:
        """The same records as in CSV, as strict JSON."""
        return strict_json(self.to_dicts())

    def to_pandas(self) -> Any:
        """The same records as a data frame."""
        pd = import_extra("pandas", "report", "ResultTable.to_pandas")
        return pd.DataFrame(self.to_dicts())

    def to_dicts(self) -> list[dict[str, Any]]:
        """One record per row and stratum: names, counts, accuracy with its interval, share, whether below alpha."""
        return [
            {
                "dataset": row.dataset,
                "model": row.model,
                "estimator": row.estimator,
                "alpha": row.alpha,
                "labels": row.accuracy.labels,
                "stratum": stratum,
                "label": label,
                "n_total": cell.n_total,
                "n_admitted": cell.n_admitted,
                "n_correct": cell.n_correct,
                "accuracy": cell.accuracy,
                "accuracy_low": (cell.interval() or (None, None))[0],
                "accuracy_high": (cell.interval() or (None, None))[1],
                "share": cell.share,
                "is_below_alpha": cell.is_below(row.alpha),
            }
            for row in self.rows
            for stratum, label, cell in strata(row)
        ]

    def __str__(self) -> str:
        return self.to_text()

    def grid(self, *, intervals: bool = False, digits: int = 2) -> Grid:
        """The table as texts."""
        columns = [name for stratum in strata(self.rows[0]) for name in (stratum.name, "share")]
        rows = self._cells(_plain_accuracy, intervals, digits)
        return Grid(["dataset", "model", "estimator", *columns], rows)

    def _cells(self, accuracy: Callable[..., str], intervals: bool, digits: int) -> list[list[str]]:
        rows = []
        for row in self.rows:
            rows.append([row.dataset, row.model, row.estimator])
            for _, _, cell in strata(row):
                rows[-1] += [accuracy(cell, row.alpha, digits, intervals), share_text(cell.share, digits)]
        return rows


_WITHOUT_CLASSES = {  # what the inputs are called, and the column of what is admitted
    OUTSIDE: ("inputs with labels outside the classes", "wrongly admitted"),
    NONE: ("inputs without labels", "admitted"),
}


def _narrow(rows: Sequence[ResultRow], intervals: bool, digits: int) -> tuple[str, Grid]:
    """How many inputs of which model, and a line per estimator; the model is a column only if there are several."""
    models = list(dict.fromkeys(row.model for row in rows))
    what, admitted = _WITHOUT_CLASSES.get(rows[0].accuracy.labels, ("inputs", ""))
    measures = [admitted] if admitted else ["accuracy", "lowest", "of"]
    lines = []
    for row in rows:
        cell = row.accuracy.marginal
        lines.append([row.model, row.estimator, share_text(cell.share, digits)])
        if admitted:
            lines[-1].append(f"{cell.n_admitted:,}")
        else:
            lowest = row.lowest or Stratum("all", None, cell)
            lines[-1] += [_plain_accuracy(one, row.alpha, digits, intervals) for one in (cell, lowest.cell)]
            lines[-1].append(lowest.name if row.lowest else "")
    of_model = f", {models[0]}" if len(models) == 1 and models[0] else ""
    head = f"{rows[0].accuracy.marginal.n_total:,} {what}{of_model}"
    first = 0 if len(models) > 1 else 1
    return head, Grid(["model", "estimator", "share", *measures][first:], [line[first:] for line in lines])


def csv_text(records: Sequence[dict[str, Any]]) -> str:
    """Records as CSV; an empty string if there are none."""
    file = io.StringIO()
    if records:
        writer = csv.DictWriter(file, fieldnames=list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    return file.getvalue()


def accuracy_text(cell: Cell, alpha: float, digits: int = 2) -> str:
    """An accuracy with N digits, more if rounding would lift it to alpha or to 1; R, ? or - if there is none."""
    if cell.is_absent:
        return ABSENT
    if cell.accuracy is None:
        return UNKNOWN if cell.n_admitted else REJECTED
    while digits < _MOST_DIGITS and is_moved(cell.accuracy, digits, (0.0, cell.target(alpha), 1.0)):
        digits += 1
    return f"{cell.accuracy:.{digits}f}"


def is_moved(value: float, digits: int, limits: Sequence[float]) -> bool:
    """Whether rounding moves a value onto or across a limit that it does not equal."""
    rounded = round(value, digits)
    return any(
        (value < limit <= rounded) or (value > limit > rounded) or (value > limit == 0 == rounded) for limit in limits
    )


def share_text(share: float, digits: int = 2) -> str:
    """A share with N digits; never rounded to 0 or 1 unless it is exactly that."""
    smallest = 10.0**-digits
    if 0 < share < smallest / 2:
        return f"<{smallest:.{digits}f}"
    return f">{1 - smallest:.{digits}f}" if 1 - smallest / 2 <= share < 1 else f"{share:.{digits}f}"


def _plain_accuracy(cell: Cell, alpha: float, digits: int, intervals: bool) -> str:
    below = BELOW if cell.is_below(alpha) else ""
    return f"{accuracy_text(cell, alpha, digits)}{below}{_interval(cell, digits, ' [{}, {}]') if intervals else ''}"


def _latex_accuracy(cell: Cell, alpha: float, digits: int, intervals: bool) -> str:
    interval = _interval(cell, digits, " {{\\scriptsize [{}, {}]}}") if intervals else ""
    text = f"{accuracy_text(cell, alpha, digits)}{interval}"
    return f"\\colorbox{{red!10}}{{{text}}}" if cell.is_below(alpha) else text


def _interval(cell: Cell, digits: int, form: str) -> str:
    ends = cell.interval()
    return "" if ends is None else form.format(*(f"{end:.{digits}f}" for end in ends))


def markdown_text(text: str) -> str:
    """Plain text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


_LATEX = str.maketrans(
    {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "$<$", ">": "$>$"}
    | {character: f"\\{character}" for character in "&%$#_{}"}
    | {"≥": "$\\ge$", "α": "$\\alpha$", "′": "$'$", "·": "$\\cdot$", "×": "$\\times$", "∞": "$\\infty$"}
)
