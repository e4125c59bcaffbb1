"""What a classifier is trained on: labelled states, or labelled texts and a language model."""

from __future__ import annotations

from torchsdm.application.inputs import checked, open_documents, readable
from torchsdm.columns import Columns
from torchsdm.errors import InvalidInputError
from torchsdm.hidden_states import HiddenStateExtractor, default_store
from torchsdm.states import LabelledStates, has_states, read_states


def read_training(source: str, columns: Columns, extractor: HiddenStateExtractor | None) -> LabelledStates:
    """Labelled states from a file; of texts they are extracted, or taken from the cache if they were before."""
    with readable(source) as path:
        if has_states(path, columns.states):
            if extractor is not None:
                raise InvalidInputError(f"{path} holds states already: leave --language-model out.")
            names = {"labels": columns.label, "ids": columns.id}
            given = {name: column for name, column in names.items() if column is not None}
            read = read_states(path, states=columns.states, **given)
            return checked(read, path, columns, needs_labels=True)
        if extractor is None:
            raise InvalidInputError(
                f"{path} holds texts: name a language model that reads them, with --language-model."
            )
        documents = open_documents(path, columns, with_labels=True)
        if not documents.has_labels:
            raise InvalidInputError(f"{path} has no labels. Name their column: --label NAME.")
        return extractor.labelled_states(documents, store=default_store())
