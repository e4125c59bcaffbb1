"""``sdm choose``: the alpha that costs least, by what a wrong answer and a review cost, and a certificate for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from torchsdm.cli._options import (
    LanguageModel,
    column_options,
    cost_options,
    json_option,
    language_model_options,
    say,
    writing_options,
)
from torchsdm.cli._words import trust_lines

if TYPE_CHECKING:
    pass

_FINE = 0.895  # from here on every alpha has a line in the table; below, every twentieth


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="[DATA]", required=False)
@cost_options(required=True)
@click.option("--dry-run", is_flag=True, help="Only print: certify nothing and write nothing.")
@writing_options
@column_options
@language_model_options
@json_option
def choose(model: str, writing: dict[str, Any], language_model: LanguageModel, as_json: bool, **asked: Any) -> None:
    r"""Choose alpha for a saved MODEL by what a wrong answer and a review cost, and certify it.

    The choice is an estimate on the calibration set. The certificate is then made on data that the choice has not seen:
    the model's certification sample or, better if that has served before, new labelled DATA. If no alpha pays, or none
    will probably be certified, the model stays as it is.

    \b
    Examples:
      sdm choose model --cost-error 20 --cost-review 1 --dry-run
      sdm choose model checked.jsonl --cost-error spam=50 --cost-error ham=5 --cost-review 1
    """
    from torchsdm.application import choose_alpha

    result = choose_alpha(model, language_model=language_model.opening(), **asked, **writing)
    lines = [*_table(result["choice"]), "", *_verdict(result, asked["dry_run"])]
    say(result, "\n".join(lines), as_json)


def _table(choice: dict[str, Any]) -> list[str]:
    """The curve: every twentieth, from 0.9 on every hundredth, and the chosen alpha."""
    lines = ["  alpha   admitted   of these wrong   chance of a certificate   cost per input"]
    for point in choice["curve"]:
        alpha, is_chosen = point["alpha"], point["alpha"] == choice["alpha"]
        if not is_chosen and alpha < _FINE and round(100 * alpha) % 5:
            continue
        wrong = f"{point['error_rate']:.2%}" if point["admitted_share"] >= 0.0005 else "–"
        lines.append(
            f"{'>' if is_chosen else ' '} {alpha:<5.3g}   {point['admitted_share']:>8.1%}   {wrong:>14}   "
            f"{point['chance']:>23.0%}   {point['cost']:>14.4g}"
        )
    return lines


def _verdict(result: dict[str, Any], dry_run: bool) -> list[str]:
    """What was chosen, and what came of it."""
    choice = result["choice"]
    if result["written"]:
        tested = f"{choice['n_certification']:,} certification points, which the choice has not seen"
        return [choice["explanation"], f"{result['model']}, tested on {tested}:", *trust_lines(result)]
    return [choice["explanation"], "Nothing was certified." if dry_run else f"{result['model']} is unchanged."]
