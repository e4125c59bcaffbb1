"""What verbs read: a saved model, and texts or states in blocks, from files or standard input."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.data import LabelledStates
from torchsdm.documents import Document, Documents
from torchsdm.ensemble import SDMEnsemble
from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.estimator import SDMClassifier
from torchsdm.hidden_states.extractor import HiddenStateExtractor
from torchsdm.persistence import stored_kind
from torchsdm.shards import differences, shortened
from torchsdm.state_files import has_states, state_blocks
from torchsdm.text_classifier import SDMTextClassifier
from torchsdm.validation import is_storable_id

BLOCK = 1024  #: inputs that are decided on at once
STANDARD_INPUT = "-"

_KINDS: dict[str, type[SDMClassifier | SDMEnsemble]] = {"SDMClassifier": SDMClassifier, "SDMEnsemble": SDMEnsemble}


@dataclass(frozen=True)
class Columns:
    """Where things stand in a file."""

    text: str = "text"
    label: str | None = None
    id: str | None = None
    answer: str | None = None
    states: str = "hidden_states"


@dataclass(frozen=True)
class SavedModel:
    """A saved classifier; with the language model it was fitted on, where it knows one."""

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
        """Load a model directory. The language model is loaded when a text has to be read."""
        path = Path(path)
        if not path.is_dir():
            raise ModelFileError(f"{path} is not a directory. Give the path that a model was saved to.")
        kind = _KINDS.get(stored_kind(path))
        if kind is None:
            raise ModelFileError(f"{path} holds no classifier, but a {stored_kind(path)!r}.")
        classifier = kind.load(path, device=device, verify=verify)
        if classifier.states_origin_ is None:
            if language_model is not None:
                raise InvalidInputError(
                    f"{path} was trained on states alone and knows no language model: leave --model out."
                )
            return cls(path, classifier, None)
        text_classifier = SDMTextClassifier.around(
            classifier, model=language_model, device=device, batch_tokens=batch_tokens
        )
        return cls(path, classifier, text_classifier)

    def blocks(self, source: str, columns: Columns, *, needs_labels: bool = False) -> Iterator[LabelledStates]:
        """The states of an input in blocks, extracted where it holds texts; rows without ids are numbered."""
        with readable(source) as path:
            if has_states(path, columns.states):
                blocks = self._stored_blocks(path, columns)
            else:
                blocks = self._text_blocks(path, columns, needs_labels)
            n_rows = 0
            for block in blocks:
                block = checked(block, path, columns, n_rows, needs_labels=needs_labels)
                ids = list(range(n_rows, n_rows + len(block))) if block.ids is None else block.ids
                n_rows += len(block)
                yield replace(block, ids=ids)
            if not n_rows:
                raise InvalidInputError(f"{path} is empty.")

    def _stored_blocks(self, path: Path, columns: Columns) -> Iterator[LabelledStates]:
        names = {"labels": columns.label, "ids": columns.id}
        given = {name: column for name, column in names.items() if column is not None}
        for block in state_blocks(path, BLOCK, states=columns.states, **given):
            if block.states_origin is not None and self.classifier.states_origin_ is not None:
                for what, fitted, now in differences(self.classifier.states_origin_, block.states_origin):
                    raise InvalidInputError(
                        f"{path} holds states of another {what} than {self.path} was trained on: {shortened(now)}, not "
                        f"{shortened(fitted)}."
                    )
            yield block

    def _text_blocks(self, path: Path, columns: Columns, needs_labels: bool) -> Iterator[LabelledStates]:
        if self.text_classifier is None:
            raise InvalidInputError(
                f"{path} holds texts, and {self.path} was trained on states alone. Give it states of the same language "
                "model: sdm embed."
            )
        documents = open_documents(path, columns, with_labels=needs_labels)
        extractor = self.text_classifier.checked_extractor()
        for block in documents.blocks(BLOCK):
            yield labelled(extractor, block)


def checked(
    block: LabelledStates, path: Path, columns: Columns, first: int = 0, *, needs_labels: bool
) -> LabelledStates:
    """A block whose states are finite numbers and whose labels and ids are plain, one for each row; else a sentence."""
    for what, column, values in (("labels", columns.label, block.labels), ("ids", columns.id, block.ids)):
        if values is None and column is not None:
            raise InvalidInputError(f"{path} has no {column!r} for the {what}.")
        if getattr(values, "ndim", 1) != 1:
            raise InvalidInputError(f"{path}: {what} must be one for each row. Got more.")
    if needs_labels and block.labels is None:
        raise InvalidInputError(f"{path} has no labels. Name their column: --label NAME.")
    states = block.hidden_states if isinstance(block.hidden_states, Tensor) else np.asarray(block.hidden_states)
    is_real = not states.is_complex() if isinstance(states, Tensor) else states.dtype.kind in "fiub"
    if not is_real or states.ndim not in (2, 3):
        raise InvalidInputError(
            f"{path}: states must be rows of numbers. Got {states.dtype} of shape {tuple(states.shape)}."
        )
    finite = torch.isfinite(states).numpy() if isinstance(states, Tensor) else np.isfinite(states)
    ids = block.ids.tolist() if isinstance(block.ids, (np.ndarray, Tensor)) else block.ids
    labels: Any = block.labels if needs_labels else None
    for number, is_finite in enumerate(map(np.all, finite)):
        place = f"{path}, row {first + number + 1}"
        if not is_finite:
            raise InvalidInputError(f"{place}: the states hold NaN or infinity.")
        if ids is not None and not is_storable_id(ids[number]):
            raise InvalidInputError(f"{place}: an id must be text or an integer. Got {shortened(ids[number])}.")
        if labels is not None and labels[number] is None:
            raise InvalidInputError(f"{place}: no label.")
    return replace(block, ids=ids)


def open_documents(path: Path, columns: Columns, *, with_labels: bool) -> Documents:
    """The texts of a file, all of them checked before the first is used."""
    return Documents(
        path,
        text=columns.text,
        label=columns.label if columns.label is not None or with_labels else False,
        id=columns.id,
        answer=columns.answer,
        repeated="keep",
    )


def labelled(extractor: HiddenStateExtractor, block: list[Document]) -> LabelledStates:
    """The states of a block of documents."""
    has_answers = any(document.answer is not None for document in block)
    answers = [document.answer for document in block] if has_answers else None
    extracted = extractor.extract(Documents([document.text for document in block], answers=answers, repeated="keep"))
    labels = [document.label for document in block]
    return LabelledStates(
        extracted.hidden_states,
        None if all(label is None for label in labels) else np.array(labels),
        [document.id for document in block],
        [document.text for document in block],
        extracted.label_logits,
    )


@contextmanager
def readable(source: str) -> Iterator[Path]:
    """The path of an input; standard input is read to its end into a file first, as lines of JSON."""
    if source != STANDARD_INPUT:
        if not Path(source).exists():
            raise InvalidInputError(f"There is no file {source!r}.")
        yield Path(source)
        return
    with tempfile.TemporaryDirectory(prefix="sdm-") as folder:
        path = Path(folder) / "standard-input.jsonl"
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            yield path
        except InvalidInputError as error:
            error.args = (str(error).replace(str(path), "standard input"),)
            raise
