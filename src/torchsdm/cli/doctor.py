"""``sdm doctor``: what is installed, what is missing, and whether a model directory is intact."""

from __future__ import annotations

from typing import Any

import click

from torchsdm.cli import options
from torchsdm.cli._words import trust_lines
from torchsdm.cli.options import say


@click.command()
@click.argument("model", metavar="[MODEL]", required=False)
@click.option(
    "--compile",
    "compiles",
    is_flag=True,
    help="Compile the loops for this machine, if they were installed without a compiler.",
)
@options.as_json
def doctor(model: str | None, compiles: bool, as_json: bool) -> None:
    r"""Show what is installed and what is missing; check every file of a MODEL directory by its digest.

    \b
    Examples:
      sdm doctor
      sdm doctor model
      sdm doctor --compile
    """
    from torchsdm.application import compile_here, describe_installation, describe_model

    if compiles:
        compile_here()
    found = describe_installation() | ({} if model is None else {"model": describe_model(model)})
    say(found, "\n".join(_lines(found)), as_json)


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
