"""What h should be: which layer, which part of the sequence, several layers, segments, and how it is standardised.

    python -m research.studies.hidden_state [--model qwen] [--tasks statements] [--data FOLDER] [--seeds 3]
    python -m research.studies.hidden_state --publish  # its figures into the docs

The language models are on the hub, or where TORCHSDM_GTE (a folder) and TORCHSDM_QWEN (a .gguf file) say. ``make study
STUDY=hidden_state`` runs both commands.

Every form of h is taken from one pass of the language model over the same texts. Then, for each form and seed, the
defaults are fitted on six tenths of the texts and decide on the others: the accuracy without rejecting, the share that
the certificate admits, and how many of these are right. Certificates come or go with a few points, so there is a
steadier measure beside them: the largest share of the test texts, in order of confidence, of which a share alpha is
right. Tasks:

- reviews: is a film review positive?
- topics: which of four topics has a newsgroup post? (encoder)
- intents: which of fifty things does a user want? (encoder)
- statements: is a statement true? (decoder)
- answers: is the decoder's own answer to a multiple-choice question right? (decoder)

Fits that are in the .json already are not run again.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from research.studies.common import ENCODERS, add_options, data_folder
from tools.pages import REPOSITORY, machine, said, write_between

RESULTS = Path(__file__).with_suffix(".json")
PAGE = REPOSITORY / "docs/howto/hidden-states.md"
BEGIN, END = "<!-- results: written by make study STUDY=hidden_state -->", "<!-- end of results -->"

SHARE_POOL = 0.6
CHOICES = ["A", "B", "C", "D", "E"]
N_SEGMENTS = 8


@dataclass(frozen=True)
class Task:
    """Texts with labels, and what a decoder is asked about them."""

    file: str
    prompt: str | None
    max_tokens: int
    n_texts: int
    alpha: float
    """Above the accuracy without rejecting, or there would be nothing to choose."""
    has_segments: bool = False
    """Whether its texts have several sentences."""
    control: str = "groups"
    labels: range | None = None
    """Which labels to keep."""


TASKS = {
    "reviews": Task("sentiment/pool", "sentiment", 256, 4_000, 0.95, has_segments=True),
    "topics": Task("newsgroups/pool", None, 128, 4_000, 0.95, has_segments=True),
    "intents": Task("clinc150/train", None, 64, 4_000, 0.95, control="pooled", labels=range(50)),
    "statements": Task("factcheck/pool", "factcheck", 256, 4_000, 0.9),
    "answers": Task("multiple_choice/arc_easy_test", None, 256, 4_000, 0.9, control="predictions"),
}


@dataclass(frozen=True)
class Model:
    """A language model, the layers that are compared (the last one is -1), its two parts of h, and its tasks."""

    reference: str
    layers: tuple[int, ...]
    parts: tuple[str, str]
    tasks: tuple[str, ...]
    dtype: str | None = None
    is_decoder: bool = False


MODELS = {
    "gte-small": Model(ENCODERS["gte"], (6, 8, 10, -1), ("first", "mean"), ("reviews", "topics", "intents")),
    "qwen": Model(
        ENCODERS["qwen"],
        (14, 18, 21, 24, -1),
        ("final", "mean"),
        ("reviews", "statements", "answers"),
        dtype="bfloat16",
        is_decoder=True,
    ),
}


@dataclass(frozen=True)
class Form:
    """A form of h, cut out of states with all layers, both parts and, where there are any, segments."""

    layers: tuple[int, ...] = (-1,)
    parts: tuple[int, ...] = (0, 1)
    takes_segments: bool = False
    standardization: str = "per_dimension"

    def of(self, states: Any, layers: tuple[int, ...]) -> Any:
        """(N, positions, parts, layers, H) -> (N, D), or (N, positions, D)."""
        chosen = states[:, :, list(self.parts)][:, :, :, [layers.index(layer) for layer in self.layers]]
        flat = chosen.reshape(*chosen.shape[:2], -1)
        return flat if self.takes_segments else flat[:, 0]

    def name(self, model: Model) -> str:
        """For a table."""
        numbers = ", ".join("last" if layer == -1 else str(layer) for layer in self.layers)
        said = f"layer{'s' if len(self.layers) > 1 else ''} {numbers}; {' ⊕ '.join(model.parts[p] for p in self.parts)}"
        said += "; maximum over sentences" if self.takes_segments else ""
        return said + (f"; {self.standardization}" if self.standardization != "per_dimension" else "")


def forms(model: Model, task: Task) -> Iterator[Form]:
    """The forms that are compared: the paper's first, then one change at a time; of a decoder also two."""
    yield Form()
    yield from (Form(parts=(part,)) for part in (0, 1))
    yield from (Form(layers=(layer,)) for layer in model.layers[:-1])
    if model.is_decoder:
        yield from (Form(layers=(layer,), parts=(0,)) for layer in model.layers[:-1])
        yield from (Form(layers=(layer,), standardization="scalar") for layer in model.layers[1:-1])
    yield Form(layers=model.layers[-2:])
    yield Form(layers=model.layers)
    yield Form(standardization="scalar")
    if task.has_segments:
        yield Form(takes_segments=True)


