"""What each kind of change does to a classifier, and how a log of them is replayed.

A request (``Add``, ``Remove``, ``Relabel``, ``Recalibrate``, ``Certify``) changes a classifier and says what the log
keeps of it. Replaying the log over the model that it belongs to gives the same classifier, to the bit: points are kept
as the adaptor encoded them, and so is what calibrating came to.
"""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import torch

from torchsdm.core import Encoded
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError, ModelFileError, SDMWarning
from torchsdm.estimators._saving import alpha_to_json, promise_to_json, take_promise
from torchsdm.labels import NO_LABEL
from torchsdm.model import (
    ABOUT_CERTIFICATION,
    CALIBRATION,
    COSTLY,
    GUARD_RESET,
    SUPPORT,
    UNDO,
    Certification,
    EncodedPoints,
    Entry,
    Examples,
    ReadLog,
    Record,
    SDMModel,
    outcome_to_bytes,
    take_outcome,
)
from torchsdm.trust import GuardReset, separate_ledger
from torchsdm.validation import Array, as_list, as_tensor, check_choice

if TYPE_CHECKING:
    from torchsdm.estimators._base import BaseSDMClassifier

C = TypeVar("C", bound="BaseSDMClassifier")
ADDS = {"add": SUPPORT, "add_calibration": CALIBRATION}


# --- Requests --------------------------------------------------------------------------------------------------------
#
# ``apply`` changes a classifier in place and returns what a log keeps of it; a failed call changes nothing.
# ``asked`` is what was asked for, as plain values, by which a retry is told from another request.


@dataclass(frozen=True)
class Add:
    """Add labelled points to the support or to the calibration set; see ``SDMClassifier.add_exemplars``."""

    data: LabelledStates
    to: str = SUPPORT
    repeated: str = "refuse"
    allow_new_labels: bool = False

    def apply(self, classifier: BaseSDMClassifier) -> Entry:
        """Encode the points, check that they are new, and add them."""
        check_choice(self.to, (SUPPORT, CALIBRATION), "to", "LiveModel.add")
        what, method = ("add", "add_exemplars") if self.to == SUPPORT else ("add_calibration", "add_calibration")
        if self.data.origin is not None:
            caller = f"{type(classifier).__name__}.{method}"
            classifier._check_alike(self.data, "data", classifier.states_origin_, caller)
        labels = [] if self.data.labels is None else as_list(self.data.labels, "labels", "LiveModel.add")
        given = (self.data.hidden_states, labels, self.data.ids, self.data.texts, self.repeated, self.allow_new_labels)
        encoded = classifier._add(self.to, method, *given)
        ids, texts = encoded[0].examples.all()
        details = {"repeated": self.repeated}
        return Entry(what, len(ids), details, ids, labels, texts, np.hstack([_to_rows(one.points) for one in encoded]))

    def asked(self) -> list[Any]:
        """Set, labels, ids and texts; the states only where there are no texts, as a language model may round them."""
        return ["add", self.to, self.repeated, *_described(self.data)]


@dataclass(frozen=True)
class Remove:
    """Remove points by id, from whichever set has them; see ``SDMClassifier.remove``."""

    ids: Sequence[Any] | Array

    def apply(self, classifier: BaseSDMClassifier) -> Entry:
        """Remove them."""
        ids = as_list(self.ids, "ids", "LiveModel.remove")
        classifier.remove(ids)
        return Entry("remove", len(ids), ids=ids)

    def asked(self) -> list[Any]:
        """The ids."""
        return ["remove", as_list(self.ids, "ids", "LiveModel.remove")]


