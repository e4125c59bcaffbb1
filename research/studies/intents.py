"""150 intents with few examples each, and queries out of scope: what can be promised, and what is kept out.

    python -m research.studies.intents [--data FOLDER] [-m MODEL --name NAME]
    python -m research.studies.intents --publish  # its figures into the docs

- the experiment `clinc150` (`python -m research clinc150`): what each rule admits of 4,500 test queries and of 1,000
  queries out of scope, and which scores tell these apart;
- controls: its classifier certified for each of them at two alphas, every time as if it were the only one;
- training: the same without pooling the distances of small classes (docs/decisions/0010).

``make study STUDY=intents`` runs both commands. An interrupted run resumes.
"""

from __future__ import annotations

import argparse
import copy
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from research.studies.common import ENCODERS, add_options, data_folder
from tools.pages import REPOSITORY, machine, said, write_between

RESULTS = Path(__file__).with_suffix(".json")
PAGE = REPOSITORY / "docs/howto/many-classes.md"
BEGIN, END = "<!-- results: written by make study STUDY=intents -->", "<!-- end of results -->"

ALPHAS = (0.9, 0.95)
CONTROLS = {
    "groups": "every class and every prediction",
    "predictions": "every prediction",
    "pooled": "small classes pooled",
    "domains": "small classes pooled by domain",
    "all": "all answers together",
}


