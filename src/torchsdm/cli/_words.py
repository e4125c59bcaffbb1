"""How the command words what the library says: remedies as options, regions as lines."""

from __future__ import annotations

from typing import Any

from torchsdm.errors import Remedy, SDMWarning, TorchSDMError

IN_SHELL = {
    Remedy.SKIP_PROBLEMS: "Fix them, or skip them: sdm embed --skip-problems.",
    Remedy.DROP_REPEATED: "Drop duplicates: sdm embed --drop-repeated.",
    Remedy.NAME_ARRAYS: "Name the right one: --states or --label.",
    Remedy.LOWER_ALPHA: "To accept it: sdm recalibrate MODEL --alpha ALPHA.",
    Remedy.COARSER_CONTROL: "With few examples of each class, ask for less: --control all promises alpha over all.",
    Remedy.GIVE_LABELLED: "Give labelled DATA.",
    Remedy.COUNT_CERTIFICATION: "Give labelled DATA.",
    Remedy.CERTIFY_AGAIN: "Certify it again: sdm certify MODEL DATA with new labelled data, or sdm recalibrate MODEL.",
    Remedy.MORE_CALIBRATION: "Use more calibration data, or let such regions fail with --min-class-count.",
    Remedy.GIVE_STATES: "Give states as INPUT instead.",
    Remedy.EXTRACT_STATES: "Extract their states with the same language model: sdm embed.",
    Remedy.NAME_LABELS: "Name their column: --label NAME.",
    Remedy.NAME_LANGUAGE_MODEL: "Name a language model to read them: --language-model NAME.",
    Remedy.NO_LANGUAGE_MODEL: "Leave out --language-model.",
}


def worded(said: Exception | str) -> str:
    """An error or a warning with its remedy as options of the command."""
    if isinstance(said, TorchSDMError | SDMWarning) and said.remedy is not None:
        return f"{said.what} {IN_SHELL[said.remedy]}"
    return str(said)


def trust_lines(result: dict[str, Any]) -> list[str]:
    """What a model's summary promises: the certificate in a sentence, then a line per region."""
    certificate = result["certificate"]
    lines = [] if certificate is None else [certificate["holds_for"]]
    return [*lines, *region_lines(result)]


def warning_lines(result: dict[str, Any]) -> list[str]:
    """One line per warning of a model's summary."""
    return [
        f"warning: {one['what']}" + ("" if one["remedy"] is None else f" {IN_SHELL[Remedy[one['remedy']]]}")
        for one in result["warnings"]
    ]


def guard_line(state: dict[str, Any], path: object = None) -> str:
    """What a guard has come to, in one sentence."""
    if not state["raised"]:
        return f"The drift guard is calm after {state['n_seen']:,} inputs."
    after = "" if path is None else f" Look into it, then: sdm guard {path} --reset REASON."
    return (
        f"The drift guard was raised at input {state['raised_at']:,} ({state['raised_by'].replace('_', ' ')}): from "
        f"there on only trusted answers are admitted.{after}"
    )


def region_lines(result: dict[str, Any]) -> list[str]:
    """One line per region of a model's summary."""
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