@dataclass(frozen=True)
class Relabel:
    """Relabel points by id, in whichever set has them; see ``SDMClassifier.relabel``."""

    ids: Sequence[Any] | Array
    labels: Sequence[Any] | Array
    allow_new_labels: bool = False

    def apply(self, classifier: BaseSDMClassifier) -> Entry:
        """Relabel them."""
        ids, labels = self._lists()
        classifier.relabel(ids, labels, allow_new_labels=self.allow_new_labels)
        return Entry("relabel", len(ids), ids=ids, labels=labels)

    def asked(self) -> list[Any]:
        """Ids and labels."""
        return ["relabel", *self._lists()]

    def _lists(self) -> tuple[list[Any], list[Any]]:
        return as_list(self.ids, "ids", "LiveModel.relabel"), as_list(self.labels, "labels", "LiveModel.relabel")


@dataclass(frozen=True)
class Recalibrate:
    """Recompute the region, for another alpha or after changes; see ``SDMClassifier.recalibrate``."""

    alpha: float | Sequence[float] | Mapping[Any, float] | None = None
    min_class_count: int | None = None
    policy: str | None = None

    def apply(self, classifier: BaseSDMClassifier) -> Entry:
        """Recalibrate, and certify again where the rule changed."""
        before = classifier.deltas_spent_
        with classifier._unchanged_on_error():
            _set(classifier, policy=self.policy)
            classifier.recalibrate(self.alpha, min_class_count=self.min_class_count)
        details = {**_settings(self), **_questions(before, classifier)}
        return Entry("recalibrate", 0, details, outcome=_outcome(classifier))

    def asked(self) -> list[Any]:
        """The settings."""
        return ["recalibrate", *_settings(self).values()]


@dataclass(frozen=True)
class Certify:
    """Certify again, with new labelled points or on the same sample; see ``SDMClassifier.recertify``."""

    data: LabelledStates | None = None
    alpha: float | Mapping[Any, float] | None = None
    delta: float | None = None
    control: str | None = None

    def apply(self, classifier: BaseSDMClassifier) -> Entry:
        """Certify."""
        if not hasattr(classifier, "recertify"):
            raise InvalidInputError("An ensemble is not certified.")
        before = classifier.deltas_spent_
        with classifier._unchanged_on_error():
            _set(classifier, delta=self.delta, control=self.control)
            classifier.recertify(self.data, alpha=self.alpha)
        details = {**_settings(self), **_questions(before, classifier)}
        sample = classifier.model_.certification
        if self.data is None or sample is None:
            return Entry("certify", 0, details, outcome=_outcome(classifier))
        (ids, texts), labels = sample.examples.all(), classifier._codes.decode(sample.labels)
        details |= {name: getattr(sample, name) for name in ABOUT_CERTIFICATION}
        return Entry("certify", len(ids), details, ids, labels, texts, _to_rows(sample.points), _outcome(classifier))

    def asked(self) -> list[Any]:
        """The settings and the sample."""
        return ["certify", *_settings(self).values(), None if self.data is None else _described(self.data)]


@dataclass(frozen=True)
class ResetGuard:
    """Note that the drift guard was reset; decisions stay the same."""

    reset: GuardReset

    def apply(self, classifier: BaseSDMClassifier) -> Entry:
        """Change nothing."""
        return Entry(GUARD_RESET, 0, asdict(self.reset))

    def asked(self) -> list[Any]:
        """The reset."""
        return [GUARD_RESET, asdict(self.reset)]


Request: TypeAlias = "Add | Remove | Relabel | Recalibrate | Certify | ResetGuard"
"""Something to change about a model."""


def _settings(request: Recalibrate | Certify) -> dict[str, Any]:
    """What is asked for, as plain values, but for points."""
    return {
        **{name: value for name, value in vars(request).items() if name != "data"},
        "alpha": alpha_to_json(request.alpha),
    }


def request_digest(requests: Sequence[Request]) -> str:
    """By which a retry of the same requests is told from other ones."""
    return hashlib.sha256(json.dumps([one.asked() for one in requests], default=repr).encode()).hexdigest()


# --- Replay ----------------------------------------------------------------------------------------------------------