def main() -> None:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--model", choices=MODELS, help="one language model")
    parser.add_argument("--texts", type=int, help="how many texts of a task at most")
    parser.add_argument("--tasks", nargs="*", choices=TASKS, help="default: those of the model")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help="write the results into the documentation")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"fits": []}
    if options.publish:
        write_between(PAGE, BEGIN, END, section(results))
        return
    results["machine"] = machine()
    names = [options.model] if options.model else list(MODELS)
    for called, name in [(one, name) for one in names for name in options.tasks or MODELS[one].tasks]:
        model = MODELS[called]
        states = extracted(options, model, TASKS[name], f"{called}-{name}")
        for form in forms(model, TASKS[name]):
            for seed in range(options.seeds):
                key = {"model": called, "task": name, "form": form.name(model), "seed": seed}
                if any(key.items() <= fit.items() for fit in results["fits"]):
                    continue
                results["fits"].append({**key, **judged(states, form, model, TASKS[name], seed)})
                print(json.dumps(results["fits"][-1]), flush=True)
                RESULTS.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(section(results))


# --- Compute ---------------------------------------------------------------------------------------------------------


def extracted(options: argparse.Namespace, model: Model, task: Task, name: str) -> Any:
    """States (N, positions, parts, layers, H) with labels, extracted once: a block of texts at a time."""
    from torchsdm import Documents, HiddenStateExtractor, LabelledStates, TaskPrompt
    from torchsdm.data import StatesStore
    from torchsdm.hidden_states import judge_own_answers

    documents = list(Documents(data_folder(options) / f"{task.file}.jsonl.gz", repeated="drop"))
    if task.labels is not None:
        documents = [document for document in documents if document.label in task.labels]
    drawn = np.random.default_rng(0).permutation(len(documents))[: options.texts or task.n_texts]
    documents = [documents[row] for row in drawn]
    is_asked = task.file.startswith("multiple_choice")
    prompt: Any = TaskPrompt("{document}", CHOICES) if is_asked else task.prompt if model.is_decoder else None
    extractor = HiddenStateExtractor(
        model.reference,
        prompt,
        parts=model.parts,
        layer=model.layers,
        segments="sentences" if task.has_segments else None,
        n_segments=N_SEGMENTS,
        max_tokens=task.max_tokens,
        dtype=model.dtype,
        verbose=True,
    )
    states = extractor.labelled_states(documents, store=StatesStore(options.states / "hidden-state"), description=name)
    states = judge_own_answers(states) if is_asked else states
    n_positions = 1 + N_SEGMENTS * task.has_segments
    shape = (len(states), n_positions, 2, len(model.layers), -1)
    return LabelledStates(np.asarray(states.hidden_states).reshape(shape), states.labels)


