"""A saved model that is asked and changed at the same time: every change is in its log before it takes effect."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchsdm.application.describe import standing
from torchsdm.application.saved_model import SavedModel
from torchsdm.cluster import Backend
from torchsdm.data import LabelledStates
from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.estimators import (
    Add,
    Certify,
    Recalibrate,
    Relabel,
    Remove,
    Request,
    ResetGuard,
    SDMClassifier,
    SDMEnsemble,
    load_base,
    replay,
    request_digest,
    write_estimator,
)
from torchsdm.files import login_name
from torchsdm.model import (
    CHANGES,
    UNDO,
    Change,
    Entry,
    LogWriter,
    ReadLog,
    acknowledged_version,
    config_mark,
    read_changes,
    read_config,
)
from torchsdm.trust import GuardReset
from torchsdm.validation import Array, check_positive, is_storable_text

WAIT = 5.0  #: seconds to wait for another writer that holds the lock for one change


@dataclass(frozen=True)
class Snapshot:
    """One version of a model, which stays as it is; who asks it sees no change half way."""

    version: int
    saved: SavedModel


@dataclass
class Draft:
    """Changes that are tried on a copy of the model before they are made."""

    version: int
    """The version that they are tried on."""
    classifier: SDMClassifier | SDMEnsemble
    """The model after them."""
    entries: list[Entry] = field(default_factory=list)
    outcomes: Mapping[str, bytes] = field(default_factory=dict)

    def apply(self, request: Request) -> None:
        """Try one more change."""
        self.entries.append(request.apply(self.classifier))


class LiveModel:
    """A model directory that can be changed while it is in use.

    1. ``open`` loads the model; ``snapshot`` is the version to ask, which never changes.
    2. ``add``, ``remove``, ``relabel``, ``recalibrate``, ``certify`` and ``undo`` write a change to the model's log,
       synced to disk, and only then replace ``snapshot``. A failed call changes nothing.
    3. ``refresh`` reloads what another process wrote.
    4. ``close`` lets others write.

    Every change has who, when and why. With a ``key`` of the client's choice, the same call made again, after a timeout
    say, is no second change: it returns the first one.

    Readers take no lock. There is one writer at a time: with ``exclusive`` from opening to closing, otherwise for the
    time of each change, so that several processes can change the model in turn.
    """

    def __init__(
        self,
        saved: SavedModel,
        base: SDMClassifier | SDMEnsemble,
        log: ReadLog,
        *,
        writer: LogWriter | None,
        mark: tuple[int, ...] | None,
        verify: bool | None,
        exclusive: bool,
    ) -> None:
        self.path, self.snapshot = saved.path, Snapshot(log.version, saved)
        self._base, self._history, self._writer = base, log.history, writer
        self._mark, self._verify, self._is_exclusive = mark, verify, exclusive
        self._one_at_a_time = threading.RLock()

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        model: str | None = None,
        device: str | None = None,
        batch_tokens: int = 4096,
        who: str | None = None,
        writable: bool = True,
        exclusive: bool = True,
        verify: bool | None = None,
        backend: Backend = None,
    ) -> LiveModel:
        """Open a model directory.

        Parameters
        ----------
        path : path
        model, device, batch_tokens
            The language model, as ``SavedModel.load`` takes it.
        who : str, optional
            Who holds the writer's lock, for the message that another writer gets; by default the user's login name.
        writable : bool
            Whether changes can be made; ``ModelInUseError`` if somebody else holds the lock.
        exclusive : bool
            Whether to hold the lock until ``close``.
        verify : bool, optional
            As for ``SDMClassifier.load``.
        backend : str or RayBackend, optional
            As for ``SDMClassifier.load``.
        """
        path = Path(path)
        if not path.is_dir():
            raise ModelFileError(f"{path} is not a directory. Give the path that a model was saved to.")
        writer = LogWriter(path.resolve(), login_name() if who is None else who) if writable else None
        if writer is not None and (exclusive or (path / CHANGES).is_dir()):
            writer.lock(wait=0 if exclusive else WAIT)
            if not exclusive:
                writer.unlock()
        try:
            mark = config_mark(path)
            base, log = load_base(path, device=device, verify=verify, backend=backend)
            classifier = replay(base, log)
            saved = SavedModel.load(path, classifier=classifier, model=model, device=device, batch_tokens=batch_tokens)
        except BaseException:
            if writer is not None:
                writer.close()
            raise
        return cls(saved, base, log, writer=writer, mark=mark, verify=verify, exclusive=exclusive)

    @property
    def is_writable(self) -> bool:
        """Whether changes can be made."""
        return self._writer is not None

    # --- Changes -----------------------------------------------------------------------------------------------------

    def add(
        self,
        data: LabelledStates,
        *,
        to: str = "support",
        who: str,
        why: str,
        key: str | None = None,
        repeated: str = "refuse",
        allow_new_labels: bool = False,
    ) -> Change:
        """Add labelled points to the support or to the calibration set; see ``SDMClassifier.add_exemplars``."""
        return self.make([Add(data, to, repeated, allow_new_labels)], who=who, why=why, key=key)[0]

    def remove(self, ids: Sequence[Any] | Array, *, who: str, why: str, key: str | None = None) -> Change:
        """Remove points by id, from whichever set has them."""
        return self.make([Remove(ids)], who=who, why=why, key=key)[0]

    def relabel(
        self,
        ids: Sequence[Any] | Array,
        labels: Sequence[Any] | Array,
        *,
        who: str,
        why: str,
        key: str | None = None,
        allow_new_labels: bool = False,
    ) -> Change:
        """Relabel points by id, in whichever set has them."""
        return self.make([Relabel(ids, labels, allow_new_labels)], who=who, why=why, key=key)[0]

    def recalibrate(
        self,
        alpha: float | Sequence[float] | Mapping[Any, float] | None = None,
        min_class_count: int | None = None,
        *,
        policy: str | None = None,
        who: str,
        why: str,
        key: str | None = None,
    ) -> Change:
        """Recompute the region, for another alpha or after changes; ``policy`` says which lanes are admitted."""
        return self.make([Recalibrate(alpha, min_class_count, policy)], who=who, why=why, key=key)[0]

    def certify(
        self,
        data: LabelledStates | None = None,
        *,
        alpha: float | Mapping[Any, float] | None = None,
        delta: float | None = None,
        control: str | None = None,
        who: str,
        why: str,
        key: str | None = None,
    ) -> Change:
        """Certify again, with new labelled points or on the same sample; see ``SDMClassifier.recertify``."""
        return self.make([Certify(data, alpha, delta, control)], who=who, why=why, key=key)[0]

    def guard_reset(self, reset: GuardReset, *, who: str, key: str | None = None) -> Change:
        """Note that the drift guard of the model was reset, and why."""
        return self.make([ResetGuard(reset)], who=who, why=reset.reason, key=key)[0]

    def undo(self, version: int, *, who: str, why: str, key: str | None = None) -> Change:
        """Undo the last change with what was made in one step with it, or an undo; see ``undo_all``."""
        return self.undo_all([version], who=who, why=why, key=key)[0]

    def undo_all(self, versions: Sequence[int], *, who: str, why: str, key: str | None = None) -> list[Change]:
        """Undo the last changes in one step: the model is then as it was before them. Refused if others came later."""
        asked = request_digest([]) + " " + " ".join(map(str, versions))
        with self._writing() as writer:
            made = [] if key is None else writer.made_with(key, asked)
            return made or self._commit(writer, self.draft_undo(versions), who, why, key, asked)

    def make(self, requests: Sequence[Request], *, who: str, why: str, key: str | None = None) -> list[Change]:
        """Make several changes in one step: all or none."""
        if not requests:
            raise InvalidInputError("'requests' of LiveModel.make must have at least one change. Got none.")
        asked = "" if key is None else request_digest(requests)
        with self._writing() as writer:
            made = [] if key is None else writer.made_with(key, asked)
            return made or self._commit(writer, self.draft(requests), who, why, key, asked)

    def compact(self, *, who: str, why: str) -> Change | None:
        """Save the model as it is, so that opening it replays nothing; None if there was nothing to replay.

        Points and texts that only the log had are dropped. The history stays, but what is in it can no longer be
        undone.
        """
        with self._writing() as writer:
            changes = writer.next_save(who, why) if self.snapshot.version > self._base.version_ else None
            if changes is None:
                return None
            write_estimator(self.snapshot.saved.classifier, self.path, changes)
            writer.synchronise()
            self._reload(config_mark(self.path))
            return self._history[-1]

    # --- Trying them first -------------------------------------------------------------------------------------------

    def draft(self, requests: Sequence[Request] = ()) -> Draft:
        """Try changes on a copy of the model; nothing is written before ``commit``."""
        snapshot = self.snapshot
        draft = Draft(snapshot.version, copy.copy(snapshot.saved.classifier))
        for request in requests:
            draft.apply(request)
        return draft

    def draft_undo(self, versions: Sequence[int]) -> Draft:
        """Try to undo changes; see ``draft``."""
        if not versions:
            raise InvalidInputError("'versions' of LiveModel.undo_all must have at least one change. Got none.")
        for version in versions:
            check_positive(version, "version", "LiveModel.undo", integer=True, zero=True)
        with self._one_at_a_time:
            self._refresh()
            log, base = self._read_log(), self._base
        undone, computed = log.whole_steps([int(version) for version in versions]), dict[str, bytes]()
        classifier = replay(base, log.undoing(undone), computed)
        return Draft(log.version, classifier, [Entry(UNDO, 0, {"version": one}) for one in undone], computed)

    def commit(self, draft: Draft, *, who: str, why: str) -> list[Change]:
        """Make changes that were tried; refused if the model was changed since."""
        with self._writing() as writer:
            return self._commit(writer, draft, who, why, None, "")

    def preview(self, requests: Sequence[Request]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What changes would do: the ``standing`` of the model before and after them. Nothing is written."""
        return standing(self.snapshot.saved.classifier), standing(self.draft(requests).classifier)

    # --- Reading -----------------------------------------------------------------------------------------------------

    def made_with(self, key: str) -> Change | None:
        """The change that was made with a key, if there is one: what is sent again need not be read again."""
        return next((change for change in self._history if change.key == key), None)

    def changes(self, after: int = 0) -> list[Change]:
        """The history: all changes after a version, also those of earlier saves."""
        return self._history[after:]

    def refresh(self) -> bool:
        """Take in what another process wrote; returns whether there was anything."""
        with self._one_at_a_time:
            return self._refresh()

    def close(self) -> None:
        """Let others write. The snapshot can still be asked."""
        with self._one_at_a_time:
            if self._writer is not None:
                self._writer.close()
            self._writer = None

    def __enter__(self) -> LiveModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- Inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[LogWriter]:
        """The writer, with its lock, when everything that others wrote has been taken in."""
        with self._one_at_a_time:
            if self._writer is None:
                raise InvalidInputError(f"{self.path} was opened for reading, or is closed: it cannot be changed.")
            if self._is_exclusive and config_mark(self.path) == self._mark and not self._writer.is_behind:
                yield self._writer
                return
            writer = self._locked_writer(self._writer)
            try:
                self._refresh()
                yield writer
            finally:
                if not self._is_exclusive:
                    writer.unlock()

    def _locked_writer(self, writer: LogWriter) -> LogWriter:
        """Lock what is at the path now: another directory may have been put there."""
        directory = self.path.resolve()
        if writer.directory == directory:
            writer.unlock()
        else:
            writer.close()
            writer = self._writer = LogWriter(directory, writer.who)
        writer.lock(wait=0 if self._is_exclusive else WAIT)
        return writer

    def _commit(self, writer: LogWriter, draft: Draft, who: str, why: str, key: str | None, asked: str) -> list[Change]:
        for name, value in (("who", who), ("why", why), ("key", "key" if key is None else key)):
            if not is_storable_text(value) or (name != "why" and not value.strip()):
                raise InvalidInputError(f"'{name}' of a change must be a text. Got {value!r}.")
        is_here = self.path.resolve() == writer.directory and config_mark(writer.directory) == self._mark
        if not (is_here and draft.version == self.snapshot.version == writer.version):
            raise InvalidInputError(
                f"{self.path} was changed meanwhile: it is at version {writer.version}, the change was prepared for "
                f"version {draft.version}. Try again."
            )
        made = writer.append(draft.entries, who=who, why=why, key=key, request=asked, outcomes=draft.outcomes)
        self._mark = config_mark(writer.directory)  # the first change names the log there
        draft.classifier.version_ = made[-1].version
        has_undo = any(change.what == UNDO for change in made)
        self._history = writer.history() if has_undo else [*self._history, *made]
        self._show(draft.classifier)
        return made

    def _refresh(self) -> bool:
        while True:
            mark = config_mark(self.path)
            if mark != self._mark:
                self._reload(mark)
                return True
            try:
                return self._take_in()
            except ModelFileError:
                if config_mark(self.path) == mark:  # or else another model was saved here meanwhile
                    raise

    def _take_in(self) -> bool:
        before = self.snapshot.version
        if (acknowledged_version(self.path) or 0) == before == len(self._history):
            return False
        log, start = self._read_log(before), self.snapshot.saved.classifier
        if any(record.change.what == UNDO for record in log.records):
            log, start = self._read_log(), self._base
        self._history = log.history
        if log.version == before:
            return False
        self._show(replay(start, log))
        return True

    def _read_log(self, after: int = 0) -> ReadLog:
        """The log, with the contents of changes after a version, if it is that of the files that were loaded."""
        directory = self.path.resolve()
        log = read_changes(directory, read_config(directory), verify=self._verify, after=after)
        if config_mark(self.path) != self._mark:
            raise ModelFileError(f"{self.path} was saved again while its changes were read. Try again.")
        return log

    def _reload(self, mark: tuple[int, ...] | None) -> None:
        shown = self.snapshot.saved.classifier
        self._base, log = load_base(self.path, device=shown.device, verify=self._verify, backend=shown.backend)
        self._mark, self._history = mark, log.history
        self._show(replay(self._base, log))

    def _show(self, classifier: SDMClassifier | SDMEnsemble) -> None:
        self.snapshot = Snapshot(classifier.version_, self.snapshot.saved.with_classifier(classifier))