def replay(base: C, log: ReadLog, computed: dict[str, bytes] | None = None) -> C:
    """The classifier after the changes of a log that were read; the one that is given stays as it is.

    That one stands for the version before them: if one of them is an undo, for the model's own files. ``computed``
    takes the outcomes of costly changes that the log does not have any more.
    """
    with separate_ledger():  # what is replayed was asked when the change was made
        return _replayed(copy.copy(base), log, {} if computed is None else computed)


def _replayed(classifier: C, log: ReadLog, computed: dict[str, bytes]) -> C:
    if not log.history:
        return classifier
    names = log.sequence_names()
    known = max((version for version, name in names.items() if name in log.outcomes), default=0)
    waiting: list[Record] = []  # a run of additions is one addition: its cost grows with what is added
    for record in log.records:
        change = record.change
        if change.what == UNDO or change.undone_by is not None:
            continue
        try:
            if change.what in ADDS:
                waiting.append(record)
                continue
            is_known = change.what in COSTLY and change.version < known
            if is_known and record.rows is None:
                continue
            _take_in(classifier, waiting)
            waiting = []
            if record.rows is not None:
                _replace_sample(classifier, record)
            if change.version == known:
                _restore(classifier, log.outcomes[names[known]])
            elif not is_known and (request := _request(record)) is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", SDMWarning)  # said when the change was made
                    outcome = request.apply(classifier).outcome
                if outcome is not None:
                    computed[names[change.version]] = outcome
        except InvalidInputError as error:
            raise ModelFileError(f"Change {change.version} does not fit the model: {error}") from error
    _take_in(classifier, waiting)
    _count_looks(classifier, log)
    classifier.version_ = log.version
    return classifier


def _request(record: Record) -> Request | None:
    """What a change other than an addition asked for; None if it does nothing to a classifier."""
    details = record.change.details
    match record.change.what:
        case "remove":
            return Remove(record.ids)
        case "relabel":
            return Relabel(record.ids, record.labels, allow_new_labels=True)  # as they were when it was made
        case "recalibrate":
            return Recalibrate(details.get("alpha"), details.get("min_class_count"), details.get("policy"))
        case "certify":
            return Certify(None, details.get("alpha"), details.get("delta"), details.get("control"))
    return None


def _take_in(classifier: BaseSDMClassifier, records: Sequence[Record]) -> None:
    """Add the points of changes to their sets, all those of a set at once."""
    for what, to in ADDS.items():
        chosen = [record for record in records if record.change.what == what]
        if not chosen:
            continue
        labels = [label for record in chosen for label in record.labels]
        caller = f"change {chosen[0].change.version}"
        codes = classifier._codes.extended(labels, caller) if to == SUPPORT else classifier._codes
        numbers = codes.encode(labels, caller, with_outside=to == SUPPORT)
        with classifier._updated_models() as models:
            for place, model in enumerate(models):
                model.add(_encoded(chosen, models, place, numbers), to=to)
            classifier._codes = codes


def _replace_sample(classifier: BaseSDMClassifier, record: Record) -> None:
    """Certify with the points of a change from now on."""
    caller, codes = f"change {record.change.version}", classifier._codes
    if NO_LABEL in record.labels:
        codes = codes.extended([NO_LABEL], caller)
    numbers = codes.encode(record.labels, caller, with_outside=codes is not classifier._codes)
    with classifier._updated_models() as models:
        model = models[0]
        points, earlier = _encoded([record], models, 0, numbers), model.certification
        details = record.change.details
        known: dict[str, Any] = {name: details[name] for name in ABOUT_CERTIFICATION if name in details}
        model.certification = Certification(points.points, points.labels, points.examples, **known)
        if earlier is not None and "n_given_back" not in details:  # as earlier versions wrote it
            model.takes_up(earlier)
        classifier.certification_rows_, classifier._codes = np.array([], dtype=np.int64), codes


