"""``sdm report``: a saved model on labelled data as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from torchsdm.application import Columns, SavedModel, evaluate_model
from torchsdm.cli._options import column_options, json_option, language_model_options, output_option, say
from torchsdm.evaluation import write_report


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="[NAME=]DATA...", nargs=-1, required=True)
@output_option("The HTML file.", is_directory=False, required=True)
@click.option("--title", help="Default: the model's name.")
@click.option("--no-texts", is_flag=True, help="Quote no texts, for data that may not be passed on.")
@click.option(
    "--training", metavar="FILE", help="Training data, for estimators that are trained: cnn, vbll and others."
)
@click.option("--groups", default="cnn,vbll,today", show_default=True, help="Which of them, with commas.")
@column_options
@language_model_options
@json_option
def report(
    model: str,
    data: tuple[str, ...],
    output: Path,
    title: str | None,
    no_texts: bool,
    training: str | None,
    groups: str,
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
    r"""Write a page on a saved MODEL and labelled DATA: tables, pictures, telling examples, and where numbers are from.

    \b
    Example:
      sdm report model test.jsonl tweets=tweets.csv -o report.html
    """
    saved = SavedModel.load(model, language_model=language_model, device=device, batch_tokens=batch_tokens)
    evaluation = evaluate_model(saved, data, Columns(text, label, id_, answer, states), None, (), training, groups)
    title = title or f"Evaluation of {saved.path}"
    write_report(output.resolve(), evaluation, saved.classifier, title=title, texts=not no_texts)
    sizes = {name: len(states) for name, states in evaluation.data_sets.items()}
    say(
        {"report": str(output), "inputs": sizes},
        f"{output}: {sum(sizes.values())} inputs in {len(sizes)} data sets.",
        as_json,
    )
