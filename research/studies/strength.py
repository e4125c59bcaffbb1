"""How right our classifier is beside a tuned logistic regression, and how much of its answers can be certified.

    python -m research.studies.strength [--data FOLDER] [--states FOLDER] [--only NAME] [--seeds N]
    python -m research.studies.strength --before SOURCES  # with torchsdm of SOURCES/src
    python -m research.studies.strength --publish  # its figures into the docs

For each set and seed, points of the pool are drawn, a quarter of them to certify. The logistic regression has the other
rows, standardised, its penalty by cross-validation (scikit-learn's LogisticRegressionCV with up to three classes, ours
beyond, which agrees with it and is faster), and is calibrated out of fold; it is certified on the same points, alone
and with the inputs that we call unfamiliar taken out. The cross-entropy adaptor splits the same rows as it always does.
Sets marked * chose the method (share of the linear filters, evidence, familiarity); the others only report.

Seconds are those of the wall, on two cores. Fits that the .json has are not repeated, so an interrupted study goes on.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from research.studies.common import add_options, statements, states_of
from tools.pages import REPOSITORY, machine, said, write_between

RESULTS = Path(__file__).with_suffix(".json")
PAGE = REPOSITORY / "docs/strength.md"
BEGIN, END = "<!-- results: written by make study STUDY=strength -->", "<!-- end of results -->"
ALPHA = 0.9
TOPICS = ("comp.", "rec.", "sci.", "talk.politics.")
NEW_GROUPS = ("comp.windows.x", "rec.motorcycles", "sci.med", "talk.politics.misc")
FEWEST = 4  # points of a class to keep it


@dataclass(frozen=True)
class Task:
    """A problem: where its states are, how many points are drawn, and for whom answers are certified."""

    kind: str
    encoder: str
    n: int | None
    control: str
    seeds: int
    chose: bool = False

    @property
    def name(self) -> str:
        """What the tables call it."""
        return f"{self.kind}, {self.encoder}" + (f", {self.n:,}" if self.n else "")


TASKS = [
    Task("statements", "mixtral32", 3_000, "groups", 10, chose=True),
    Task("statements", "mixtral32", 800, "groups", 10),
    Task("reviews", "minilm", 3_000, "groups", 5, chose=True),
    Task("reviews", "gte", 3_000, "groups", 5, chose=True),
    Task("reviews", "gte", 500, "all", 10),
    Task("reviews", "minilm", 18_000, "groups", 1),
    Task("reviews, 1 in 10 positive", "gte", 3_000, "predictions", 5),
    Task("topics", "minilm", None, "groups", 5, chose=True),
    Task("topics", "gte", None, "groups", 5),
    Task("wires R8", "minilm", 3_000, "predictions", 5, chose=True),
    Task("wires R8", "gte", None, "predictions", 3),
    Task("wires R52", "minilm", None, "all", 3),
    Task("opinions in tweets", "minilm", 3_000, "predictions", 5, chose=True),
    Task("opinions on products", "minilm", 2_700, "predictions", 5),
    Task("newsgroups", "minilm", 5_000, "all", 2),
    Task("hallucinations", "minilm", 3_200, "predictions", 5),
    Task("hallucinations", "gte", 3_200, "predictions", 5),
    Task("intents, 5 each", "gte", None, "all", 3),
    Task("intents, 20 each", "gte", None, "all", 3),
    Task("intents, 40 each", "minilm", None, "all", 2),
    Task("intents, 100 each", "gte", None, "all", 1),
    Task("reviews", "qwen", 1_200, "groups", 5),
]


def main() -> None:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--seeds", type=int, help="so many, where the study has more")
    parser.add_argument("--only", help="tasks whose name has this in it")
    parser.add_argument("--before", type=Path, help="fit with the library of another checkout, and nothing else")
    parser.add_argument("--publish", action="store_true", help="write the results into the documentation")
    options = parser.parse_args()
    if options.publish:
        write_between(PAGE, BEGIN, END, section(read()))
        return
    if options.before is not None:
        sys.path.insert(0, str(options.before / "src"))
    parts = ["before"] if options.before is not None else ["ours", "rivals"]
    for task in TASKS:
        if options.only is not None and options.only not in task.name:
            continue
        for seed in range(min(task.seeds, options.seeds or task.seeds)):
            for part in parts:
                key = {"task": task.name, "part": part, "seed": seed}
                if not any(key.items() <= one.items() for one in read()["fits"]):
                    add({**key, **measured(options, task, part, seed)})


def read() -> dict[str, Any]:
    """The results so far."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"fits": []}


