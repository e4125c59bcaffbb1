"""Write a model as a folder that decides with NumPy alone: arrays, and the module that reads them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from torchsdm import __version__
from torchsdm.core import Familiarity
from torchsdm.errors import ModelFileError
from torchsdm.files import replace_file, strict_json, whole_file
from torchsdm.model.directory import label_values_to_json, number_or_none
from torchsdm.model.model import SDMModel
from torchsdm.model.model_files import region_to_json
from torchsdm.model.sdm_numpy import FORMAT, FORMAT_VERSION, MODEL_NAME
from torchsdm.trust import LaneRule
from torchsdm.validation import Array
from torchsdm.wording import UNPROMISED

MODULE_NAME = "sdm_numpy.py"


def write_numpy_export(folder: Path, model: SDMModel, rule: LaneRule, *, input_ndim: int) -> None:
    """Write ``sdm_model.npz`` and ``sdm_numpy.py`` to a folder.

    They contain the exemplars of the training data, but none of its ids or texts. Files of an earlier export are
    replaced; others are left alone.
    """
    settings = np.array(strict_json(_settings(model, rule, input_ndim)))
    contents: dict[str, Any] = {**_arrays(model, rule.measure), "settings": settings}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / MODULE_NAME, files("torchsdm.model").joinpath(MODULE_NAME).read_bytes())
        with whole_file(folder / MODEL_NAME) as temporary, open(temporary, "wb") as file:
            np.savez(file, **contents)
    except OSError as error:
        raise ModelFileError(f"{folder} cannot be written: {error}.") from error


def _arrays(model: SDMModel, measure: Familiarity | None) -> dict[str, Array]:
    """Adaptor, support and distances; of what inputs are ranked among: by class, then all together."""
    ecdfs = [distances.cpu().numpy() for distances in model.calibration.ecdfs.sorted_distances]
    support = model.support
    familiar: dict[str, Array] = {}
    if measure is not None:
        familiar["familiar_sizes"] = np.array([len(one) for one in measure.products])
        for name in ("distances", "odds", "products"):
            familiar[f"familiar_{name}"] = np.concatenate(getattr(measure, name))
    vouched = np.where((support.labels == support.predictions).cpu().numpy(), support.labels.cpu().numpy(), -1)
    return {
        **{name: tensor.cpu().numpy() for name, tensor in model.adaptor.state_dict().items()},
        "exemplars": support.exemplars.cpu().numpy(),
        "groups": vouched,
        "is_background": (support.labels == len(model.classes)).cpu().numpy() & model.has_background,
        "ecdf_distances": np.concatenate(ecdfs),
        "ecdf_sizes": np.array([len(distances) for distances in ecdfs]),
        **familiar,
    }


def _settings(model: SDMModel, rule: LaneRule, input_ndim: int) -> dict[str, Any]:
    certificate, names = rule.certificate, model.classes.tolist()
    certified, promise = None, UNPROMISED["none"]
    if certificate is not None:
        windows = [number_or_none(one) for one in certificate.window_thresholds.tolist()]
        certified = {**certificate.to_json(), "identity": certificate.identity, "window_thresholds": windows}
        promise = certificate.holds_for(names)
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "library_version": __version__,
        "classes": label_values_to_json(model.classes, "classes"),
        "n_inputs": model.adaptor.n_inputs,
        "input_ndim": input_ndim,
        "regions": [region_to_json(region) for region in model.calibration.regions],
        "certificate": certified,
        "reliability": None if rule.reliability is None else rule.reliability.to_json(),
        "familiarity": rule.familiarity,
        "policy": rule.policy,
        "promise": promise,
    }
