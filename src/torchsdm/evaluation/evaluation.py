"""Comparing fitted estimators on data sets: the paper's table, summaries, and where the numbers come from."""

from __future__ import annotations

import hashlib
import math
import platform
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from torchsdm import __version__
from torchsdm.core import Decisions, SDMDecisions
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError, installed_version
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.evaluation.entrants import Asked, Entrant
from torchsdm.evaluation.metrics import (
    aurc,
    compare,
    coverage_at_accuracy,
    excess_aurc,
    expected_calibration_error,
    ood_auroc,
    ood_fpr_at_95,
    ordering_score,
    rejection_confusion,
    selective_accuracy,
    top_label_calibration,
)
from torchsdm.evaluation.strangers import (
    CLASSES,
    NONE,
    FreshGuards,
    Overview,
    explain_labels,
    explain_seen,
    kind_of_labels,
    split_strangers,
    strangers_of,
)
from torchsdm.evaluation.tables import ResultRow, ResultTable, Rule
from torchsdm.training import fingerprint
from torchsdm.validation import Array, check_alpha
from torchsdm.wording import EVERY_LEVEL, promised

ROWS_AT_ONCE = 8192  #: inputs whose decisions are in memory with all values per class


def blocks_of(data: LabelledStates) -> Iterator[LabelledStates]:
    """The rows of a data set, some at a time."""
    for start in range(0, len(data), ROWS_AT_ONCE):
        rows = range(start, min(start + ROWS_AT_ONCE, len(data)))
        yield data if len(rows) == len(data) else data.take(rows)


def _condensed(decisions: SDMDecisions) -> SDMDecisions:
    """The same with one column per class field, that of the prediction; of sample sizes, the smallest.

    So ``magnitude`` and ``min_sample_size`` are what they were, and memory does not grow with the number of classes.
    """
    return replace(
        decisions,
        probabilities=decisions.confidence[:, None],
        logits=decisions.magnitude[:, None],
        effective_sample_sizes=decisions.min_sample_size[:, None],
    )


_MEASURES = (  # of a summary; None where the classes are not known
    *("accuracy", "risk", "aurc", "excess_aurc", "coverage_at_alpha", "ece", "top_label_accuracy"),
    *("admitted_correct", "admitted_wrong", "rejected_correct", "rejected_wrong"),
)
_PACKAGES = ("torch", "numpy", "scikit-learn", "transformers", "vbll", "mapie")


