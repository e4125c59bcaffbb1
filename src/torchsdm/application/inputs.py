"""Read an input, and decide row by row what can be used of it; write the hidden states of texts to a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor

from torchsdm.cluster import Backend, extract_on
from torchsdm.data import (
    BadRow,
    BadRows,
    Columns,
    Document,
    Documents,
    LabelledStates,
    Source,
    StatesStore,
    states_of,
)
from torchsdm.errors import EmptyInputError, InvalidInputError, Remedy
from torchsdm.hidden_states import BlockReader, HiddenStateExtractor
from torchsdm.validation import is_storable_id
from torchsdm.wording import shortened

if TYPE_CHECKING:
    from torchsdm.application.saved_model import SavedModel

BLOCK = 1024  #: stored states to decide on at once

Piece: TypeAlias = "list[Document] | LabelledStates"
"""A block of an input before any language model has read it."""


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
        reader: BlockReader | None = None
        pieces: Iterator[Piece] = self._stored()
        if self.documents is not None and self.saved.text_classifier is not None:
            extractor = self.saved.text_classifier.checked_extractor()
            if store is None:
                reader, pieces = extractor.unread_blocks(self.documents, self.bad)
            else:
                pieces = extractor.labelled_blocks(self.documents, store=store)
        return PieceReader(self.source.name, self.columns, self.needs_labels, self.takes_labels, reader), pieces

    def blocks(self, store: StatesStore | None = None) -> Iterator[LabelledStates]:
        """The states of all rows that can be used, in blocks; an input without any is an error.

        With a store, the states of texts are kept there.
        """
        with self.source.errors():
            n_rows = 0
            reader, pieces = self.pieces(store)
            for block in map(reader.load(), pieces, repeat(self.bad)):
                n_rows += len(block)
                if len(block):
                    yield block
            if not n_rows:
                raise self.nothing()

    def nothing(self) -> InvalidInputError:
        """The error for an input without any row that can be decided on."""
        if not self.bad:
            return EmptyInputError(f"{self.source.name} is empty.")
        return InvalidInputError(f"{self.source.name} has no row that can be decided on. {self.bad[min(self.bad)]}.")

    def _stored(self) -> Iterator[LabelledStates]:
        columns, classifier = self.columns, self.saved.classifier
        names, ours = (
            (columns.states, columns.label or "labels", columns.id or "ids", "texts"),
            classifier.states_origin_,
        )
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
    """Makes checked states of the blocks of an input, in this process or in another one."""

    name: str
    """The input, for messages."""
    columns: Columns
    needs_labels: bool = False
    takes_labels: bool = False
    reader: BlockReader | None = None
    """Reads texts."""

    def load(self) -> Read:
        """The function that does; texts need a language model, which is loaded now."""
        extraction = None if self.reader is None else self.reader.load()

        def read(piece: Piece, bad: BadRows | None) -> LabelledStates:
            block: LabelledStates | None
            if isinstance(piece, LabelledStates):
                block = piece
            elif self.reader is None or extraction is None:
                raise InvalidInputError(f"{self.name} contains texts, and there is no language model to read them.")
            else:
                block = self.reader.read(extraction, piece, bad)
            if block is None:
                return LabelledStates(np.empty((0, 1)), None)
            if block.ids is None and self.columns.id is None:
                block = replace(block, ids=list(block.numbers or ()))
            needs_labels = self.needs_labels or (self.takes_labels and block.labels is not None)
            return checked(block, self.name, self.columns, needs_labels=needs_labels, bad=bad)

        return read


Read: TypeAlias = "Callable[[Piece, BadRows | None], LabelledStates]"


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


def embed_documents(
    extractor: HiddenStateExtractor,
    source: str,
    columns: Columns,
    output: Path,
    *,
    skip_problems: bool = False,
    drop_repeated: bool = False,
    shard_size: int = 1024,
    backend: Backend = None,
) -> dict[str, Any]:
    """Extract the hidden states of an input of texts to a folder, or what is left of them to do.

    Documents that cannot be used are an error, or left out if ``skip_problems``. A ``backend`` is a cluster to extract
    on. Returns what ``extract_to`` does, with the number of documents ``skipped`` and their ``problems`` in words.
    """
    opened = Source.open(source, again=True)
    with opened.errors():
        documents = Documents(
            opened,
            text=columns.text,
            label=columns.label,
            id=columns.id,
            answer=columns.answer,
            problems="skip" if skip_problems else "raise",
            repeated="drop" if drop_repeated else "keep",
        )
        elsewhere = extract_on(backend, "embed_documents")
        counts = extractor.extract_to(output, documents, shard_size=shard_size, elsewhere=elsewhere)
    report = documents.report
    return {**counts, "skipped": report.n_problems, "problems": report.explain()}