def add(fit: dict[str, Any]) -> None:
    """Keep the record of a fit; two processes may take turns."""
    print(json.dumps(fit), flush=True)
    results = {"machine": machine(), "fits": [*read()["fits"], fit]}
    temporary = RESULTS.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(RESULTS)


# --- Data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """Points to fit on, a quarter of which certify; others to test on; and strangers."""

    X: Any
    y: Any
    certify: Any
    X_test: Any
    y_test: Any
    strangers: Any


def drawn(options: argparse.Namespace, task: Task, seed: int) -> Drawn:
    """The points of a task."""
    rng = np.random.default_rng(seed)

    def states(name: str) -> tuple[Any, Any]:
        one = states_of(options, name, task.encoder)
        return np.asarray(one.hidden_states), np.asarray(one.labels)

    strangers = None
    if task.kind == "statements":
        pool, shifted = statements(options, "pool"), statements(options, "test")
        X, y = np.asarray(pool.hidden_states, dtype=np.float32), np.asarray(pool.labels)
        strangers = np.asarray(shifted.hidden_states, dtype=np.float32)  # statements that another model wrote
        order = rng.permutation(len(y))
        (X, y), test = (X[order[: task.n]], y[order[: task.n]]), (X[order[task.n :]], y[order[task.n :]])
    elif task.kind.startswith("reviews"):
        few = "few" if task.encoder == "qwen" else "strong"  # a decoder takes hours
        (X, y), test = states(f"{few}-reviews-pool"), states(f"{few}-reviews-test")
        if "1 in 10" in task.kind:
            (X, y), test = rare(X, y, rng), rare(*test, rng)
        strangers = states(f"{few}-tweets")[0]
    elif task.kind == "topics":
        (X, y), (X_test, y_test) = states("strong-groups-pool"), states("strong-groups-test")
        strangers = X_test[[not group.startswith(TOPICS) for group in y_test]]
        (X, y), test = topics(X, y), topics(X_test, y_test)
    elif task.kind == "newsgroups":
        (X, y), test, strangers = states("strong-groups-pool"), states("strong-groups-test"), states("strong-tweets")[0]
    elif task.kind.startswith("wires"):
        name = task.kind.rpartition(" ")[2].lower()
        (X, y), test, strangers = (
            states(f"strong-{name}-pool"),
            states(f"strong-{name}-test"),
            states("strong-tweets")[0],
        )
    elif task.kind.startswith("opinions"):
        names = ["strong-opinions-tweets", "strong-opinions-products"]
        own, other = names if "tweets" in task.kind else names[::-1]
        (X, y), strangers = states(own), states(other)[0][:1000]
        order = rng.permutation(len(y))
        (X, y), test = (X[order[: task.n]], y[order[: task.n]]), (X[order[task.n :]], y[order[task.n :]])
    elif task.kind == "hallucinations":
        (X, y), strangers = states("strong-hallucinations"), states("strong-tweets")[0]
        order = rng.permutation(len(y))
        (X, y), test = (X[order[: task.n]], y[order[: task.n]]), (X[order[task.n :]], y[order[task.n :]])
    else:  # intents
        (X, y), test, strangers = (
            states("strong-intents-pool"),
            states("strong-intents-test"),
            states("strong-scope")[0],
        )
        each = int(task.kind.split()[1])
        order = rng.permutation(len(y))
        X, y = X[order], y[order]
        kept = np.sort(np.concatenate([np.flatnonzero(y == c)[:each] for c in np.unique(y)]))
        X, y = X[kept], y[kept]
    order = rng.permutation(len(y))[: task.n]
    X, y = X[order], y[order]
    names, counts = np.unique(y, return_counts=True)
    known = names[counts >= FEWEST]
    X, y = X[np.isin(y, known)], y[np.isin(y, known)]
    is_known = np.isin(test[1], known)
    certify = np.sort(rng.permutation(len(y))[: len(y) // 4])
    certify = certify[~np.isin(y[certify], known[[(np.delete(y, certify) == c).sum() < 2 for c in known]])]
    return Drawn(X, y, certify, test[0][is_known], test[1][is_known], strangers)


def rare(X: Any, y: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """One positive in ten."""
    many, few = np.flatnonzero(y == 0), np.flatnonzero(y == 1)
    rows = rng.permutation(np.concatenate([many, rng.choice(few, len(many) // 9, replace=False)]))
    return X[rows], y[rows]


def topics(X: Any, y: Any) -> tuple[Any, Any]:
    """Four topics of the newsgroups; some groups of each are left out."""
    kept = np.array([group.startswith(TOPICS) and group not in NEW_GROUPS for group in y])
    return X[kept], np.array([next(t for t in TOPICS if group.startswith(t)) for group in y[kept]])


# --- Compute ---------------------------------------------------------------------------------------------------------


def measured(options: argparse.Namespace, task: Task, part: str, seed: int) -> dict[str, Any]:
    """What one of the parts comes to."""
    data = drawn(options, task, seed)
    warnings.simplefilter("ignore")  # missing certificates are counted
    return rivals(data, task, seed) if part == "rivals" else ours(data, task, seed, part == "before")


def fitted(data: Drawn, task: Task, seed: int, **settings: Any) -> Any:
    """Our classifier, with the library's settings."""
    from torchsdm import SDMClassifier
    from torchsdm.trust import separate_ledger

    rest = np.setdiff1d(np.arange(len(data.y)), data.certify)
    classifier = SDMClassifier(ALPHA, control=task.control, random_state=seed, **settings)
    held_out = (data.X[data.certify], data.y[data.certify])
    with separate_ledger():  # each fit is an experiment of its own
        return classifier.fit(data.X[rest], data.y[rest], certification=held_out)


def ours(data: Drawn, task: Task, seed: int, is_before: bool) -> dict[str, Any]:
    """Right without rejection, certified, unfamiliar, strangers and seconds."""
    from torchsdm.trust import separate_ledger

    start = time.perf_counter()
    classifier = fitted(data, task, seed)
    seconds = time.perf_counter() - start
    decisions, strange = classifier.decide(data.X_test), classifier.decide(data.strangers)
    found = {
        "seconds": round(seconds, 2),
        **accuracies(decisions.predictions, data.y_test),
        **admission(decisions.certified, decisions.predictions == data.y_test, strange.certified),
        "unfamiliar": float((decisions.lane == "unfamiliar").mean()),
        "contradicted": float(((decisions.lane == "review") & (decisions.similarity == 0)).mean()),
        "strangers_unfamiliar": float((strange.lane == "unfamiliar").mean()),
        "found": bool(classifier.certificate_.found),
    }
    if is_before:
        return found
    again = copy.copy(classifier)
    again.deltas_spent_ = {}
    again.set_params(control="auto")
    with separate_ledger():
        again.recertify()
    found["auto"] = again.certificate_.control
    found["auto_found"] = bool(again.certificate_.found)
    found["chances"] = dict(again.certificate_.chances)
    balanced = fitted(data, task, seed, class_weight="balanced")
    found["balanced_weights"] = accuracies(balanced.predict(data.X_test), data.y_test)
    return found


def rivals(data: Drawn, task: Task, seed: int) -> dict[str, Any]:
    """A tuned logistic regression, certified alone and with our gate; and the cross-entropy adaptor."""
    from sklearn.preprocessing import StandardScaler

    from torchsdm.baselines import CrossEntropyClassifier
    from torchsdm.trust import ScoredSample, certify

    rest = np.setdiff1d(np.arange(len(data.y)), data.certify)
    X, y = data.X[rest], data.y[rest]
    classes, numbers = np.unique(data.y, return_inverse=True)
    scaler = StandardScaler().fit(X)
    start = time.perf_counter()
    logits, out_of_fold = regression(scaler.transform(X), y, seed)
    seconds = time.perf_counter() - start
    test, strange, held_out = (
        logits(scaler.transform(part)) for part in (data.X_test, data.strangers, data.X[data.certify])
    )
    balanced, _ = regression(scaler.transform(X), y, seed, class_weight="balanced")
    right = classes[test.argmax(axis=1)] == data.y_test
    found = {"seconds": round(seconds, 2), **accuracies(classes[test.argmax(axis=1)], data.y_test)}
    weighted = classes[balanced(scaler.transform(data.X_test)).argmax(axis=1)]
    found["balanced_weights"] = accuracies(weighted, data.y_test)

    own = fitted(data, task, seed)
    measure, known = own.lane_rule_, own.model_.calibration
    gates = [own.decide(part).lane != "unfamiliar" for part in (data.X[data.certify], data.X_test, data.strangers)]
    calibration_gate = known.sample().familiarity >= measure.familiarity
    for name, gate, (eligible, *gated) in (
        ("plain", np.ones(len(y), dtype=bool), [np.ones(len(part), dtype=bool) for part in gates]),
        ("gated", calibration_gate, gates),
    ):
        sample = ScoredSample(numbers[rest], out_of_fold.argmax(axis=1), odds(out_of_fold), gate)
        tested = ScoredSample(numbers[data.certify], held_out.argmax(axis=1), odds(held_out), eligible)
        certificate = certify(sample, tested, len(classes), alpha=ALPHA, control=task.control, advice=False)
        admitted = certificate.admits(test.argmax(axis=1), odds(test), gated[0])
        strangers = certificate.admits(strange.argmax(axis=1), odds(strange), gated[1])
        found[name] = {**admission(admitted, right, strangers), "found": bool(certificate.found)}
    network = CrossEntropyClassifier(500, n_rounds=2, max_epochs=50, learning_rate=1e-4, patience=5, random_state=seed)
    network.set_params(standardization="per_dimension")
    found["cross_entropy"] = accuracies(classes[network.fit(X, y).logits(data.X_test).argmax(axis=1)], data.y_test)
    return found


def regression(X: Any, y: Any, seed: int, class_weight: str | None = None) -> tuple[Any, Any]:
    """What gives the logits of standardised states, and those of the points out of fold."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    from torchsdm.baselines import TunedLogisticModel

    n_classes, fewest = len(np.unique(y)), int(np.unique(y, return_counts=True)[1].min())
    if n_classes > 3:
        model = TunedLogisticModel(class_weight).fit(X, y)
        return model.logits, model.out_of_fold_
    folds = StratifiedKFold(min(5, fewest), shuffle=True, random_state=seed)
    settings = {"max_iter": 1000, "tol": 1e-3, "class_weight": class_weight}
    chosen = LogisticRegressionCV(Cs=10.0 ** np.arange(-5, 1.1, 0.5), cv=folds, **settings).fit(X, y)
    if class_weight is not None:
        return (lambda states: wide(chosen.decision_function(states))), None
    plain = LogisticRegression(C=float(np.ravel(chosen.C_)[0]), **settings)
    return (
        lambda states: wide(chosen.decision_function(states)),
        wide(cross_val_predict(plain, X, y, cv=folds, method="decision_function")),
    )


def wide(logits: Any) -> Any:
    """Logits of two classes, of which scikit-learn has the second alone."""
    return np.column_stack([np.zeros_like(logits), logits]) if logits.ndim == 1 else logits


def odds(logits: Any) -> Any:
    """The log-odds of the prediction (N,)."""
    from torchsdm.core import log_odds

    return log_odds(logits)


def accuracies(predictions: Any, labels: Any) -> dict[str, float]:
    """Right, and right on average over the classes."""
    right = predictions == labels
    return {
        "right": float(right.mean()),
        "balanced": float(np.mean([right[labels == c].mean() for c in np.unique(labels)])),
    }


def admission(admitted: Any, right: Any, strangers: Any) -> dict[str, Any]:
    """Share that is admitted, how much of it is right, and share of the strangers."""
    return {
        "share": float(admitted.mean()),
        "right_admitted": float(right[admitted].mean()) if admitted.any() else None,
        "strangers": float(strangers.mean()),
    }


# --- Tell ------------------------------------------------------------------------------------------------------------


RIGHT = {  # columns of the first table: part, and where its value is
    "ours": ("ours", "right"),
    "regression": ("rivals", "right"),
    "adaptor": ("rivals", "cross_entropy", "right"),
    "before": ("before", "right"),
    "ours, balanced": ("ours", "balanced_weights", "balanced"),
    "regression, balanced": ("rivals", "balanced_weights", "balanced"),
    "seconds": ("ours", "seconds"),
    "seconds before": ("before", "seconds"),
}
CERTIFIED = {
    "ours": ("ours", "share"),
    "right": ("ours", "right_admitted"),
    "regression, gated": ("rivals", "gated", "share"),
    "before": ("before", "share"),
    "regression": ("rivals", "plain", "share"),
    "unfamiliar": ("ours", "unfamiliar"),
    "before it": ("before", "unfamiliar"),
    "contradicted": ("ours", "contradicted"),
    "strangers": ("ours", "strangers"),
    "strangers before": ("before", "strangers"),
    "strangers, regression": ("rivals", "plain", "strangers"),
    "found": ("ours", "found"),
    "found before": ("before", "found"),
    "found, regression": ("rivals", "plain", "found"),
}


def section(results: dict[str, Any]) -> str:
    """Two tables: how right, and what can be certified."""
    fits: dict[tuple[str, str], list[Any]] = {}
    for one in results["fits"]:
        fits.setdefault((one["task"], one["part"]), []).append(one)
    done = [task for task in TASKS if (task.name, "ours") in fits and (task.name, "rivals") in fits]

    def cells(task: Task, columns: dict[str, tuple[str, ...]]) -> list[str]:
        return [
            shown([inside(one, path) for one in fits.get((task.name, part), [])]) for part, *path in columns.values()
        ]

    names = {task: task.name + "*" * task.chose for task in done}
    right = [[names[task], str(len(fits[task.name, "ours"])), *cells(task, RIGHT)] for task in done]
    certified = [[names[task], task.control, *cells(task, CERTIFIED)] for task in done]
    return "\n\n".join(
        [
            f"{said(results['machine'])} α = {ALPHA:g}, means over seeds; "
            "every fit is in `research/studies/strength.json`.",
            "**Right without rejection**, and, with classes weighted alike, right on average over the classes.",
            grid(["set", "seeds", *RIGHT], right),
            "**Certified.** Share of the test set that is admitted; *gated*: our unfamiliar inputs taken out.",
            grid(["set", "control", *CERTIFIED], certified),
            chances(results),
        ]
    )


def inside(value: Any, path: list[str]) -> Any:
    """The value at a path of keys."""
    for key in path:
        value = value[key]
    return value


def shown(values: list[Any]) -> str:
    """The mean of the values that there are; of yes and no, how often yes."""
    values = [value for value in values if value is not None]
    if not values:
        return "–"
    if isinstance(values[0], bool):
        return f"{sum(values)} of {len(values)}"
    return f"{np.mean(values):.3f}" if max(values) <= 1 else f"{np.mean(values):.1f}"


def chances(results: dict[str, Any]) -> str:
    """How often control='auto' found a certificate where it gave it a chance of at least 0.9."""
    tried = [one for one in results["fits"] if one["part"] == "ours" and one["chances"].get(one["auto"], 0) >= 0.9]
    n_found = sum(one["auto_found"] for one in tried)
    return (
        f'`control="auto"`: where the estimated chance was at least 0.9, {n_found} of {len(tried)} fits were certified.'
    )


def grid(columns: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] + ["--:"] * (len(columns) - 1), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


if __name__ == "__main__":
    main()
