"""How the command words what the library says: remedies as options, regions as lines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchsdm.errors import Remedy, SDMWarning, TorchSDMError

_PROMISED = {  # by control
    "groups": "for every class and every prediction",
    "pooled": "for every class and every prediction, those with few examples taken together",
    "predictions": "for every prediction that it admits",
    "all": "taken together",
}

if TYPE_CHECKING:
    from torchsdm.data import BadRow

_SHOWN = 5  # rows that could not be read

IN_SHELL = {
    Remedy.SKIP_PROBLEMS: "Fix them; sdm embed --skip-problems skips them, sdm predict without --strict rejects them.",
    Remedy.DROP_REPEATED: "Drop duplicates: sdm embed --drop-repeated.",
    Remedy.KEEP_REPEATED: "To keep them on purpose: --keep-repeated.",
    Remedy.NAME_ARRAYS: "Name the right one: --states or --label.",
    Remedy.LOWER_ALPHA: "To accept it: sdm recalibrate MODEL --alpha ALPHA.",
    Remedy.COARSER_CONTROL: "With few examples of each class, ask for less: --control all promises alpha over all.",
    Remedy.POOLED_CONTROL: "With few examples of each class, ask for less: --control pooled takes small ones together.",
    Remedy.GIVE_LABELLED: "Give labelled DATA.",
    Remedy.COUNT_CERTIFICATION: "Give labelled DATA.",
    Remedy.CERTIFY_AGAIN: "Certify it again: sdm certify MODEL DATA with new labelled data, or sdm recalibrate MODEL.",
    Remedy.SAME_STATES: "Make the states of both files in the same way: sdm embed.",
    Remedy.FEWER_FOLDS: "Add examples, leave the class out, or lower --folds (at least 2).",
    Remedy.OTHER_FOLDS: "Draw other folds with another --seed, or raise --folds.",
    Remedy.MORE_CALIBRATION: "Use more calibration data, or let such regions fail with --min-class-count.",
    Remedy.GIVE_STATES: "Give states as INPUT instead.",
    Remedy.EXTRACT_STATES: "Extract their states with the same language model: sdm embed.",
    Remedy.NAME_LABELS: "Name their column: --label NAME.",
    Remedy.NAME_LANGUAGE_MODEL: "Name a language model to read them: --language-model NAME.",
    Remedy.NO_LANGUAGE_MODEL: "Leave out --language-model.",
    Remedy.ALLOW_NEW_LABELS: "To allow it: --allow-new-labels.",
    Remedy.REPLACE_MODEL: "Replace it with --overwrite, or choose another -o.",
    Remedy.WRITE_ANYWAY: "To write it anyway: --force.",
}


def worded(said: Exception | str) -> str:
    """An error or a warning with its remedy as options of the command."""
    if isinstance(said, TorchSDMError | SDMWarning) and said.remedy is not None:
        return f"{said.what} {IN_SHELL[said.remedy]}"
    return str(said)


def strength_lines(known: Mapping[str, Any] | None) -> list[str]:
    """How right a model is beside what costs nothing, and what to do if that is too little."""
    if known is None:
        return []
    from torchsdm.estimators import Strength

    strength = Strength(**known)
    always = f"always answering {strength.largest_class!r} {percent(strength.largest_share)}"
    other = "" if strength.regression is None else f", a logistic regression {percent(strength.regression)}"
    lowest = f"of class {strength.lowest_class!r} it recognises {percent(strength.lowest_right)}"
    lines = [f"Right without rejection: {percent(strength.right)}; {always}{other}; {lowest}."]
    if strength.is_idle:
        lines.append(
            "That is no better than always answering the same: the states say too little about the labels. Try another "
            "--language-model or --layer, more examples, or --class-weight balanced."
        )
    elif strength.is_below_regression:
        lines.append("The logistic regression is better: --training linear, the default, starts from it.")
    return lines


def admits(result: dict[str, Any]) -> bool:
    """Whether a model admits anything, by its certificate or by a region of every round."""
    holds = result["certificate"] is not None and result["certificate"]["holds"]
    return holds or any(all(region["found"] for region in regions) for regions in _by_alpha(result["regions"]))


def trust_lines(result: dict[str, Any]) -> list[str]:
    """What a model promises and admits, or why it admits nothing and what may help: every matter once."""
    certificate, lines = result["certificate"], []
    is_certified = certificate is not None and certificate["holds"]
    is_refused = certificate is not None and not certificate["found"]
    if is_certified:
        lines.append(_promise(result))
    elif is_refused:
        lines.append(f"Not certified at alpha {_asked(certificate)}: {_why_not(result)}.")
    if certificate is not None and certificate["chances"]:
        chances = ", ".join(f"{control} {chance:.2f}" for control, chance in certificate["chances"].items())
        lines.append(f"Control: {certificate['control']} (estimated chance: {chances}).")
    for regions in _by_alpha(result["regions"]):
        lines.append(_ensemble_line(regions) if len(regions) > 1 else _region_line(regions[0], beside=is_certified))
    advice = _advice(result) if is_refused or not admits(result) else []
    if advice:
        lines.append(f"What may help: {'; or '.join(advice)}.")
    return [*lines, *_other_warnings(result)]


def _promise(result: dict[str, Any]) -> str:
    """The certificate in a sentence or two."""
    certificate = result["certificate"]
    fails = max(certificate["delta"], certificate["delta_spent"])
    share = percent(certificate["n_admitted"] / max(certificate["n_certification"], 1))
    if fails >= 1:
        return str(certificate["holds_for"])
    never = f" It never admits {_listed(certificate['never_admitted'])}." if certificate["never_admitted"] else ""
    only = " By its policy it admits only those that are also trusted." if result["policy"] == "trusted" else ""
    return (
        f"Certified: the answers it admits are right at least {_often(certificate)}, "
        f"{_PROMISED[certificate['control']]} (the promise fails with probability {percent(fails)}). It admits "
        f"{share} of the certification sample.{certificate['pooling']}{never}{only}"
    )


def _why_not(result: dict[str, Any]) -> str:
    """Why there is no certificate, in names of classes."""
    certificate = result["certificate"]
    weakest, fewest = certificate["weakest"], certificate["fewest"]
    if fewest is None:
        return "no sample can show that nothing is ever wrong"
    if not certificate["n_certification"] and not _is_short(result):
        return "nothing was held out to certify with"
    if not certificate["n_certification"]:
        of_each = {"groups": " of each class", "predictions": " of a class"}.get(certificate["control"], "")
        return f"there are too few examples to hold out the {fewest['held_out']}{of_each} that it takes"
    if weakest is None:
        return "no calibration example is near enough to the training data"
    n, errors = weakest["n_admitted"], weakest["n_errors"]
    whom = {"class": "of class {!r}", "prediction": "predicted {!r}", "all": "in all"}[weakest["kind"]]
    whom = f"of {weakest['name']}" if weakest["labels"] is not None else whom.format(weakest["label"])
    if n < fewest["held_out"]:
        return f"only {n} certification examples {whom} can be admitted, and it takes {fewest['held_out']}"
    return f"even the strictest rule is wrong on {errors} of the {n} certification examples {whom} that it admits"


def _advice(result: dict[str, Any]) -> list[str]:
    """The one or two things that are most likely to help."""
    certificate, counts = result["certificate"], result["class_counts"]
    found: list[str] = []
    if certificate is not None and not certificate["found"]:
        in_all = None if certificate["fewest"] is None else certificate["fewest"]["in_all"]
        if certificate["largest_alpha"] is not None and certificate.get("class_alphas") is not None:
            found.append(f"lower targets, none above {certificate['largest_alpha']:g}")
        elif certificate["largest_alpha"] is not None:
            fails = certificate["delta_spent"] + certificate["delta"]
            found.append(
                f"a lower target, sdm recalibrate {result['model']} --alpha {certificate['largest_alpha']:g} (the "
                f"promise then fails with probability up to {percent(min(fails, 1))})"
            )
        if not certificate["n_certification"] and in_all is not None:
            anew = f"sdm certify {result['model']} DATA, with labelled data that nothing else has seen"
            found.append(_more_examples(result, in_all) if _is_short(result) else anew)
        if certificate["n_needed"] is not None:
            growth = certificate["n_needed"] / certificate["n_certification"]
            found.append(f"about {growth:g} times as many examples, {growth * sum(counts):,.0f}")
        can_be_coarser = certificate["control"] != "all" and certificate.get("class_alphas") is None
        if can_be_coarser and in_all is not None and sum(counts) >= in_all:
            pools = "training with --control pooled, which promises alpha for small classes taken together"
            everything = "training with --control all, which promises alpha over all answers together"
            found.append(pools if certificate["control"] == "groups" else everything)
    missing = [region for region in result["regions"] if not region["found"]]
    reached = [0 if region.get("class_alphas") else region["largest_alpha"] or 0 for region in missing]
    lower = math.floor(1e4 * min(reached, default=0)) / 1e4
    if lower > 0.5:
        found.append(f"a lower target without a promise, sdm recalibrate {result['model']} --alpha {lower:g}")
    if reached:
        found.append("more examples of the classes that stay below, or a stronger language model")
    return found[:2]


def _is_short(result: dict[str, Any]) -> bool:
    """Whether there are too few examples to hold out as many as a certificate takes."""
    in_all, counts = result["certificate"]["fewest"]["in_all"], result["class_counts"]
    held = {"groups": min(counts), "pooled": sum(counts), "predictions": max(counts), "all": sum(counts)}
    return in_all is not None and held[result["certificate"]["control"]] < in_all


def _more_examples(result: dict[str, Any], in_all: int) -> str:
    """How many examples are missing to hold out enough."""
    control, counts = result["certificate"]["control"], result["class_counts"]
    if control in ("pooled", "all"):
        return f"about {in_all:,} examples; there are {sum(counts):,}"
    few = [f"{n:,} of class {name!r}" for name, n in zip(result["classes"], counts, strict=True) if n < in_all]
    more = ", ..." if len(few) > 3 else ""
    each = "each class" if control == "groups" else "a class"
    return f"about {in_all:,} examples of {each}; there are {', '.join(few[:3])}{more}"


def _by_alpha(regions: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The regions of each alpha: one, or one per round of an ensemble."""
    alphas = dict.fromkeys(region["alpha"] for region in regions)
    return [[region for region in regions if region["alpha"] == alpha] for alpha in alphas]


