"""Open a saved classifier and read inputs for it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from torchsdm.application.inputs import named_and_checked, nothing_to_decide_on, open_documents, readable
from torchsdm.cluster import Backend
from torchsdm.columns import Columns
from torchsdm.data import BadRows, Document, Documents, LabelledStates, has_states, join_states, state_blocks
from torchsdm.errors import InvalidInputError, ModelFileError, Remedy
from torchsdm.estimators import SDMClassifier, SDMEnsemble, SDMTextClassifier, load_classifier
from torchsdm.hidden_states import BlockReader, default_store
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
        backend: Backend = None,
    ) -> SavedModel:
        """Load a model directory. The language model is loaded when the first text is read.

        With a ``backend``, the support is on a cluster; see ``SDMClassifier.load``.
        """
        path = Path(path)
        if not path.is_dir():
            raise ModelFileError(f"{path} is not a directory. Give the path that a model was saved to.")
        classifier = load_classifier(path, device=device, verify=verify, backend=backend)
        return cls.around(path, classifier, language_model=language_model, device=device, batch_tokens=batch_tokens)

    @classmethod
    def around(
        cls,
        path: Path,
        classifier: SDMClassifier | SDMEnsemble,
        *,
        language_model: str | None = None,
        device: str | None = None,
        batch_tokens: int = 4096,
    ) -> SavedModel:
        """The same for a classifier that is loaded already."""
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

    def with_classifier(self, classifier: SDMClassifier | SDMEnsemble) -> SavedModel:
        """The same with another version of the classifier; a language model that is loaded stays loaded."""
        if self.text_classifier is None or classifier.states_origin_ != self.classifier.states_origin_:
            return SavedModel.around(self.path, classifier, device=classifier.device)
        text_classifier = copy.copy(self.text_classifier)
        text_classifier.classifier_ = classifier
        return SavedModel(self.path, classifier, text_classifier)

    def blocks(
        self,
        source: str,
        columns: Columns,
        *,
        needs_labels: bool = False,
        takes_labels: bool = False,
        cached: bool = False,
        bad: BadRows | None = None,
    ) -> Iterator[LabelledStates]:
        """The states of an input in blocks, extracted if it contains texts; rows without ids are numbered.

        Parameters
        ----------
        source : str
            A path, or - for standard input.
        columns : Columns
        needs_labels : bool
            Whether a row without a label is an error.
        takes_labels : bool
            Whether labels are read if there are any: for every row or for none.
        cached : bool
            Whether the states of texts are kept in the cache, as for training data.
        bad : dict, optional
            Where rows that cannot be decided on are noted, by number, before the block that follows them. By default
            the first is an error. An input without any other row is an error too.
        """
        with readable(source) as path:
            documents = self.documents(path, columns, with_labels=needs_labels or takes_labels, rejects=bad is not None)
            if documents is None:
                blocks = self._stored_blocks(path, columns, bad)
            else:
                store = default_store() if cached else None
                blocks = self._reader_of(path).checked_extractor().labelled_blocks(documents, store=store, bad=bad)
            free, n_rows = (number for number in count() if bad is None or number not in bad), 0
            for block in blocks:
                numbers = list(islice(free, len(block)))
                needed = needs_labels or (takes_labels and block.labels is not None)
                good = named_and_checked(block, path, columns, needs_labels=needed, numbers=numbers, bad=bad)
                n_rows += len(good)
                if len(good):
                    yield good
            if not n_rows:
                raise nothing_to_decide_on(path, bad)

    def unread_blocks(
        self, path: Path, columns: Columns, bad: BadRows | None
    ) -> tuple[BlockReader | None, Iterator[tuple[list[int], LabelledStates | list[Document]]]]:
        """The blocks of ``blocks`` before texts are extracted: who extracts them, and each with its rows' numbers."""
        documents = self.documents(path, columns, with_labels=False, rejects=bad is not None)
        if documents is not None:
            reader, texts = self._reader_of(path).checked_extractor().usable_blocks(documents, bad)
            return reader, (([document.number for document in block], block) for block in texts)
        free = (number for number in count() if bad is None or number not in bad)
        states = self._stored_blocks(path, columns, bad)
        return None, ((list(islice(free, len(block))), block) for block in states)

    def documents(self, path: Path, columns: Columns, *, with_labels: bool, rejects: bool = False) -> Documents | None:
        """The texts of an input, which the model must be able to read; None if it contains states.

        With ``rejects``, a row that cannot be read is noted and passed over; otherwise the first is an error.
        """
        if has_states(path, columns.states, text=columns.text if rejects else None):
            return None
        reader = self._reader_of(path)
        return open_documents(
            path,
            columns,
            with_labels=with_labels,
            problems="reject" if rejects else "raise",
            with_answers=rejects and reader.extractor_.asks_for_answers,
        )

    def _reader_of(self, path: Path) -> SDMTextClassifier:
        if self.text_classifier is None:
            raise InvalidInputError(
                f"{path} contains texts, but {self.path} was trained on states only.", remedy=Remedy.EXTRACT_STATES
            )
        return self.text_classifier

    def labelled(self, source: str, columns: Columns, check: Callable[[list[Any], list[Any]], None]) -> LabelledStates:
        """All of a labelled input; ``check`` sees labels, and of texts the ids, before a language model reads them."""
        with readable(source) as path:
            documents = self.documents(path, columns, with_labels=True)
            if documents is not None:
                if not documents.has_labels:
                    raise InvalidInputError(f"{path} has no labels.", remedy=Remedy.NAME_LABELS)
                rows = [(document.id, document.label) for document in documents]
                check([label for _, label in rows], [name for name, _ in rows])
            data = join_states(list(self.blocks(str(path), columns, needs_labels=True)))
            check(as_list(data.labels, "labels", str(path)), [])
            return data

    def _stored_blocks(self, path: Path, columns: Columns, bad: BadRows | None) -> Iterator[LabelledStates]:
        names = {"labels": columns.label, "ids": columns.id}
        given = {name: column for name, column in names.items() if column is not None}
        width = self.classifier.n_features_in_
        for block in state_blocks(path, BLOCK, states=columns.states, **given, bad=bad, width=width):
            origin = self.classifier.states_origin_
            difference = None if origin is None or block.origin is None else origin.difference(block.origin)
            if difference is not None:
                raise InvalidInputError(
                    f"{path} contains states of a different {difference.what} than {self.path} was trained on: "
                    f"{shortened(repr(difference.theirs))}, not {shortened(repr(difference.ours))}."
                )
            yield block
