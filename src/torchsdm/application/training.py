"""Read training data: labelled states, or labelled texts and a language model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchsdm.application.inputs import checked, open_documents, readable
from torchsdm.columns import Columns
from torchsdm.errors import InvalidInputError, Remedy
from torchsdm.hidden_states import HiddenStateExtractor, default_store
from torchsdm.states import LabelledStates, has_states, read_states


def read_training(
    source: str,
    columns: Columns,
    extractor: HiddenStateExtractor | None,
    check_labels: Callable[[list[Any]], Any] | None = None,
) -> LabelledStates:
    """Labelled states from a file; those of texts are extracted, or read from the cache.

    ``check_labels`` is given the labels of texts and may refuse them before any states are extracted.
    """
    with readable(source) as path:
        if has_states(path, columns.states):
            if extractor is not None:
                raise InvalidInputError(f"{path} already contains states.", remedy=Remedy.NO_LANGUAGE_MODEL)
            names = {"labels": columns.label, "ids": columns.id}
            given = {name: column for name, column in names.items() if column is not None}
            read = read_states(path, states=columns.states, **given)
            return checked(read, path, columns, needs_labels=True)
        if extractor is None:
            raise InvalidInputError(f"{path} contains texts.", remedy=Remedy.NAME_LANGUAGE_MODEL)
        documents = open_documents(path, columns, with_labels=True)
        if not documents.has_labels:
            raise InvalidInputError(f"{path} has no labels.", remedy=Remedy.NAME_LABELS)
        if check_labels is not None:
            check_labels([document.label for document in documents])
        return extractor.labelled_states(documents, store=default_store())
