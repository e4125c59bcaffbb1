"""``sdm predict``, ``sdm explain`` and ``sdm guard``: a decision per input, what is behind it, the drift guard."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchsdm.cli import options
from torchsdm.cli.options import resumable, say, warn_of_rejected
from torchsdm.errors import InvalidInputError
from torchsdm.settings import LANES, REJECTED
from torchsdm.wording import check_line, guard_line, shortened, source_line

if TYPE_CHECKING:
    from torchsdm.application import Scores


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("sources", metavar="INPUT", nargs=-1, required=True)
@options.output_file(
    help="File for the decisions: .jsonl, .json, .csv, .tsv or .parquet. Default: standard output, as JSON lines."
)
@click.option("-k", "--exemplars", "k", default=3, help="Nearest training examples per decision.")
@click.option("--texts", is_flag=True, help="Include the texts of inputs and nearest training examples.")
@options.guard_file(help="Carry the drift guard from one run to the next in FILE. Default: a new guard for every run.")
@click.option(
    "--guard-by",
    metavar="COLUMN",
    help="Guard the inputs of each source by itself: the column of INPUT that names it, such as source.",
)
@click.option("--no-guard", is_flag=True, help="Do not watch the inputs for drift.")
@options.strict
@options.columns
@options.language_model
@options.ray(help="Decide on a Ray cluster.")
@click.option("--shards", type=int, help="With --ray: spread MODEL's training examples over this many actors.")
@options.as_json
def predict(
    model: str,
    sources: tuple[str, ...],
    output: Path | None,
    guard_file: Path | None,
    guard_by: str | None,
    no_guard: bool,
    language_model: dict[str, Any],
    backend: str | None,
    shards: int | None,
    as_json: bool,
    **asked: Any,
) -> None:
    r"""Decide on every line of INPUT with a saved MODEL.

    INPUT contains texts (.jsonl, .csv, .tsv, .parquet) or states (.npz, .safetensors, .jsonl, .parquet, or a folder
    written by sdm embed); - reads JSON lines from standard input. It may be a folder of .jsonl, .csv, .tsv or .parquet
    files, or a pattern of them in quotes: they are read in the order of their names, as if they were one file, and
    names that begin with a dot or an underscore are left out. The output has one row per input, in order: its id,
    its line, the fields of Decisions, and its exemplars. .csv, .tsv and .parquet have one column per label, such as
    probabilities[LABEL], and exemplars as JSON in one column.

    A row that cannot be read (broken JSON, no text, NaN in its states, a duplicate id) is a row of the output too: not
    admitted, in the lane "rejected", with the reason; the guard does not see it. --strict stops at the first. If no row
    can be read, that is an error.

    With --ray, copies of MODEL on a cluster decide, block by block, and the output is the same. Finished blocks are
    kept in OUTPUT.parts until OUTPUT is complete: if interrupted, run the same command again to resume. With --shards,
    this process decides, and MODEL's training examples are spread over the cluster: for more of them than a node holds.

    A drift guard watches the inputs in their order. Once it is raised, only trusted answers are admitted; with --guard
    that lasts until sdm guard FILE --reset REASON. With --guard-by each source of inputs has an alarm of its own.

    \b
    Examples:
      sdm predict model new.jsonl -o decisions.jsonl
      sdm predict model new.jsonl -o decisions.csv -k 0 --guard model.guard
      sdm predict model new.jsonl -o decisions.jsonl --guard model.guards --guard-by source
      sdm predict model new.parquet -o decisions.parquet --ray auto
      sdm predict model 'logs/2026-*.jsonl.gz' -o decisions.jsonl
      cat new.jsonl | sdm predict model - | jq 'select(.admitted) | .prediction'
    """
    if asked["k"] < 0:
        raise InvalidInputError(f"--exemplars must be at least 0. Got {asked['k']}.")
    if no_guard and (guard_file is not None or guard_by is not None):
        raise InvalidInputError("Give --guard FILE and --guard-by COLUMN, or --no-guard, not both.")
    if len(sources) > 1:
        raise InvalidInputError(
            f"sdm predict takes one INPUT. Got {len(sources)}: {shortened(', '.join(sources))}. For several files, "
            "give their folder, or a pattern in quotes: 'data/*.jsonl'."
        )
    (inputs,) = sources
    if shards is not None and backend is None:
        raise InvalidInputError("--shards needs a cluster: --ray auto, or --ray HOST:PORT.")
    from torchsdm.application import SavedModel, check_output, guard_state, open_guard, parts_of, score
    from torchsdm.cluster import RayBackend

    if output is not None:
        check_output(output, inputs)
    cluster = None if backend is None else RayBackend(backend, shards)
    saved = SavedModel.load(model, backend=None if shards is None else cluster, **language_model)
    cluster = cluster if shards is None else None  # else this process decides
    guard = None if no_guard else open_guard(saved.classifier, guard_file, by_source=guard_by is not None)
    parts = None if cluster is None or output is None else parts_of(output)
    with (
        nullcontext()
        if parts is None
        else resumable(lambda: len(list(parts.glob("block-*.jsonl"))), "finished block", parts)
    ):
        scores = score(saved, inputs, output=output, guard=guard, guard_by=guard_by, backend=cluster, **asked)
    if guard is not None and guard_file is not None:
        guard.save(guard_file)
    _warn(scores, model, inputs)
    state = None if guard is None else guard_state(guard)
    if output is not None:
        _say(scores, inputs, output, state, guard_file, as_json)
    elif not scores.n_inputs:
        click.echo(f"sdm: 0 inputs: {inputs} is empty.", err=True)
    elif state is not None and state["raised"]:
        click.echo(f"sdm: warning: {guard_line(state, guard_file)}", err=True)


def _warn(scores: Scores, model: str, inputs: str) -> None:
    if scores.alarm is not None:
        click.echo(f"sdm: warning: {check_line(scores.alarm, model)}", err=True)
    if scores.bad:
        warn_of_rejected(scores.bad, scores.n_inputs, "standard input" if inputs == "-" else inputs)


def _say(
    scores: Scores, inputs: str, output: Path, state: dict[str, Any] | None, guard_file: Path | None, as_json: bool
) -> None:
    n, lanes = scores.n_inputs, scores.lanes
    summary = {"inputs": n, "admitted": scores.n_admitted, "lanes": lanes, "guard": state, "output": str(output)}
    listed = ", ".join(f"{lanes[lane]} {lane}" for lane in (*LANES, *([REJECTED] if scores.bad else [])))
    done = f"{scores.n_admitted} of {n} inputs admitted ({listed}); decisions in {output}."
    done = done if n else f"0 inputs: {inputs} is empty, and so is {output}."
    say(summary, done if state is None else f"{done}\n{guard_line(state, guard_file)}", as_json)


_HEADING = 300  # characters to show of an input's text


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("inputs", metavar="INPUT", required=False)
@click.option("-k", "--exemplars", "k", default=5, help="Nearest training examples to show.")
@click.option(
    "--only", "only", multiple=True, metavar="ID", help="Explain only the input with this id; can be repeated."
)
@click.option(
    "-t", "--say", "texts", multiple=True, metavar="TEXT", help="Explain this text instead of INPUT; can be repeated."
)
@click.option("-n", "--first", type=int, metavar="N", help="Explain only the first N inputs.")
@options.columns
@options.language_model
@options.as_json
def explain(
    model: str,
    inputs: str | None,
    texts: tuple[str, ...],
    language_model: dict[str, Any],
    as_json: bool,
    **asked: Any,
) -> None:
    r"""Show each decision, its nearest training examples, and the accuracy of calibration points like the input.

    With --json, print one row per input: what sdm predict --texts writes, and the calibration points.

    \b
    Examples:
      sdm explain model new.jsonl --only ticket-17
      sdm explain model --say "A film to remember."
    """
    if (inputs is None) == (not texts):
        raise InvalidInputError("Give either INPUT or --say TEXT.")
    if asked["k"] < 1 or (asked["first"] is not None and asked["first"] < 1):
        raise InvalidInputError("--exemplars and --first must be at least 1.")
    from torchsdm.application import SavedModel, explain_inputs

    saved = SavedModel.load(model, **language_model)
    for row, words in explain_inputs(saved, inputs, texts=texts, **asked):
        if as_json:
            click.echo(json.dumps(row, allow_nan=False, ensure_ascii=False))
            continue
        heading = f"id {row['id']!r}" if row["text"] is None else f"id {row['id']!r} {row['text']}"
        click.echo(f"{shortened(heading, _HEADING)}\n{words}\n")


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--reset", "reason", metavar="REASON", help="Start again with an empty stream, and remember why.")
@click.option("--source", metavar="NAME", help="With --reset: restart the stream of this source alone.")
@options.as_json
def guard(file: Path, reason: str | None, source: str | None, as_json: bool) -> None:
    r"""Show the drift guard that sdm predict or sdm serve keeps in FILE, or reset it after an alarm.

    With guards by source, each has a line; a reset without --source begins everything again.

    \b
    Examples:
      sdm guard model.guard
      sdm guard model.guard --reset "new product names, certified again"
      sdm guard model.guards --source forum --reset "the forum's markup was cleaned"
    """
    from torchsdm.application import guard_state, reset_guard
    from torchsdm.trust import load_guard

    if source is not None and reason is None:
        raise InvalidInputError("--source NAME needs --reset REASON.")
    watching = load_guard(file)
    if reason is not None:
        reset_guard(watching, reason, source)
        watching.save(file)
    state = guard_state(watching)
    streams = [f"  {source_line(one)}" for one in state.get("sources", ())]
    earlier = [
        f"Reset after {one['n_seen']:,} inputs"
        + ("" if one["raised_at"] is None else f", raised at {one['raised_at']:,}")
        + (f", of {one['source']!r}" if one.get("source") is not None else "")
        + f": {one['reason']}"
        for one in state["resets"]
    ]
    say(state, "\n".join([guard_line(state, file), *streams, *earlier]), as_json)