def _region_line(region: dict[str, Any], *, beside: bool) -> str:
    """What a region admits; ``beside`` a certificate, that is only what is trusted."""
    alpha, share = _asked(region), percent(region["admitted_share"])
    if beside:
        admitted = f"admits {share} of the calibration set" if region["found"] else "is missing"
        return f"The paper's region at alpha {alpha}, which makes certified answers trusted, {admitted}."
    if region["found"]:
        return (
            f"It admits what the paper's region at alpha {alpha} admits, {share} of the calibration set: an estimate, "
            "no promise."
        )
    failed = f": class {_listed(region['failed_classes'])} stays below it" if region["failed_classes"] else ""
    return f"It admits nothing, as there is no region at alpha {alpha}{failed}."


def _ensemble_line(regions: list[dict[str, Any]]) -> str:
    """What the rounds of an ensemble admit; the ensemble admits what all of them do."""
    alpha, missing = _asked(regions[0]), [region["round"] for region in regions if not region["found"]]
    if missing:
        which = ", ".join(map(str, missing))
        return f"It admits nothing at alpha {alpha}: round {which} of {len(regions)} has no region."
    shares = [region["admitted_share"] for region in regions]
    return (
        f"At alpha {alpha} its rounds admit {percent(min(shares))} to {percent(max(shares))} of their calibration "
        f"sets. The ensemble admits only what all of them admit: at most {percent(min(shares))}, an "
        "estimate, no promise."
    )


