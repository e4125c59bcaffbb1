"""The model that is served: how it is asked, changed and replaced.

Two threads share the work. The *worker* answers requests, in the order of their arrival, with the snapshot and the
guard that are current; both are replaced only by the worker, between two batches, so that a request sees one version
from start to end. The *writer* does everything that takes long and must not hold up answers: it writes changes, opens
another model and warms it, and then hands the worker what is to be current from now on.
"""

from __future__ import annotations

import copy
import gc
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from starlette.requests import Request

from torchsdm.application import (
    AnswerRequest,
    LiveModel,
    SavedModel,
    Snapshot,
    answer_requests,
    calibration_map,
    change_requests,
    example_row,
    guard_state,
    open_guard,
    reset_guard,
    signal_histograms,
    successor,
    summary,
)
from torchsdm.errors import InvalidInputError, ModelFileError, TorchSDMError
from torchsdm.service.batching import Abandoned, Closed, QueueFull, Worker, result_of
from torchsdm.service.checking import Checking
from torchsdm.service.metrics import Metrics
from torchsdm.service.settings import ServiceSettings
from torchsdm.wording import guard_line

_LOGGER = logging.getLogger(__name__)
_WATCH_SECONDS = 1.0
_CHARACTERS_PER_TOKEN = 4  # roughly, to know how many texts make a batch before they are tokenized

Result = TypeVar("Result")
Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Served:
    """What answers at the moment: one version of the model, and its guard."""

    saved: SavedModel
    version: int
    guard: Any
    name: str
    """What the model is called in the routes of the Open Inference Protocol: its directory's name."""

    @property
    def extractor(self) -> Any:
        """What reads texts, if the model knows a language model."""
        return None if self.saved.text_classifier is None else self.saved.text_classifier.extractor_

    @property
    def reads_texts(self) -> bool:
        """Whether the model knows a language model."""
        return self.extractor is not None

    @property
    def asks_for_answers(self) -> bool:
        """Whether the model judges answers."""
        return self.reads_texts and self.extractor.asks_for_answers

    @cached_property
    def example(self) -> dict[str, Any]:
        """A row as the model makes them."""
        return example_row(self.saved.classifier)

    @cached_property
    def description(self) -> dict[str, Any]:
        """What the model is, of which ``schemas.ModelAnswer`` shows a part."""
        classifier = self.saved.classifier
        origin = classifier.states_origin_
        return {
            **summary(classifier, self.saved.path),
            "version": self.version,
            "name": self.name,
            "n_features": classifier.n_features_in_,
            "language_model": None if origin is None else origin.model.reference,
            "reads_texts": self.reads_texts,
        }

    @cached_property
    def signals(self) -> dict[str, Any]:
        """How the signals of calibration points are spread."""
        return signal_histograms(self.saved.classifier)

    @cached_property
    def map(self) -> dict[str, Any]:
        """Calibration points, and the regions of a grid of alphas."""
        return calibration_map(self.saved.classifier)