def _count_looks(classifier: BaseSDMClassifier, log: ReadLog) -> None:
    """A question that a certification sample answered stays asked if its change is undone, or computed again."""
    before, certificate, points = classifier.deltas_spent_, classifier.certificate_, classifier.models_[0].certification
    spent = {sample: dict(questions) for sample, questions in before.items()}
    for change in log.history[log.base :]:
        for sample, questions in change.details.get("questions", {}).items():
            spent[sample] = {**questions, **spent.get(sample, {})}
    if certificate is not None and points is not None:
        known = before.get(points.fingerprint, {})
        more = [delta for name, delta in spent.get(points.fingerprint, {}).items() if name not in known]
        looks, delta_spent = certificate.looks + len(more), certificate.delta_spent + sum(more)
        classifier.certificate_ = replace(certificate, looks=looks, delta_spent=delta_spent)
    classifier.deltas_spent_ = spent


# --- Rows and outcomes -----------------------------------------------------------------------------------------------


def _to_rows(points: Encoded) -> Array:
    """Points as rows of the log (n, M + C + 1), float32: exemplar, logits, 1 where the background's is highest."""
    columns = (points.exemplars, points.logits, points.is_background[:, None])
    return torch.hstack([column.cpu().float() for column in columns]).numpy()


def _encoded(records: Sequence[Record], models: Sequence[SDMModel], place: int, numbers: torch.Tensor) -> EncodedPoints:
    """The points of changes as one of the models sees them; a row has those of all models, side by side."""
    widths, model = [one.adaptor.n_filters + len(one.classes) + 1 for one in models], models[place]
    start = sum(widths[:place])
    parts = [one.rows for one in records if one.rows is not None and one.rows.shape[1] == sum(widths)]
    if len(parts) < len(records) or sum(map(len, parts)) != len(numbers):
        raise ModelFileError(f"The rows of change {records[0].change.version} do not fit the model.")
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    mine = as_tensor(rows[:, start : start + widths[place]], "rows", "replay").to(model.support.device)
    n_filters = model.adaptor.n_filters
    points = Encoded(mine[:, :n_filters].contiguous(), mine[:, n_filters:-1].contiguous(), mine[:, -1] > 0)
    examples = Examples.of(
        [name for record in records for name in record.ids], [text for record in records for text in record.texts]
    )
    return EncodedPoints(points, numbers.to(mine.device), examples)


_PARAMETERS = ("policy", "delta", "control")  # that changes may set


def _outcome(classifier: BaseSDMClassifier) -> bytes:
    parameters = {name: getattr(classifier, name) for name in _PARAMETERS}
    return outcome_to_bytes(classifier.models_, {**promise_to_json(classifier), "parameters": parameters})


def _restore(classifier: BaseSDMClassifier, outcome: bytes) -> None:
    with classifier._updated_models() as models:
        learned = take_outcome(outcome, models)
        try:
            take_promise(classifier, learned)
            _set(classifier, **{name: learned["parameters"][name] for name in _PARAMETERS})
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"The log of changes has an outcome that cannot be read: {error!r}.") from error


def _set(classifier: BaseSDMClassifier, **parameters: Any) -> None:
    classifier.set_params(**{name: value for name, value in parameters.items() if value is not None})


def _questions(before: Mapping[str, Mapping[str, float]], classifier: BaseSDMClassifier) -> dict[str, Any]:
    """What certification samples were asked by a change, and its delta."""
    new = {
        sample: {name: delta for name, delta in asked.items() if name not in before.get(sample, {})}
        for sample, asked in classifier.deltas_spent_.items()
    }
    return {"questions": {sample: asked for sample, asked in new.items() if asked}}


def _described(data: LabelledStates) -> list[Any]:
    """Labelled points as plain values; without texts, their states by a digest."""
    lists = [None if one is None else as_list(one, "data", "LiveModel") for one in (data.labels, data.ids, data.texts)]
    if data.texts is not None:
        return [*lists, len(data)]
    states = as_tensor(data.hidden_states, "data", "LiveModel").float().contiguous().cpu().numpy()
    return [*lists, list(states.shape), hashlib.sha256(states.tobytes()).hexdigest()]
