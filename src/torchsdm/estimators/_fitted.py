"""Parameters and learned attributes of ``SDMClassifier`` and ``SDMEnsemble``: declared here, and nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from torchsdm.cluster import Backend, as_backend
from torchsdm.core import check_targets
from torchsdm.data import LabelledStates, StatesOrigin
from torchsdm.errors import CertificateWarning, InvalidInputError, NotFittedError, Remedy, SDMWarning, warn_user
from torchsdm.labels import LabelCodes
from torchsdm.matching import DEFAULT_BLOCK_SIZE
from torchsdm.model import SDMModel
from torchsdm.settings import AUTO, BACKGROUNDS, CONTROLS, PAPER, POLICIES, TRAININGS
from torchsdm.training import History, TrainingSettings
from torchsdm.trust import Certificate, LaneRule, Reliability
from torchsdm.validation import Array, check_choice, check_device, check_path, check_positive, check_share
from torchsdm.wording import UNPROMISED, shortened

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
        check_choice(self.adaptor, ("filters", "identity"), "adaptor", caller)
        check_choice(self.training, TRAININGS, "training", caller)
        check_targets(self.alpha, None, caller)
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


class FittedState(Parameters):
    """The learned attributes of ``SDMClassifier`` and ``SDMEnsemble``, and what follows from them alone."""

    models_: tuple[SDMModel, ...]
    classes_: Array
    n_features_in_: int
    input_ndim_: int
    history_: History
    data_fingerprint_: str
    random_seed_: int
    training_rows_: Array
    calibration_rows_: Array
    certification_rows_: Array
    certificate_: Certificate | None = None
    reliability_: Reliability | None = None
    familiarity_: float
    """The familiarity that the certificate was made with."""
    measures_familiarity_: bool = False
    """Whether lanes go by ``torchsdm.core.Familiarity``; ensembles and models from before it do not."""
    deltas_spent_: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """What each certification sample was asked, by its fingerprint, and the delta of every answer; a refit or a new
    sample does not forget."""
    states_origin_: StatesOrigin | None
    """The language model and prompt that the hidden states were made with, if known."""
    data_source_: str | None = None
    """What the training data is called, such as the name of its file; for the model card."""
    version_: int = 0
    """The version of a loaded model: how many changes of it were logged; 0 for one that was fitted."""
    _codes: LabelCodes
    _home: Path | None = None
    """The directory that it was loaded from."""

    def _check_is_fitted(self, method: str) -> None:
        if not hasattr(self, "models_"):
            name = type(self).__name__
            raise NotFittedError(f"This {name} is not fitted yet: call fit before {method}.")

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        """Restore what was learned before if a call fails or is interrupted."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _check_alike(self, part: LabelledStates, name: str, origin: StatesOrigin | None, caller: str) -> None:
        """Refuse a part whose states have another width than those of X, or were made otherwise."""
        shape = np.shape(part.hidden_states)
        if shape and shape[-1] != self.n_features_in_:
            raise InvalidInputError(
                f"'{name}' of {caller} must have states of width {self.n_features_in_}, like X. Got {shape[-1]}."
            )
        difference = None if origin is None or part.origin is None else origin.difference(part.origin)
        if difference is not None:
            raise InvalidInputError(
                f"'{name}' of {caller} was made with a different {difference.what} than X: "
                f"{shortened(repr(difference.theirs))}, but X has {shortened(repr(difference.ours))}."
            )

    @property
    def lane_rule_(self) -> LaneRule:
        """What puts decisions into lanes. A certificate does not hold for a model that was updated since."""
        self._check_is_fitted("lane_rule_")
        check_choice(self.policy, POLICIES, "policy", type(self).__name__)
        changed = any(model.outdated for model in self.models_)
        return LaneRule(
            None if changed else self.certificate_,
            self.reliability_,
            float(self.familiarity if self.certificate_ is None else self.familiarity_),
            self.policy,
            self.models_[0].calibration.regions[0] if len(self.models_) == 1 else None,
            self.models_[0].calibration.familiarity if self.measures_familiarity_ else None,
        )

    def warnings(self) -> list[SDMWarning]:
        """What a user should know before relying on the model; also in its card, its report and ``sdm doctor``."""
        self._check_is_fitted("warnings")
        names, certificate = self.classes_.tolist(), self.certificate_
        found = self._region_warnings()
        if certificate is not None and (warning := certificate.warning(names)) is not None:
            found.append(warning)
        if certificate is not None and certificate.found and self.models_[0].outdated:
            found.append(CertificateWarning(UNPROMISED["changed"], remedy=Remedy.CERTIFY_AGAIN))
        return found

    def _region_warnings(self) -> list[SDMWarning]:
        names, certificate = self.classes_.tolist(), self.lane_rule_.certificate
        certified = certificate is not None and certificate.found
        by_round = [model.calibration.warnings(names, certified=certified) for model in self.models_]
        return by_round[0] if len(by_round) == 1 else _told_once(by_round)

    def _warn_of_regions(self) -> None:
        for warning in self._region_warnings():
            warn_user(warning)


def _told_once(by_round: Sequence[Sequence[SDMWarning]]) -> list[SDMWarning]:
    """The warnings of several rounds: where several say the like, the first of them."""
    alike: dict[tuple[Any, ...], list[tuple[int, SDMWarning]]] = {}
    for number, warnings in enumerate(by_round, start=1):
        seen: Counter[tuple[Any, ...]] = Counter()
        for warning in warnings:
            kind = (type(warning), warning.remedy)
            alike.setdefault((*kind, seen[kind]), []).append((number, warning))
            seen[kind] += 1

    def told(number: int, warning: SDMWarning, n_rounds: int) -> SDMWarning:
        of = f"Round {number}" + (f", and likewise {n_rounds - 1} of the others" if n_rounds > 1 else "")
        return type(warning)(f"{of}: {warning.what}", remedy=warning.remedy)

    return [told(*rounds[0], len(rounds)) for rounds in alike.values()]
