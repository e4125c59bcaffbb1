"""``sdm choose``: the alpha that costs least, by what a wrong answer and a look cost, and a certificate for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchsdm.cli._options import (
    Costs,
    LanguageModel,
    ModelOutput,
    Signature,
    column_options,
    cost_options,
    json_option,
    language_model_options,
    model_output_options,
    say,
    signature_options,
)
from torchsdm.cli._words import said_once, trust_lines
from torchsdm.cli.update import OUTPUT_HELP, labelled_data, write
from torchsdm.errors import InvalidInputError

if TYPE_CHECKING:
    from torchsdm.data import Columns

_FINE = 0.895  # from here on every alpha has a line in the table; below, every twentieth


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="[DATA]", required=False)
@cost_options
@click.option("--dry-run", is_flag=True, help="Only print: certify nothing and write nothing.")
@model_output_options(OUTPUT_HELP)
@signature_options
@column_options
@language_model_options
@json_option
def choose(
    model: str,
    data: str | None,
    costs: Costs,
    dry_run: bool,
    output: ModelOutput,
    signature: Signature,
    columns: Columns,
    language_model: LanguageModel,
    as_json: bool,
) -> None:
    r"""Choose alpha for a saved MODEL by what a wrong answer and a person's look cost, and certify it.

    The choice is an estimate on the calibration set. The certificate is then made on data that the choice has not seen:
    the model's certification sample or, better if that has served before, new labelled DATA. If no alpha pays, or none
    will probably be certified, the model stays as it is.

    \b
    Examples:
      sdm choose model --cost-error 20 --cost-review 1 --dry-run
      sdm choose model checked.jsonl --cost-error spam=50 --cost-error ham=5 --cost-review 1
    """
    prices = costs.given("sdm choose")
    if prices is None:
        raise InvalidInputError("What do a wrong answer and a look cost? Give --cost-error and --cost-review.")
    path = output.path(model)
    from torchsdm.application import summary
    from torchsdm.estimators import Certify, SDMClassifier
    from torchsdm.labels import by_class

    live = language_model.open_live(model, writable=output.is_in_place(model) and not dry_run)
    draft = live.draft()
    classifier = draft.classifier
    if not isinstance(classifier, SDMClassifier):
        raise InvalidInputError(f"{model} is an ensemble, which is not certified: it has no alpha to choose.")
    if isinstance(prices["cost_error"], dict):
        by_class(prices["cost_error"], classifier.classes_, "cost_error", "sdm choose")  # before texts are read
    given = None if data is None else labelled_data(live.snapshot.saved, data, columns)
    choice = classifier.choose_alpha(**prices, n_certification=None if given is None else len(given))
    is_written = choice.pays and not dry_run
    if is_written:
        with said_once(classifier):
            draft.apply(Certify(given, choice.alpha))
        write(live, draft, path, output.is_in_place(model), signature)
    result = {
        **summary(classifier, path if is_written else Path(model)),
        "choice": choice.to_json(),
        "written": is_written,
        "version": classifier.version_,
    }
    say(result, "\n".join([*_table(result["choice"]), "", *_verdict(result, dry_run)]), as_json)


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
