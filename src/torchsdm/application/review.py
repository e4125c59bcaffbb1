"""The review queue of a saved model: inputs that people look at, label, and add to the model.

An input is kept first and decided on afterwards, block by block, with its hidden state, so that a queue survives the
process at any moment and a new version of the model decides on it again without the language model. Inputs of the queue
are no part of the stream that a drift guard watches.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from torchsdm.application.answers import answer_rows
from torchsdm.application.describe import standing
from torchsdm.application.live_model import LiveModel, Snapshot
from torchsdm.application.requests import given_block
from torchsdm.application.update import known_ids
from torchsdm.data import BadRows, Documents, LabelledStates, Source
from torchsdm.errors import InvalidInputError, Remedy
from torchsdm.estimators import Add, Recalibrate, Request, SDMClassifier, SDMEnsemble
from torchsdm.labels import check_known_labels
from torchsdm.model import CHANGES, Change, Judged, NewInput, ReviewStore
from torchsdm.settings import REJECTED
from torchsdm.validation import Array, check_person

_LOGGER = logging.getLogger(__name__)
_BLOCK = 64  # inputs to decide on at once
_LEAST_PROBABILITY = 1e-12
Calling: TypeAlias = Callable[[Callable[[], Any]], Any]


class ReviewQueue:
    """The queue of a live model, in ``MODEL/changes/review.sqlite``, or in memory if the model cannot be written.

    ``reading`` and ``writing`` call a function where the language model may be used, and where the model may be
    changed; for a service whose threads share the work.
    """

    def __init__(
        self,
        live: LiveModel,
        reading: Calling = lambda function: function(),
        writing: Calling = lambda function: function(),
    ) -> None:
        self.live = live
        self.store = ReviewStore(live.path / CHANGES / "review.sqlite" if live.is_writable else None)
        self.problem: str | None = None
        """Why the worker stopped, if it did."""
        self._reading, self._writing = reading, writing
        self._wake, self._ended = threading.Event(), threading.Event()
        self._worker: threading.Thread | None = None
        self._changing = threading.RLock()  # one change at a time: what is being added is marked with its key
        self._settled_at = -1
        self._adaptors: list[Any] = []
        self._settle()

    # --- Inputs ------------------------------------------------------------------------------------------------------

    def put(self, rows: Sequence[Any], source: str) -> dict[str, int]:
        """Put inputs in memory into the queue: mappings with a text and, if they have them, id, label and answer."""
        for number, row in enumerate(rows):
            if not isinstance(row, dict) or not {"text"} <= set(row) <= {"id", "text", "answer", "label"}:
                raise InvalidInputError(
                    f'Row {number} must be an object with "text" and, if it has them, "id", "answer" and "label".'
                )
        return self._put(list(rows), source)

    def put_file(self, path: Path, source: str) -> dict[str, int]:
        """Put the texts of a file into the queue, read as ``Documents`` reads files; labels may be missing."""
        opened = Source.open(path)
        opened.name = source
        return self._put(opened, source)

    def _put(self, rows: Any, source: str) -> dict[str, int]:
        if self.live.snapshot.saved.text_classifier is None:
            raise InvalidInputError(
                "This model was trained on states only, and its review queue takes texts.", remedy=Remedy.GIVE_STATES
            )
        classes = {str(name): name for name in self._classifier.classes_.tolist()}
        documents, labels = Documents(rows, label=False, problems="reject", repeated="keep"), _labels(rows)
        inputs = [
            NewInput(
                one.text,
                one.id if documents.has_ids else None,
                one.answer,
                classes.get(str(labels.get(one.number)), labels.get(one.number)),
            )
            for one in documents
        ]
        n_new = self.store.put(inputs, source, _now())
        self._wake.set()
        return {"added": n_new, "known": len(inputs) - n_new, "unreadable": documents.report.n_problems}

    # --- What the model says -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Decide on what is in the queue, now and later, in a thread of its own."""
        self._worker = threading.Thread(target=self._run, name="review queue", daemon=True)
        self._worker.start()

    def close(self) -> None:
        """Stop the thread and close the file."""
        self._ended.set()
        self._wake.set()
        if self._worker is not None:
            self._worker.join()
        self.store.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wake.wait(timeout=2)  # another process may have changed the model
            self._wake.clear()
            try:
                while not self._ended.is_set() and self.work():
                    pass
                self.problem = None
            except Exception as error:  # the thread goes on, and the page says why nothing is decided on
                self.problem = str(error)
                _LOGGER.exception("the review queue is not decided on")

    def work(self) -> bool:
        """Decide on the next inputs; whether there were any."""
        snapshot = self.live.snapshot
        self._decide_with(snapshot.saved.classifier)
        if snapshot.version != self._settled_at:  # somebody else may have undone what was added here
            self._settle()
        new = self.store.undecided(_BLOCK)
        if new:
            self._judge_new(new, snapshot)
            return True
        old = self.store.outdated(snapshot.version, 16 * _BLOCK)
        if old:
            states = _states(snapshot.saved.classifier, np.stack([np.frombuffer(row["state"], "<f4") for row in old]))
            decisions = answer_rows(snapshot.saved.classifier, LabelledStates(states, None))
            self.store.judge(_judged(old, decisions, snapshot.version, None))
        return bool(old)

    def _decide_with(self, classifier: SDMClassifier | SDMEnsemble) -> None:
        """Forget what another model said, if one was saved at the path."""
        adaptors = [model.adaptor for model in classifier.models_]
        if adaptors != self._adaptors:  # modules are equal if they are the same object
            weights = [value.cpu().numpy() for one in adaptors for value in one.state_dict().values()]
            digest = hashlib.sha256(repr(classifier.states_origin_).encode())
            for one in weights:
                digest.update(one.tobytes())
            self.store.decide_with(digest.hexdigest())
            self._adaptors = adaptors

    def _judge_new(self, rows: list[dict[str, Any]], snapshot: Snapshot) -> None:
        """Decide on inputs; where none of several can be decided on, on each half of them."""
        saved = snapshot.saved
        answers = [row["answer"] for row in rows]
        given = None if all(answer is None for answer in answers) else answers
        texts = [row["text"] for row in rows]
        bad: BadRows = {}
        try:
            block = self._reading(lambda: given_block(saved, texts=texts, answers=given, bad=bad))
            decisions = answer_rows(saved.classifier, block)
        except InvalidInputError as error:
            if len(rows) > 1:
                middle = len(rows) // 2
                for half in (rows[:middle], rows[middle:]):
                    self._judge_new(half, snapshot)
                return
            self.store.judge([_rejected(rows[0], error, snapshot.version)])
            return
        good = [row for number, row in enumerate(rows) if number not in bad]
        self.store.judge(_judged(good, decisions, snapshot.version, np.asarray(block.hidden_states)))
        self.store.judge(_rejected(rows[number], one, snapshot.version) for number, one in bad.items())

    # --- What people say ---------------------------------------------------------------------------------------------

    def label(self, row: int, label: Any, who: str) -> None:
        """Label an input with one of the classes; None skips it."""
        if label is not None:
            check_known_labels([label], self._classifier.classes_, "label", to="review")
        self.store.mark(row, label, check_person(who), _now())

    def unlabel(self, who: str) -> int | None:
        """Undo this person's last label or skip; returns its row."""
        return self.store.unmark(check_person(who))

    def preview(self, *, recalibrate: bool = True) -> dict[str, Any]:
        """What adding all that was labelled would do, with nothing written.

        ``known`` inputs are in the model already and are left out. ``before`` and ``after`` are the model's standing;
        ``lanes`` counts the other inputs of the queue by their lanes before and after.
        """
        rows, requests, n_known = self._labelled(recalibrate)
        numbers, states = self.store.states()
        others = np.flatnonzero(~np.isin(numbers, rows))
        classifier = self._classifier
        changed = self.live.draft(requests).classifier
        block = _states(classifier, states[others])
        lanes = [[row["lane"] for row in one.decide(block).to_dicts()] for one in (classifier, changed)]
        pairs = sorted(Counter(zip(*lanes, strict=True)).items())
        return {
            "n": len(rows),
            "known": n_known,
            "before": standing(classifier),
            "after": standing(changed),
            "lanes": [{"before": before, "after": after, "n": n} for (before, after), n in pairs],
        }

    def add(self, who: str, why: str, *, recalibrate: bool = True) -> list[Change]:
        """Add all that was labelled to the support of the model, in one step; returns the changes."""
        who = check_person(who)
        with self._changing:
            rows, requests, _ = self._labelled(recalibrate)
            key = f"review:{hashlib.sha256(json.dumps([rows, _now()]).encode()).hexdigest()[:16]}"
            self.store.start_adding(rows, key)  # a process that is killed in the next line finds out by the key
            try:
                made: list[Change] = self._writing(lambda: self.live.make(requests, who=who, why=why, key=key))
            finally:
                self._settle()
            return made

    def undo(self, version: int, who: str, why: str) -> list[Change]:
        """Undo the last change, and what was made in one step with it."""
        who = check_person(who)
        with self._changing:
            undone: list[Change] = self._writing(lambda: self.live.undo_all([version], who=who, why=why))
            self._settle()
            return undone

    def _settle(self) -> None:
        """Take in which of the changes were made, and which were undone."""
        with self._changing:
            self._settled_at, changes = self.live.snapshot.version, self.live.changes()
            made = {one.key: one.version for one in changes if one.key and one.undone_by is None}
            self.store.settle(made, [one.version for one in changes if one.undone_by is not None])
        self._wake.set()

    def _labelled(self, recalibrate: bool) -> tuple[list[int], list[Request], int]:
        """What was labelled and not added, the changes that would add it, and how many the model has already."""
        by_row = {row["row"]: row for row in self.store.rows(status="labelled")}
        numbers, flat = self.store.states(list(by_row))  # what could not be decided on cannot be added
        if not numbers:
            raise InvalidInputError("Nothing is labelled that could be added.")
        classifier, rows = self._classifier, [by_row[number] for number in numbers]
        asks = any(row["answer"] is not None for row in rows)
        texts = [f"{row['text']}\n[answer] {row['answer']}" if asks else row["text"] for row in rows]
        states = _states(classifier, flat)
        found = [model.has_points(torch.from_numpy(states), texts) for model in classifier.models_]
        is_new = ~np.logical_or.reduce([known for sets in found for known in sets.values()])
        if not is_new.any():
            raise InvalidInputError("All that was labelled is in the model already.")
        ids = known_ids(classifier)
        names = [f"review-{row['row']}" if str(row["name"]) in ids else row["name"] for row in rows]
        origin = classifier.states_origin_
        data = LabelledStates(states, [row["label"] for row in rows], names, texts, origin=origin)
        chosen = np.flatnonzero(is_new).tolist()
        requests: list[Request] = [Add(data.take(chosen)), *([Recalibrate()] if recalibrate else [])]
        return [numbers[row] for row in chosen], requests, len(rows) - len(chosen)

    @property
    def _classifier(self) -> SDMClassifier | SDMEnsemble:
        return self.live.snapshot.saved.classifier

    # --- Out ---------------------------------------------------------------------------------------------------------

    def export(self, ending: str) -> Iterator[str]:
        """What people decided, as lines of JSONL or CSV, in the form in which examples are added to a model."""
        if ending not in ("jsonl", "csv"):
            raise InvalidInputError(f"What people decided is exported as jsonl or csv. Got {ending!r}.")
        rows = [row for status in ("labelled", "added") for row in self.store.rows(status=status)]
        names = {"name": "id", "text": "text", "answer": "answer", "label": "label", "given": "given_label"}
        names |= {"who": "who", "marked": "at"}
        if not any(row["answer"] is not None for row in rows):
            del names["answer"]
        table = [{new: row[old] for old, new in names.items()} for row in rows]
        if ending == "jsonl":
            yield from (f"{json.dumps(row, ensure_ascii=False)}\n" for row in table)
            return
        lines = io.StringIO(newline="")
        writer = csv.DictWriter(lines, list(names.values()))
        writer.writeheader()
        writer.writerows(table)
        yield lines.getvalue()


