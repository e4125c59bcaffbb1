"""The spot checks of a saved model: admitted answers are drawn, people judge them, and an alarm demotes at every door.

What is drawn waits in ``MODEL/changes/checks.sqlite`` (``model.CheckStore``) until somebody says whether it is right.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from torchsdm.application.answers import Row, check_output, write_rows
from torchsdm.data import TEXT_KINDS, Source, Unreadable
from torchsdm.errors import InvalidInputError, Remedy
from torchsdm.estimators import SDMClassifier, SDMEnsemble, load_classifier
from torchsdm.model import CHANGES, CheckStore, Offered, Stream, read_checks
from torchsdm.trust import SpotCheck
from torchsdm.validation import Array, check_person
from torchsdm.wording import UNPROMISED, listed, shortened

_BLOCK = 1024  # decisions to draw from at once
_FILLED_IN = ("check", "id", "text", "prediction", "probability", "right")  # what people get, the last is for them
_WORDS = {"true": True, "false": False}


class ModelChecks:
    """The spot checks of the model in a directory, for any of its versions."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path) / CHANGES / "checks.sqlite"
        self._store: CheckStore | None = None

    @property
    def store(self) -> CheckStore:
        """The file, made if it is missing."""
        if self._store is None:
            self._store = CheckStore(self.path)
        return self._store

    def close(self) -> None:
        """Close the file."""
        if self._store is not None:
            self._store.close()

    def alarm(self) -> SpotCheck | None:
        """The checks if they are raised, by whichever version."""
        kept, *_ = read_checks(self.path)
        return kept.checks if kept is not None and kept.checks.raised else None

    def demote(self, rows: list[Row]) -> list[Row]:
        """The same rows; while an alarm is raised, what it is about goes to review."""
        alarm = self.alarm()
        return rows if alarm is None else demoted_rows(alarm, rows)

    def draw(
        self,
        classifier: SDMClassifier | SDMEnsemble,
        offered: Sequence[Offered],
        source: str,
        *,
        rate: float = 0.05,
        per_week: float | None = None,
    ) -> tuple[int, int]:
        """Offer admitted answers of a version; how many were not offered before, and how many of them were drawn."""
        chosen = {"rate": rate, "per_week": per_week}
        return self.store.draw(stream_of(classifier), offered, source, time.time(), _now(), **chosen)

    def judge(
        self, classifier: SDMClassifier | SDMEnsemble, verdicts: Sequence[Mapping[str, Any]], who: str
    ) -> dict[str, Any]:
        """Take in verdicts: of each the number in ``check``, and ``right`` or the ``label`` that would have been right.

        Those with neither are left out.
        """
        read = [one for one in map(self._verdict, verdicts, [classifier] * len(verdicts)) if one is not None]
        done = self.store.judge(stream_of(classifier), read, check_person(who), _now())
        counts = {"taken": done.n_taken, "known": done.n_known, "late": done.n_late}
        return {**counts, "raised": [group.name for group in done.raised]}

    def _verdict(self, given: Mapping[str, Any], classifier: SDMClassifier | SDMEnsemble) -> tuple[int, bool] | None:
        number, right, label = (_value(given.get(name)) for name in ("check", "right", "label"))
        if isinstance(number, str) and number.isascii() and number.isdecimal():
            number = int(number)
        if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 2**63:
            raise InvalidInputError(
                f"A verdict needs the number of the answer in 'check'. Got {shortened(repr(number))}."
            )
        if right is None and label is None:
            return None
        right = _WORDS.get(right.lower(), right) if isinstance(right, str) else right
        if right is not None and not isinstance(right, bool):
            raise InvalidInputError(f"Answer {number}: 'right' must be true or false. Got {shortened(repr(right))}.")
        if label is None:
            return number, right is True
        classes = classifier.classes_.tolist()
        if str(label) not in map(str, classes):
            raise InvalidInputError(
                f"Answer {number}: {shortened(repr(label))} is not a class of the model ({listed(classes)}). If the "
                "input belongs to none of them, say that the answer is not right."
            )
        is_right = str(label) == str(self.store.prediction(number))
        if right is not None and right != is_right:
            raise InvalidInputError(f"Answer {number}: 'right' and 'label' contradict each other.")
        return number, is_right

    def reset(self, classifier: SDMClassifier | SDMEnsemble, reason: str, who: str) -> None:
        """Start again without verdicts, and remember why."""
        self.store.reset(stream_of(classifier), reason, check_person(who), _now())

    def state(self, classifier: SDMClassifier | SDMEnsemble, most: int = 0) -> tuple[dict[str, Any], list[Row]]:
        """The status of the checks of a version, and so many answers (-1 is all) that wait for a verdict."""
        stream, (kept, n_waiting, waiting) = stream_of(classifier), read_checks(self.path, most)
        if kept is not None and stream.ends(kept):
            n_waiting, waiting = 0, []
        return check_state(stream.continued(kept), n_waiting), waiting


def stream_of(classifier: SDMClassifier | SDMEnsemble) -> Stream:
    """What a version of a model promises; without a certificate there is nothing to check."""
    certificate = classifier.certificate_
    if certificate is None:
        why = UNPROMISED["ensemble" if isinstance(classifier, SDMEnsemble) else "uncertified"]
        raise InvalidInputError(f"{why} Spot checks test a promise, and there is none.")
    fresh = SpotCheck(certificate.target, classifier.classes_, seed=secrets.randbits(128))
    return Stream(certificate.identity, classifier.version_, fresh)