def judged(states: Any, form: Form, model: Model, task: Task, seed: int) -> dict[str, Any]:
    """What the defaults admit with a form of h."""
    from torchsdm import SDMClassifier
    from torchsdm.errors import SDMWarning
    from torchsdm.trust import separate_ledger

    order = np.random.default_rng(seed).permutation(len(states))
    whole = replace(states, hidden_states=form.of(states.hidden_states, model.layers))
    n_pool = int(len(states) * SHARE_POOL)
    pool, test = whole.take(order[:n_pool]), whole.take(order[n_pool:])
    settings = {"standardization": form.standardization, "control": task.control}
    classifier = SDMClassifier(task.alpha, random_state=seed, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SDMWarning)  # missing certificates are counted
        with separate_ledger():  # each fit is an experiment of its own
            classifier.fit(pool)
    decisions = classifier.decide(test.hidden_states)
    right, admitted = decisions.predictions == test.labels, decisions.admitted
    return {
        "n_pool": len(pool),
        "n_test": len(test),
        "certified": bool(classifier.certificate_.found),
        "accuracy": float(right.mean()),
        "admitted": float(admitted.mean()),
        "right": float(right[admitted].mean()) if admitted.any() else None,
        "within_reach": share_within_reach(
            right, decisions.confidence if decisions.score is None else decisions.score, task.alpha
        ),
    }


def share_within_reach(right: Any, confidence: Any, alpha: float) -> float:
    """The largest share, in order of confidence, of which a share alpha is right."""
    ordered = right[np.argsort(-confidence, kind="stable")]
    n_right = np.cumsum(ordered)
    reached = np.flatnonzero(n_right >= alpha * np.arange(1, len(ordered) + 1))
    return float(reached[-1] + 1) / len(ordered) if len(reached) else 0.0


# --- Tell ------------------------------------------------------------------------------------------------------------


def section(results: dict[str, Any]) -> str:
    """A table for each model: a row for each form, and for each task what is admitted and how much of it is right."""
    lines = [
        f"{said(results['machine'])} Means over three seeds; all numbers are in `research/studies/hidden_state.json`. "
        "A cell: accuracy without rejecting; **share within reach** of alpha; share that the defaults admit, and in "
        "how many of the seeds they could certify it."
    ]
    for name, model in MODELS.items():
        fits = [fit for fit in results["fits"] if fit["model"] == name]
        tasks = [task for task in model.tasks if any(fit["task"] == task for fit in fits)]
        heads = [f"{task}, {_texts(fits, task)} texts, α = {TASKS[task].alpha:g}" for task in tasks]
        lines += ["", f"**{name}**", "", f"| h | {' | '.join(heads)} |", f"|---|{'---|' * len(tasks)}"]
        for form in dict.fromkeys(fit["form"] for fit in fits):
            of_form = [[fit for fit in fits if (fit["form"], fit["task"]) == (form, task)] for task in tasks]
            lines.append(f"| {form} | {' | '.join(map(_cell, of_form))} |")
    return "\n".join(lines)


def _texts(fits: list[dict[str, Any]], task: str) -> str:
    """How many texts a task has."""
    one = next(fit for fit in fits if fit["task"] == task)
    return f"{one['n_pool'] + one['n_test']:,}"


def _cell(fits: list[dict[str, Any]]) -> str:
    """Means of accuracy, share within reach and share admitted, and how many fits could certify."""
    if not fits:
        return "–"
    accuracy, reach, admitted = (
        np.mean([fit[key] for fit in fits]) for key in ("accuracy", "within_reach", "admitted")
    )
    return f"{accuracy:.2f}; **{reach:.2f}**; {admitted:.2f} ({sum(fit['certified'] for fit in fits)})"


if __name__ == "__main__":
    main()
