"""Load a classifier of whichever kind is in a model directory."""

from __future__ import annotations

from pathlib import Path

from torchsdm.errors import ModelFileError
from torchsdm.estimators.classifier import SDMClassifier
from torchsdm.estimators.ensemble import SDMEnsemble
from torchsdm.storage import stored_kind

_KINDS: dict[str, type[SDMClassifier | SDMEnsemble]] = {"SDMClassifier": SDMClassifier, "SDMEnsemble": SDMEnsemble}


def load_classifier(
    directory: Path, *, device: str | None = None, verify: bool | None = None
) -> SDMClassifier | SDMEnsemble:
    """The classifier or ensemble over hidden states in a directory; see ``SDMClassifier.load``."""
    kind = _KINDS.get(stored_kind(directory))
    if kind is None:
        raise ModelFileError(f"{directory} contains a {stored_kind(directory)!r}, not a classifier.")
    return kind.load(directory, device=device, verify=verify)