@dataclass(frozen=True)
class Evaluation:
    """Decisions of several estimators on several data sets, and what follows from them.

    Labels need not be there, or be classes: of such inputs only what is admitted is shown. If some labels of a data set
    are classes and others are not, the others become a data set of their own: 'NAME, strangers'.
    """

    entrants: Sequence[Entrant]
    data_sets: Mapping[str, LabelledStates]
    """The first with labels is in distribution; the others are compared with scores on it."""
    alpha: float
    """The target accuracy; one that every entrant was fitted with."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Anything else to record, as plain values."""
    classifier: SDMClassifier | SDMEnsemble | None = None
    """The model behind the entrants, for the lanes of inputs without known classes, and to warn of inputs that it was
    fitted on."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """How many further inputs of a data set could not be read. They count as rejected: ``share`` and ``coverage`` are
    of all inputs. Everything else is about the inputs that were read."""
    decisions: dict[tuple[int, str], Decisions] = field(init=False)
    """By position of the entrant and name of the data set; without values per class, whose columns are dropped."""
    against_argmax: dict[tuple[int, str], Array] = field(init=False)
    """Likewise, which predictions (N,) have not the largest logit, or less than the largest probability."""
    kinds: dict[str, str] = field(init=False)
    """What the labels of each data set are: 'classes', 'outside' or 'none'."""
    notes: tuple[str, ...] = field(init=False)
    """What was done with strangers, and a warning of inputs that the model has seen."""
    _own: dict[str, SDMDecisions] = field(init=False, repr=False)
    _classifier_then: dict[str, Any] = field(init=False, repr=False)  # its attributes when it decided

    def __post_init__(self) -> None:
        check_alpha(self.alpha, "Evaluation")
        if not self.entrants or not self.data_sets:
            raise InvalidInputError("Evaluation needs at least one entrant and one data set.")
        classes = getattr(self.entrants[0].estimator, "classes_", None)
        vars(self).update(
            notes=() if classes is None else tuple(filter(None, self._notes(classes))),
            data_sets=self.data_sets if classes is None else self._parts(classes),
            decisions={},
            against_argmax={},
            kinds={},
            _own={},
            _classifier_then={} if self.classifier is None else dict(vars(self.classifier)),
        )
        for name, data in self.data_sets.items():
            self._decide(name, data)
            self.kinds[name] = kind_of_labels(data.labels, self.decisions[0, name].classes)
        for (_, name), decisions in self.decisions.items():
            if self.kinds[name] == CLASSES:
                compare(decisions, self.data_sets[name].labels, f"Evaluation ({name})")

    def _parts(self, classes: Array) -> dict[str, LabelledStates]:
        parts: dict[str, LabelledStates] = {}
        for name, data in self.data_sets.items():
            if not len(data):
                raise InvalidInputError(f"The data set {name!r} of Evaluation must not be empty.")
            for part, rows in split_strangers(name, data, classes).items():
                if part in parts or (part != name and part in self.data_sets):
                    raise InvalidInputError(f"Two data sets of Evaluation are called {part!r}. Rename one.")
                parts[part] = rows
        return parts

    def _notes(self, classes: Array) -> Iterator[str | None]:
        for name, data in self.data_sets.items():
            yield explain_labels(name, data.labels, classes)
            yield None if self.classifier is None else explain_seen(name, data, self.classifier)

    def _decide(self, name: str, data: LabelledStates) -> None:
        """Keep what each entrant decides, without values per class, and where its prediction is not the argmax.

        A block of rows at a time: with many classes, the tables of all rows would need more memory than the states.
        """
        decided: dict[int, list[Decisions]] = defaultdict(list)
        against: dict[int, list[Array]] = defaultdict(list)
        own: list[SDMDecisions] = []
        for block in blocks_of(data):
            asked = Asked()
            for position, entrant in enumerate(self.entrants):
                decisions = entrant.decide(block, asked).at(self.alpha)
                decided[position].append(decisions.without_class_values())
                against[position].append(_against_argmax(decisions))
            found = asked.decided_by(self.classifier)
            own += [] if found is None else [_condensed(found)]
        self.decisions.update(((position, name), Decisions.concatenate(parts)) for position, parts in decided.items())
        self.against_argmax.update(((position, name), np.concatenate(parts)) for position, parts in against.items())
        if own:
            self._own[name] = Decisions.concatenate(own)

    def own_decisions(self, classifier: SDMClassifier | SDMEnsemble, data_set: str) -> SDMDecisions:
        """What a classifier itself decides on a data set, by its policy, without the values of other classes.

        That of the evaluation has decided already, if rules over it are entrants, and is asked again only if it was
        changed since.
        """
        now, then = vars(classifier), self._classifier_then
        is_same = classifier is self.classifier and now.keys() == then.keys() and all(now[k] is then[k] for k in now)
        if is_same and data_set in self._own:
            return self._own[data_set]
        blocks = blocks_of(self.data_sets[data_set])
        return Decisions.concatenate([_condensed(classifier.decide(block.hidden_states)) for block in blocks])

    def overviews(self) -> dict[str, Overview]:
        """What the classifier, if it was given, does with each data set whose classes are not known."""
        if self.classifier is None:
            return {}
        guards = FreshGuards(self.classifier)
        return {
            name: Overview.of(self.classifier, self.own_decisions(self.classifier, name), guards)
            for name, kind in self.kinds.items()
            if kind != CLASSES
        }

    def results(self) -> list[tuple[Entrant, ResultRow]]:
        """Each entrant with its row on each data set, in the order of the table."""
        class_alphas = () if self.classifier is None else self.classifier.models_[0].calibration.regions[0].class_alphas
        rows = []
        for (position, name), decisions in self.decisions.items():
            entrant, labels = self.entrants[position], self.data_sets[name].labels
            accuracy = selective_accuracy(decisions, labels, self.unread.get(name, 0), class_alphas)
            row = ResultRow(name, entrant.model, entrant.name, float(self.alpha), accuracy, entrant.key)
            rows.append((entrant, row))
        return rows

    @property
    def table(self) -> ResultTable:
        """The paper's table: one row per data set and entrant."""
        note = "\n".join(filter(None, [*self.notes, *map(self.unread_note, self.data_sets), self._promise()]))
        return ResultTable([row for _, row in self.results()], note)

    def n_inputs(self, data_set: str) -> int:
        """The inputs of a data set, with those that could not be read."""
        return len(self.data_sets[data_set]) + self.unread.get(data_set, 0)

    def n_rows(self, data_set: str) -> int:
        """The same, and with the strangers among them, which are a data set of their own."""
        return self.n_inputs(data_set) + len(self.data_sets.get(strangers_of(data_set), ()))

    def unread_note(self, data_set: str) -> str:
        """A sentence on the inputs of a data set that could not be read; empty if there are none."""
        n = self.unread.get(data_set, 0)
        if n == 0:
            return ""
        counts = "count" if n > 1 else "counts"
        return f"{data_set}: {n:,} of {self.n_rows(data_set):,} inputs could not be read and {counts} as rejected."

    def summaries(self) -> list[dict[str, Any]]:
        """One record per data set and entrant: what its selection did, and how well its score orders inputs.

        ``ood_auroc`` and ``ood_fpr_at_95`` compare a data set with the first one that has labels, and are None on that
        one itself. ``top_label_accuracy`` is the lowest accuracy of any predicted label with confidence in [alpha, 1].
        Without true classes, whatever needs them is None.
        """
        first = next((name for name, kind in self.kinds.items() if kind == CLASSES), None)
        records = []
        for (position, name), decisions in self.decisions.items():
            inside = None if first in (None, name) else self.decisions[position, first]
            scores = None if inside is None else (ordering_score(inside), ordering_score(decisions))
            records.append(
                {
                    "dataset": name,
                    "model": self.entrants[position].model,
                    "estimator": self.entrants[position].name,
                    "coverage": float(decisions.admitted.sum()) / self.n_inputs(name),
                    "ood_auroc": None if scores is None else ood_auroc(*scores),
                    "ood_fpr_at_95": None if scores is None else ood_fpr_at_95(*scores),
                    **self._measures(decisions, name),
                }
            )
        return records

    def facts(self) -> dict[str, Any]:
        """Where the numbers come from: versions, fingerprints of the data, settings and seeds of the estimators."""
        facts = {
            "torchsdm": __version__,
            "python": platform.python_version(),
            **{name: installed_version(name) for name in _PACKAGES},
            "alpha": self.alpha,
            "data": {
                name: {
                    "n": len(data),
                    "labels": self.kinds[name],
                    "unread": self.unread.get(name, 0),
                    "fingerprint": _data_fingerprint(data),
                    "origin": None if data.origin is None else data.origin.to_json(),
                }
                for name, data in self.data_sets.items()
            },
            "entrants": [_describe(entrant) for entrant in self.entrants],
            "settings": dict(self.settings),
        }
        return dict(_plain(facts))

    def _promise(self) -> str:
        """What certified entrants promise, said once for all of them; empty without any."""
        rest = [one.estimator for one in self.entrants if one.key.rule is not Rule.EVERY_LEVEL]
        certificates = [getattr(estimator, "certificate_", None) for estimator in rest]
        promises = dict.fromkeys((one.target, one.delta, one.control) for one in certificates if one is not None)
        names = self.entrants[0].estimator.classes_.tolist() if promises else []
        admits = "the answers that a certified rule admits"
        said = [
            f"{promised(target, 1 - delta, admits, control, names)} (δ = {delta:g}), on data like the certification "
            "set. Each rule has this promise for itself, or admits nothing."
            for target, delta, control in promises
        ]
        return " ".join([*said, *([EVERY_LEVEL] if len(rest) < len(self.entrants) else [])])

    def _measures(self, decisions: Decisions, name: str) -> dict[str, Any]:
        """The part of a summary that needs the true classes."""
        if self.kinds[name] != CLASSES:
            n_wrong = None if self.kinds[name] == NONE else int(decisions.admitted.sum())
            return {**dict.fromkeys(_MEASURES), "admitted_wrong": n_wrong}
        labels, score = self.data_sets[name].labels, ordering_score(decisions)
        correct = compare(decisions, labels, "Evaluation").correct
        cells = top_label_calibration(decisions, labels, self.alpha).values()
        top_label = [cell.accuracy for cell in cells if cell.accuracy is not None]
        return {
            "accuracy": float(correct.mean()),
            "risk": float((~correct)[decisions.admitted].mean()) if decisions.admitted.any() else None,
            "aurc": aurc(score, correct),
            "excess_aurc": excess_aurc(score, correct),
            "coverage_at_alpha": coverage_at_accuracy(score, correct, self.alpha),
            "ece": expected_calibration_error(decisions.confidence, correct),
            "top_label_accuracy": min(top_label, default=None),
            **rejection_confusion(decisions, labels),
        }


