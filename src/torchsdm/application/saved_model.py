"""Open a saved classifier with its guard, read inputs for it, and decide row by row what can be used of them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
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
    states_of,
)
from torchsdm.errors import EmptyInputError, InvalidInputError, Remedy
from torchsdm.estimators import SDMClassifier, SDMEnsemble, SDMTextClassifier, load_classifier
from torchsdm.hidden_states import BlockReader
from torchsdm.trust import DriftGuard, GuardReset, SourceGuards, load_guard
from torchsdm.validation import is_storable_id
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


class Reading:
    """An input that is read for a model: states must be of its width, and made as it was trained.

    ``source`` is a path, an address, or - for JSON lines on standard input. With ``needs_labels`` a row without a label
    is an error; with ``takes_labels`` labels are read if there are any, for every row or for none. Rows that cannot be
    decided on are noted in ``bad``, by number, before the block that follows them; by default the first is an error,
    and an input without any other row always is. With ``again`` the input will be read once more.
    """

    def __init__(
        self,
        saved: SavedModel,
        source: str,
        columns: Columns,
        *,
        needs_labels: bool = False,
        takes_labels: bool = False,
        bad: BadRows | None = None,
        again: bool = False,
    ) -> None:
        rejects, with_labels = bad is not None, needs_labels or takes_labels
        self.source = Source.open(source, again=again or with_labels or not rejects)
        self.columns, self.bad = columns, bad
        self.documents: Documents | None = None
        """Its texts; None if it contains states."""
        self._saved, self._needs_labels, self._takes_labels = saved, needs_labels, takes_labels
        if self.source.holds_states(columns.states, text=columns.text if rejects else None):
            return
        if saved.text_classifier is None:
            raise InvalidInputError(
                f"{self.source.name} contains texts, but {saved.path} was trained on states only.",
                remedy=Remedy.EXTRACT_STATES,
            )
        needs_answers = rejects and saved.text_classifier.extractor_.asks_for_answers
        self.documents = Documents(
            self.source,
            text=columns.text,
            label=columns.label if columns.label is not None or with_labels else False,
            id=columns.id,
            answer="answer" if columns.answer is None and needs_answers else columns.answer,
            problems="reject" if rejects else "raise",
            repeated="keep",
        )
        if needs_labels and not self.documents.has_labels:
            raise InvalidInputError(f"{self.source.name} has no labels.", remedy=Remedy.NAME_LABELS)

    def pieces(self, store: StatesStore | None = None) -> tuple[PieceReader, Iterator[Piece]]:
        """The blocks, of texts before any is read unless there is a store, and what makes states of each."""
        texts: BlockReader | None = None
        pieces: Iterator[Piece]
        if self.documents is None or self._saved.text_classifier is None:
            pieces = self._stored()
        else:
            extractor = self._saved.text_classifier.checked_extractor()
            if store is None:
                texts, pieces = extractor.unread_blocks(self.documents, self.bad)
            else:
                pieces = extractor.labelled_blocks(self.documents, store=store)
        return PieceReader(self.source.name, self.columns, self._needs_labels, self._takes_labels, texts), pieces

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
        columns, classifier = self.columns, self._saved.classifier
        names = (columns.states, columns.label or "labels", columns.id or "ids", "texts")
        ours = classifier.states_origin_
        for block in states_of(self.source, BLOCK, names=names, bad=self.bad, width=classifier.n_features_in_):
            difference = None if ours is None or block.origin is None else ours.difference(block.origin)
            if difference is not None:
                raise InvalidInputError(
                    f"{self.source.name} contains states of a different {difference.what} than {self._saved.path} was "
                    f"trained on: {shortened(repr(difference.theirs))}, not {shortened(repr(difference.ours))}."
                )
            yield block


@dataclass(frozen=True)
class PieceReader:
    """Makes checked states of the blocks of an input, in this process or, sent there, in another one."""

    name: str
    """The input, for messages."""
    columns: Columns
    needs_labels: bool = False
    takes_labels: bool = False
    texts: BlockReader | None = None
    """Reads texts, with a language model."""

    def read(self, piece: Piece, bad: BadRows | None = None) -> LabelledStates:
        """The states of a block, finite, with one plain label and one plain id per row; rows without ids are numbered.

        Rows that cannot be used are errors; if ``bad`` is given, they are left out and noted there instead.
        """
        block: LabelledStates | None = None
        if isinstance(piece, LabelledStates):
            block = piece
        elif self.texts is not None:
            block = self.texts.read(piece, bad)
        if block is None:
            return LabelledStates(np.empty((0, 1)), None)
        for what, column, values in (("labels", self.columns.label, block.labels), ("ids", self.columns.id, block.ids)):
            if values is None and column is not None:
                raise InvalidInputError(f"{self.name} has no {column!r} for the {what}.")
            if getattr(values, "ndim", 1) != 1:
                raise InvalidInputError(f"{self.name}: {what} must have one value per row. Got more.")
        if self.needs_labels and block.labels is None:
            raise InvalidInputError(f"{self.name} has no labels.", remedy=Remedy.NAME_LABELS)
        states = block.hidden_states if isinstance(block.hidden_states, Tensor) else np.asarray(block.hidden_states)
        is_real = not states.is_complex() if isinstance(states, Tensor) else states.dtype.kind in "fiub"
        if not is_real or states.ndim not in (2, 3):
            raise InvalidInputError(
                f"{self.name}: states must be rows of numbers. Got {states.dtype} of shape {tuple(states.shape)}."
            )
        with np.errstate(over="ignore"):  # values beyond float32 count as infinite
            finite = np.isfinite(
                states.float().numpy() if isinstance(states, Tensor) else states.astype(np.float32, copy=False)
            )
        ids = block.ids.tolist() if isinstance(block.ids, (np.ndarray, Tensor)) else block.ids
        ids = [block.number(row) for row in range(len(block))] if ids is None else ids
        labels: Any = block.labels if self.needs_labels or self.takes_labels else None
        block, kept = replace(block, ids=ids), []
        for row, is_finite in enumerate(map(np.all, finite)):
            has_id, problem = is_storable_id(ids[row]), None
            if not is_finite:
                problem = "the states contain NaN or infinity"
            elif not has_id:
                problem = f"an id must be text or an integer. Got {shortened(repr(ids[row]))}"
            if problem is not None and bad is not None:
                number = block.number(row)
                bad[number] = BadRow(number, block.place(row), problem, ids[row] if has_id else number)
                continue
            if problem is None and labels is not None and labels[row] is None:
                problem = "no label"
            if problem is not None:
                raise InvalidInputError(f"{self.name}, {block.place(row)}: {problem}.")
            kept.append(row)
        return block if len(kept) == len(block) else block.take(kept)


_LOGGER = logging.getLogger(__name__)


def open_guard(
    classifier: SDMClassifier | SDMEnsemble,
    path: Path | None = None,
    *,
    by_source: bool = False,
    continued: bool = False,
) -> DriftGuard | SourceGuards | None:
    """The guard of a model, continued from a file if that exists; None for an ensemble, which has none.

    With ``by_source`` there is one for each source of inputs. A guard of another model, or of this one before an
    update, is refused; if ``continued``, it is succeeded.
    """
    if isinstance(classifier, SDMEnsemble):
        if path is not None:
            raise InvalidInputError("An ensemble has no drift guard: its numbers come from different rounds.")
        return None
    if path is not None and not path.parent.is_dir():
        raise InvalidInputError(f"{path} cannot hold a drift guard: there is no directory {path.parent}.")
    one = DriftGuard.from_classifier(classifier)
    fresh: DriftGuard | SourceGuards = SourceGuards(one) if by_source else one
    if path is None or not path.exists():
        return fresh
    old = load_guard(path, None if continued else fresh.fingerprint)
    if isinstance(old, SourceGuards) is not by_source:
        kept, wanted = ("one stream for all inputs", "one for each source")[:: 1 if by_source else -1]
        raise InvalidInputError(f"{path} keeps {kept}, and {wanted} is asked for. Keep that in another file.")
    reason = "the model was changed while nobody watched"
    if old.fingerprint != fresh.fingerprint:
        _LOGGER.warning("%s belongs to another version of the model: its stream ends; an alarm stays", path)
    elif old.n_known != fresh.n_known:  # kept by a version that compared with calibration points
        reason = "it compared with calibration points, which look better than new inputs"
    return successor(old, fresh, reason)


_STREAM = ("raised", "raised_at", "raised_by", "n_seen", "log_martingale", "log_threshold", "false_alarm")


def guard_state(guard: DriftGuard | SourceGuards) -> dict[str, Any]:
    """The status of a guard, as plain values.

    With guards by source, that of the stream nearest to its alarm, raised ones first; ``n_seen`` and ``false_alarm``
    are of all together, and ``sources`` has the streams one by one.
    """
    resets = {"resets": [vars(reset) for reset in guard.resets]}
    if isinstance(guard, DriftGuard):
        return {**_stream_state(guard), "n_known": guard.n_known, "n_raised": int(guard.raised), **resets}
    sources = [{"source": name, **_stream_state(stream)} for name, stream in guard.streams.items()]
    nearest = max(
        sources or [{"source": None, **_stream_state(guard.empty)}],
        key=lambda one: (one["raised"], one["log_martingale"] - one["log_threshold"]),
    )
    together = {"n_seen": guard.n_seen, "n_known": guard.n_known, "false_alarm": guard.false_alarm}
    n_raised = sum(one["raised"] for one in sources)
    return {**nearest, **together, "n_raised": n_raised, **resets, "sources": sources}


def reset_guard(guard: DriftGuard | SourceGuards, reason: str, source: Any = None) -> GuardReset:
    """Restart the stream of a guard, or that of one source; returns what is remembered."""
    if source is None:
        return guard.reset(reason)
    if isinstance(guard, DriftGuard):
        raise InvalidInputError("The drift guard keeps one stream for all inputs, so no source has one to restart.")
    return guard.reset(reason, source)


def _stream_state(guard: DriftGuard) -> dict[str, Any]:
    return {name: getattr(guard, name) for name in _STREAM}


def successor(
    old: DriftGuard | SourceGuards | None, fresh: DriftGuard | SourceGuards | None, reason: str
) -> DriftGuard | SourceGuards | None:
    """The guard that goes on after a change of the model: the old one, if the change does not concern it.

    Otherwise the stream ends, for the reason given, and the fresh guard begins another; an alarm stays.
    """
    if old is None or fresh is None:
        return fresh
    is_same = (old.fingerprint, old.n_known) == (fresh.fingerprint, fresh.n_known)
    earlier: Any = old  # of the kind of the fresh one
    return old if is_same else fresh.succeed(earlier, reason)
