"""Open a saved classifier with its guard, and read inputs for it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsdm.application.inputs import Reading
from torchsdm.cluster import Backend
from torchsdm.data import BadRows, Columns, Documents, LabelledStates, Source, join_states
from torchsdm.errors import InvalidInputError, ModelFileError, Remedy
from torchsdm.estimators import SDMClassifier, SDMEnsemble, SDMTextClassifier, load_classifier
from torchsdm.trust import DriftGuard
from torchsdm.validation import as_list


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
    ) -> SavedModel:
        """Load a model directory. The language model is loaded when the first text is read.

        With a ``backend``, the support is on a cluster; see ``SDMClassifier.load``.
        """
        path = Path(path)
        if not path.is_dir():
            raise ModelFileError(f"{path} is not a directory. Give the path that a model was saved to.")
        classifier = load_classifier(path, device=device, verify=verify, backend=backend)
        return cls.around(path, classifier, model=model, device=device, batch_tokens=batch_tokens)

    @classmethod
    def around(
        cls,
        path: Path,
        classifier: SDMClassifier | SDMEnsemble,
        *,
        model: str | None = None,
        device: str | None = None,
        batch_tokens: int = 4096,
    ) -> SavedModel:
        """The same for a classifier that is loaded already."""
        if classifier.states_origin_ is None:
            if model is not None:
                raise InvalidInputError(
                    f"{path} was trained on states only and has no language model.", remedy=Remedy.NO_LANGUAGE_MODEL
                )
            return cls(path, classifier, None)
        text_classifier = SDMTextClassifier.around(classifier, model=model, device=device, batch_tokens=batch_tokens)
        return cls(path, classifier, text_classifier)

    def with_classifier(self, classifier: SDMClassifier | SDMEnsemble) -> SavedModel:
        """The same with another version of the classifier; a language model that is loaded stays loaded."""
        if self.text_classifier is None or classifier.states_origin_ != self.classifier.states_origin_:
            return SavedModel.around(self.path, classifier, device=classifier.device)
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
        """Open an input.

        Parameters
        ----------
        source : str
            A path, an address, or - for JSON lines on standard input.
        columns : Columns
        needs_labels : bool
            Whether a row without a label is an error.
        takes_labels : bool
            Whether labels are read if there are any: for every row or for none.
        bad : dict, optional
            Where rows that cannot be decided on are noted, by number, before the block that follows them. By default
            the first is an error. An input without any other row is an error too.
        again : bool
            Whether the input will be read once more.
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