def main() -> None:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("-m", "--language-model", default=ENCODERS["minilm"], help="default: MiniLM")
    parser.add_argument("--name", default="all-MiniLM-L6-v2", help="of the language model, in the tables")
    parser.add_argument("--runs", type=Path, default=REPOSITORY / "build/intents", help="where runs are kept")
    parser.add_argument("--publish", action="store_true", help="write the results into the documentation")
    options = parser.parse_args()
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if not options.publish:
        kept[options.name] = computed(options)
        RESULTS.write_text(json.dumps(kept, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
        print(section(kept))
        return
    write_between(PAGE, BEGIN, END, section(kept))


# --- Compute ---------------------------------------------------------------------------------------------------------


def computed(options: argparse.Namespace) -> dict[str, Any]:
    """The tables of the experiment, and what the study adds."""
    from research.experiments import load_experiment, read_texts, run_experiment
    from torchsdm import HiddenStateExtractor, SDMClassifier
    from torchsdm.errors import SDMWarning
    from torchsdm.hidden_states import default_store
    from torchsdm.labels import label_array

    warnings.simplefilter("ignore", SDMWarning)  # missing certificates are counted
    experiment, model, data = load_experiment("clinc150"), options.language_model, data_folder(options)
    directory = options.runs / options.name
    result = run_experiment(experiment, model, directory, data=data, name=options.name, texts=False)
    extractor = HiddenStateExtractor(model, experiment.prompt, **experiment.extraction)
    texts = read_texts(experiment, data)
    states = {
        name: replace(extracted, labels=label_array(texts[name].labels or [], name))
        for name in ("pool", "Intents", "OutOfScope")
        for extracted in [extractor.labelled_states(texts[name].documents, store=default_store())]
    }
    classifier = SDMClassifier.load(directory / "model")
    return {
        "machine": machine(),
        "seconds": result["seconds"],
        "alpha": result["alpha"],
        "sections": {
            one["title"]: {key: one[key] for key in ("text", "columns", "rows")} for one in result["sections"]
        },
        "controls": [
            certified(classifier, control, alpha, states, experiment.training["pools"])
            for alpha in ALPHAS
            for control in CONTROLS
        ],
        "training": trained(experiment, classifier, states),
    }


def certified(
    classifier: Any, control: str, alpha: float, states: dict[str, Any], domains: dict[str, list[int]]
) -> dict[str, Any]:
    """What a certificate with one control admits, as if it were the only one on the sample."""
    from torchsdm.trust import separate_ledger

    one = copy.copy(classifier)
    one.deltas_spent_ = {}
    one.set_params(control="pooled" if control == "domains" else control, pools=None)
    one.set_params(pools=domains if control == "domains" else None)
    with separate_ledger():
        one.recertify(alpha=alpha)
    decided, strange = (one.decide(states[name].hidden_states) for name in ("Intents", "OutOfScope"))
    labels, admitted = np.asarray(states["Intents"].labels), decided.admitted
    right = decided.predictions == labels
    by_domain = [
        right[admitted & np.isin(values, classes)].mean()
        for classes in domains.values()
        for values in (labels, decided.predictions)
        if (admitted & np.isin(values, classes)).any()
    ]
    return {
        "control": control,
        "alpha": alpha,
        "groups": len(one.certificate_.groups) if one.certificate_.found else 0,
        "admitted": float(admitted.mean()),
        "right": float(right[admitted].mean()) if admitted.any() else None,
        "lowest_domain": float(min(by_domain)) if by_domain else None,
        "kept_out": float(1 - strange.admitted.mean()),
    }


def trained(experiment: Any, classifier: Any, states: dict[str, Any]) -> list[dict[str, Any]]:
    """Accuracy with and without pooled distances in training."""
    from torchsdm.core import ClassEcdfs

    def facts(one: Any, pooled: bool) -> dict[str, Any]:
        right = one.predict(states["Intents"].hidden_states) == np.asarray(states["Intents"].labels)
        beyond = float((one.model_.calibration.distance_quantile == 0).double().mean())
        return {"pooled": pooled, "epochs": len(one.history_), "accuracy": float(right.mean()), "beyond": beyond}

    pool_small = ClassEcdfs._with_small_pooled
    ClassEcdfs._with_small_pooled = lambda self: tuple(one for one in self.sorted_distances if len(one))  # type: ignore[method-assign]
    try:
        plain = experiment.classifier().fit(states["pool"], seed=classifier.random_seed_)
    finally:
        ClassEcdfs._with_small_pooled = pool_small  # type: ignore[method-assign]
    return [facts(plain, False), facts(classifier, True)]


# --- Tell ------------------------------------------------------------------------------------------------------------


def section(kept: dict[str, Any]) -> str:
    """The tables of each encoder."""
    parts = []
    for name, found in kept.items():
        took = ", ".join(f"{step} {seconds / 60:.0f}" for step, seconds in found["seconds"].items())
        parts += [f"**{name}**, α = {found['alpha']:g}. {said(found['machine'])}"]
        parts += [
            f"Minutes, with other work on the same two cores: {took}. "
            "All numbers are in `research/studies/intents.json`."
        ]
        for title, table in found["sections"].items():
            parts += [f"*{title}.* {table['text']}", grid(table["columns"], table["rows"])]
        columns = ["α", "promised to", "groups", "admitted", "right", "lowest domain", "out of scope not admitted"]
        parts += ["*The same classifier, certified for others.*"]
        parts += [grid(columns, [control(one) for one in found["controls"]])]
        columns = [
            "distances of small classes in training",
            "epochs of all rounds",
            "accuracy",
            "calibration with d = 0",
        ]
        parts += ["*Training.*", grid(columns, [training(one) for one in found["training"]])]
    return "\n\n".join(parts)


def control(one: dict[str, Any]) -> list[Any]:
    """The row of a control."""
    shares = [one[key] for key in ("admitted", "right", "lowest_domain", "kept_out")]
    whom = [f"{one['alpha']:g}", CONTROLS[one["control"]], one["groups"] or "none"]
    return [*whom, *("–" if x is None else f"{x:.3f}" for x in shares)]


def training(one: dict[str, Any]) -> list[Any]:
    """The row of a way to train."""
    how = "pooled" if one["pooled"] else "by class"
    return [how, one["epochs"], f"{one['accuracy']:.3f}", f"{one['beyond']:.3f}"]


def grid(columns: list[str], rows: list[list[Any]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in lines)


if __name__ == "__main__":
    main()
