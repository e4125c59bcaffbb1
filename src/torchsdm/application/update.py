"""Change a saved model without training: its examples, its region, its certificate, and the alpha of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from torchsdm.application.asking import check_label_file, filled_in, request_beside, write_request
from torchsdm.application.describe import standing, summary, told_once
from torchsdm.application.live_model import LiveModel
from torchsdm.application.requests import given_block
from torchsdm.application.saved_model import Reading, SavedModel
from torchsdm.data import Columns, LabelledStates, join_states
from torchsdm.errors import InvalidInputError, Remedy
from torchsdm.estimators import Add, Certify, Recalibrate, Relabel, Remove, Request, SDMClassifier, SDMEnsemble
from torchsdm.files import login_name
from torchsdm.labels import by_class, check_known_labels
from torchsdm.model import CALIBRATION, CERTIFICATION, SUPPORT, holds_model
from torchsdm.trust import Floor, Prices
from torchsdm.validation import as_list

_SETS = {"add": SUPPORT, "add_calibration": CALIBRATION}


class ModelChange:
    """Changes of a saved model: tried on a copy, then written, unless it is a ``dry_run``.

    They go into the log of the model, with ``who`` (by default the login name) and ``why``, or to ``output``, as a
    model of its own. ``language_model`` has the arguments of ``LiveModel.open``.
    """

    def __init__(
        self,
        model: str | Path,
        output: Path | None = None,
        *,
        overwrite: bool = False,
        dry_run: bool = False,
        who: str | None = None,
        why: str = "",
        language_model: Mapping[str, Any] | None = None,
    ) -> None:
        self.is_in_place = output is None or output.resolve() == Path(model).resolve()
        self.path = Path(model) if output is None else output
        if not self.is_in_place:
            check_model_output(self.path, overwrite)
        self.signature, self.is_written = {"who": login_name() if who is None else who, "why": why}, not dry_run
        writable = self.is_in_place and not dry_run
        self.live = LiveModel.open(model, writable=writable, exclusive=False, **(language_model or {}))
        self.draft = self.live.draft()
        self.classifier: SDMClassifier | SDMEnsemble = self.draft.classifier

    def single(self) -> SDMClassifier:
        """The classifier, which must not be an ensemble."""
        if not isinstance(self.classifier, SDMClassifier):
            raise InvalidInputError(f"{self.live.path} is an ensemble, which is not certified.")
        return self.classifier

    def examples(self, file: str, columns: Columns, to: str, *, allow_new_labels: bool = False) -> LabelledStates:
        """Labelled examples for a set; ids and labels are checked before a language model reads any text.

        Rows that are merely numbered get new ids where the numbers are taken. Other ids must be new, but in a
        certification set, which may be given again.
        """
        known, classes = known_ids(self.classifier), self.classifier.classes_
        reading = Reading(self.live.snapshot.saved, file, columns, needs_labels=True)
        if reading.documents is not None:
            with reading.source.errors():
                rows = [(document.id, document.label) for document in reading.documents]
            clash = next(
                (name for name in _new_ids([name for name, _ in rows], known) or [] if str(name) in known), None
            )
            if clash is not None and to != CERTIFICATION:
                raise InvalidInputError(f"{file}: the 'ids' must be new, but the model has {clash!r} already.")
            labels = [label for _, label in rows]
            check_known_labels(labels, classes, file, to=to, allow_new=allow_new_labels)
        data = join_states(list(reading.blocks()))
        labels = as_list(data.labels, "labels", reading.source.name)
        check_known_labels(labels, classes, file, to=to, allow_new=allow_new_labels)
        return replace(data, ids=_new_ids(data.ids, known))

    def apply(self, request: Request) -> None:
        """Try a change. What calibrating warns of is held back if the result says it."""
        with told_once(self.classifier) if isinstance(request, (Recalibrate, Certify)) else nullcontext():
            self.draft.apply(request)

    def write(self) -> dict[str, Any]:
        """Write what was tried, unless nothing is to be written; returns the summary and the version."""
        with self.live:
            if self.is_written and self.is_in_place:
                self.live.commit(self.draft, **self.signature)
            elif self.is_written:
                self.classifier.save(self.path)
        return {**summary(self.classifier, self.path), "version": self.classifier.version_, "written": self.is_written}


def check_model_output(path: Path, overwrite: bool) -> None:
    """Refuse to write a model over another one, unless that is wanted, or over foreign files."""
    if path.exists() and holds_model(path) and not overwrite:
        raise InvalidInputError(f"{path} already has a model.", remedy=Remedy.REPLACE_MODEL)


def update_model(
    model: str | Path,
    *,
    add: str | None = None,
    add_calibration: str | None = None,
    remove: Sequence[Any] = (),
    relabel: Mapping[Any, Any] | None = None,
    allow_new_labels: bool = False,
    keep_repeated: bool = False,
    recalibrate: bool = True,
    force: bool = False,
    columns: Columns = Columns(),  # noqa: B008  # frozen
    show: Callable[[dict[str, Any]], None] = lambda result: None,
    **writing: Any,
) -> dict[str, Any]:
    """Remove, relabel and add examples of a saved model, in this order; see ``SDMClassifier`` and ``ModelChange``.

    ``add`` and ``add_calibration`` are files of labelled texts or states. ``show`` is called with the result before
    anything is written. If less than half of what was admitted would be, nothing is written without ``force``.
    """
    change = ModelChange(model, **writing)
    classifier = change.classifier
    before, known = standing(classifier), known_ids(classifier)
    removed, relabelled = list(dict.fromkeys(remove)), dict(relabel or {})
    result: dict[str, Any] = {"added": 0, "added_calibration": 0}
    result |= {"removed": len(removed), "relabelled": len(relabelled)}
    if removed:
        change.apply(Remove([known.get(str(name), name) for name in removed]))
    if relabelled:
        classes = {str(one): one for one in classifier.classes_.tolist()}
        labels = [classes.get(value, value) for value in relabelled.values()]
        check_known_labels(labels, classifier.classes_, "relabel", allow_new=allow_new_labels)
        change.apply(Relabel([known.get(str(name), name) for name in relabelled], labels, allow_new_labels))
    for what, to, file in (("added", SUPPORT, add), ("added_calibration", CALIBRATION, add_calibration)):
        if file is not None:
            data = change.examples(file, columns, to, allow_new_labels=allow_new_labels)
            change.apply(Add(data, to, "keep" if keep_repeated else "refuse", allow_new_labels))
            result[what] = len(data)
    if recalibrate:
        change.apply(Recalibrate())
    result |= {"before": before, "after": standing(classifier)}
    share, earlier = admitted_share(result["after"]), admitted_share(before)
    result["needs_force"] = recalibrate and share < earlier / 2
    show(result)
    if result["needs_force"] and change.is_written and not force:
        raise InvalidInputError(
            f"{change.path} was not written: {share:.1%} would be admitted instead of {earlier:.1%}.",
            remedy=Remedy.WRITE_ANYWAY,
        )
    return {**result, **change.write()}


def recalibrate_model(
    model: str | Path,
    *,
    alpha: Any = None,
    min_class_count: int | None = None,
    policy: str | None = None,
    **writing: Any,
) -> dict[str, Any]:
    """Recompute the region of a saved model; see ``SDMClassifier.recalibrate`` and ``ModelChange``."""
    change = ModelChange(model, **writing)
    change.apply(Recalibrate(alpha, min_class_count, policy))
    return change.write()


def certify_model(
    model: str | Path,
    data: str | None = None,
    *,
    alpha: float | Mapping[Any, float] | None = None,
    delta: float | None = None,
    control: str | None = None,
    columns: Columns = Columns(),  # noqa: B008  # frozen
    **writing: Any,
) -> dict[str, Any]:
    """Certify with new labelled data or on the same sample; see ``SDMClassifier.recertify`` and ``ModelChange``.

    The data may be a file that ``ask_labels`` wrote, filled in: what is not given is then as it was asked for.
    """
    change = ModelChange(model, **writing)
    classifier = change.single()
    request, given = None if data is None else request_beside(data), None
    if data is not None and request is not None:
        given = filled_in(request, data, classifier.classes_, columns)
        request.warn_of_change(
            classifier.label_request(request.drawn, request.rows, Floor(request.floor, len(request.rows)))
        )
        alpha, delta, control = alpha or request.alpha, delta or request.delta, control or request.control
    elif data is not None:
        given = change.examples(data, columns, CERTIFICATION)
    change.apply(Certify(given, alpha, delta, control))
    return change.write()


def ask_labels(
    model: str | Path,
    pool: str,
    output: Path,
    n: int,
    *,
    alpha: float | Mapping[Any, float] | None = None,
    delta: float | None = None,
    control: str | None = None,
    seed: int | None = None,
    columns: Columns = Columns(),  # noqa: B008  # frozen
    language_model: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Draw from a pool what to label for a certificate, and write it to a file to fill in; the model stays as it is.

    Of texts, the language model reads those that are drawn. See ``SDMClassifier.ask_labels``.
    """
    check_label_file(output)
    change = ModelChange(model, dry_run=True, language_model=language_model)
    classifier, saved = change.single(), change.live.snapshot.saved
    terms = {"delta": delta, "control": control}
    classifier.set_params(**{name: value for name, value in terms.items() if value is not None})
    reading = Reading(saved, pool, columns, again=True)
    if reading.documents is None or saved.text_classifier is None:
        states = join_states(list(reading.blocks()))
        states = replace(states, labels=None, ids=_own_ids(states.ids))
        request = classifier.ask_labels(states, n, alpha=alpha, random_state=seed)
        answers: list[str | None] = []
    else:
        with reading.source.errors():
            documents = list(reading.documents)
        rows, floor = classifier.plan_labels(n, len(documents), alpha=alpha, random_state=seed)
        drawn = [documents[row] for row in rows.tolist()]
        answers = [one.answer for one in drawn]
        texts, ids = [one.text for one in drawn], [one.id for one in drawn] if reading.documents.has_ids else None
        read = saved.text_classifier.checked_extractor().labelled_states(
            texts, answers=None if None in answers else answers
        )
        read = replace(read, labels=None, ids=ids, texts=texts)
        request = classifier.label_request(read, rows, floor, alpha=alpha)
    write_request(request, output, answers)
    return {"model": str(model), "output": str(output), **request.to_dict()}


