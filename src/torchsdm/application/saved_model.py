"""Open a saved classifier with its guard, read inputs for it, and decide row by row what can be used of them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from torchsdm.cluster import Backend
from torchsdm.data import (
    BadRow,
    BadRows,
    Columns,
    Document,
    Documents,
    LabelledStates,
    Source,
    StatesStore,
    join_states,
    states_of,
)
from torchsdm.errors import EmptyInputError, InvalidInputError, ModelFileError, Remedy
from torchsdm.estimators import SDMClassifier, SDMEnsemble, SDMTextClassifier, load_classifier
from torchsdm.hidden_states import BlockReader
from torchsdm.trust import DriftGuard
from torchsdm.validation import as_list, is_storable_id
from torchsdm.wording import shortened

BLOCK = 1024  #: stored states to decide on at once

Piece: TypeAlias = "list[Document] | LabelledStates"
"""A block of an input before any language model has read it."""


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
        model: str | None = None,
        device: str | None = None,
        batch_tokens: int = 4096,
        verify: bool | None = None,
        backend: Backend = None,
        classifier: SDMClassifier | SDMEnsemble | None = None,
    ) -> SavedModel:
        """Load a model directory, or only what belongs to its ``classifier``, if that is loaded already.

        The language model is loaded when the first text is read. With a ``backend``, the support is on a cluster; see
        ``SDMClassifier.load``.
        """
        path = Path(path)
        if classifier is None and not path.is_dir():
            raise ModelFileError(f"{path} is not a directory. Give the path that a model was saved to.")
        if classifier is None:
            classifier = load_classifier(path, device=device, verify=verify, backend=backend)
        text_classifier = None
        if classifier.states_origin_ is not None:
            text_classifier = SDMTextClassifier.around(
                classifier, model=model, device=device, batch_tokens=batch_tokens
            )
        elif model is not None:
            raise InvalidInputError(
                f"{path} was trained on states only and has no language model.", remedy=Remedy.NO_LANGUAGE_MODEL
            )
        return cls(path, classifier, text_classifier)

    def with_classifier(self, classifier: SDMClassifier | SDMEnsemble) -> SavedModel:
        """The same with another version of the classifier; a language model that is loaded stays loaded."""
        if self.text_classifier is None or classifier.states_origin_ != self.classifier.states_origin_:
            return SavedModel.load(self.path, classifier=classifier, device=classifier.device)
        text_classifier = copy.copy(self.text_classifier)
        text_classifier.classifier_ = classifier
        return SavedModel(self.path, classifier, text_classifier)

    def reading(
        self,
        source: str,
        columns: Columns,
        *,
        needs_labels: bool = False,
        takes_labels: bool = False,
        bad: BadRows | None = None,
        again: bool = False,
    ) -> Reading:
        """Open an input: a path, an address, or - for JSON lines on standard input.

        With ``needs_labels`` a row without a label is an error; with ``takes_labels`` labels are read if there are any,
        for every row or for none. Rows that cannot be decided on are noted in ``bad``, by number, before the block that
        follows them; by default the first is an error, and an input without any other row always is. With ``again`` the
        input will be read once more.
        """
        rejects, with_labels = bad is not None, needs_labels or takes_labels
        opened = Source.open(source, again=again or with_labels or not rejects)
        documents = None
        if not opened.holds_states(columns.states, text=columns.text if rejects else None):
            if self.text_classifier is None:
                raise InvalidInputError(
                    f"{opened.name} contains texts, but {self.path} was trained on states only.",
                    remedy=Remedy.EXTRACT_STATES,
                )
            needs_answers = rejects and self.text_classifier.extractor_.asks_for_answers
            documents = Documents(
                opened,
                text=columns.text,
                label=columns.label if columns.label is not None or with_labels else False,
                id=columns.id,
                answer="answer" if columns.answer is None and needs_answers else columns.answer,
                problems="reject" if rejects else "raise",
                repeated="keep",
            )
        return Reading(self, opened, columns, documents, needs_labels, takes_labels, bad)

    def blocks(self, source: str, columns: Columns, **settings: Any) -> Iterator[LabelledStates]:
        """The states of an input in blocks, extracted if it contains texts; rows without ids are numbered.

        The settings are those of ``reading``.
        """
        return self.reading(source, columns, **settings).blocks()

    def labelled(self, source: str, columns: Columns, check: Callable[[list[Any], list[Any]], None]) -> LabelledStates:
        """All of a labelled input; ``check`` sees labels, and of texts the ids, before a language model reads them."""
        reading = self.reading(source, columns, needs_labels=True)
        if reading.documents is not None:
            if not reading.documents.has_labels:
                raise InvalidInputError(f"{reading.source.name} has no labels.", remedy=Remedy.NAME_LABELS)
            with reading.source.errors():
                rows = [(document.id, document.label) for document in reading.documents]
            check([label for _, label in rows], [name for name, _ in rows])
        data = join_states(list(reading.blocks()))
        check(as_list(data.labels, "labels", reading.source.name), [])
        return data


@dataclass(frozen=True)
class Reading:
    """An input, of which it is known whether it contains texts or states."""

    saved: SavedModel
    """The model that it is read for: states must be of its width, and made as it was trained."""
    source: Source
    columns: Columns
    documents: Documents | None
    """Its texts; None if it contains states."""
    needs_labels: bool = False
    takes_labels: bool = False
    bad: BadRows | None = None
    """Where rows that cannot be used are noted, before the block that follows them; None: they are errors."""

    def pieces(self, store: StatesStore | None = None) -> tuple[PieceReader, Iterator[Piece]]:
        """The blocks, of texts before any is read unless there is a store, and what makes states of each."""
        texts: BlockReader | None = None
        pieces: Iterator[Piece]
        if self.documents is None or self.saved.text_classifier is None:
            pieces = self._stored()
        elif store is None:
            extractor = self.saved.text_classifier.checked_extractor()
            texts, pieces = extractor.unread_blocks(self.documents, self.bad)
        else:
            pieces = self.saved.text_classifier.checked_extractor().labelled_blocks(self.documents, store=store)
        return PieceReader(self.source.name, self.columns, self.needs_labels, self.takes_labels, texts), pieces

    def blocks(self, store: StatesStore | None = None) -> Iterator[LabelledStates]:
        """The states of all rows that can be used, in blocks; an input without any is an error.

        With a store, the states of texts are kept there.
        """
        with self.source.errors():
            is_empty = True
            reader, pieces = self.pieces(store)
            for piece in pieces:
                block = reader.read(piece, self.bad)
                if len(block):
                    is_empty = False
                    yield block
            if is_empty:
                raise self.nothing()

    def nothing(self) -> InvalidInputError:
        """The error for an input without any row that can be decided on."""
        if not self.bad:
            return EmptyInputError(f"{self.source.name} is empty.")
        return InvalidInputError(f"{self.source.name} has no row that can be decided on. {self.bad[min(self.bad)]}.")

    def _stored(self) -> Iterator[LabelledStates]:
        columns, classifier = self.columns, self.saved.classifier
        names = (columns.states, columns.label or "labels", columns.id or "ids", "texts")
        ours = classifier.states_origin_
        for block in states_of(self.source, BLOCK, names=names, bad=self.bad, width=classifier.n_features_in_):
            difference = None if ours is None or block.origin is None else ours.difference(block.origin)
            if difference is not None:
                raise InvalidInputError(
                    f"{self.source.name} contains states of a different {difference.what} than {self.saved.path} was "
                    f"trained on: {shortened(repr(difference.theirs))}, not {shortened(repr(difference.ours))}."
                )
            yield block


@dataclass(frozen=True)
class PieceReader:
    """Makes checked states of the blocks of an input, in this process or, sent there, in another one."""

    name: str
    """The input, for messages."""
    columns: Columns
    needs_labels: bool
    takes_labels: bool
    texts: BlockReader | None
    """Reads texts, with a language model."""

    def read(self, piece: Piece, bad: BadRows | None) -> LabelledStates:
        """The states of a block; rows that cannot be used are errors, or are noted in ``bad`` and left out."""
        block: LabelledStates | None = None
        if isinstance(piece, LabelledStates):
            block = piece
        elif self.texts is not None:
            block = self.texts.read(piece, bad)
        if block is None:
            return LabelledStates(np.empty((0, 1)), None)
        if block.ids is None and self.columns.id is None:
            block = replace(block, ids=list(block.numbers or ()))
        needs_labels = self.needs_labels or (self.takes_labels and block.labels is not None)
        return checked(block, self.name, self.columns, needs_labels=needs_labels, bad=bad)


def checked(
    block: LabelledStates, name: str, columns: Columns, *, needs_labels: bool, bad: BadRows | None = None
) -> LabelledStates:
    """Check a block: its states must be finite, with one plain label and one plain id per row.

    A row with other states or another id is an error; if ``bad`` is given, it is left out and noted there instead.
    """
    for what, column, values in (("labels", columns.label, block.labels), ("ids", columns.id, block.ids)):
        if values is None and column is not None:
            raise InvalidInputError(f"{name} has no {column!r} for the {what}.")
        if getattr(values, "ndim", 1) != 1:
            raise InvalidInputError(f"{name}: {what} must have one value per row. Got more.")
    if needs_labels and block.labels is None:
        raise InvalidInputError(f"{name} has no labels.", remedy=Remedy.NAME_LABELS)
    states = block.hidden_states if isinstance(block.hidden_states, Tensor) else np.asarray(block.hidden_states)
    is_real = not states.is_complex() if isinstance(states, Tensor) else states.dtype.kind in "fiub"
    if not is_real or states.ndim not in (2, 3):
        raise InvalidInputError(
            f"{name}: states must be rows of numbers. Got {states.dtype} of shape {tuple(states.shape)}."
        )
    with np.errstate(over="ignore"):  # values beyond float32 count as infinite
        finite = np.isfinite(
            states.float().numpy() if isinstance(states, Tensor) else states.astype(np.float32, copy=False)
        )
    ids = block.ids.tolist() if isinstance(block.ids, (np.ndarray, Tensor)) else block.ids
    labels: Any = block.labels if needs_labels else None
    block, kept = replace(block, ids=ids), []
    for row, is_finite in enumerate(map(np.all, finite)):
        problem = None if is_finite else "the states contain NaN or infinity"
        has_id = ids is None or is_storable_id(ids[row])
        if problem is None and ids is not None and not has_id:
            problem = f"an id must be text or an integer. Got {shortened(repr(ids[row]))}"
        if problem is not None and bad is not None:
            number = block.number(row)
            called = ids[row] if ids is not None and has_id else number
            bad[number] = BadRow(number, block.place(row), problem, called)
            continue
        if problem is None and labels is not None and labels[row] is None:
            problem = "no label"
        if problem is not None:
            raise InvalidInputError(f"{name}, {block.place(row)}: {problem}.")
        kept.append(row)
    return block if len(kept) == len(block) else block.take(kept)


_LOGGER = logging.getLogger(__name__)


def open_guard(classifier: SDMClassifier | SDMEnsemble, path: Path | None = None) -> DriftGuard | None:
    """The guard of a model, continued from a file if that exists; None for an ensemble, which has none.

    A guard of another model, or of this one before an update, is refused.
    """
    if isinstance(classifier, SDMEnsemble):
        if path is not None:
            raise InvalidInputError("An ensemble has no drift guard: its numbers come from different rounds.")
        return None
    if path is not None and not path.parent.is_dir():
        raise InvalidInputError(f"{path} cannot hold a drift guard: there is no directory {path.parent}.")
    fresh = DriftGuard.from_classifier(classifier)
    return fresh if path is None or not path.exists() else DriftGuard.load(path, fresh.fingerprint)


def guard_state(guard: DriftGuard) -> dict[str, Any]:
    """The status of a guard, as plain values."""
    names = ("raised", "raised_at", "raised_by", "n_seen", "log_martingale", "log_threshold", "false_alarm")
    return {**{name: getattr(guard, name) for name in names}, "resets": [vars(reset) for reset in guard.resets]}


def continued_guard(classifier: SDMClassifier | SDMEnsemble, path: Path | None = None) -> DriftGuard | None:
    """As ``open_guard``, but the guard of an earlier version of the model is succeeded by one of this version."""
    fresh = open_guard(classifier)
    if path is None or fresh is None or not path.exists():
        return open_guard(classifier, path)
    old = DriftGuard.load(path)
    if old.fingerprint != fresh.fingerprint:
        _LOGGER.warning("%s belongs to another version of the model: its stream ends; an alarm stays", path)
    return successor(old, fresh, "the model was changed while nobody watched")


def successor(old: DriftGuard | None, fresh: DriftGuard | None, reason: str) -> DriftGuard | None:
    """The guard that goes on after a change of the model: the old one, if the change does not concern it.

    Otherwise the stream ends, for the reason given, and the fresh guard begins another; an alarm stays.
    """
    if old is None or fresh is None or old.fingerprint == fresh.fingerprint:
        return fresh if old is None or fresh is None else old
    return fresh.succeed(old, reason)
