"""Every reader, loader and endpoint, each with the bad input that suits it."""

from __future__ import annotations

from tools.chaos.harness import Target
from tools.chaos.targets_files import FILE_TARGETS
from tools.chaos.targets_language_models import LANGUAGE_MODEL_TARGETS
from tools.chaos.targets_models import MODEL_TARGETS
from tools.chaos.targets_service import SERVICE_TARGETS

_WEIGHED: dict[type[Target], float] = {**FILE_TARGETS, **MODEL_TARGETS, **SERVICE_TARGETS, **LANGUAGE_MODEL_TARGETS}
TARGETS: dict[str, type[Target]] = {target.name: target for target in _WEIGHED}
WEIGHTS: dict[str, float] = {target.name: weight for target, weight in _WEIGHED.items()}
"""The share of all cases that a target gets: about as many as it does in a second."""