def choose_alpha(
    model: str | Path,
    data: str | None = None,
    *,
    cost_error: Any,
    cost_review: float,
    dry_run: bool = False,
    columns: Columns = Columns(),  # noqa: B008  # frozen
    **writing: Any,
) -> dict[str, Any]:
    """Choose the alpha that costs least and certify it, on new data if there are any; see ``ModelChange``.

    The model stays as it is if no alpha pays, or none will probably be certified.
    """
    change = ModelChange(model, dry_run=dry_run, **writing)
    classifier = change.single()
    check_prices(classifier, cost_error, cost_review)  # before texts are read
    given = None if data is None else change.examples(data, columns, CERTIFICATION)
    n = None if given is None else len(given)
    choice = classifier.choose_alpha(cost_error=cost_error, cost_review=cost_review, n_certification=n)
    if choice.pays and not dry_run:
        change.apply(Certify(given, choice.alpha))
    else:
        change.is_written, change.path = False, Path(model)
    return {**change.write(), "choice": choice.to_json()}


def check_prices(classifier: SDMClassifier, cost_error: Any, cost_review: float) -> None:
    """Refuse what ``SDMClassifier.choose_alpha`` would refuse."""
    classes = classifier.classes_
    error = (
        by_class(cost_error, classes, "cost_error", "choose_alpha") if isinstance(cost_error, Mapping) else cost_error
    )
    Prices.of(error, cost_review, len(classes), "choose_alpha")


