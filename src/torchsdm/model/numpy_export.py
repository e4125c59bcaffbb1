"""Write a model as a folder that decides with NumPy alone: arrays, and the module that reads them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from torchsdm import __version__
from torchsdm.errors import ModelFileError
from torchsdm.files import replace_file, strict_json, whole_file
from torchsdm.model.directory import label_values_to_json
from torchsdm.model.model import SDMModel
from torchsdm.model.model_files import region_to_json
from torchsdm.model.sdm_numpy import FORMAT, FORMAT_VERSION, MODEL_NAME
from torchsdm.trust import Certificate, LaneRule
from torchsdm.validation import Array
from torchsdm.wording import UNPROMISED

MODULE_NAME = "sdm_numpy.py"


def write_numpy_export(folder: Path, model: SDMModel, rule: LaneRule, *, input_ndim: int) -> None:
    """Write ``sdm_model.npz`` and ``sdm_numpy.py`` to a folder.

    They contain the exemplars of the training data, but none of its ids or texts. Files of an earlier export are
    replaced; others are left alone.
    """
    settings = np.array(strict_json(_settings(model, rule, input_ndim)))
    contents: dict[str, Any] = {**_arrays(model), **_measure(rule), "settings": settings}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / MODULE_NAME, files("torchsdm.model").joinpath(MODULE_NAME).read_bytes())
        with whole_file(folder / MODEL_NAME) as temporary, open(temporary, "wb") as file:
            np.savez(file, **contents)
    except OSError as error:
        raise ModelFileError(f"{folder} cannot be written: {error}.") from error


def _arrays(model: SDMModel) -> dict[str, Array]:
    ecdfs = [distances.cpu().numpy() for distances in model.calibration.ecdfs.sorted_distances]
    support = model.support
    vouched = np.where((support.labels == support.predictions).cpu().numpy(), support.labels.cpu().numpy(), -1)
    return {
        **{name: tensor.cpu().numpy() for name, tensor in model.adaptor.state_dict().items()},
        "exemplars": support.exemplars.cpu().numpy(),
        "groups": vouched,
        "is_background": (support.labels == len(model.classes)).cpu().numpy() & model.has_background,
        "ecdf_distances": np.concatenate(ecdfs),
        "ecdf_sizes": np.array([len(distances) for distances in ecdfs]),
    }


def _measure(rule: LaneRule) -> dict[str, Array]:
    """What inputs are ranked among, to say how familiar they are: by class, then all together."""
    if rule.measure is None:
        return {}
    columns = {name: getattr(rule.measure, name) for name in ("distances", "odds", "products")}
    sizes = np.array([len(one) for one in rule.measure.products])
    return {"familiar_sizes": sizes, **{f"familiar_{name}": np.concatenate(parts) for name, parts in columns.items()}}


def _certificate(certificate: Certificate) -> dict[str, Any]:
    windows = [float(one) if np.isfinite(one) else None for one in certificate.window_thresholds]
    return {**certificate.to_json(), "identity": certificate.identity, "window_thresholds": windows}


def _settings(model: SDMModel, rule: LaneRule, input_ndim: int) -> dict[str, Any]:
    certificate, names = rule.certificate, model.classes.tolist()
    promise = UNPROMISED["none"] if certificate is None else certificate.holds_for(names)
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "library_version": __version__,
        "classes": label_values_to_json(model.classes, "classes"),
        "n_inputs": model.adaptor.n_inputs,
        "input_ndim": input_ndim,
        "regions": [region_to_json(region) for region in model.calibration.regions],
        "certificate": None if certificate is None else _certificate(certificate),
        "reliability": None if rule.reliability is None else rule.reliability.to_json(),
        "familiarity": rule.familiarity,
        "policy": rule.policy,
        "promise": promise,
    }
