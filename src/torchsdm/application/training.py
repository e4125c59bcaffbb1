"""Read training data: labelled states, or labelled texts and a language model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torchsdm.application.inputs import STANDARD_INPUT, checked, open_documents, readable
from torchsdm.columns import Columns
from torchsdm.data import Documents, LabelledStates, StatesStore, has_states, read_states
from torchsdm.errors import EmptyInputError, InvalidInputError, Remedy
from torchsdm.hidden_states import Elsewhere, HiddenStateExtractor, default_store
from torchsdm.labels import count_classes, warn_of_lookalikes
from torchsdm.validation import Array, check_label_array
from torchsdm.wording import counted

TRAINING = "training"  #: the part whose labels are the classes
BACKGROUND = "background"  #: the part that belongs to no class, whose labels are not read


@dataclass(frozen=True)
class _Source:
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
    with _opened(source, columns, extractor, default_store()) as opened:
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
    with ExitStack() as files:
        opened = {
            part: files.enter_context(
                _opened(source, columns, extractor, store, elsewhere, needs_labels=part != BACKGROUND)
            )
            for part, source in sources.items()
        }
        check_classes(_check_labels(opened))
        return {part: one.states() for part, one in opened.items()}


@contextmanager
def _opened(
    source: str,
    columns: Columns,
    extractor: HiddenStateExtractor | None,
    store: StatesStore,
    elsewhere: Elsewhere | None = None,
    *,
    needs_labels: bool = True,
) -> Iterator[_Source]:
    columns = columns if needs_labels else replace(columns, label=None)
    with readable(source) as path:
        name = "standard input" if source == STANDARD_INPUT else str(path)
        if has_states(path, columns.states):
            if extractor is not None:
                raise InvalidInputError(f"{path} already contains states.", remedy=Remedy.NO_LANGUAGE_MODEL)
            names = {"labels": columns.label, "ids": columns.id}
            given: dict[str, Any] = {part: column for part, column in names.items() if column is not None}
            read = read_states(path, states=columns.states, needs_labels=needs_labels, **given)
            states = checked(read, path, columns, needs_labels=needs_labels)
            if not len(states):
                raise EmptyInputError(f"{path} is empty.")
            yield _Source(name, check_label_array(states.labels, name) if needs_labels else None, lambda: states)
            return
        if extractor is None:
            raise InvalidInputError(f"{path} contains texts.", remedy=Remedy.NAME_LANGUAGE_MODEL)
        documents = open_documents(path, columns, with_labels=needs_labels)
        if needs_labels and not documents.has_labels:
            raise InvalidInputError(f"{path} has no labels.", remedy=Remedy.NAME_LABELS)
        labels = documents.label_array() if needs_labels else None
        yield _Source(name, labels, partial(_extracted, documents, extractor, store, elsewhere))


def _extracted(
    documents: Documents, extractor: HiddenStateExtractor, store: StatesStore, elsewhere: Elsewhere | None
) -> LabelledStates:
    """The states of documents; those that are merely numbered have no ids, so that parts do not share any."""
    states = extractor.labelled_states(documents, store=store, elsewhere=elsewhere)
    return states if documents.has_ids else replace(states, ids=None)


def _check_labels(opened: Mapping[str, _Source]) -> Array:
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