def admitted_share(known: Mapping[str, Any]) -> float:
    """The share of inputs that a model of this ``standing`` admits, as far as it can tell."""
    return known["region_share"] if known["admitted_share"] is None else known["admitted_share"]


def known_ids(classifier: SDMClassifier | SDMEnsemble) -> dict[str, Any]:
    """The ids of all sets of a model, by how they are written."""
    return {str(name): name for one in classifier.models_ for name in one.known_ids()}


def _new_ids(ids: Any, known: Mapping[str, Any]) -> list[Any] | None:
    """Ids of added examples; None, to assign new ones, if rows were merely numbered and the numbers are taken."""
    is_taken = _own_ids(ids) is None and any(str(name) in known for name in ids)
    return None if is_taken else list(ids)


def _own_ids(ids: Any) -> list[Any] | None:
    """Ids of a pool; None if its rows were merely numbered."""
    names = list(ids)
    return None if names == list(range(len(names))) else names


def change_requests(saved: SavedModel, changes: Sequence[Mapping[str, Any]]) -> list[Request]:
    """What ``LiveModel.make`` takes, from mappings with the key ``what`` and the values that go with it.

    - ``add`` and ``add_calibration``: ``labels``, ``texts`` (with ``answers``, if those are judged) or
      ``hidden_states``, and, if wanted, ``ids``, ``allow_new_labels`` and ``keep_repeated``;
    - ``relabel``: ``ids`` and ``labels``, and, if wanted, ``allow_new_labels``;
    - ``remove``: ``ids``;
    - ``recalibrate``: ``alpha``, ``min_class_count`` and ``policy``, if wanted.

    Labels are checked before a language model reads any text.
    """
    for change in changes:
        to, labels = _SETS.get(change["what"], SUPPORT), change.get("labels") or []
        allow_new = bool(change.get("allow_new_labels"))
        check_known_labels(labels, saved.classifier.classes_, "labels", to=to, allow_new=allow_new)
    return [_request(saved, change) for change in changes]


