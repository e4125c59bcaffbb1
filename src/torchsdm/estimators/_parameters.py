"""Parameters of ``SDMClassifier`` and ``SDMEnsemble``, checked, and what training takes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from torchsdm.cluster import Backend, as_backend
from torchsdm.core import check_alpha_setting
from torchsdm.errors import InvalidInputError
from torchsdm.matching import DEFAULT_BLOCK_SIZE
from torchsdm.settings import AUTO, BACKGROUNDS, CONTROLS, PAPER, POLICIES, TRAININGS
from torchsdm.training import TrainingSettings
from torchsdm.validation import check_choice, check_device, check_path, check_positive, check_share

Self = TypeVar("Self", bound="Parameters")


@dataclass(eq=False, repr=False)
class Parameters(ClassifierMixin, BaseEstimator):
    """What the constructor stores, as scikit-learn wants it; ``SDMClassifier`` says what each is for."""

    alpha: float | Sequence[float] | Mapping[Any, float] = 0.95
    n_filters: int = 500
    n_rounds: int = 2
    max_epochs: int = 50
    batch_size: int = 50
    learning_rate: float = 1e-4
    random_state: int | np.random.RandomState | np.random.Generator | None = None
    device: str | None = None
    _: KW_ONLY
    adaptor: str = "filters"
    standardization: str = "per_dimension"
    calibration_size: float = 0.5
    patience: int | None = 5
    min_class_count: int = 0
    checkpoint: str | Path | None = None
    block_size: int = DEFAULT_BLOCK_SIZE
    verbose: bool = False
    certification_size: float | None = 0.25
    delta: float = 0.1
    control: str = "groups"
    pools: Mapping[str, Sequence[Any]] | None = None
    familiarity: float = 0.05
    policy: str = "certified"
    background_as: str = "class"
    backend: Backend = None
    training: str = "linear"
    class_weight: str | Mapping[Any, float] | None = None

    @classmethod
    def paper(cls: type[Self], alpha: float | Sequence[float] | Mapping[Any, float] = 0.95, **changes: Any) -> Self:
        """An estimator with the paper's settings and protocol: wide, slow, ten rounds, and no certificate.

        Parameters
        ----------
        alpha : float, sequence of float, or mapping of class to float
        **changes
            Any other parameters.
        """
        return cls(alpha, **{**PAPER, **changes})

    def _check_parameters(self, caller: str) -> None:
        check_training(self, caller)
        check_positive(self.block_size, "block_size", caller, integer=True)
        check_positive(self.min_class_count, "min_class_count", caller, integer=True, zero=True)
        choices = {"adaptor": ("filters", "identity"), "training": TRAININGS, "control": (*CONTROLS, AUTO)}
        for name, allowed in {**choices, "policy": POLICIES, "background_as": BACKGROUNDS}.items():
            check_choice(getattr(self, name), allowed, name, caller)
        check_alpha_setting(self.alpha, caller)
        if self.certification_size is not None:
            check_share(self.certification_size, "certification_size", caller)
        check_share(self.delta, "delta", caller)
        if self.pools is not None and self.control not in ("pooled", AUTO):
            raise InvalidInputError(
                f"'pools' of {caller} are for control 'pooled' or 'auto'. Got control {self.control!r}."
            )
        check_positive(self.familiarity, "familiarity", caller, zero=True)
        if self.familiarity >= 1:
            raise InvalidInputError(f"'familiarity' of {caller} must be in [0, 1). Got {self.familiarity!r}.")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def check_training(estimator: Any, caller: str, width: str = "n_filters") -> None:
    """Check the parameters of an estimator that say how it is trained; ``width`` names that of its network."""
    for name in (width, "n_rounds", "max_epochs", "batch_size"):
        check_positive(getattr(estimator, name), name, caller, integer=True)
    if estimator.patience is not None:
        check_positive(estimator.patience, "patience", caller, integer=True)
    check_positive(estimator.learning_rate, "learning_rate", caller)
    check_choice(estimator.standardization, ("scalar", "per_dimension"), "standardization", caller)
    check_share(estimator.calibration_size, "calibration_size", caller)
    if estimator.checkpoint is not None:
        check_path(estimator.checkpoint, "checkpoint", caller)
    check_device(estimator.device, caller)
    if estimator.backend is not None:
        as_backend(estimator.backend, caller)


def training_settings(estimator: Any, n_classes: int, width: str = "n_filters", **more: Any) -> TrainingSettings:
    """The parameters of an estimator that say how it is trained."""
    return TrainingSettings(
        n_classes=n_classes,
        n_filters=int(getattr(estimator, width)),
        max_epochs=int(estimator.max_epochs),
        batch_size=int(estimator.batch_size),
        learning_rate=float(estimator.learning_rate),
        patience=None if estimator.patience is None else int(estimator.patience),
        standardization=estimator.standardization,
        calibration_size=float(estimator.calibration_size),
        device="cpu" if estimator.device is None else str(estimator.device),
        **more,
    )
