"""``sdm check``: admitted answers are drawn for people to check, and their verdicts test the promise."""

from __future__ import annotations

from typing import Any

import click

from torchsdm.cli import options
from torchsdm.cli._words import check_lines
from torchsdm.cli.options import say


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("decisions", metavar="[DECISIONS]", required=False)
@click.option("--rate", type=float, default=0.05, help="Share of the admitted answers to draw.")
@click.option("--per-week", type=float, metavar="N", help="Draw about so many in a week; --rate is where that begins.")
@options.output_file(help="File for the answers to check: .jsonl, .json, .csv, .tsv or .parquet.")
@click.option(
    "--verdicts", metavar="FILE", help="Take in that file, filled in: true or false in 'right', or a 'label'."
)
@click.option("--reset", "reason", metavar="REASON", help="Start again without verdicts, and remember why.")
@options.who(help="Who checked, or resets. Default: your login name.")
@options.as_json
def check(as_json: bool, **asked: Any) -> None:
    r"""Draw admitted answers of a saved MODEL at random for people to check, and take in what they found.

    DECISIONS is a file that sdm predict wrote. Each of its admitted answers is offered once, so the same file may be
    given again; what is drawn is kept with MODEL until there is a verdict on it. After too many wrong answers an alarm
    is raised, and what it is about is no longer admitted, by any verb, until the checks are reset. Without DECISIONS,
    --verdicts or --reset, the status is printed.

    \b
    Examples:
      sdm check model decisions.jsonl --rate 0.05 -o to-check.csv
      sdm check model --verdicts to-check.csv --who ada
      sdm check model
      sdm check model --reset "the rule of March; relabelled, trained and certified again"
    """
    from torchsdm.application import check_model

    result = check_model(**asked)
    say(result, "\n".join(check_lines(result)), as_json)
