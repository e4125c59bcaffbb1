"""What ``SDMClassifier`` and ``SDMEnsemble`` share: fitting, updating, calibrating, saving."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

from torchsdm.core import Decisions, restore_adaptor
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.estimators._fitted import check_examples
from torchsdm.estimators._saving import Saveable
from torchsdm.estimators._updates import Updatable
from torchsdm.labels import LabelCodes, count_classes
from torchsdm.matching import DEFAULT_BLOCK_SIZE, SupportSet
from torchsdm.model import Calibration, Examples, SDMModel
from torchsdm.states import LabelledStates, StatesOrigin
from torchsdm.training import (
    History,
    Part,
    RoundResult,
    TrainingData,
    TrainingSettings,
    fingerprint,
    resumable_seed,
    split_of_round,
    train_rounds,
)
from torchsdm.validation import (
    Array,
    ArrayLike,
    check_alphas,
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


class BaseSDMClassifier(Saveable, Updatable, ClassifierMixin, BaseEstimator):
    """What the single classifier and the ensemble share: fitting rounds, updating, calibrating, saving."""

    def __init__(
        self,
        alpha: float | Sequence[float] = 0.95,
        n_filters: int = 1000,
        n_rounds: int = 10,
        max_epochs: int = 200,
        batch_size: int = 50,
        learning_rate: float = 1e-5,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        device: str | None = None,
        *,
        adaptor: str = "filters",
        standardization: str = "scalar",
        calibration_size: float = 0.5,
        patience: int | None = None,
        min_class_count: int = 0,
        checkpoint: str | Path | None = None,
        block_size: int = DEFAULT_BLOCK_SIZE,
        verbose: bool = False,
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

    # ---------------------------------------------------------------- fitting

    def fit(
        self: Self,
        X: ArrayLike | LabelledStates,
        y: ArrayLike | None = None,
        *,
        ids: Sequence[Any] | Array | None = None,
        texts: Sequence[str] | Array | None = None,
        calibration: LabelledStates | tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Train the rounds, then calibrate.

        Parameters
        ----------
        X : (N, D), or (N, positions, D); or LabelledStates
            Hidden states: an array, a memory-mapped array or a tensor. They are used as float32. LabelledStates, as
            ``read_states`` gives them, bring labels, ids and texts along.
        y : (N,)
            Labels of any type that scikit-learn accepts.
        ids, texts : (N,), optional
            Names (unique; by default the row numbers of X) and texts of the examples, given back by ``explain``.
        calibration : LabelledStates or (X, y), optional
            A calibration set of your own; all of X is then trained on. By default each round splits X.
        """
        with self._unchanged_on_error():
            caller = f"{type(self).__name__}.fit"
            alphas = self._check_parameters(caller)
            data_in = X if isinstance(X, LabelledStates) else LabelledStates(X, y, ids, texts)
            if data_in is X and not (y is None and ids is None and texts is None):
                raise InvalidInputError(
                    f"{caller} takes no y, ids or texts beside LabelledStates, which have their own."
                )
            states = check_hidden_states(self, data_in.hidden_states, caller, reset=True)
            labels = check_label_array(data_in.labels, caller)
            check_same_length(len(states), labels, "y", caller)
            classes, class_numbers = count_classes(labels, caller)
            codes = LabelCodes(classes)
            examples = check_examples(data_in.ids, data_in.texts, len(states), caller)
            given = self._check_calibration(calibration, codes, data_in.origin, caller)
            data = TrainingData(states, torch.from_numpy(class_numbers.astype(np.int64)), *given[:2])
            self.data_fingerprint_ = fingerprint(states, labels)
            self.random_seed_ = self._draw_seed()
            results = train_rounds(
                data,
                self._settings(len(classes)),
                self.random_seed_,
                self.n_rounds,
                checkpoint=self.checkpoint,
                data_fingerprint=self._fit_fingerprint(given),
                verbose=self.verbose,
            )
            self.classes_ = classes
            self._codes = codes
            self.states_origin_ = data_in.origin
            self.history_ = History(record for result in results for record in result.records)
            self._keep(results, lambda result: self._build(result, data, examples, given[2], alphas, codes))
        return self

    @abstractmethod
    def _keep(self, results: list[RoundResult], build: Callable[[RoundResult], SDMModel]) -> None:
        """Build and keep the models that are wanted of the rounds."""

    def _build(
        self,
        result: RoundResult,
        data: TrainingData,
        examples: Examples,
        calibration_examples: Examples | None,
        alphas: tuple[float, ...],
        codes: LabelCodes,
    ) -> SDMModel:
        """The model of a round, with its support and calibration set in batch-invariant arithmetic."""
        settings = self._settings(len(codes.classes))
        train, calibration = split_of_round(data, settings, self.random_seed_, result.number)
        adaptor = restore_adaptor(
            settings.adaptor,
            data.hidden_states.shape[-1],
            settings.n_classes,
            settings.n_filters,
            result.adaptor,
        ).to(settings.device)
        exemplars, logits = _encode(adaptor, train)
        support = SupportSet(exemplars, train.labels, logits.argmax(dim=1), block_size=settings.block_size)
        calibration_exemplars, calibration_logits = _encode(adaptor, calibration)
        return SDMModel(
            adaptor,
            support,
            examples.take(train.rows.tolist()),
            Calibration.of(
                calibration_exemplars,
                calibration_logits,
                calibration.labels.to(support.exemplars.device),
                support,
                alphas,
                int(self.min_class_count),
                codes.classes.tolist(),
            ),
            (calibration_examples or examples).take(calibration.rows.tolist()),
            codes.classes,
        )

    # ---------------------------------------------------------------- asking

    @abstractmethod
    def predict(self, X: ArrayLike) -> Array:
        """The predicted label of each input, admitted or not; ``decide`` says which may be acted on."""

    @abstractmethod
    def decide(self, X: ArrayLike) -> Decisions:
        """Decide on each input: the label, whether it is admitted, and all that this rests on."""

    def predict_proba(self, X: ArrayLike) -> Array:
        """sdm(z') of each input (N, C), classes in the order of ``classes_``.

        Where the distance quantile is 0 the distribution is uniform; the predicted class is then raised by one unit in
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

    def _settings(self, n_classes: int) -> TrainingSettings:
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
            device=self._device,
        )

    def _check_parameters(self, caller: str) -> tuple[float, ...]:
        for name in ("n_filters", "n_rounds", "max_epochs", "batch_size", "block_size"):
            check_positive(getattr(self, name), name, caller, integer=True)
        if self.patience is not None:
            check_positive(self.patience, "patience", caller, integer=True)
        check_positive(self.min_class_count, "min_class_count", caller, integer=True, zero=True)
        check_positive(self.learning_rate, "learning_rate", caller)
        check_choice(self.adaptor, ("filters", "identity"), "adaptor", caller)
        check_choice(self.standardization, ("scalar", "per_dimension"), "standardization", caller)
        check_share(self.calibration_size, "calibration_size", caller)
        if self.checkpoint is not None:
            check_path(self.checkpoint, "checkpoint", caller)
        check_device(self.device, caller)
        return check_alphas(self.alpha, caller)

    def _check_calibration(
        self, calibration: Any, codes: LabelCodes, origin: StatesOrigin | None, caller: str
    ) -> tuple[Tensor | None, Tensor | None, Examples | None]:
        """States, class numbers and names of the user's calibration set."""
        if calibration is None:
            return None, None, None
        if not isinstance(calibration, LabelledStates):
            if not isinstance(calibration, (tuple, list)) or len(calibration) != 2:
                raise InvalidTypeError(
                    f"'calibration' of {caller} must be LabelledStates or (X, y). Got {type(calibration).__name__}."
                )
            calibration = LabelledStates(*calibration)
        if origin is not None and calibration.origin is not None:
            difference = origin.difference(calibration.origin)
            if difference is not None:
                raise InvalidInputError(
                    f"'calibration' of {caller} was made with another {difference.what} than X: "
                    f"{shortened(repr(difference.theirs))}, where X has {shortened(repr(difference.ours))}."
                )
        states = check_hidden_states(self, calibration.hidden_states, f"{caller} (calibration)", reset=False)
        labels = check_label_array(calibration.labels, f"{caller} (calibration)")
        check_same_length(len(states), labels, "y", f"{caller} (calibration)")
        class_numbers = codes.encode(labels, f"{caller} (calibration)")
        examples = check_examples(calibration.ids, calibration.texts, len(states), caller)
        return states, class_numbers, examples

    def _fit_fingerprint(self, given: tuple[Tensor | None, Tensor | None, Examples | None]) -> str:
        states, class_numbers, _ = given
        if states is None or class_numbers is None:
            return self.data_fingerprint_
        return self.data_fingerprint_ + fingerprint(states, class_numbers.numpy())

    def _draw_seed(self) -> int:
        return resumable_seed(self.random_state, self.checkpoint, type(self).__name__)

    def _check_input(self, X: ArrayLike, method: str) -> Tensor:
        self._check_is_fitted(method)
        return check_hidden_states(self, X, f"{type(self).__name__}.{method}", reset=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _encode(adaptor: Any, part: Part) -> tuple[Tensor, Tensor]:
    """Exemplars and logits of a part, a block of rows at a time."""
    blocks = [adaptor.encode(part.states(positions)) for positions in torch.arange(len(part)).split(DEFAULT_BLOCK_SIZE)]
    exemplars, logits = (torch.cat(tensors) for tensors in zip(*blocks, strict=True))
    return exemplars, logits
