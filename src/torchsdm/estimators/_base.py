"""What ``SDMClassifier`` and ``SDMEnsemble`` share: parameters and their checks, training, updating, saving."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

from torchsdm.cluster import Backend, as_backend, run_rounds, spread_on
from torchsdm.core import SDMDecisions, check_alpha_setting, check_targets
from torchsdm.data import LabelledStates, StatesOrigin
from torchsdm.errors import DataWarning, InvalidInputError, InvalidTypeError, Remedy, warn_user
from torchsdm.estimators._apart import keep_apart
from torchsdm.estimators._fitted import check_examples
from torchsdm.estimators._fitting import Background, FitData, Solved, Trained
from torchsdm.estimators._saving import Saveable
from torchsdm.estimators._updates import Updatable
from torchsdm.labels import BACKGROUND, LabelCodes, class_weights, count_classes, warn_of_lookalikes
from torchsdm.matching import DEFAULT_BLOCK_SIZE, next_ids
from torchsdm.model import CALIBRATION, CERTIFICATION, Examples, ListedExamples, Points, Set
from torchsdm.settings import AUTO, BACKGROUNDS, CONTROLS, PAPER, POLICIES, TRAININGS
from torchsdm.training import (
    History,
    SDMLearner,
    Training,
    TrainingData,
    TrainingSettings,
    fingerprint,
    seed_of_fit,
    train_rounds,
)
from torchsdm.validation import (
    Array,
    ArrayLike,
    check_choice,
    check_device,
    check_hidden_states,
    check_label_array,
    check_path,
    check_positive,
    check_same_length,
    check_share,
)
from torchsdm.wording import shortened

Self = TypeVar("Self", bound="BaseSDMClassifier")

_FILTERS_PER_CLASS = 2  # at least, in linear training: one for its logit, and one beside it
_FEWEST_BACKGROUND = 2  # one to train on and one to judge by
_OTHER_SCALE = 3.0  # times as wide or narrow, or standard deviations away: more than other proportions of classes make
_FEW = 10  # points whose spread says little


class BaseSDMClassifier(Saveable, Updatable, ClassifierMixin, BaseEstimator):
    """What the single classifier and the ensemble share.

    ``fit`` of each reads from top to bottom: check the data, train the rounds, build the models that are wanted.
    """

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

    # ---------------------------------------------------------------- fitting

    def _check_data(
        self,
        X: ArrayLike | LabelledStates,
        y: ArrayLike | None,
        ids: Sequence[Any] | Array | None,
        texts: Sequence[str] | Array | None,
        calibration: LabelledStates | tuple[ArrayLike, ArrayLike] | None,
        certification: LabelledStates | tuple[ArrayLike, ArrayLike] | None = None,
        background: LabelledStates | ArrayLike | None = None,
    ) -> FitData:
        """Check the arguments of ``fit``."""
        caller = f"{type(self).__name__}.fit"
        self._check_parameters(caller)
        data_in = X if isinstance(X, LabelledStates) else LabelledStates(X, y, ids, texts)
        if data_in is X and not (y is None and ids is None and texts is None):
            raise InvalidInputError(f"{caller} takes no y, ids or texts with LabelledStates, which have their own.")
        states = check_hidden_states(self, data_in.hidden_states, caller, reset=True)
        labels = check_label_array(data_in.labels, caller)
        check_same_length(len(states), labels, "y", caller)
        classes, class_numbers = count_classes(labels, f"'y' of {caller}")
        warn_of_lookalikes(labels, f"'y' of {caller}")
        check_targets(self.alpha, classes, caller)
        class_weights(self.class_weight, class_numbers, classes, caller)  # refused before hours of training
        examples = check_examples(data_in.ids, data_in.texts, len(states), caller)
        codes = LabelCodes(classes)
        sets: dict[str, Set] = {"training": (states, examples)}
        calibrating = self._check_part(calibration, CALIBRATION, codes, data_in.origin, caller, sets)
        if calibrating is not None:
            sets[CALIBRATION] = calibrating[::2]
        certifying = self._check_part(certification, CERTIFICATION, codes, data_in.origin, caller, sets)
        if certifying is not None:
            sets[CERTIFICATION] = certifying[::2]
        for name, part in ((CALIBRATION, calibrating), (CERTIFICATION, certifying)):
            if part is not None:
                warn_of_other_scale(part[0], *_mean_and_scale(states), f"'{name}' of {caller}")
        data = FitData(
            TrainingData(states, torch.from_numpy(class_numbers.astype(np.int64)), *(calibrating or ())[:2]),
            classes,
            examples,
            examples if calibrating is None else calibrating[2],
            fingerprint(states, labels),
            data_in.origin,
            None if certifying is None else Points(certifying[0].split(DEFAULT_BLOCK_SIZE), *certifying[1:]),
        )
        return replace(data, background=self._check_background(background, classes, data_in.origin, caller, sets))

    def _draw_seed(self, seed: int | None) -> None:
        """Fix the seed of a fit: the given one, or one drawn from ``random_state``."""
        self.random_seed_ = seed_of_fit(seed, self.random_state, self.checkpoint, type(self).__name__)

    def _begin(self, data: FitData) -> FitData:
        """Set the attributes that do not depend on how the model is trained; the data with their background."""
        self.data_fingerprint_, self.data_source_ = data.fingerprint, None
        self._home, self.version_ = None, 0  # another model than the one that was loaded
        self.classes_, self.states_origin_ = data.classes, data.states_origin
        self._codes = LabelCodes(data.classes, () if data.background is None else (BACKGROUND,))
        return data if data.background is None else data.with_background(data.background)

    def _solve(self, data: FitData) -> Solved:
        """The linear training of a fit."""
        data = self._begin(data)
        n_classes = data.n_trained_classes
        settings = self._settings(data)
        wide_enough = replace(settings, n_filters=max(settings.n_filters, _FILTERS_PER_CLASS * n_classes))
        alphas = check_targets(self.alpha, data.classes, f"{type(self).__name__}.fit")
        return Solved(data, wide_enough, self.random_seed_, alphas, int(self.min_class_count))

    def _train(self, data: FitData) -> Trained:
        """Train the rounds, and set the attributes that do not depend on which of them are kept."""
        data = self._begin(data)
        caller = f"{type(self).__name__}.fit"
        training = Training(
            SDMLearner,
            data.points,
            self._settings(data),
            self.random_seed_,
            spread=spread_on(self.backend, caller),
        )
        rounds = train_rounds(
            training,
            self.n_rounds,
            checkpoint=self.checkpoint,
            data_fingerprint=data.fingerprint_of_parts,
            verbose=self.verbose,
            run=run_rounds(self.backend, caller),
        )
        self.history_ = History(record for one in rounds for record in one.records)
        alphas = check_targets(self.alpha, data.classes, caller)
        return Trained(data, training, rounds, alphas, int(self.min_class_count))

    # ---------------------------------------------------------------- asking

    @abstractmethod
    def predict(self, X: ArrayLike) -> Array:
        """The predicted label of each input, admitted or not; ``decide`` says which are admitted."""

    @abstractmethod
    def decide(self, X: ArrayLike) -> SDMDecisions:
        """Decide on each input: the label, whether it is admitted, and the numbers behind it."""

    def predict_proba(self, X: ArrayLike) -> Array:
        """sdm(z') of each input (N, C), classes in the order of ``classes_``.

        If the distance quantile is 0 the distribution is uniform; the predicted class is then raised by one unit in
        the last place, so that argmax agrees with ``predict``, as scikit-learn expects.
        """
        decisions = self.decide(X)
        probabilities = decisions.probabilities
        predicted = self._codes.encode(decisions.predictions, "predict_proba").numpy()
        tied = np.flatnonzero(probabilities.argmax(axis=1) != predicted)
        probabilities[tied, predicted[tied]] = np.nextafter(probabilities[tied].max(axis=1), 1.0)
        return probabilities

    # ---------------------------------------------------------------- inside

    @property
    def _device(self) -> str:
        return "cpu" if self.device is None else str(self.device)

    def _settings(self, data: FitData) -> TrainingSettings:
        return TrainingSettings(
            n_classes=data.n_trained_classes,
            n_filters=int(self.n_filters),
            max_epochs=int(self.max_epochs),
            batch_size=int(self.batch_size),
            learning_rate=float(self.learning_rate),
            patience=None if self.patience is None else int(self.patience),
            adaptor=self.adaptor,
            standardization=self.standardization,
            calibration_size=float(self.calibration_size),
            block_size=int(self.block_size),
            device=self._device,
            class_weights=class_weights(
                self.class_weight, data.points.usable.labels.numpy(), data.classes, f"{type(self).__name__}.fit"
            ),
        )

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

    def _check_part(
        self,
        part: Any,
        name: str,
        codes: LabelCodes,
        origin: StatesOrigin | None,
        caller: str,
        sets: Mapping[str, Set],
    ) -> tuple[Tensor, Tensor, Examples] | None:
        """States, class numbers and names of the user's calibration or certification set, apart from other sets."""
        if part is None:
            return None
        if not isinstance(part, LabelledStates):
            if not isinstance(part, (tuple, list)) or len(part) != 2:
                raise InvalidTypeError(
                    f"'{name}' of {caller} must be LabelledStates or (X, y). Got {type(part).__name__}."
                )
            part = LabelledStates(*part)
        self._check_alike(part, name, origin, caller)
        where = f"{caller} ({name})"
        states = check_hidden_states(self, part.hidden_states, where, reset=False)
        labels = check_label_array(part.labels, where)
        check_same_length(len(states), labels, "y", where)
        class_numbers = codes.encode(labels, where)
        taken = [one for _, known in sets.values() for one in known.ids()]
        ids = next_ids(taken, len(states)) if part.ids is None else part.ids
        examples = check_examples(ids, part.texts, len(states), caller)
        keep_apart((states, examples), sets, caller, to=name, by_text=origin is not None)
        return states, class_numbers, examples

    def _check_background(
        self, given: Any, classes: Array, origin: StatesOrigin | None, caller: str, sets: Mapping[str, Set]
    ) -> Background | None:
        """The user's examples of what belongs to no class, apart from other sets; labels they may have are ignored."""
        if given is None:
            return None
        if isinstance(given, tuple):
            raise InvalidTypeError(
                f"'background' of {caller} takes hidden states alone. Got a tuple; pass X without y."
            )
        if BACKGROUND in classes.tolist():
            raise InvalidInputError(f"{BACKGROUND!r} is the label of background examples. Rename the class.")
        part = given if isinstance(given, LabelledStates) else LabelledStates(given, None)
        self._check_alike(part, "background", origin, caller)
        states = check_hidden_states(self, part.hidden_states, f"{caller} (background)", reset=False)
        if len(states) < _FEWEST_BACKGROUND:
            raise InvalidInputError(
                f"'background' of {caller} must have at least {_FEWEST_BACKGROUND} examples. Got {len(states)}."
            )
        shape = tuple(sets["training"][0].shape[1:])
        if tuple(states.shape[1:]) != shape:
            raise InvalidInputError(
                f"'background' of {caller} must have states of shape {shape}, like X. Got {tuple(states.shape[1:])}."
            )
        examples = check_examples(part.ids, part.texts, len(states), caller)
        ids, texts = examples.all()
        named = ListedExamples([f"background:{name}" for name in ids], texts)
        keep_apart((states, named), sets, caller, to="background", by_text=origin is not None)
        return Background(states, named, self.background_as == "class")

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

    def _check_input(self, X: ArrayLike, method: str) -> Tensor:
        self._check_is_fitted(method)
        return check_hidden_states(self, X, f"{type(self).__name__}.{method}", reset=False, empty=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def warn_of_other_scale(states: Tensor, mean: Tensor, scale: Tensor, what: str) -> None:
    """Warn of states that were not made like X, such as those that a pipeline did not transform.

    In units of the scale of X, its own spread is 1 and its mean is at 0.
    """
    if len(states) < _FEW:
        return
    entries = (states.to(mean.device).float() - mean) / scale
    centre = entries.reshape(-1, entries.shape[-1]).mean(dim=0)  # (D,)
    spread, offset = (float(one.square().mean().sqrt()) for one in (entries - centre, centre))
    if not 1 / _OTHER_SCALE < spread < _OTHER_SCALE or offset > _OTHER_SCALE:
        warn_user(
            f"{what} has states on another scale than the training data: {spread:.2g} times as wide, around a mean "
            f"that is {offset:.2g} standard deviations away.",
            DataWarning,
            Remedy.SAME_STATES,
        )


def _mean_and_scale(states: Tensor) -> tuple[Tensor, Tensor]:
    """Of each dimension (D,); a constant one has the scale 1."""
    scale, mean = torch.std_mean(states.reshape(-1, states.shape[-1]).float(), dim=0)
    return mean, torch.where(scale > 0, scale, 1.0)
