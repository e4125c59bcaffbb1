"""What only a terminal needs: a model, its strength and its changes as lines, with the options of the command."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torchsdm.errors import NoCertificateWarning, NoRegionWarning, Remedy
from torchsdm.wording import check_line, counted, described, listed, percent

_SHOWN = 3  # classes that lack examples
_SAID = (NoRegionWarning.__name__, NoCertificateWarning.__name__)  # warnings that the lines above them have said


def admits(result: dict[str, Any]) -> bool:
    """Whether a model admits anything, by its certificate or by a region of every round; of its summary."""
    holds = result["certificate"] is not None and result["certificate"]["holds"]
    return holds or any(all(region["found"] for region in regions) for regions in _by_alpha(result["regions"]))


def trust_lines(result: dict[str, Any]) -> list[str]:
    """What a model promises and admits, or why it admits nothing and what may help: every matter once."""
    certificate, lines = result["certificate"], []
    is_certified = certificate is not None and certificate["holds"]
    is_refused = certificate is not None and not certificate["found"]
    if is_certified:
        only = " By its policy it admits only those that are also trusted." if result["policy"] == "trusted" else ""
        lines.append(certificate["holds_for"] + only)
    elif is_refused:
        lines.append(certificate["why_not"])
    if certificate is not None and certificate["chances"]:
        chances = ", ".join(f"{control} {chance:.2f}" for control, chance in certificate["chances"].items())
        lines.append(f"Control: {certificate['control']} (estimated chance: {chances}).")
    for regions in _by_alpha(result["regions"]):
        rounds = len(regions) > 1
        lines.append(
            _ensemble_line(regions) if rounds else _region_line(regions[0], certificate if is_certified else None)
        )
    advice = _advice(result) if is_refused or not admits(result) else []
    if advice:
        lines.append(f"What may help: {'; or '.join(advice)}.")
    return [
        *lines,
        *(
            " ".join(filter(None, ["Warning:", one["what"], one["remedy"] and Remedy[one["remedy"]].shell]))
            for one in result["warnings"]
            if one["kind"] not in _SAID
        ),
    ]


def _advice(result: dict[str, Any]) -> list[str]:
    certificate, counts, model = result["certificate"], result["class_counts"], result["model"]
    found: list[str] = []
    if certificate is not None and not certificate["found"]:
        in_all = None if certificate["fewest"] is None else certificate["fewest"]["in_all"]
        alpha, differs = certificate["largest_alpha"], certificate.get("class_alphas") is not None
        if alpha is not None and differs:
            found.append(f"lower targets, none above {alpha:g}")
        elif alpha is not None:
            fails = percent(min(certificate["delta_spent"] + certificate["delta"], 1))
            found.append(
                f"a lower target, sdm recalibrate {model} --alpha {alpha:g} (the promise then fails with probability "
                f"up to {fails})"
            )
        if not certificate["n_certification"] and in_all is not None:
            again = f"sdm certify {model} DATA, with labelled data that nothing else has seen"
            found.append(_more_examples(result, in_all) or again)
        if certificate["n_needed"] is not None:
            growth = certificate["n_needed"] / certificate["n_certification"]
            found.append(f"about {growth:g} times as many examples, {growth * sum(counts):,.0f}")
        if certificate["control"] != "all" and not differs and in_all is not None and sum(counts) >= in_all:
            pools = "training with --control pooled, which promises alpha for small classes taken together"
            everything = "training with --control all, which promises alpha over all answers together"
            found.append(pools if certificate["control"] == "groups" else everything)
    missing = [region for region in result["regions"] if not region["found"]]
    reached = [0 if region.get("class_alphas") else region["largest_alpha"] or 0 for region in missing]
    lower = math.floor(1e4 * min(reached, default=0)) / 1e4
    if lower > 0.5:
        found.append(f"a lower target without a promise, sdm recalibrate {model} --alpha {lower:g}")
    if reached:
        found.append("more examples of the classes that stay below, or a stronger language model")
    return found[:2]


def _more_examples(result: dict[str, Any], in_all: int) -> str:
    """How many examples are missing to hold out as many as a certificate takes; empty if there are enough."""
    control, counts = result["certificate"]["control"], result["class_counts"]
    if control in ("pooled", "all"):
        return f"about {in_all:,} examples; there are {sum(counts):,}" if sum(counts) < in_all else ""
    if (min if control == "groups" else max)(counts) >= in_all:
        return ""
    few = [f"{n:,} of class {name!r}" for name, n in zip(result["classes"], counts, strict=True) if n < in_all]
    more = ", ..." if len(few) > _SHOWN else ""
    each = "each class" if control == "groups" else "a class"
    return f"about {in_all:,} examples of {each}; there are {', '.join(few[:_SHOWN])}{more}"


def _by_alpha(regions: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The regions of each alpha: one, or one per round of an ensemble."""
    alphas = dict.fromkeys(region["alpha"] for region in regions)
    return [[region for region in regions if region["alpha"] == alpha] for alpha in alphas]


