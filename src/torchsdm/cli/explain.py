"""``sdm explain``: what a decision rests on."""

from __future__ import annotations

import json

import click
import numpy as np

from torchsdm.application import Columns, SavedModel
from torchsdm.cli._options import column_options, json_option, language_model_options
from torchsdm.errors import InvalidInputError
from torchsdm.wording import shortened


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("inputs", metavar="INPUT", required=False)
@click.option("-k", "--exemplars", default=5, show_default=True, help="Nearest training examples shown.")
@click.option("--only", "only", multiple=True, metavar="ID", help="Explain only the inputs with these ids.")
@click.option("-t", "--say", "texts", multiple=True, metavar="TEXT", help="Explain this text, instead of INPUT.")
@click.option("-n", "--first", type=int, help="Explain only the first so many.")
@column_options
@language_model_options
@json_option
def explain(
    model: str,
    inputs: str | None,
    exemplars: int,
    only: tuple[str, ...],
    texts: tuple[str, ...],
    first: int | None,
    text: str,
    label: str | None,
    id_: str | None,
    answer: str | None,
    states: str,
    language_model: str | None,
    device: str | None,
    batch_tokens: int,
    as_json: bool,
) -> None:
    r"""Show for each input the decision, the nearest training examples, and how calibration points like it fared.

    \b
    Examples:
      sdm explain model new.jsonl --only ticket-17
      sdm explain model --say "A film to remember."
    """
    if (inputs is None) == (not texts):
        raise InvalidInputError("Give either INPUT or --say TEXT.")
    if exemplars < 1 or (first is not None and first < 1):
        raise InvalidInputError("--exemplars and --first must be at least 1.")
    saved = SavedModel.load(model, language_model=language_model, device=device, batch_tokens=batch_tokens)
    if texts:
        if saved.text_classifier is None:
            raise InvalidInputError(f"{model} was trained on states alone and cannot read texts.")
        for one, explanation in zip(texts, saved.text_classifier.explain(list(texts), exemplars), strict=True):
            _show(one, None, explanation, as_json)
        return
    shown, missing = 0, set(only)
    for block in saved.blocks(str(inputs), Columns(text, label, id_, answer, states)):
        ids = list(block.ids or [])
        rows = [row for row, name in enumerate(ids) if not only or str(name) in only]
        rows = rows if first is None else rows[: first - shown]
        if rows:
            chosen = np.asarray(block.hidden_states)[rows]
            for row, explanation in zip(rows, saved.classifier.explain(chosen, exemplars), strict=True):
                _show(None if block.texts is None else block.texts[row], ids[row], explanation, as_json)
        shown += len(rows)
        missing -= {str(ids[row]) for row in rows}
        if (first is not None and shown >= first) or (only and not missing):
            break
    if missing and (first is None or shown < first):
        raise InvalidInputError(f"{inputs} has no input with the id {sorted(missing)[0]!r}.")


def _show(text: object, name: object, explanation: object, as_json: bool) -> None:
    if as_json:
        row = {"id": name, "text": text, **explanation.to_dict()}  # type: ignore[attr-defined]
        click.echo(json.dumps(row, allow_nan=False, ensure_ascii=False))
        return
    heading = " ".join(str(part) for part in (None if name is None else f"id {name!r}", text) if part is not None)
    click.echo(f"{shortened(heading, 300)}\n{explanation}\n")
