"""The guard of a saved model: a new one, or one that is carried from run to run in a file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torchsdm.errors import InvalidInputError
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.trust import DriftGuard

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
