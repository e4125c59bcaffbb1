"""Saving and loading of fitted estimators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from torchsdm import __version__
from torchsdm.cluster import Backend, ShardedSupport, Shards, StoredSupport, as_backend
from torchsdm.data import StatesOrigin
from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.estimators._fitted import FittedState
from torchsdm.estimators.changes import replay
from torchsdm.labels import LabelCodes
from torchsdm.model import (
    CONFIG_NAME,
    HubModel,
    ReadLog,
    StoredModel,
    label_values_from_json,
    label_values_to_json,
    load_model_parts,
    model_card,
    model_parts,
    read_changes,
    read_model,
    saving,
    write_model,
)
from torchsdm.settings import check_fields
from torchsdm.training import EpochRecord, History
from torchsdm.trust import Certificate, Reliability
from torchsdm.validation import check_device, check_path

Self = TypeVar("Self", bound="Saveable")

_MACHINE_SETTINGS = ("device", "checkpoint", "backend")
_ROWS = ("training_rows", "calibration_rows", "certification_rows")


class Saveable(FittedState, HubModel):  # in this order, or the signature is that of ModelHubMixin.__new__
    """``save``, ``load`` and what huggingface_hub makes of them."""

    def save(self, path: str | Path) -> None:
        """Write the model to a directory atomically: a crash leaves the old model or the new one.

        Where the directory has a log of changes, the model takes its place: the points of the log are dropped, the
        history and the version numbers go on. Refused while somebody else changes the model there, and if it was
        changed after this one was loaded from it.
        """
        self._check_is_fitted("save")
        path = check_path(path, "path", f"{type(self).__name__}.save")
        with saving(path) as changes:
            self._replace(path, changes)

    def _replace(self, path: Path, changes: dict[str, Any] | None) -> None:
        """Write the model to a directory, as the version that its log will continue from."""
        is_home = self._home is not None and self._home == path.resolve()
        version = 0 if changes is None else changes["version"]
        if is_home and version > self.version_ + 1:
            raise ModelFileError(
                f"{path} was changed after this model was loaded from it: it is at version {version - 1}, this model "
                f"at {self.version_}. Load it again."
            )
        prefixes = _file_prefixes(len(self.models_))
        parts = [model_parts(model, self._codes, prefix) for model, prefix in zip(self.models_, prefixes, strict=True)]
        config = {
            "kind": type(self).__name__,
            "library_version": __version__,
            "parameters": settings_to_json(self.get_params()),
            "classes": label_values_to_json(self.classes_, "classes"),
            "labels_outside": label_values_to_json(np.array(self._codes.outside, dtype=object), "y"),
            "n_features_in": self.n_features_in_,
            "input_ndim": self.input_ndim_,
            "feature_names_in": getattr(self, "feature_names_in_", np.array([])).tolist(),
            "data_fingerprint": self.data_fingerprint_,
            "data_source": self.data_source_,
            "random_seed": self.random_seed_,
            "states_origin": None if self.states_origin_ is None else self.states_origin_.to_json(),
            **{name: getattr(self, f"{name}_").tolist() for name in _ROWS if hasattr(self, f"{name}_")},
            "certificate": None if self.certificate_ is None else self.certificate_.to_json(),
            "reliability": None if self.reliability_ is None else self.reliability_.to_json(),
            "familiarity": None if self.certificate_ is None else self.familiarity_,
            "measures_familiarity": self.measures_familiarity_,
            "deltas_spent": {sample: dict(asked) for sample, asked in self.deltas_spent_.items()},
            "history": self.history_.to_dicts(),
            "models": [part.settings for part in parts],
            **({} if changes is None else {"changes": changes}),
        }
        write_model(
            path,
            config,
            {name: content for part in parts for name, content in part.tensors.items()},
            {name: rows for part in parts for name, rows in part.tables.items()},
            self.model_card(),
        )
        if is_home:
            self.version_ = version

    @classmethod
    def load(
        cls: type[Self],
        path: str | Path,
        *,
        device: str | None = None,
        verify: bool | None = None,
        changes: bool = True,
        backend: Backend = None,
    ) -> Self:
        """Read a model that ``save`` wrote, with the changes that were logged since. The exemplars are memory-mapped.

        Every file's presence and size is checked, and the digest of files up to 64 MB, so that opening does not read
        all of a large support; ``verify=True`` checks every digest, ``verify=False`` none. ``changes=False`` leaves the
        log of changes out. With a ``backend``, the support is spread over the
        shards of a Ray cluster, whose nodes must see the directory at the same path; the answers are the same.
        """
        base, log = cls._load_parts(path, device, verify, with_log=changes, backend=backend)
        return cast(Self, replay(cast(Any, base), log))

    @classmethod
    def _load_parts(
        cls: type[Self],
        path: str | Path,
        device: str | None,
        verify: bool | None,
        *,
        with_log: bool = True,
        backend: Backend = None,
    ) -> tuple[Self, ReadLog]:
        """The model of a directory without its changes, and the log of them."""
        caller = f"{cls.__name__}.load"
        name = check_device(device, caller)
        if backend is not None:
            as_backend(backend, caller)
            if name != "cpu":
                raise InvalidInputError(f"'device' of {caller} must be 'cpu' with a backend. Got {device!r}.")

        def restored(stored: StoredModel) -> tuple[Self, ReadLog]:
            base, named = cls._restore(stored, name, device, backend), stored.config.get("changes")
            base._home, base.version_ = stored.directory, 0 if named is None else int(named["version"])
            if not with_log:
                return base, ReadLog(base.version_, [], [])
            return base, read_changes(stored.directory, stored.config, verify=verify)

        return read_model(check_path(path, "path", caller), cls.__name__, restored, verify=verify)

    @classmethod
    def _restore(cls: type[Self], stored: StoredModel, device_name: str, device: str | None, backend: Backend) -> Self:
        config = stored.config
        try:
            parameters = {name: value for name, value in config["parameters"].items() if name != "keep_rounds"}
            parameters.setdefault("certification_size", None)  # older models stored keep_rounds, and had no certificate
            parameters.setdefault("training", "sdm")  # and knew no other
            estimator = cls(**parameters, device=device, backend=backend)
            estimator._check_parameters(f"{cls.__name__}.load")
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
            if config.get("certificate") is not None:  # older models have none
                estimator.certificate_ = Certificate.from_json(config["certificate"])
                if len(estimator.certificate_.thresholds) != len(estimator.classes_):
                    raise ValueError("the certificate is of other classes")
                estimator.familiarity_ = float(config["familiarity"])
            estimator.deltas_spent_ = {
                str(sample): {str(asked): float(delta) for asked, delta in questions.items()}
                for sample, questions in config.get("deltas_spent", {}).items()
            }
            estimator.measures_familiarity_ = bool(config.get("measures_familiarity", False))  # since format 5
            if config.get("reliability") is not None:
                estimator.reliability_ = Reliability.from_json(config["reliability"])
            estimator.history_ = History(tuple(check_fields(EpochRecord(**record)) for record in config["history"]))
            settings = [dict(one) for one in config["models"]]
            if not settings or any(one["n_inputs"] != estimator.n_features_in_ for one in settings):
                raise ValueError(f"it has no model of inputs {estimator.n_features_in_} wide")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ModelFileError(f"{stored.directory / CONFIG_NAME} is damaged: {error!r}.") from error
        estimator.models_ = tuple(
            load_model_parts(
                stored,
                one,
                estimator._codes,
                estimator.block_size,
                device_name,
                prefix,
            )
            for one, prefix in zip(settings, _file_prefixes(len(settings)), strict=True)
        )
        if len({tuple(region.alpha for region in model.calibration.regions) for model in estimator.models_}) > 1:
            raise ModelFileError(f"{stored.directory / CONFIG_NAME} is damaged: its rounds have different alphas.")
        if backend is not None:
            cluster = as_backend(backend, f"{cls.__name__}.load")
            for model, prefix in zip(estimator.models_, _file_prefixes(len(settings)), strict=True):
                files = stored.path(f"{prefix}support-exemplars"), stored.path(f"{prefix}support")
                model.support = ShardedSupport.of(model.support, Shards.of(cluster), StoredSupport(*map(str, files)))
        return estimator

    def model_card(self) -> str:
        """A model card for this model, in Markdown."""
        self._check_is_fitted("model_card")
        return model_card(
            type(self).__name__,
            self.models_,
            self.n_features_in_,
            self.data_fingerprint_,
            self.states_origin_,
            certificate=self.certificate_,
            policy=self.policy,
            warnings=[str(warning) for warning in self.warnings()],
            source=self.data_source_,
            input_ndim=self.input_ndim_,
        )


def _file_prefixes(n_models: int) -> list[str]:
    """The file name prefix of each model: only the rounds of an ensemble need telling apart."""
    return [""] if n_models == 1 else [f"round-{number:02d}-" for number in range(n_models)]


def settings_to_json(parameters: dict[str, Any]) -> dict[str, Any]:
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
    if isinstance(plain["alpha"], Mapping):  # a file names classes by their text; so does check_targets
        plain["alpha"] = {str(name): float(value) for name, value in plain["alpha"].items()}
    elif not isinstance(plain["alpha"], float):
        plain["alpha"] = np.asarray(plain["alpha"], dtype=float).tolist()
    if isinstance(plain.get("class_weight"), Mapping):
        plain["class_weight"] = {str(name): float(value) for name, value in plain["class_weight"].items()}
    return plain