def check_state(checks: SpotCheck, n_waiting: int) -> dict[str, Any]:
    """The status of spot checks, as plain values."""
    names = ("raised", "raised_at", "n_admitted", "n_drawn", "n_checked", "n_wrong", "false_alarm", "confidence")
    groups = [
        {"name": one.name, **asdict(one), "accuracy": one.accuracy, "raised": one.raised} for one in checks.groups
    ]
    return {
        **{name: getattr(checks, name) for name in names},
        "n_waiting": n_waiting,
        "raised_by": [one["name"] for one in groups if one["raised"]],
        "groups": groups,
        "resets": [vars(reset) for reset in checks.resets],
    }


def offered_texts(texts: Sequence[Any], answers: Sequence[Any] | None, rows: Sequence[Row]) -> Iterator[Offered]:
    """The admitted answers to texts in memory, each with what a person must read."""
    for number, (text, row) in enumerate(zip(texts, rows, strict=True)):
        if row["admitted"]:
            label = row["prediction"]
            shown = text if answers is None else f"{text}\n[answer] {answers[number]}"
            yield Offered(label, row["probabilities"][str(label)], text=shown)


# --- After an alarm --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Demotable:
    """Of decisions as rows: what an alarm looks at and may change."""

    predictions: Array
    lane: Array
    reason: Array
    certified: Array
    admitted: Array


def demoted_rows(checks: SpotCheck, rows: list[Row]) -> list[Row]:
    """Rows as ``SpotCheck.demote`` leaves decisions."""
    if not rows or "lane" not in rows[0]:
        return rows
    predictions = np.empty(len(rows), dtype=object)
    predictions[:] = [row["prediction"] for row in rows]
    names = ("lane", "reason", "certified", "admitted")
    after: Any = checks.demote(_Demotable(predictions, *(np.array([row[name] for row in rows]) for name in names)))  # type: ignore[type-var]
    columns = [getattr(after, name).tolist() for name in names]
    changed = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return [{**row, **one} for row, one in zip(rows, changed, strict=True)]


# --- From files ------------------------------------------------------------------------------------------------------


def check_model(
    model: str | Path,
    decisions: str | None = None,
    *,
    rate: float = 0.05,
    per_week: float | None = None,
    output: Path | None = None,
    verdicts: str | None = None,
    reason: str | None = None,
    who: str,
) -> dict[str, Any]:
    """Draw from the admitted rows of a file, or take in verdicts, or reset; the status after it in ``checks``.

    Answers that wait for a verdict are written to the ``output``. A process that is killed loses nothing that it told;
    the same call goes on.
    """
    if sum(one is not None for one in (decisions, verdicts, reason)) > 1:
        raise InvalidInputError("Give decisions to draw from, verdicts, or a reason for a reset: one of them.")
    if output is not None:
        check_output(output, decisions)
    classifier = load_classifier(Path(model))
    checks, result = ModelChecks(model), dict[str, Any](model=str(model))
    try:
        if decisions is not None:
            result["offered"] = result["drawn"] = result["before"] = 0
            for block in _blocks(_admitted(decisions, classifier)):
                n_new, n_drawn = checks.draw(classifier, block, decisions, rate=rate, per_week=per_week)
                result["offered"] += n_new
                result["drawn"] += n_drawn
                result["before"] += len(block) - n_new
        elif verdicts is not None:
            result |= checks.judge(classifier, list(_rows(verdicts)), who)
        elif reason is not None:
            checks.reset(classifier, reason, who)
        state, waiting = checks.state(classifier, 0 if output is None else -1)
        result |= {"checks": state, "output": None if output is None else str(output)}
        if output is not None:
            rows = [{name: row.get(name) for name in _FILLED_IN} for row in waiting]
            write_rows(output, [rows] if rows else [], lambda: dict.fromkeys(_FILLED_IN))
    finally:
        checks.close()
    return result


def _rows(path: str) -> Iterator[Mapping[str, Any]]:
    source = Source.open(path)
    if source.kind not in TEXT_KINDS:
        raise InvalidInputError(f"The name of {source.name} must end in one of {', '.join(TEXT_KINDS)}.")
    for place, row in source.rows():
        if isinstance(row, Unreadable):
            raise InvalidInputError(f"{source.name}, {place}: {row}.")
        yield row


def _admitted(path: str, classifier: SDMClassifier | SDMEnsemble) -> Iterator[Offered]:
    """The admitted answers among the decisions in a file."""
    certificate = classifier.lane_rule_.certificate
    promise = certificate.identity if certificate is not None and certificate.is_any else None
    classes = {str(name): name for name in classifier.classes_.tolist()}
    for row in _rows(path):
        if "admitted" not in row or str(row.get("prediction")) not in {*classes, "None", ""}:
            raise InvalidInputError(f"{path} has no decisions of this model.", remedy=Remedy.DECIDE_AGAIN)
        if str(row["admitted"]).lower() != "true":
            continue
        if _value(row.get("certificate")) != promise:
            raise InvalidInputError(
                f"{path} was decided under another certificate than the model has now.", remedy=Remedy.DECIDE_AGAIN
            )
        label = str(row["prediction"])
        by_label = row.get("probabilities") or {}
        probability = by_label.get(label) if isinstance(by_label, dict) else None
        probability = _value(row.get(f"probabilities[{label}]")) if probability is None else probability
        number = None if probability is None else float(probability)
        facts = [str(row.get("id")), label, number, str(row.get("nearest_distance"))]
        digest = hashlib.sha256(json.dumps(facts).encode()).digest()[:16]
        yield Offered(classes[label], number, _value(row.get("id")), _value(row.get("text")), digest)


def _blocks(offered: Iterator[Offered]) -> Iterator[list[Offered]]:
    while block := list(islice(offered, _BLOCK)):
        yield block


def _value(given: Any) -> Any:
    """A cell; in CSV, what is missing is empty."""
    return None if isinstance(given, str) and not given.strip() else given


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
