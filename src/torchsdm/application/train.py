"""Train a model: read, check, fit, save, and say what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torchsdm.application.describe import summary, told_once
from torchsdm.application.saved_model import PieceReader
from torchsdm.application.update import check_model_output
from torchsdm.cluster import Backend, extract_on
from torchsdm.core import check_control, check_targets
from torchsdm.data import (
    STANDARD_INPUT,
    USUAL_NAMES,
    Columns,
    Documents,
    LabelledStates,
    Source,
    StatesStore,
    Unreadable,
    states_of,
)
from torchsdm.errors import EmptyInputError, InvalidInputError, Remedy
from torchsdm.estimators import SDMClassifier, SDMEnsemble, Strength
from torchsdm.hidden_states import Elsewhere, HiddenStateExtractor, default_store
from torchsdm.labels import check_known_labels, check_pools, count_classes, warn_of_lookalikes
from torchsdm.settings import AUTO, PAPER
from torchsdm.training import remove_checkpoint, stored_epochs
from torchsdm.validation import Array, as_list, check_label_array
from torchsdm.wording import counted

TRAINING = "training"  #: the part whose labels are the classes
BACKGROUND = "background"  #: the part that belongs to no class, whose labels are not read


@dataclass(frozen=True)
class _Part:
    """Labelled data of a file. The labels are known at once; the states of texts are extracted on request."""

    name: str
    labels: Array | None  # None for background
    states: Callable[[], LabelledStates]
    groups: Callable[[str], list[Any]]
    """The values of a column that names groups."""


def read_training(
    source: str,
    columns: Columns,
    extractor: HiddenStateExtractor | None,
    check_labels: Callable[[Array], Any] | None = None,
) -> LabelledStates:
    """Labelled states from a file; those of texts are extracted, or read from the cache.

    ``check_labels`` is given the labels and may refuse them before any states are extracted.
    """
    opened = _opened(source, columns, extractor, default_store())
    if check_labels is not None and opened.labels is not None:
        check_labels(opened.labels)
    return opened.states()


def read_training_parts(
    sources: Mapping[str, str],
    columns: Columns,
    extractor: HiddenStateExtractor | None,
    store: StatesStore,
    elsewhere: Elsewhere | None,
    check_classes: Callable[[Array], object],
    groups: str | None = None,
) -> dict[str, Any]:
    """Labelled states of several files, all of whose labels are checked before the first text is extracted.

    ``sources`` has files by part: 'training', whose labels are the classes, 'background', whose labels are not read,
    and others that may have no other labels. ``check_classes`` may refuse the classes. ``groups`` is a column of
    'training', whose values are returned as 'groups'.
    """
    opened = {
        part: _opened(source, columns, extractor, store, elsewhere, needs_labels=part != BACKGROUND)
        for part, source in sources.items()
    }
    check_classes(_check_labels(opened))
    named = {} if groups is None else {"groups": opened[TRAINING].groups(groups)}
    return {**{part: one.states() for part, one in opened.items()}, **named}


def _opened(
    source: str,
    columns: Columns,
    extractor: HiddenStateExtractor | None,
    store: StatesStore,
    elsewhere: Elsewhere | None = None,
    *,
    needs_labels: bool = True,
) -> _Part:
    columns = columns if needs_labels else replace(columns, label=None)
    data = Source.open(source, again=True)
    with data.errors():
        if data.holds_states(columns.states):
            if extractor is not None:
                raise InvalidInputError(f"{data.name} already contains states.", remedy=Remedy.NO_LANGUAGE_MODEL)
            states = _read_states(data, columns, needs_labels)
            labels = check_label_array(states.labels, data.name) if needs_labels else None
            return _Part(data.name, labels, lambda: states, partial(_read_groups, data, columns))
        if extractor is None:
            raise InvalidInputError(f"{data.name} contains texts.", remedy=Remedy.NAME_LANGUAGE_MODEL)
        label: str | Literal[False] | None = columns.label if needs_labels else False
        documents = Documents(
            data, text=columns.text, label=label, id=columns.id, answer=columns.answer, repeated="keep"
        )
        if needs_labels and not documents.has_labels:
            raise InvalidInputError(f"{data.name} has no labels.", remedy=Remedy.NAME_LABELS)
        labels = documents.label_array() if needs_labels else None
    extracted = partial(_extracted, documents, extractor, store, elsewhere)
    return _Part(data.name, labels, extracted, partial(_read_groups, data, columns))


def _read_groups(data: Source, columns: Columns, name: str) -> list[Any]:
    """The group of each row, as a column or an array says."""
    values: Any
    if data.kind in (".npz", ".safetensors", "states"):
        _, labels, _, texts = USUAL_NAMES
        (read,) = states_of(data, None, names=(columns.states, labels, name, texts), needs_labels=False)
        values = read.ids
    else:
        values = [None if isinstance(row, Unreadable) else row.get(name) for _, row in data.rows()]
        values = None if all(value is None for value in values) else values
    if values is None:
        raise InvalidInputError(f"{data.name} has no {name!r} for the groups.")
    return [None if value == "" else value for value in as_list(values, "groups", "training")]


def _read_states(data: Source, columns: Columns, needs_labels: bool) -> LabelledStates:
    _, labels, ids, texts = USUAL_NAMES
    names = (columns.states, columns.label or labels, columns.id or ids, texts)
    (read,) = states_of(data, None, names=names, needs_labels=needs_labels)
    states = PieceReader(data.name, columns, needs_labels).read(read)
    if not len(states):
        raise EmptyInputError(f"{data.name} is empty.")
    return states if read.ids is not None else replace(states, ids=None)


def _extracted(
    documents: Documents, extractor: HiddenStateExtractor, store: StatesStore, elsewhere: Elsewhere | None
) -> LabelledStates:
    """The states of documents; those that are merely numbered have no ids, so that parts do not share any."""
    states = extractor.labelled_states(documents, store=store, elsewhere=elsewhere)
    return states if documents.has_ids else replace(states, ids=None)


def _check_labels(opened: Mapping[str, _Part]) -> Array:
    """Refuse what training would refuse, and warn of class names that look like typing errors; returns the classes."""
    labels = {part: one.labels for part, one in opened.items() if one.labels is not None}
    training = opened[TRAINING]
    classes, _ = count_classes(labels[TRAINING], training.name)
    warn_of_lookalikes(labels[TRAINING], training.name)
    for part, given in labels.items():
        check_known_labels(given.tolist(), classes, opened[part].name, to=part)
    return classes


_OF_ROUNDS = ("n_rounds", "max_epochs", "batch_size", "learning_rate", "patience", "calibration_size")


def train_model(
    data: str,
    output: Path,
    *,
    overwrite: bool = False,
    preset: str = "default",
    ensemble: bool = False,
    calibration: str | None = None,
    certification: str | None = None,
    background: str | None = None,
    groups: str | None = None,
    pools: Path | None = None,
    checkpoint: Path | None = None,
    columns: Columns = Columns(),  # noqa: B008  # frozen
    extractor: HiddenStateExtractor | None = None,
    backend: Backend = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train on labelled data and write a model directory; returns its summary, with the ``strength`` of a classifier.

    An interruption names what is kept: ``KeyboardInterrupt.args``. The same call then resumes.

    ``settings`` are parameters of ``SDMClassifier``; those of rounds alone choose that training, and what is not given
    is the preset's. ``groups`` is a column that names what rows belong to, such as a patient. ``pools`` is a JSON file
    of lists of classes by name. By default checkpoints are in a folder beside ``output``, which is removed at the end.
    ``extractor`` reads texts; ``backend`` is where that and rounds run.
    """
    if ensemble and certification is not None:
        raise InvalidInputError("An ensemble is not certified. Leave out the certification set.")
    check_model_output(output, overwrite)
    folder = checkpoint or output.with_name(f"{output.name}.training")
    chosen = {**(PAPER if preset == "paper" else {}), **settings}
    if "training" not in settings and any(name in settings for name in _OF_ROUNDS):
        chosen["training"] = "sdm"
    kind = SDMEnsemble if ensemble else SDMClassifier
    classifier = kind(**chosen, checkpoint=folder, verbose=True, backend=backend)
    classifier.pools = None if pools is None else _read_pools(pools, classifier.control)
    holds_out = classifier.certification_size is not None and calibration is None
    is_certified = not ensemble and (holds_out or certification is not None)

    def check(classes: Array) -> None:
        (first, *_) = check_targets(classifier.alpha, classes, "training")
        if is_certified:
            check_control(first, classifier.control, "training")
        if classifier.pools is not None:
            check_pools(classifier.pools, classes, "training")

    store = default_store()
    files = {TRAINING: data, "calibration": calibration, "certification": certification, "background": background}
    given = {part: file for part, file in files.items() if file is not None}
    try:
        elsewhere = extract_on(backend, "training")
        parts = read_training_parts(given, columns, extractor, store, elsewhere, check, groups)
        training = parts.pop(TRAINING)
        with told_once(classifier):
            classifier.fit(training, **parts)
        classifier.data_source_ = "standard input" if data == STANDARD_INPUT else Path(data).name  # not the whole path
        classifier.save(output)
    except KeyboardInterrupt:
        n_epochs, n_texts = stored_epochs(folder), store.counts.n_documents
        kept = [f"{counted(n_epochs, 'epoch')} in {folder}"] if n_epochs else []
        raise KeyboardInterrupt(
            *kept, *([f"{counted(n_texts, 'embedded text')} in the cache"] * bool(n_texts))
        ) from None
    if checkpoint is None:
        remove_checkpoint(folder)  # the model has all that matters of it
    result = summary(classifier, output)
    if isinstance(classifier, SDMClassifier):
        strength = Strength.of(classifier, training)
        result["strength"] = None if strength is None else asdict(strength)
    return result


def _read_pools(path: Path, control: str) -> dict[str, list[Any]]:
    """The pools of a file: lists of classes by name."""
    if control not in ("pooled", AUTO):
        raise InvalidInputError(f"'pools' are for control 'pooled' or 'auto'. Got control {control!r}.")
    try:
        pools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(pools, dict) or not all(isinstance(names, list) for names in pools.values()):
        raise InvalidInputError(f'{path} must have lists of classes by name, as in {{"money": ["pay", "balance"]}}.')
    return pools