def _labels(rows: Any) -> dict[int, Any]:
    if isinstance(rows, list):
        return {number: row["label"] for number, row in enumerate(rows) if row.get("label") is not None}
    labelled = Documents(rows, problems="skip", repeated="keep")
    try:
        return {one.number: one.label for one in labelled} if labelled.has_labels else {}
    except InvalidInputError:  # none has
        return {}


def contradiction(decision: dict[str, Any], given: Any) -> float | None:
    """log10 of the odds against a given label, by the probabilities of a decision; None for what is no class.

    As in the label audit it is a score to sort by. Here the model is the only witness, so it errs where the model does.
    """
    p = (decision.get("probabilities") or {}).get(str(given))
    if given is None or p is None:
        return None
    clipped = min(max(p, _LEAST_PROBABILITY), 1 - _LEAST_PROBABILITY)
    return math.log10((1 - clipped) / clipped)


def _rejected(row: dict[str, Any], why: object, version: int) -> Judged:
    return Judged(row["row"], {"lane": REJECTED, "reason": str(why), "admitted": False, "prediction": None}, version)


def _judged(
    rows: Iterable[dict[str, Any]], decisions: Iterable[dict[str, Any]], version: int, states: Array | None
) -> Iterator[Judged]:
    for position, (row, decision) in enumerate(zip(rows, decisions, strict=True)):
        given = None if row["given"] is None else json.loads(row["given"])
        state = None if states is None else states[position]
        kept = {name: value for name, value in decision.items() if name != "id"}
        yield Judged(row["row"], kept, version, contradiction(decision, given), state)


def _states(classifier: SDMClassifier | SDMEnsemble, flat: Array) -> Array:
    shape = (-1,) * (classifier.input_ndim_ - 2)
    return flat.reshape(len(flat), *shape, classifier.n_features_in_)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
