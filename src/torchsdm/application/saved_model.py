"""Open a saved classifier and read inputs for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchsdm.application.inputs import checked, open_documents, readable
from torchsdm.columns import Columns
from torchsdm.errors import InvalidInputError, ModelFileError, Remedy
from torchsdm.estimators import SDMClassifier, SDMEnsemble, SDMTextClassifier, load_classifier
from torchsdm.hidden_states import default_store
from torchsdm.states import LabelledStates, has_states, join_states, state_blocks
from torchsdm.validation import as_list
from torchsdm.wording import shortened

BLOCK = 1024  #: stored states to decide on at once


@dataclass(frozen=True)
class SavedModel:
    """A saved classifier, with the language model it was fitted on, if any."""

    path: Path
    classifier: SDMClassifier | SDMEnsemble
    text_classifier: SDMTextClassifier | None

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        language_model: str | None = None,
        device: str | None = None,
        batch_tokens: int = 4096,
        verify: bool | None = None,
    ) -> SavedModel:
        """Load a model directory. The language model is loaded when the first text is read."""
        path = Path(path)
        if not path.is_dir():
            raise ModelFileError(f"{path} is not a directory. Give the path that a model was saved to.")
        classifier = load_classifier(path, device=device, verify=verify)
        if classifier.states_origin_ is None:
            if language_model is not None:
                raise InvalidInputError(
                    f"{path} was trained on states only and has no language model.", remedy=Remedy.NO_LANGUAGE_MODEL
                )
            return cls(path, classifier, None)
        text_classifier = SDMTextClassifier.around(
            classifier, model=language_model, device=device, batch_tokens=batch_tokens
        )
        return cls(path, classifier, text_classifier)

    def blocks(
        self, source: str, columns: Columns, *, needs_labels: bool = False, cached: bool = False
    ) -> Iterator[LabelledStates]:
        """The states of an input in blocks, extracted if it contains texts; rows without ids are numbered.

        With ``cached``, the states of texts are kept in the cache, as for training data.
        """
        with readable(source) as path:
            if has_states(path, columns.states):
                blocks = self._stored_blocks(path, columns)
            else:
                blocks = self._text_blocks(path, columns, needs_labels, cached)
            n_rows = 0
            for block in blocks:
                block = checked(block, path, columns, needs_labels=needs_labels)
                ids = list(range(n_rows, n_rows + len(block))) if block.ids is None else block.ids
                n_rows += len(block)
                yield replace(block, ids=ids)
            if not n_rows:
                raise InvalidInputError(f"{path} is empty.")

    def labelled(self, source: str, columns: Columns, check: Callable[[list[Any], list[Any]], None]) -> LabelledStates:
        """All of a labelled input; ``check`` sees labels, and of texts the ids, before a language model reads them."""
        with readable(source) as path:
            if self.text_classifier is not None and not has_states(path, columns.states):
                documents = open_documents(path, columns, with_labels=True)
                if not documents.has_labels:
                    raise InvalidInputError(f"{path} has no labels.", remedy=Remedy.NAME_LABELS)
                rows = [(document.id, document.label) for document in documents]
                check([label for _, label in rows], [name for name, _ in rows])
            data = join_states(list(self.blocks(str(path), columns, needs_labels=True)))
            check(as_list(data.labels, "labels", str(path)), [])
            return data

    def _stored_blocks(self, path: Path, columns: Columns) -> Iterator[LabelledStates]:
        names = {"labels": columns.label, "ids": columns.id}
        given = {name: column for name, column in names.items() if column is not None}
        for block in state_blocks(path, BLOCK, states=columns.states, **given):
            origin = self.classifier.states_origin_
            difference = None if origin is None or block.origin is None else origin.difference(block.origin)
            if difference is not None:
                raise InvalidInputError(
                    f"{path} contains states of a different {difference.what} than {self.path} was trained on: "
                    f"{shortened(repr(difference.theirs))}, not {shortened(repr(difference.ours))}."
                )
            yield block

    def _text_blocks(self, path: Path, columns: Columns, needs_labels: bool, cached: bool) -> Iterator[LabelledStates]:
        if self.text_classifier is None:
            raise InvalidInputError(
                f"{path} contains texts, but {self.path} was trained on states only.", remedy=Remedy.EXTRACT_STATES
            )
        documents = open_documents(path, columns, with_labels=needs_labels)
        yield from self.text_classifier.checked_extractor().labelled_blocks(
            documents, store=default_store() if cached else None
        )