def _region_line(region: dict[str, Any], certificate: dict[str, Any] | None) -> str:
    """What a region admits; beside a certificate it matters only where no level of evidence is certified."""
    alpha, share = _asked(region), percent(region["admitted_share"])
    if certificate is not None:
        admitted = f"admits {share} of the calibration set" if region["found"] else "is missing"
        if certificate["windows"]:
            return f"The paper's region at alpha {alpha}, which promises nothing, {admitted}."
        return (
            "No level of evidence could be certified. So the paper's region, which promises nothing, says which "
            f"certified answers are trusted: at alpha {alpha} it {admitted}."
        )
    if region["found"]:
        return (
            f"It admits what the paper's region at alpha {alpha} admits, {share} of the calibration set: an estimate, "
            "no promise."
        )
    failed = f": class {listed(region['failed_classes'])} stays below it" if region["failed_classes"] else ""
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


def _asked(region: dict[str, Any]) -> str:
    by_class = region.get("class_alphas")
    if by_class is None:
        return described(region["alpha"])
    return described(tuple(one["alpha"] for one in by_class), [one["label"] for one in by_class])


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


def check_lines(result: dict[str, Any]) -> list[str]:
    """What was drawn or taken in, how the spot checks stand, and what was found about each group."""
    state, lines = result["checks"], []
    if "drawn" in result:
        earlier = f"; {result['before']:,} more were offered before" if result["before"] else ""
        lines.append(f"{result['drawn']:,} of {counted(result['offered'], 'admitted answer')} drawn{earlier}.")
    if "taken" in result:
        rest = {"known": "known already", "late": "too late, about an earlier certificate"}
        others = "".join(f"; {result[what]:,} {said}" for what, said in rest.items() if result[what])
        lines.append(f"{counted(result['taken'], 'verdict')} taken in{others}.")
    if state["n_waiting"] or result["output"]:
        place = f", in {result['output']}" if result["output"] else ""
        lines.append(f"{counted(state['n_waiting'], 'answer')} to check{place}.")
    lines.append(check_line(state, result["model"]))
    if state["n_checked"]:
        width = max(len(group["name"]) for group in state["groups"])
        lines.append(f"{'':{width}}   checked   wrong   right    between         evidence   alarm at")
        lines += [_group_line(group, width) for group in state["groups"]]
    return lines + [
        f"Reset after {counted(one['n_seen'], 'verdict')}"
        + ("" if one["raised_at"] is None else f", raised at {one['raised_at']:,}")
        + f": {one['reason']}"
        for one in state["resets"]
    ]


def _group_line(group: dict[str, Any], width: int) -> str:
    right = "–" if group["accuracy"] is None else f"{group['accuracy']:.1%}"
    bounds = f"{group['lower_bound']:.1%}–{group['upper_bound']:.1%}"
    return (
        f"{group['name']:{width}}   {group['n_checked']:>7,}   {group['n_wrong']:>5,}   {right:<6}   {bounds:<13}   "
        f"{group['log_evidence']:>8.2f}   {group['log_threshold']:>8.2f}{'   raised' * group['raised']}"
    )


def change_lines(before: dict[str, Any], after: dict[str, Any], is_recalibrated: bool = True) -> list[str]:
    """What an update does to the sets and to what is admitted (``torchsdm.application.standing``)."""

    def shares(name: str) -> str:
        return f"{before[name]:.1%} -> {after[name]:.1%}"

    sets = ("support", "calibration", "certification")
    lines = [", ".join(f"{name} {before[f'n_{name}']} -> {after[f'n_{name}']}" for name in sets) + " points"]
    if after["admitted_share"] is not None:
        until = "" if is_recalibrated else " until it is recalibrated"
        lines.append(f"admits {shares('admitted_share')} of the certification sample{until}")
    return [*lines, f"the region admits {shares('region_share')} of the calibration set"]