def _against_argmax(decisions: Decisions) -> Array:
    chosen, probabilities = decisions.logits.argmax(axis=1), decisions.probabilities
    of_chosen = np.take_along_axis(probabilities, chosen[:, None], axis=1)[:, 0]
    return (decisions.predictions != decisions.classes[chosen]) | (of_chosen < probabilities.max(axis=1))


def _describe(entrant: Entrant) -> dict[str, Any]:
    estimator = entrant.estimator
    inner = getattr(estimator, "fitted_model_", None)
    seed = getattr(estimator, "random_seed_", getattr(inner, "random_seed_", None))
    return {
        "model": entrant.model,
        "estimator": entrant.name,
        "class": type(estimator).__name__,
        "reads": entrant.reads,
        "settings": _settings(estimator),
        "model_settings": None if inner is None else _settings(inner),
        "seed": seed,
    }


def _settings(estimator: Any) -> dict[str, Any]:
    """Constructor parameters; estimators among them by their class name."""
    if not hasattr(estimator, "get_params"):
        return {}
    parameters = estimator.get_params(deep=False)
    return {name: type(value).__name__ if hasattr(value, "get_params") else value for name, value in parameters.items()}


def _plain(value: Any) -> Any:
    """A tree of values for strict JSON; anything that JSON lacks becomes a string."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _data_fingerprint(data: LabelledStates) -> str:
    labels = np.array([] if data.labels is None else data.labels)
    tables = [table for table in (data.hidden_states, data.label_logits) if table is not None]
    parts = [fingerprint(torch.as_tensor(table), labels) for table in tables]
    return parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()
