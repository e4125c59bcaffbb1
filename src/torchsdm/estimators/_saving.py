"""A fitted estimator as a model directory, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from torchsdm import __version__
from torchsdm.cluster import Backend, ShardedSupport, Shards, StoredSupport, as_backend
from torchsdm.data import StatesOrigin
from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.labels import LabelCodes
from torchsdm.model import (
    CONFIG_NAME,
    KnownSample,
    ReadLog,
    StoredModel,
    label_values_from_json,
    label_values_to_json,
    put_together,
    read_changes,
    read_model,
    take_apart,
    write_model,
)
from torchsdm.settings import check_fields
from torchsdm.training import EpochRecord, History
from torchsdm.trust import Certificate, Reliability
from torchsdm.validation import check_device

if TYPE_CHECKING:
    from torchsdm.estimators._base import BaseSDMClassifier

S = TypeVar("S")
T = TypeVar("T", bound="BaseSDMClassifier")

_MACHINE_SETTINGS = ("device", "checkpoint", "backend")
_ROWS = ("training_rows", "calibration_rows", "certification_rows")
_PLAIN = ("n_features_in", "input_ndim", "data_fingerprint", "data_source", "random_seed", "measures_familiarity")


def write_estimator(estimator: BaseSDMClassifier, path: Path, changes: dict[str, Any] | None) -> None:
    """Write a model to a directory, whose lock is held, as the version that its log will continue from."""
    is_home = estimator._home is not None and estimator._home == path.resolve()
    version = 0 if changes is None else changes["version"]
    if is_home and version > estimator.version_ + 1:
        raise ModelFileError(
            f"{path} was changed after this model was loaded from it: it is at version {version - 1}, this model "
            f"at {estimator.version_}. Load it again."
        )
    tensors: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    settings = [
        take_apart(model, estimator._codes, prefix, tensors, tables)
        for prefix, model in _by_prefix(estimator.models_).items()
    ]
    config = {
        "kind": type(estimator).__name__,
        "library_version": __version__,
        "parameters": _parameters_to_json(estimator.get_params()),
        "classes": label_values_to_json(estimator.classes_, "classes"),
        "labels_outside": label_values_to_json(np.array(estimator._codes.outside, dtype=object), "y"),
        "feature_names_in": getattr(estimator, "feature_names_in_", np.array([])).tolist(),
        "states_origin": None if estimator.states_origin_ is None else estimator.states_origin_.to_json(),
        **{name: getattr(estimator, f"{name}_") for name in _PLAIN},
        **{name: getattr(estimator, f"{name}_").tolist() for name in _ROWS if hasattr(estimator, f"{name}_")},
        **promise_to_json(estimator),
        "history": estimator.history_.to_dicts(),
        "models": settings,
        **({} if changes is None else {"changes": changes}),
    }
    write_model(path, config, tensors, tables, estimator.model_card())
    if is_home:
        estimator.version_ = version


def promise_to_json(estimator: BaseSDMClassifier) -> dict[str, Any]:
    """What certifying came to, and what was asked for it."""
    certificate, reliability = estimator.certificate_, estimator.reliability_
    return {
        "certificate": None if certificate is None else certificate.to_json(),
        "reliability": None if reliability is None else reliability.to_json(),
        "familiarity": None if certificate is None else estimator.familiarity_,
        "deltas_spent": {sample: dict(asked) for sample, asked in estimator.deltas_spent_.items()},
        "samples": {sample: known.to_json() for sample, known in estimator.samples_.items()},
    }


def take_promise(estimator: BaseSDMClassifier, stored: Mapping[str, Any]) -> None:
    """The same back; older models have no certificate."""
    if stored.get("certificate") is not None:
        estimator.certificate_ = Certificate.from_json(stored["certificate"])
        if len(estimator.certificate_.thresholds) != len(estimator.classes_):
            raise ValueError("the certificate is of other classes")
        estimator.familiarity_ = float(stored["familiarity"])
    if stored.get("reliability") is not None:
        estimator.reliability_ = Reliability.from_json(stored["reliability"])
    estimator.deltas_spent_ = {
        str(sample): {str(asked): float(delta) for asked, delta in questions.items()}
        for sample, questions in stored.get("deltas_spent", {}).items()
    }
    estimator.samples_ = {
        str(sample): KnownSample.from_json(known) for sample, known in stored.get("samples", {}).items()
    }


def read_estimator(
    path: Path,
    kinds: Mapping[str, type[T]],
    device: str | None,
    verify: bool | None,
    backend: Backend,
    *,
    with_log: bool = True,
) -> tuple[T, ReadLog]:
    """The model of a directory, of one of some kinds, without its changes; and the log of them."""

    def restored(stored: StoredModel) -> tuple[T, ReadLog]:
        kind = kinds[stored.config["kind"]]
        name = check_device(device, f"{kind.__name__}.load")
        cluster = None if backend is None else as_backend(backend, f"{kind.__name__}.load")
        if cluster is not None and name != "cpu":
            raise InvalidInputError(f"'device' of {kind.__name__}.load must be 'cpu' with a backend. Got {device!r}.")
        (base, settings), named = _restore(kind, stored, device, backend), stored.config.get("changes")
        base.models_ = tuple(
            put_together(stored, one, base._codes, base.block_size, name, prefix)
            for prefix, one in _by_prefix(settings).items()
        )
        if len({tuple(region.alpha for region in model.calibration.regions) for model in base.models_}) > 1:
            raise ModelFileError(f"{stored.directory / CONFIG_NAME} is damaged: its rounds have different alphas.")
        if cluster is not None:
            for prefix, model in _by_prefix(base.models_).items():
                files = stored.files[f"{prefix}support-exemplars"], stored.files[f"{prefix}support"]
                model.support = ShardedSupport.of(model.support, Shards.of(cluster), StoredSupport(*map(str, files)))
        base._home, base.version_ = stored.directory, 0 if named is None else int(named["version"])
        if not with_log:
            return base, ReadLog(base.version_, [], [])
        return base, read_changes(stored.directory, stored.config, verify=verify)

    return read_model(path, kinds, restored, verify=verify)


def _restore(
    kind: type[T], stored: StoredModel, device: str | None, backend: Backend
) -> tuple[T, list[dict[str, Any]]]:
    """Everything but the models, from the config; and the settings of these."""
    config = stored.config
    try:
        parameters = {name: value for name, value in config["parameters"].items() if name != "keep_rounds"}
        parameters.setdefault("certification_size", None)  # older models stored keep_rounds, and had no certificate
        parameters.setdefault("training", "sdm")  # and knew no other
        estimator = kind(**parameters, device=device, backend=backend)
        estimator._check_parameters(f"{kind.__name__}.load")
        estimator.classes_ = label_values_from_json(config["classes"])
        outside = label_values_from_json(config["labels_outside"])
        estimator._codes = LabelCodes(estimator.classes_, tuple(outside.tolist()))
        if len(estimator.classes_) < 2 or len(set(estimator.classes_.tolist())) < len(estimator.classes_):
            raise ValueError(f"the classes {estimator.classes_.tolist()!r} are not at least two, each once")
        estimator.n_features_in_ = int(config["n_features_in"])
        estimator.input_ndim_ = int(config["input_ndim"])
        if estimator.input_ndim_ not in (2, 3) or estimator.n_features_in_ < 1:
            raise ValueError(f"inputs of {config['input_ndim']} axes, {config['n_features_in']} wide")
        if config["feature_names_in"]:
            estimator.feature_names_in_ = np.array(config["feature_names_in"], dtype=object)
        estimator.data_fingerprint_ = str(config["data_fingerprint"])
        estimator.data_source_ = config.get("data_source")  # older models do not know it
        estimator.random_seed_ = config["random_seed"]
        origin = config.get("states_origin")
        estimator.states_origin_ = None if origin is None else StatesOrigin.from_json(origin)
        for name in _ROWS:
            if name in config:  # an ensemble has rows per round, and older models lack theirs
                setattr(estimator, f"{name}_", np.array(config[name], dtype=np.int64))
        take_promise(estimator, config)
        estimator.measures_familiarity_ = bool(config.get("measures_familiarity", False))  # since format 5
        estimator.history_ = History(tuple(check_fields(EpochRecord(**record)) for record in config["history"]))
        settings = [dict(one) for one in config["models"]]
        if not settings or any(one["n_inputs"] != estimator.n_features_in_ for one in settings):
            raise ValueError(f"it has no model of inputs {estimator.n_features_in_} wide")
        return estimator, settings
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ModelFileError(f"{stored.directory / CONFIG_NAME} is damaged: {error!r}.") from error


def _by_prefix(rounds: Sequence[S]) -> dict[str, S]:
    """Models, or their settings, by how the names of their files begin: one model alone needs no number."""
    return {f"round-{number:02d}-" if len(rounds) > 1 else "": one for number, one in enumerate(rounds)}


def _parameters_to_json(parameters: dict[str, Any]) -> dict[str, Any]:
    """Constructor parameters to save with a model: as plain values, without the machine's.

    A ``random_state`` that is not a number is left out; the seed drawn from it is stored separately.
    """
    plain = {
        name: value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        for name, value in parameters.items()
        if name not in _MACHINE_SETTINGS
    }
    if not isinstance(plain.get("random_state"), int):
        plain["random_state"] = None
    if isinstance(plain["class_weight"], Mapping):
        plain["class_weight"] = _by_text(plain["class_weight"])
    return {**plain, "alpha": alpha_to_json(plain["alpha"])}


def alpha_to_json(alpha: Any) -> Any:
    """One alpha, several, one for each class, or none, as plain values."""
    if alpha is None:
        return None
    return _by_text(alpha) if isinstance(alpha, Mapping) else np.asarray(alpha, dtype=float).tolist()


def _by_text(values: Mapping[Any, float]) -> dict[str, float]:
    """A file names classes by their text; so does ``check_targets``."""
    return {str(label): float(value) for label, value in values.items()}
