"""What :class:`SDMClassifier` and :class:`SDMEnsemble` share: fitting, updating, calibrating, saving."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from torch import Tensor

from torchsdm import persistence
from torchsdm._version import __version__
from torchsdm.adaptor import make_adaptor
from torchsdm.checkpoint import Checkpoints
from torchsdm.data import LabelledStates, fingerprint
from torchsdm.decision import Decisions
from torchsdm.errors import InvalidInputError, InvalidTypeError, ModelFileError, NotFittedError
from torchsdm.history import EpochRecord, History
from torchsdm.hub import HubModel
from torchsdm.labels import LabelCodes, count_classes
from torchsdm.matching import DEFAULT_BLOCK_SIZE
from torchsdm.model import Calibration, Examples, SDMModel
from torchsdm.model_card import model_card
from torchsdm.model_files import load_model_parts, model_parts
from torchsdm.rounds import train_rounds
from torchsdm.support import SupportSet, as_list
from torchsdm.training import Part, RoundResult, TrainingData, TrainingSettings, split_of_round
from torchsdm.validation import (
    Array,
    ArrayLike,
    check_alphas,
    check_choice,
    check_hidden_states,
    check_label_array,
    check_positive,
    check_same_length,
)

Self = TypeVar("Self", bound="BaseSDMClassifier")


class BaseSDMClassifier(HubModel, ClassifierMixin, BaseEstimator):
    """What the single classifier and the ensemble share: fitting rounds, updating, calibrating, saving."""

    models_: tuple[SDMModel, ...]
    classes_: Array
    n_features_in_: int
    history_: History
    data_fingerprint_: str
    random_seed_: int
    _codes: LabelCodes

    def __init__(
        self,
        alpha: float | Sequence[float] = 0.95,
        n_filters: int = 1000,
        n_rounds: int = 10,
        max_epochs: int = 200,
        batch_size: int = 50,
        learning_rate: float = 1e-5,
        random_state: int | np.random.RandomState | None = None,
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
        X: ArrayLike,
        y: ArrayLike,
        *,
        ids: Sequence[Any] | Array | None = None,
        texts: Sequence[str] | Array | None = None,
        calibration: LabelledStates | tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Train the rounds, then calibrate.

        Parameters
        ----------
        X : (N, D), or (N, positions, D)
            Hidden states: an array, a memory-mapped array or a tensor. They are used as float32.
        y : (N,)
            Labels of any type that scikit-learn accepts.
        ids, texts : (N,), optional
            Names (unique; by default the row numbers of X) and texts of the examples, given back by :meth:`explain`.
        calibration : LabelledStates or (X, y), optional
            A calibration set of your own; all of X is then trained on. By default each round splits X.
        """
        with self._unchanged_on_error():
            caller = f"{type(self).__name__}.fit"
            alphas = self._check_parameters(caller)
            states = check_hidden_states(self, X, caller, reset=True)
            labels = check_label_array(y, caller)
            check_same_length(len(states), labels, "y", caller)
            classes, numbers = count_classes(labels, caller)
            codes = LabelCodes(classes)
            examples = _check_examples(ids, texts, len(states), caller)
            given = self._check_calibration(calibration, codes, len(states), caller)
            data = TrainingData(states, torch.from_numpy(numbers.astype(np.int64)), *given[:2])
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
            self.history_ = History(record for result in results for record in result.records)
            self._keep(results, lambda result: self._build(result, data, examples, given[2], alphas, codes))
        return self

    def _keep(self, results: list[RoundResult], build: Any) -> None:
        raise NotImplementedError

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
        adaptor = make_adaptor(settings.adaptor, data.hidden_states.shape[-1], settings.n_classes, settings.n_filters)
        adaptor.mean, adaptor.scale = result.adaptor["mean"].clone(), result.adaptor["scale"].clone()
        adaptor.load_state_dict(result.adaptor)
        adaptor.to(settings.device)
        exemplars, logits = _encode(adaptor, train)
        support = SupportSet(exemplars, train.labels, logits.argmax(dim=1), block_size=self.block_size)
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
                self.min_class_count,
                codes.classes.tolist(),
            ),
            (calibration_examples or examples).take(calibration.rows.tolist()),
            codes.classes,
        )

    # ---------------------------------------------------------------- asking

    def predict(self, X: ArrayLike) -> Array:
        """The predicted label of each input, admitted or not; :meth:`decide` says which may be acted on."""
        raise NotImplementedError

    def decide(self, X: ArrayLike) -> Decisions:
        """Decide on each input: the label, whether it is admitted, and all that this rests on."""
        raise NotImplementedError

    def predict_proba(self, X: ArrayLike) -> Array:
        """sdm(z') of each input (N, C), classes in the order of ``classes_``.

        Where the distance quantile is 0 the distribution is uniform; the predicted class is then raised by one unit in
        the last place, so that argmax agrees with :meth:`predict`, as scikit-learn expects.
        """
        decisions = self.decide(X)
        probabilities = decisions.probabilities
        predicted = self._codes.encode(decisions.predictions, "predict_proba").numpy()
        tied = np.flatnonzero(probabilities.argmax(axis=1) != predicted)
        probabilities[tied, predicted[tied]] = np.nextafter(probabilities[tied].max(axis=1), 1.0)
        return probabilities

    # ---------------------------------------------------------------- updating

    def recalibrate(
        self: Self, alpha: float | Sequence[float] | None = None, *, min_class_count: int | None = None
    ) -> Self:
        """Find the region anew, for another alpha or after updates, without training.

        After updates of the support, the calibration points are matched against it anew and the eCDFs follow.
        """
        self._check_is_fitted("recalibrate")
        caller = f"{type(self).__name__}.recalibrate"
        current = self.models_[0].calibration
        alphas = tuple(r.alpha for r in current.regions) if alpha is None else check_alphas(alpha, caller)
        count = current.min_class_count if min_class_count is None else min_class_count
        if count:
            check_positive(count, "min_class_count", caller, integer=True)
        with self._updated_models() as models:
            for model in models:
                model.recalibrate(alphas, count)
        return self

    def add_exemplars(
        self: Self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        ids: Sequence[Any] | Array | None = None,
        texts: Sequence[str] | Array | None = None,
    ) -> Self:
        """Add labelled points to the support; labels outside the classes are welcome and make their like stand out.

        Weights, eCDFs and region stay as they are until :meth:`recalibrate`.
        """
        self._check_is_fitted("add_exemplars")
        caller = f"{type(self).__name__}.add_exemplars"
        states = check_hidden_states(self, X, caller, reset=False)
        labels = as_list(y)
        check_same_length(len(states), labels, "y", caller)
        _check_examples(ids, texts, len(states), caller)
        codes = self._codes.extended(labels, caller)
        numbers = codes.encode_with_outside(labels, caller)
        with self._updated_models() as models:
            for model in models:
                model.add(
                    states, numbers, None if ids is None else as_list(ids), None if texts is None else as_list(texts)
                )
            self._codes = codes
        return self

    def remove_exemplars(self: Self, ids: Sequence[Any] | Array) -> Self:
        """Take points out of the support, by id. Of an ensemble, out of every round that has them in its support."""
        self._check_is_fitted("remove_exemplars")
        with self._updated_models() as models:
            for model, positions, _ in self._located(models, as_list(ids), "remove_exemplars"):
                model.remove(positions)
        return self

    def relabel_exemplars(self: Self, ids: Sequence[Any] | Array, y: ArrayLike) -> Self:
        """Give points of the support other labels, by id; labels outside the classes are welcome."""
        self._check_is_fitted("relabel_exemplars")
        caller = f"{type(self).__name__}.relabel_exemplars"
        names = as_list(ids)
        labels = as_list(y)
        check_same_length(len(names), labels, "y", caller)
        codes = self._codes.extended(labels, caller)
        numbers = codes.encode_with_outside(labels, caller)
        with self._updated_models() as models:
            for model, positions, chosen in self._located(models, names, "relabel_exemplars"):
                model.relabel(positions, numbers[chosen])
            self._codes = codes
        return self

    def _located(
        self, models: Sequence[SDMModel], ids: list[Any], method: str
    ) -> Iterator[tuple[SDMModel, list[int], list[int]]]:
        """Each model with the support positions of the ids it has, and which of the ids those are."""
        found = [model.examples.positions(ids) for model in models]
        for number, name in enumerate(ids):
            if all(positions[number] is None for positions in found):
                raise InvalidInputError(
                    f"'ids' of {type(self).__name__}.{method} must name points of the support. Got {name!r}, which "
                    "is not there (points of the calibration set are not part of the support)."
                )
        for model, positions in zip(models, found, strict=True):
            chosen = [number for number, position in enumerate(positions) if position is not None]
            yield model, [position for position in positions if position is not None], chosen

    # ---------------------------------------------------------------- saving

    def save(self, path: str | Path) -> None:
        """Write the model to a directory, so that a crash leaves the old model there or the new one."""
        self._check_is_fitted("save")
        single = len(self.models_) == 1
        parts = [
            model_parts(model, self._codes, "" if single else f"round-{number:02d}-")
            for number, model in enumerate(self.models_)
        ]
        config = {
            "kind": type(self).__name__,
            "library_version": __version__,
            "parameters": {name: value for name, value in self.get_params().items() if _is_setting(name, value)},
            "classes": persistence.label_values_to_json(self.classes_, "classes"),
            "labels_outside": persistence.label_values_to_json(np.array(self._codes.outside, dtype=object), "y"),
            "n_features_in": self.n_features_in_,
            "feature_names_in": getattr(self, "feature_names_in_", np.array([])).tolist(),
            "data_fingerprint": self.data_fingerprint_,
            "random_seed": self.random_seed_,
            "history": self.history_.to_dicts(),
            "models": [part.settings for part in parts],
        }
        persistence.write_model(
            path,
            config,
            {name: content for part in parts for name, content in part.tensors.items()},
            {name: rows for part in parts for name, rows in part.tables.items()},
            self.model_card(),
        )

    @classmethod
    def load(cls: type[Self], path: str | Path, *, device: str | None = None, verify: bool = True) -> Self:
        """Read a model that :meth:`save` wrote. The support is memory-mapped; ``verify`` checks every file's digest."""
        stored = persistence.open_model(path, cls.__name__, verify=verify)
        config = stored.config
        try:
            estimator = cls(**config["parameters"], device=device)
            estimator.classes_ = persistence.label_values_from_json(config["classes"])
            outside = persistence.label_values_from_json(config["labels_outside"])
            estimator._codes = LabelCodes(estimator.classes_, tuple(outside.tolist()))
            estimator.n_features_in_ = int(config["n_features_in"])
            if config["feature_names_in"]:
                estimator.feature_names_in_ = np.array(config["feature_names_in"], dtype=object)
            estimator.data_fingerprint_ = config["data_fingerprint"]
            estimator.random_seed_ = config["random_seed"]
            estimator.history_ = History(EpochRecord(**record) for record in config["history"])
            settings = config["models"]
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"{stored.directory / persistence.CONFIG_NAME} is damaged: {error!r}.") from error
        estimator.models_ = tuple(
            load_model_parts(
                stored,
                one,
                estimator._codes,
                estimator.block_size,
                estimator._device,
                "" if len(settings) == 1 else f"round-{number:02d}-",
            )
            for number, one in enumerate(settings)
        )
        return estimator

    def model_card(self) -> str:
        """A model card for this model, in Markdown."""
        self._check_is_fitted("model_card")
        return model_card(type(self).__name__, self.models_, self.n_features_in_, self.data_fingerprint_)

    # ---------------------------------------------------------------- inside

    @property
    def _device(self) -> str:
        return "cpu" if self.device is None else str(self.device)

    def _settings(self, n_classes: int) -> TrainingSettings:
        return TrainingSettings(
            n_classes=n_classes,
            n_filters=self.n_filters,
            max_epochs=self.max_epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            patience=self.patience,
            adaptor=self.adaptor,
            standardization=self.standardization,
            calibration_size=self.calibration_size,
            block_size=self.block_size,
            device=self._device,
        )

    def _check_parameters(self, caller: str) -> tuple[float, ...]:
        for name in ("n_filters", "n_rounds", "max_epochs", "batch_size", "block_size"):
            check_positive(getattr(self, name), name, caller, integer=True)
        for name in ("patience", "min_class_count"):
            if getattr(self, name):
                check_positive(getattr(self, name), name, caller, integer=True)
        check_positive(self.learning_rate, "learning_rate", caller)
        check_choice(self.adaptor, ("filters", "identity"), "adaptor", caller)
        check_choice(self.standardization, ("scalar", "per_dimension"), "standardization", caller)
        check_positive(self.calibration_size, "calibration_size", caller)
        if self.calibration_size >= 1:
            raise InvalidInputError(
                f"'calibration_size' of {caller} must be in (0, 1). Got {self.calibration_size!r}; it is a share of X."
            )
        try:
            torch.device(self._device)
        except RuntimeError as error:
            raise InvalidInputError(f"'device' of {caller} must be a torch device. Got {self.device!r}.") from error
        return check_alphas(self.alpha, caller)

    def _check_calibration(
        self, calibration: LabelledStates | tuple[ArrayLike, ArrayLike] | None, codes: LabelCodes, n: int, caller: str
    ) -> tuple[Tensor | None, Tensor | None, Examples | None]:
        """States, class numbers and names of the user's calibration set."""
        if calibration is None:
            return None, None, None
        if not isinstance(calibration, LabelledStates):
            if len(calibration) != 2:
                raise InvalidTypeError(
                    f"'calibration' of {caller} must be LabelledStates or (X, y). Got {type(calibration).__name__}."
                )
            calibration = LabelledStates(*calibration)
        states = check_hidden_states(self, calibration.hidden_states, f"{caller} (calibration)", reset=False)
        labels = check_label_array(calibration.labels, f"{caller} (calibration)")
        check_same_length(len(states), labels, "y", f"{caller} (calibration)")
        numbers = codes.encode(labels, f"{caller} (calibration)")
        examples = _check_examples(calibration.ids, calibration.texts, len(states), caller)
        return states, numbers, examples

    def _fit_fingerprint(self, given: tuple[Tensor | None, Tensor | None, Examples | None]) -> str:
        states, numbers, _ = given
        if states is None or numbers is None:
            return self.data_fingerprint_
        return self.data_fingerprint_ + fingerprint(states, numbers.numpy())

    def _draw_seed(self) -> int:
        if self.random_state is None and self.checkpoint is not None:
            stored = Checkpoints.stored_seed(self.checkpoint)
            if stored is not None:
                return stored
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _check_is_fitted(self, method: str) -> None:
        if not hasattr(self, "models_"):
            name = type(self).__name__
            raise NotFittedError(f"This {name} is not fitted yet: call fit before {method}.")

    def _check_input(self, X: ArrayLike, method: str) -> Tensor:
        self._check_is_fitted(method)
        return check_hidden_states(self, X, f"{type(self).__name__}.{method}", reset=False)

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        """Give everything learned before back where a call fails or is interrupted."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    @contextmanager
    def _updated_models(self) -> Iterator[tuple[SDMModel, ...]]:
        """Copies of the models to change; they take the place of the models only if all goes well.

        A copy is cheap: updates replace tensors, they do not write into them.
        """
        models = tuple(copy.copy(model) for model in self.models_)
        for model in models:
            model.support = copy.copy(model.support)
        with self._unchanged_on_error():
            yield models
            self.models_ = models

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _encode(adaptor: Any, part: Part) -> tuple[Tensor, Tensor]:
    """Exemplars and logits of a part, a block of rows at a time."""
    blocks = [adaptor.encode(part.states(positions)) for positions in torch.arange(len(part)).split(DEFAULT_BLOCK_SIZE)]
    exemplars, logits = (torch.cat(tensors) for tensors in zip(*blocks, strict=True))
    return exemplars, logits


def _check_examples(
    ids: Sequence[Any] | Array | None, texts: Sequence[str] | Array | None, n: int, caller: str
) -> Examples:
    names = list(range(n)) if ids is None else as_list(ids)
    check_same_length(n, names, "ids", caller)
    strange = next((name for name in names if not isinstance(name, (str, int))), None)
    if strange is not None:
        raise InvalidTypeError(f"'ids' of {caller} must be strings or integers. Got {strange!r}.")
    if len(set(names)) != n:
        seen: set[Any] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidInputError(f"'ids' of {caller} must be unique. Got {twice!r} more than once.")
    if texts is not None:
        check_same_length(n, texts, "texts", caller)
    return Examples(names, texts)


def _is_setting(name: str, value: Any) -> bool:
    """Whether a constructor parameter goes with a saved model: not the machine's, and expressible in JSON."""
    if name in ("device", "checkpoint"):
        return False
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True