def _other_warnings(result: dict[str, Any]) -> list[str]:
    """The warnings of a summary that ``trust_lines`` has not said yet."""
    certificate = result["certificate"]
    said = tuple(region["explanation"] for region in result["regions"] if not region["found"])
    said += () if certificate is None else (certificate["holds_for"],)
    return [
        f"Warning: {one['what']}" + ("" if one["remedy"] is None else f" {IN_SHELL[Remedy[one['remedy']]]}")
        for one in result["warnings"]
        if not one["what"].endswith(said)
    ]


def _asked(promise: dict[str, Any]) -> str:
    """The target of a certificate or a region, by class if classes have their own."""
    if promise.get("class_alphas") is None:
        return f"{promise['alpha']:g}"
    from torchsdm.core import described

    by_class = promise["class_alphas"]
    return described(tuple(one["alpha"] for one in by_class), [one["label"] for one in by_class])


def _often(certificate: dict[str, Any]) -> str:
    if certificate.get("class_alphas") is None:
        return f"{percent(certificate['alpha'])} of the time"
    return f"as often as asked ({_asked(certificate)})"


def percent(share: float) -> str:
    """A share in words: three digits are enough."""
    return f"{100 * share:.3g} %"


def _listed(names: list[Any]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more


def change_lines(before: dict[str, Any], after: dict[str, Any], is_recalibrated: bool = True) -> list[str]:
    """What an update does to the sets and to what is admitted."""
    sets = ("support", "calibration", "certification")
    lines = [", ".join(f"{name} {before[f'n_{name}']} -> {after[f'n_{name}']}" for name in sets) + " points"]
    if after["admitted_share"] is not None:
        shares = f"{before['admitted_share']:.1%} -> {after['admitted_share']:.1%}"
        until = "" if is_recalibrated else " until it is recalibrated"
        lines.append(f"admits {shares} of the certification sample{until}")
    shares = f"{before['region_share']:.1%} -> {after['region_share']:.1%}"
    return [*lines, f"the region admits {shares} of the calibration set"]


def guard_line(state: dict[str, Any], path: object = None) -> str:
    """What a guard has come to, in one sentence."""
    if not state["raised"]:
        return f"The drift guard is calm after {state['n_seen']:,} inputs."
    after = "" if path is None else f" Look into it, then: sdm guard {path} --reset REASON."
    return (
        f"The drift guard was raised at input {state['raised_at']:,} ({state['raised_by'].replace('_', ' ')}): from "
        f"there on only trusted answers are admitted.{after}"
    )


def rejected_line(bad: Mapping[int, BadRow], n_rows: int, source: str) -> str:
    """How many rows of an input could not be read, and the first of them with their reasons."""
    first = [str(bad[number]) for number in sorted(bad)[:_SHOWN]]
    more = f"; and {len(bad) - len(first):,} more" * (len(bad) > len(first))
    is_are = "is" if len(bad) == 1 else "are"
    return (
        f"{source}: {len(bad):,} of {n_rows:,} rows could not be read and {is_are} rejected. {'; '.join(first)}{more}."
    )
