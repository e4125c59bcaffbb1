"""The parameters of ``SDMClassifier`` and ``SDMEnsemble``, and what they may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class Parameters(ClassifierMixin, BaseEstimator):
    """What the constructor stores, as scikit-learn wants it; ``SDMClassifier`` says what each is for."""

    def __init__(
        self,
        alpha: float | Sequence[float] | Mapping[Any, float] = 0.95,
        n_filters: int = 500,
        n_rounds: int = 2,
        max_epochs: int = 50,
        batch_size: int = 50,
        learning_rate: float = 1e-4,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        device: str | None = None,
        *,
        adaptor: str = "filters",
        standardization: str = "per_dimension",
        calibration_size: float = 0.5,
        patience: int | None = 5,
        min_class_count: int = 0,
        checkpoint: str | Path | None = None,
        block_size: int = DEFAULT_BLOCK_SIZE,
        verbose: bool = False,
        certification_size: float | None = 0.25,
        delta: float = 0.1,
        control: str = "groups",
        pools: Mapping[str, Sequence[Any]] | None = None,
        familiarity: float = 0.05,
        policy: str = "certified",
        background_as: str = "class",
        backend: Backend = None,
        training: str = "linear",
        class_weight: str | Mapping[Any, float] | None = None,
    ) -> None:
        self.alpha = alpha
        self.n_filters = n_filters
        self.n_rounds = n_rounds
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.device = device
        self.adaptor = adaptor
        self.standardization = standardization
        self.calibration_size = calibration_size
        self.patience = patience
        self.min_class_count = min_class_count
        self.checkpoint = checkpoint
        self.block_size = block_size
        self.verbose = verbose
        self.certification_size = certification_size
        self.delta = delta
        self.control = control
        self.pools = pools
        self.familiarity = familiarity
        self.policy = policy
        self.background_as = background_as
        self.backend = backend
        self.training = training
        self.class_weight = class_weight

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
        for name in ("n_filters", "n_rounds", "max_epochs", "batch_size", "block_size"):
            check_positive(getattr(self, name), name, caller, integer=True)
        if self.patience is not None:
            check_positive(self.patience, "patience", caller, integer=True)
        check_positive(self.min_class_count, "min_class_count", caller, integer=True, zero=True)
        check_positive(self.learning_rate, "learning_rate", caller)
        check_choice(self.adaptor, ("filters", "identity"), "adaptor", caller)
        check_choice(self.training, TRAININGS, "training", caller)
        check_choice(self.standardization, ("scalar", "per_dimension"), "standardization", caller)
        check_share(self.calibration_size, "calibration_size", caller)
        if self.checkpoint is not None:
            check_path(self.checkpoint, "checkpoint", caller)
        check_device(self.device, caller)
        as_backend(self.backend, caller)
        check_alpha_setting(self.alpha, caller)
        if self.certification_size is not None:
            check_share(self.certification_size, "certification_size", caller)
        check_share(self.delta, "delta", caller)
        check_choice(self.control, (*CONTROLS, AUTO), "control", caller)
        if self.pools is not None and self.control not in ("pooled", AUTO):
            raise InvalidInputError(
                f"'pools' of {caller} are for control 'pooled' or 'auto'. Got control {self.control!r}."
            )
        check_choice(self.policy, POLICIES, "policy", caller)
        check_choice(self.background_as, BACKGROUNDS, "background_as", caller)
        check_positive(self.familiarity, "familiarity", caller, zero=True)
        if self.familiarity >= 1:
            raise InvalidInputError(f"'familiarity' of {caller} must be in [0, 1). Got {self.familiarity!r}.")

    def _training_settings(self, n_classes: int, class_weights: tuple[float, ...] | None) -> TrainingSettings:
        return TrainingSettings(
            n_classes=n_classes,
            n_filters=int(self.n_filters),
            max_epochs=int(self.max_epochs),
            batch_size=int(self.batch_size),
            learning_rate=float(self.learning_rate),
            patience=None if self.patience is None else int(self.patience),
            adaptor=self.adaptor,
            standardization=self.standardization,
            calibration_size=float(self.calibration_size),
            block_size=int(self.block_size),
            device="cpu" if self.device is None else str(self.device),
            class_weights=class_weights,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags
