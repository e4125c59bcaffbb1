"""Spot checks of the model that is served: answers are drawn and wait, people judge them, an alarm demotes.

The worker demotes and draws before it answers, so a drawn answer is on disk before anybody has it. Answers do not fail
with a disk: what cannot be read or written is logged, and drawing does without those answers, whatever they are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from torchsdm.application import AnswerRequest, LiveModel, ModelChecks, demoted_rows, offered_texts, stream_of
from torchsdm.errors import InvalidInputError, TorchSDMError
from torchsdm.service.metrics import Metrics
from torchsdm.service.settings import ServiceSettings

_LOGGER = logging.getLogger(__name__)
_SOURCE = "sdm serve"


class Checking:
    """The spot checks of a live model, switched on by ``check_rate`` or ``check_per_week``."""

    def __init__(self, live: LiveModel, settings: ServiceSettings, metrics: Metrics) -> None:
        self._checks, self._live, self._metrics = ModelChecks(live.path), live, metrics
        chosen = {"rate": settings.check_rate, "per_week": settings.check_per_week}
        self._rate = {name: value for name, value in chosen.items() if value is not None}
        self._alarm: Any = None
        self._told = ""
        if self._rate:
            self._require(live)
        self.state()

    @property
    def is_on(self) -> bool:
        """Whether answers are drawn."""
        return bool(self._rate)

    def _require(self, live: LiveModel) -> None:
        saved = live.snapshot.saved
        stream_of(saved.classifier).fresh.draw_at(**self._rate)
        if not live.is_writable:
            raise InvalidInputError(f"{live.path} cannot be written, and so keeps no answers to check.")
        if saved.text_classifier is None:
            raise InvalidInputError(
                "This model was trained on states only: nobody could read the answers that wait. Draw from files "
                "instead: sdm check."
            )

    def watch(
        self, classifier: Any, requests: Sequence[AnswerRequest], answers: Sequence[list[Any] | TorchSDMError]
    ) -> list[list[Any] | TorchSDMError]:
        """The answers after an alarm, if there is one; of those to texts some are drawn. The worker calls this."""
        try:
            self._alarm = self._checks.alarm()
        except TorchSDMError as error:  # the alarm that was known stays
            self._tell(error)
        alarm = self._alarm
        shown = [
            one if alarm is None or isinstance(one, TorchSDMError) else demoted_rows(alarm, one) for one in answers
        ]
        offered = [
            one
            for request, rows in zip(requests, shown, strict=True)
            if request.texts is not None and not request.k and not isinstance(rows, TorchSDMError)
            for one in offered_texts(request.texts, request.answers, rows)
        ]
        if self.is_on and offered:
            try:
                self._metrics.count_drawn(self._checks.draw(classifier, offered, _SOURCE, **self._rate)[1])
                self._told = ""
            except TorchSDMError as error:
                self._tell(error)
        return shown

    def state(self, most: int = 0) -> dict[str, Any]:
        """The status, and so many answers that wait; ``checks`` is None without a certificate."""
        classifier = self._live.snapshot.saved.classifier
        if classifier.certificate_ is None:
            return {"checks": None, "drawing": False, "waiting": []}
        state, waiting = self._checks.state(classifier, most)
        self._metrics.show_checks(state)
        return {"checks": state, "drawing": self.is_on, "waiting": waiting}

    def judge(self, verdicts: Sequence[dict[str, Any]], who: str) -> dict[str, Any]:
        """Take in verdicts."""
        done = self._checks.judge(self._live.snapshot.saved.classifier, verdicts, who)
        if done["raised"]:
            _LOGGER.warning("the spot checks were raised by %s", ", ".join(done["raised"]))
        return {**done, **self.state()}

    def reset(self, reason: str, who: str) -> dict[str, Any]:
        """Start again without verdicts."""
        self._checks.reset(self._live.snapshot.saved.classifier, reason, who)
        return self.state()

    def close(self) -> None:
        """Close the file."""
        self._checks.close()

    def _tell(self, error: TorchSDMError) -> None:
        if str(error) != self._told:  # once, not with every batch
            self._told = str(error)
            _LOGGER.error("spot checks: %s", error)
