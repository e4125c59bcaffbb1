"""Read training data: labelled states, or labelled texts and a language model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from torchsdm.application.inputs import checked
from torchsdm.data import USUAL_NAMES, Columns, Documents, LabelledStates, Source, StatesStore, states_of
from torchsdm.errors import EmptyInputError, InvalidInputError, Remedy
from torchsdm.hidden_states import Elsewhere, HiddenStateExtractor, default_store
from torchsdm.labels import count_classes, warn_of_lookalikes
from torchsdm.validation import Array, check_label_array
from torchsdm.wording import counted

TRAINING = "training"  #: the part whose labels are the classes
BACKGROUND = "background"  #: the part that belongs to no class, whose labels are not read


@dataclass(frozen=True)
class _Part:
    """Labelled data of a file. The labels are known at once; the states of texts are extracted on request."""

    name: str
    labels: Array | None  # None for background
    states: Callable[[], LabelledStates]


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
    store: StatesStore | None = None,
    elsewhere: Elsewhere | None = None,
    check_classes: Callable[[Array], object] = lambda classes: None,
) -> dict[str, LabelledStates]:
    """Labelled states of several files, all of whose labels are checked before the first text is extracted.

    Parameters
    ----------
    sources : mapping
        Files by part: 'training', whose labels are the classes, 'background', whose labels are not read, and others
        that may have no other labels.
    columns : Columns
    extractor : HiddenStateExtractor or None
        Reads texts.
    store : StatesStore, optional
        Where the states of texts are cached; by default in the cache folder.
    elsewhere : callable, optional
        Who extracts them; see ``HiddenStateExtractor.labelled_states``.
    check_classes : callable, optional
        Called with the classes, before the first text is extracted.
    """
    store = default_store() if store is None else store
    opened = {
        part: _opened(source, columns, extractor, store, elsewhere, needs_labels=part != BACKGROUND)
        for part, source in sources.items()
    }
    check_classes(_check_labels(opened))
    return {part: one.states() for part, one in opened.items()}


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
            return _Part(data.name, labels, lambda: states)
        if extractor is None:
            raise InvalidInputError(f"{data.name} contains texts.", remedy=Remedy.NAME_LANGUAGE_MODEL)
        label: str | Literal[False] | None = columns.label if needs_labels else False
        documents = Documents(
            data, text=columns.text, label=label, id=columns.id, answer=columns.answer, repeated="keep"
        )
        if needs_labels and not documents.has_labels:
            raise InvalidInputError(f"{data.name} has no labels.", remedy=Remedy.NAME_LABELS)
        labels = documents.label_array() if needs_labels else None
    return _Part(data.name, labels, partial(_extracted, documents, extractor, store, elsewhere))


def _read_states(data: Source, columns: Columns, needs_labels: bool) -> LabelledStates:
    """All states of an input."""
    _, labels, ids, texts = USUAL_NAMES
    names = (columns.states, columns.label or labels, columns.id or ids, texts)
    (read,) = states_of(data, None, names=names, needs_labels=needs_labels)
    states = checked(read, data.name, columns, needs_labels=needs_labels)
    if not len(states):
        raise EmptyInputError(f"{data.name} is empty.")
    return states


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
    known = set(classes.tolist())
    warn_of_lookalikes(labels[TRAINING], training.name)
    for part, given in labels.items():
        one = opened[part]
        unknown: Counter[Any] = Counter(label for label in given.tolist() if label not in known)
        if unknown:
            listed = ", ".join(f"{label!r} ({counted(count, 'example')})" for label, count in unknown.most_common(5))
            more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
            raise InvalidInputError(
                f"{one.name} has labels that {training.name} does not have: {listed}{more}. Leave them out, or add "
                f"examples of them to {training.name}."
            )
    return classes
