"""``sdm doctor``: what is installed, what is missing, and whether a model directory is intact."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

import click

from torchsdm import __version__
from torchsdm.cli._options import json_option, say
from torchsdm.cli._words import trust_lines
from torchsdm.errors import TorchSDMError

_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)[^;]*;.*extra == ['\"](?P<extra>\w+)['\"]")
_FOR_USERS = ("hf", "baselines", "report", "serve", "ray")  # extras; the others are for developers


@click.command()
@click.argument("model", metavar="[MODEL]", required=False)
@click.option(
    "--compile",
    "compiles",
    is_flag=True,
    help="Compile the loops for this machine, where they were installed without a compiler.",
)
@json_option
def doctor(model: str | None, compiles: bool, as_json: bool) -> None:
    r"""Show what is installed and what is missing; check every file of a MODEL directory by its digest.

    \b
    Examples:
      sdm doctor
      sdm doctor model
      sdm doctor --compile
    """
    if compiles:
        compile_here()
    import torch

    from torchsdm.arithmetic import loops_in_use
    from torchsdm.hidden_states import cache_directory

    found: dict[str, Any] = {
        "torchsdm": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in ("torch", "numpy", "scikit-learn", "safetensors")},
        "compiled_loops": loops_in_use(),
        "devices": devices(),
        "threads": torch.get_num_threads(),
        "extras": {name: extra(name) for name in _FOR_USERS},
        "cache": {"directory": str(cache_directory()), "bytes": _size(cache_directory())},
    }
    if model is not None:
        found["model"] = _model(model)
    say(found, "\n".join(_lines(found)), as_json)


def compile_here() -> None:
    """Compile the loops into the installed package."""
    from torchsdm.arithmetic import compile_loops

    try:
        libraries = compile_loops()
    except OSError as error:
        raise TorchSDMError(f"The loops could not be compiled: {error}.") from error
    if not libraries:
        raise TorchSDMError("No C compiler was found: install one, or name it in the environment variable CC.")


def devices() -> list[str]:
    """Torch devices available here, and whether the processor has instructions for bfloat16."""
    import torch

    abilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch do not say
    has_bfloat16 = any(abilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
    names = ["cpu (bfloat16)" if has_bfloat16 else "cpu"]
    names += [f"cuda:{number} ({torch.cuda.get_device_name(number)})" for number in range(torch.cuda.device_count())]
    return [*names, "mps"] if torch.backends.mps.is_available() else names


def extra(name: str) -> dict[str, Any]:
    """The packages of an extra with their versions; None if missing."""
    from importlib.metadata import requires

    found = (_REQUIREMENT.match(one) for one in requires("torchsdm") or [])
    packages = {match["name"]: _version(match["name"]) for match in found if match and match["extra"] == name}
    is_complete = all(value is not None for value in packages.values())
    return {"packages": packages, "install": None if is_complete else f"pip install 'torchsdm[{name}]'"}


def _model(path: str) -> dict[str, Any]:
    """Describe a model directory, with every file checked, and whether its language model is unchanged."""
    from torchsdm.application import SavedModel, summary
    from torchsdm.hidden_states import find_model

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


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [f"torchsdm {found['torchsdm']}, Python {found['python']}, {found['system']}"]
    lines.append(", ".join(f"{name} {number}" for name, number in found["packages"].items()))
    lines.append(f"devices: {', '.join(found['devices'])}; {found['threads']} threads")
    loops = found["compiled_loops"]
    lines.append(
        "compiled loops: none, so matching is slow  ->  install a C compiler, then: sdm doctor --compile"
        if loops == "none"
        else f"compiled loops: {loops}"
    )
    for name, one in found["extras"].items():
        listed = ", ".join(f"{package} {number or 'MISSING'}" for package, number in one["packages"].items())
        lines.append(f"extra {name}: {listed}" + (f"  ->  {one['install']}" if one["install"] else ""))
    lines.append(f"cache: {found['cache']['directory']} ({found['cache']['bytes'] / 1e6:,.0f} MB; safe to delete)")
    if "model" in found:
        model = found["model"]
        lines.append(
            f"model {model['model']}: intact. {model['kind']}, classes {', '.join(map(str, model['classes']))}, "
            f"{model['n_support']} training, {model['n_calibration']} calibration and {model['n_certification']} "
            f"certification points, seed {model['seed']}, policy {model['policy']}"
        )
        lines += trust_lines(model)
        lines.append("settings: " + ", ".join(f"{name}={value!r}" for name, value in model["settings"].items()))
        known = model["language_model"]
        lines.append(
            "language model: none; it takes states"
            if known is None
            else f"language model {known['reference']}: {known['state']}"
        )
    return lines


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
