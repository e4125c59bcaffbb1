"""Open a saved classifier and read inputs for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torchsdm.application.inputs import checked, open_documents, readable
from torchsdm.columns import Columns
from torchsdm.documents import Documents
from torchsdm.errors import InvalidInputError, ModelFileError, Remedy
from torchsdm.estimators import SDMClassifier, SDMEnsemble, SDMTextClassifier, load_classifier
from torchsdm.hidden_states import default_store
from torchsdm.states import LabelledStates, has_states, state_blocks
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
        self,
        source: str,
        columns: Columns,
        *,
        needs_labels: bool = False,
        takes_labels: bool = False,
        cached: bool = False,
    ) -> Iterator[LabelledStates]:
        """The states of an input in blocks, extracted if it contains texts; rows without ids are numbered.

        With ``needs_labels`` every row must have a label; with ``takes_labels``, every row or none. With ``cached``,
        the states of texts are kept in the cache, as for training data.
        """
        with readable(source) as path:
            documents = self.documents(path, columns, with_labels=needs_labels or takes_labels)
            if documents is None:
                blocks = self._stored_blocks(path, columns)
            else:
                store = default_store() if cached else None
                blocks = self._reader_of(path).checked_extractor().labelled_blocks(documents, store=store)
            n_rows = 0
            for block in blocks:
                needed = needs_labels or (takes_labels and block.labels is not None)
                block = checked(block, path, columns, needs_labels=needed)
                ids = list(range(n_rows, n_rows + len(block))) if block.ids is None else block.ids
                n_rows += len(block)
                yield replace(block, ids=ids)
            if not n_rows:
                raise InvalidInputError(f"{path} is empty.")

    def documents(self, path: Path, columns: Columns, *, with_labels: bool) -> Documents | None:
        """The texts of an input, which the model must be able to read; None if it contains states."""
        if has_states(path, columns.states):
            return None
        self._reader_of(path)
        return open_documents(path, columns, with_labels=with_labels)

    def _reader_of(self, path: Path) -> SDMTextClassifier:
        if self.text_classifier is None:
            raise InvalidInputError(
                f"{path} contains texts, but {self.path} was trained on states only.", remedy=Remedy.EXTRACT_STATES
            )
        return self.text_classifier

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
