"""How the command words what the library says: remedies as options, regions as lines."""

from __future__ import annotations

from typing import Any

from torchsdm.errors import Remedy, SDMWarning, TorchSDMError

IN_SHELL = {
    Remedy.SKIP_PROBLEMS: "Repair them, or leave them out: --skip-problems of sdm embed.",
    Remedy.DROP_REPEATED: "Leave copies out: --drop-repeated of sdm embed.",
    Remedy.NAME_ARRAYS: "Name the right one: --states or --label.",
    Remedy.LOWER_ALPHA: "To accept it: sdm recalibrate MODEL --alpha ALPHA.",
    Remedy.MORE_CALIBRATION: "Use more calibration data, or let such regions fail with --min-class-count.",
}


def worded(said: Exception | str) -> str:
    """An error or a warning with its remedy as options of the command."""
    if isinstance(said, TorchSDMError | SDMWarning) and said.remedy is not None:
        return f"{said.what} {IN_SHELL[said.remedy]}"
    return str(said)


def region_lines(result: dict[str, Any]) -> list[str]:
    """A line on each region of a model's summary."""
    return [_region_line(region) for region in result["regions"]]


def _region_line(region: dict[str, Any]) -> str:
    if region["found"]:
        return (
            f"alpha = {region['alpha']:g}: the region admits {region['admitted_share']:.1%} of the calibration set (q' "
            f"at least {region['min_rescaled_similarity']:.4g})."
        )
    remedy = region["remedy"]
    advice = "" if remedy is None else f" {IN_SHELL[Remedy[remedy]]}"
    return f"alpha = {region['alpha']:g}: {region['explanation']}{advice}"
