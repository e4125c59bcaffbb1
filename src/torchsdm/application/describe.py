"""Describe what is installed and what is in a model directory, in plain values."""

from __future__ import annotations

import platform
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import torch

from torchsdm import __version__
from torchsdm.application.saved_model import SavedModel
from torchsdm.application.summaries import summary
from torchsdm.arithmetic import compile_loops, loops_in_use
from torchsdm.errors import DataWarning, TorchSDMError
from torchsdm.estimators import SDMClassifier, SDMEnsemble
from torchsdm.hidden_states import cache_directory, find_model

_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)[^;]*;.*extra == ['\"](?P<extra>\w+)['\"]")
_FOR_USERS = ("hf", "baselines", "report", "serve", "ray")  # extras; the others are for developers


def describe_installation() -> dict[str, Any]:
    """Versions, devices, compiled loops, extras and the cache."""
    cache = cache_directory()
    return {
        "torchsdm": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in ("torch", "numpy", "scikit-learn", "safetensors")},
        "compiled_loops": loops_in_use(),
        "devices": devices(),
        "threads": torch.get_num_threads(),
        "extras": {name: extra(name) for name in _FOR_USERS},
        "cache": {
            "directory": str(cache),
            "bytes": sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()),
        },
    }


def describe_model(path: str) -> dict[str, Any]:
    """A model directory, with every file checked, and whether its language model is unchanged."""
    saved = SavedModel.load(path, verify=True)
    origin = saved.classifier.states_origin_
    parameters = {name: value for name, value in saved.classifier.get_params().items() if name != "checkpoint"}
    facts = {**summary(saved.classifier, Path(path)), "settings": parameters}
    if origin is None:
        return {**facts, "language_model": None}
    reference = origin.model.reference
    try:
        is_same = find_model(str(reference), origin.model.revision).fingerprint() == origin.model.fingerprint
        state = "unchanged" if is_same else "CHANGED: decisions on texts will be refused"
    except TorchSDMError as error:
        state = f"not found: {error}"
    return {**facts, "language_model": {"reference": reference, "state": state, "prompt": origin.prompt.template}}


def compile_here() -> None:
    """Compile the loops into the installed package."""
    try:
        libraries = compile_loops()
    except OSError as error:
        raise TorchSDMError(f"The loops could not be compiled: {error}.") from error
    if not libraries:
        raise TorchSDMError("No C compiler was found: install one, or name it in the environment variable CC.")


def devices() -> list[str]:
    """Torch devices available here, and whether the processor has instructions for bfloat16."""
    abilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch do not say
    has_bfloat16 = any(abilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
    names = ["cpu (bfloat16)" if has_bfloat16 else "cpu"]
    names += [f"cuda:{number} ({torch.cuda.get_device_name(number)})" for number in range(torch.cuda.device_count())]
    return [*names, "mps"] if torch.backends.mps.is_available() else names


def extra(name: str) -> dict[str, Any]:
    """The packages of an extra with their versions; None if missing."""
    found = (_REQUIREMENT.match(one) for one in requires("torchsdm") or [])
    packages = {match["name"]: _version(match["name"]) for match in found if match and match["extra"] == name}
    is_complete = all(value is not None for value in packages.values())
    return {"packages": packages, "install": None if is_complete else f"pip install 'torchsdm[{name}]'"}


@contextmanager
def told_once(classifier: SDMClassifier | SDMEnsemble) -> Iterator[None]:
    """Hold back the warnings that the ``summary`` of a classifier has, and those about data that were given before."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", DataWarning)
        yield
    later = {type(warning) for warning in classifier.warnings()}
    for one in caught:
        if one.category not in later:
            warnings.showwarning(one.message, one.category, one.filename, one.lineno)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