def _request(saved: SavedModel, change: Mapping[str, Any]) -> Request:
    what, allow_new = change["what"], bool(change.get("allow_new_labels"))
    if what in _SETS:
        repeated = "keep" if change.get("keep_repeated") else "refuse"
        return Add(_points(saved, change), _SETS[what], repeated, allow_new)
    if what == "relabel":
        return Relabel(change["ids"], change["labels"], allow_new)
    if what == "remove":
        return Remove(change["ids"])
    if what == "recalibrate":
        return Recalibrate(change.get("alpha"), change.get("min_class_count"), change.get("policy"))
    raise InvalidInputError(f"'what' must be add, add_calibration, relabel, remove or recalibrate. Got {what!r}.")


def _points(saved: SavedModel, change: Mapping[str, Any]) -> LabelledStates:
    texts, labels, ids = change.get("texts"), change["labels"], change.get("ids")
    if texts is not None and saved.text_classifier is not None:
        if any(not isinstance(text, str) for text in texts):
            raise InvalidInputError("texts: examples must be strings.")
        read = saved.text_classifier.checked_extractor().labelled_states(texts, answers=change.get("answers"))
    else:
        read = given_block(saved, texts=texts, hidden_states=change.get("hidden_states"))
    for name, values in (("labels", labels), ("ids", ids)):
        if values is not None and len(values) != len(read):
            raise InvalidInputError(f"{name}: there must be {len(read)}, one for each example. Got {len(values)}.")
    if not np.isfinite(read.hidden_states).all():
        raise InvalidInputError("hidden_states: the states contain NaN or infinity.")
    return replace(read, labels=labels, ids=ids)
