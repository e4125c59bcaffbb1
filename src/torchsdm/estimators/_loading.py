"""Load a classifier of whichever kind is in a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchsdm.cluster import Backend
from torchsdm.errors import ModelFileError
from torchsdm.estimators.classifier import SDMClassifier
from torchsdm.estimators.ensemble import SDMEnsemble
from torchsdm.model import ReadLog, stored_kind

_KINDS: dict[str, type[SDMClassifier | SDMEnsemble]] = {"SDMClassifier": SDMClassifier, "SDMEnsemble": SDMEnsemble}


def load_classifier(
    directory: Path, *, device: str | None = None, verify: bool | None = None, backend: Backend = None
) -> SDMClassifier | SDMEnsemble:
    """The classifier or ensemble over hidden states in a directory; see ``SDMClassifier.load``."""
    return _kind(directory).load(directory, device=device, verify=verify, backend=backend)


def load_base(
    directory: Path, *, device: str | None = None, verify: bool | None = None, backend: Backend = None
) -> tuple[SDMClassifier | SDMEnsemble, ReadLog]:
    """The same without the changes that were logged, and the log of them."""
    return _kind(directory)._load_parts(directory, device, verify, backend=backend)


def save_as(classifier: SDMClassifier | SDMEnsemble, directory: Path, changes: dict[str, Any]) -> None:
    """Save a classifier where it was loaded from, while the writer's lock is held, as what its log goes on from."""
    classifier._replace(directory, changes)


def _kind(directory: Path) -> type[SDMClassifier | SDMEnsemble]:
    kind = _KINDS.get(stored_kind(directory))
    if kind is None:
        raise ModelFileError(f"{directory} contains a {stored_kind(directory)!r}, not a classifier.")
    return kind