class Serving:
    """A saved model that is asked, changed and replaced while it is served."""

    def __init__(self, path: Path, settings: ServiceSettings, metrics: Metrics, **opening: Any) -> None:
        self.path, self.settings, self.metrics = path, settings, metrics
        self.worker = Worker(self._answer, settings.max_waiting)
        try:
            self.live, self.served = self.between_batches(lambda: self._open(**opening))
        except BaseException:
            self.worker.close()
            raise
        try:
            self.checking = Checking(self.live, settings, metrics)
        except BaseException:
            self.live.close()
            self.worker.close()
            raise
        self.is_warm = False
        self._is_closing = threading.Event()
        self._batch_tokens = int(opening.get("batch_tokens", 4096))
        self._writer = ThreadPoolExecutor(1, "sdm-writer")
        self._n_calls = 0  # of the writer and the worker, that routes wait for
        metrics.queue.set_function(lambda: self.worker.n_waiting)
        metrics.version.set_function(lambda: self.served.version)
        self._show_guard()

    def _open(self, **opening: Any) -> tuple[LiveModel, Served]:
        """The model and what answers first; the worker calls this, since it alone is to use all cores.

        Every other thread that ever does has helpers of its own, and when there are more of them than cores, OpenMP
        puts them to sleep between any two steps.
        """
        path, guard_file = self.path, self.settings.guard_file
        writable = os.access(path, os.W_OK)
        # Not exclusive: the shell may change it, too.
        live = LiveModel.open(path, who="sdm serve", writable=writable, exclusive=False, **opening)
        if not writable:
            _LOGGER.warning("%s cannot be written: the model is not changed, reviews last until the service ends", path)
        by_source = self.settings.guard_by_source
        guard = open_guard(live.snapshot.saved.classifier, guard_file, by_source=by_source, continued=True)
        if guard is not None and guard_file is not None:
            guard.save(guard_file)  # a file that cannot be written is an error at the start
        return live, self._served(live.snapshot, guard)

    def _served(self, snapshot: Snapshot, guard: Any) -> Served:
        return Served(snapshot.saved, snapshot.version, guard, self.path.resolve().name)

    # ---------------------------------------------------------------- asking

    async def ask(self, request: AnswerRequest, http: Request) -> tuple[int, list[Row]]:
        """The version that answers, and a row for each input; a client that leaves before takes its request along."""
        self._check_size(len(request))
        if request.sources is not None and not self.settings.guard_by_source:
            raise InvalidInputError('"sources" need a service with guards by source: sdm serve --guard-by-source.')
        future: Future[tuple[int, list[Row]]] = self.worker.ask(request, self._weight(request))
        http.state.abandon = future.cancel  # for the server
        try:
            return await result_of(future)
        except Closed as error:
            raise Abandoned if future.cancelled() else error from error

    def _check_size(self, n_inputs: int) -> None:
        most = self.settings.max_inputs
        if n_inputs > most:
            raise InvalidInputError(f"A request may have at most {most} inputs. Got {n_inputs}: send several.")

    def _weight(self, request: AnswerRequest) -> float:
        """The share of a batch that a request takes: of the rows, or of the tokens that a language model reads."""
        of_rows = len(request) / self.settings.batch_rows
        texts = [*(request.texts or ()), *(request.answers or ())]
        n_characters = sum(len(text) for text in texts if isinstance(text, str))
        return max(of_rows, n_characters / _CHARACTERS_PER_TOKEN / self._batch_tokens)

    def _answer(self, requests: Sequence[AnswerRequest]) -> list[tuple[int, list[Row]] | TorchSDMError]:
        """Answer requests together; the worker calls this."""
        served = self.served
        n_raised = 0 if served.guard is None else guard_state(served.guard)["n_raised"]
        answers = answer_requests(served.saved, requests, guard=served.guard, texts=self.settings.texts)
        answers = self.checking.watch(served.saved.classifier, requests, answers)
        self.metrics.batches.observe(sum(map(len, requests)))
        if served.guard is not None:
            self._show_guard()
            state = guard_state(served.guard)
            if state["n_raised"] > n_raised:
                _LOGGER.warning("%s", guard_line(state))
                self._keep_guard()
        return [one if isinstance(one, TorchSDMError) else (served.version, one) for one in answers]

    # ---------------------------------------------------------------- changing

    async def change(
        self, changes: Sequence[Mapping[str, Any]], *, who: str, why: str, key: str | None
    ) -> dict[str, Any]:
        """Make changes in one step; requests from now on are answered with them."""
        undone = [change["version"] for change in changes if change["what"] == "undo"]
        if undone and len(undone) < len(changes):
            raise InvalidInputError("changes: undo cannot be combined with other changes. Send it by itself.")
        if undone:
            make = partial(self.live.undo_all, undone)
        else:
            make = partial(self.live.make, await self._read_changes(changes))
        made = await self._result(self._submit, partial(self._changed, partial(make, who=who, why=why, key=key)))
        return {"version": made[-1].version, "changes": [change.to_dict() for change in made]}

    async def preview(self, changes: Sequence[Mapping[str, Any]]) -> tuple[int, tuple[dict[str, Any], dict[str, Any]]]:
        """The version that changes were tried on, and the model's standing before and after them."""
        requests = await self._read_changes(changes)
        return await self._result(self._submit, lambda: (self.live.snapshot.version, self.live.preview(requests)))

    async def reload(self) -> bool:
        """Serve what another process wrote into the model's directory: changes, or another model."""
        return await self._result(self._submit, partial(self._changed, self.live.refresh))

    async def _read_changes(self, changes: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Changes from plain values; their texts are read by the worker, who has the language model."""
        self._check_size(sum(len(change.get("labels") or change.get("ids") or ()) for change in changes))
        return await self._result(self.worker.call, lambda: change_requests(self.served.saved, changes))

    def _take_over(self) -> None:
        """Have the worker answer with the newest snapshot. The old one answers until the new one has decided once."""
        old, snapshot = self.served, self.live.snapshot
        if snapshot.saved is old.saved:
            return
        new = self._served(snapshot, self._fresh_guard(snapshot))
        _decide_once(new, with_texts=new.extractor is not old.extractor)

        def switch() -> None:
            guard = successor(self.served.guard, new.guard, f"version {new.version} took its place")
            self.served = replace(new, guard=guard)
            self._show_guard()
            self._keep_guard()

        self.between_batches(switch)
        self.metrics.reloads.inc()
        _LOGGER.info("serving %s, version %d", self.path, new.version)

    def _fresh_guard(self, snapshot: Snapshot) -> Any:
        return open_guard(snapshot.saved.classifier, by_source=self.settings.guard_by_source)

    def _watch(self) -> None:
        """Look for what other processes wrote, every second until the end; a failure is logged once."""
        told = ""
        while not self._is_closing.wait(_WATCH_SECONDS):
            try:
                self.write(self.live.refresh)
                told = ""
            except Exception as error:  # whatever it is: the next look may find a model that works
                if self._is_closing.is_set():
                    return
                if str(error) != told:
                    told = str(error)
                    known = isinstance(error, TorchSDMError)
                    _LOGGER.error(
                        "version %d is served on: %s", self.served.version, error, exc_info=None if known else error
                    )

    # ---------------------------------------------------------------- the guard

    async def guard(self) -> dict[str, Any]:
        """The version that answers, and the status of its guard; None for an ensemble."""
        return await self._result(self.worker.call, self._guard_state)

    async def reset_guard(self, reason: str, *, who: str, key: str | None, source: str | None = None) -> dict[str, Any]:
        """Restart the guard's stream, or that of one source; the log of changes has it first."""
        if self.served.guard is None:
            raise InvalidInputError("An ensemble has no drift guard to reset.")

        def reset() -> dict[str, Any]:
            reset_guard(self.served.guard, reason, source)
            self._show_guard()
            self._keep_guard()
            return self._guard_state()

        def write() -> dict[str, Any]:
            known = None if key is None else self.live.made_with(key)
            if known is not None:
                if (known.what, known.why) != ("guard_reset", reason):
                    raise InvalidInputError(f"The key {key!r} was used for change {known.version}. Use a new one.")
                return self.between_batches(self._guard_state)
            rehearsed = self.between_batches(lambda: copy.copy(self.served.guard))
            self.live.guard_reset(reset_guard(rehearsed, reason, source), who=who, key=key)
            self._take_over()
            return self.between_batches(reset)

        return await self._result(self._submit, write)

    def _guard_state(self) -> dict[str, Any]:
        guard = self.served.guard
        return {"version": self.served.version, "guard": None if guard is None else guard_state(guard)}

    def _show_guard(self) -> None:
        if self.served.guard is not None:
            self.metrics.show_guard(guard_state(self.served.guard))

    def _keep_guard(self) -> None:
        """Save the guard. Answers do not wait for a disk: a guard that cannot be written goes on in memory."""
        guard, file = self.served.guard, self.settings.guard_file
        if guard is not None and file is not None:
            try:
                guard.save(file)
            except ModelFileError as error:
                _LOGGER.error("the drift guard is not saved: %s", error)

    # ---------------------------------------------------------------- beginning and end

    def start(self) -> None:
        """Warm the model, and watch its directory if that is wanted; requests that come before wait."""
        self.worker.call(self._warm)
        if self.settings.watch:
            threading.Thread(target=self._watch, name="sdm-watch", daemon=True).start()

    def _warm(self) -> None:
        """Decide once, so that the first to ask does not wait for the language model."""
        try:
            _decide_once(self.served, with_texts=True)
        except Exception:
            _LOGGER.exception("%s cannot be asked: the service never becomes ready", self.path)
            raise
        gc.freeze()  # what is there now stays; no request should wait while the collector looks through it again
        self.is_warm = True
        _LOGGER.info("ready: %s, version %d", self.path, self.served.version)

    @property
    def is_ready(self) -> bool:
        """Whether a request would be answered at once."""
        return self.is_warm and self.worker.is_alive

    def close(self) -> None:
        """Answer what waits, and keep the guard."""
        self._is_closing.set()
        self._writer.shutdown(wait=True, cancel_futures=True)
        if not self.worker.close(self.settings.drain_seconds):
            _LOGGER.warning("some requests were not answered within %g seconds", self.settings.drain_seconds)
        self._keep_guard()
        self.checking.close()
        self.live.close()

    # ---------------------------------------------------------------- threads

    def _submit(self, function: Callable[[], Result]) -> Future[Result]:
        """Have the writer call a function when it has done what came before."""
        if self._is_closing.is_set():
            raise Closed
        return self._writer.submit(function)

    def _changed(self, change: Callable[[], Result]) -> Result:
        """Make a change, with which the worker then answers; the writer calls this."""
        result = change()
        self._take_over()
        return result

    def write(self, change: Callable[[], Result]) -> Result:
        """Have the writer make a change of the model, and the worker take over; for other threads."""
        return self._submit(partial(self._changed, change)).result()

    def between_batches(self, function: Callable[[], Result]) -> Result:
        """Have the worker call a function, when it has answered what came before; for other threads."""
        return self.worker.call(function).result()

    async def _result(
        self, submit: Callable[[Callable[[], Result]], Future[Result]], function: Callable[[], Result]
    ) -> Result:
        """What a function gives that another thread calls, for routes; no more calls wait than questions may."""
        if self._n_calls >= self.settings.max_waiting:
            raise QueueFull(1)
        self._n_calls += 1
        try:
            return await result_of(submit(function))
        finally:
            self._n_calls -= 1


def _decide_once(served: Served, *, with_texts: bool) -> None:
    """Decide on a state of zeros and explain it, and, if a language model is known, read a text with it."""
    classifier = served.saved.classifier
    zeros = np.zeros((1,) * (classifier.input_ndim_ - 1) + (classifier.n_features_in_,), dtype=np.float32)
    onlooker = copy.copy(served.guard)
    answer_requests(served.saved, [AnswerRequest(hidden_states=zeros, k=k) for k in (0, 1)], guard=onlooker)
    if served.reads_texts and with_texts:
        answers = ["warm"] if served.asks_for_answers else None
        (read,) = answer_requests(served.saved, [AnswerRequest(["warm"], answers)], guard=onlooker)
        if isinstance(read, TorchSDMError):
            _LOGGER.warning("texts cannot be read, only states: %s", read)
