"""The command's words: for remedies, for regions, and for what may be chosen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import torchsdm.application
from torchsdm.cli._words import trust_lines
from torchsdm.errors import (
    CertificateWarning,
    DataWarning,
    InvalidInputError,
    NoCertificateWarning,
    NoRegionWarning,
    Remedy,
    worded,
)
from torchsdm.hidden_states.prompts import PROMPTS
from torchsdm.settings import PROMPT_NAMES


@pytest.mark.parametrize("remedy", Remedy)
def test_every_remedy_is_worded_for_python_and_for_the_shell(remedy):
    assert "=" not in remedy.shell and "--" not in remedy.python and remedy.shell != remedy.python
    for kind in (InvalidInputError, DataWarning):
        assert worded(kind("What.", remedy=remedy)) == f"What. {remedy.shell}"
        assert str(kind("What.", remedy=remedy)) == f"What. {remedy.python}"


def test_the_layer_that_the_service_shares_names_no_option():
    modules = set(Path(torchsdm.application.__file__).parent.glob("*.py"))
    modules = {module for module in modules if module.name != "demo.py"}  # which only the command runs
    assert len(modules) > 5
    for module in modules:
        if module.name != "demo.py":  # which shows commands
            assert not re.search(r"--[a-z]|\bsdm [a-z]+", module.read_text(encoding="utf-8")), module.name


@pytest.mark.parametrize("said", [InvalidInputError("What."), DataWarning("What."), OSError("What."), "What."])
def test_what_has_no_remedy_is_said_as_it_is(said):
    assert worded(said) == "What."


# --- What a model promises and admits --------------------------------------------------------------------------------


def region(alpha=0.9, share=0.25, number=None, **changes):
    found = {"round": number, "alpha": alpha, "found": True, "admitted_share": share, "explanation": None}
    return found | {"failed_classes": [], "largest_alpha": None} | changes


def no_region(alpha=0.9, **changes):
    why = {"explanation": "No region.", "failed_classes": ["ham"], "largest_alpha": 0.81239}
    return region(alpha, 0.0, found=False) | why | changes


def certificate(**changes):
    facts = {"found": True, "holds": True, "holds_for": "The promise.", "alpha": 0.9, "delta": 0.1, "delta_spent": 0.1}
    facts |= {
        "why_not": None,
        "control": "groups",
        "chances": {},
        "n_certification": 200,
        "n_admitted": 148,
        "windows": [],
        "never_admitted": [],
        "weakest": None,
    }
    return facts | {"largest_alpha": None, "n_needed": None, "fewest": {"held_out": 22, "in_all": 88}} | changes


def lines(certified, *regions, warned=(), **changes):
    """The lines of a model called 'model'."""
    result = {"model": "model", "policy": "certified", "classes": ["ham", "spam"], "class_counts": [700, 100]}
    told = [{"kind": kind.__name__, "what": what, "remedy": remedy} for kind, what, remedy in warned]
    return trust_lines(result | {"certificate": certified, "regions": list(regions), "warnings": told} | changes)


def refused(**changes):
    why_not = {"holds_for": "Why not. An estimate.", "why_not": "Why not.", "n_admitted": 0}
    return certificate(found=False, holds=False, **why_not) | changes


def test_a_certificate_is_said_in_two_lines():
    assert lines(certificate(), region()) == [
        "The promise.",
        "No level of evidence could be certified. So the paper's region, which promises nothing, says which certified "
        "answers are trusted: at alpha 0.9 it admits 25 % of the calibration set.",
    ]
    assert lines(certificate(windows=[{}]), region())[1] == (
        "The paper's region at alpha 0.9, which promises nothing, admits 25 % of the calibration set."
    )
    missing = [(NoRegionWarning, "No region.", None), (CertificateWarning, "Twice.", None)]
    _, second, third = lines(certificate(), no_region(), warned=missing)
    assert "are trusted: at alpha 0.9 it is missing." in second
    assert third == "Warning: Twice."  # that the region is missing has been said
    assert "only those that are also trusted" in lines(certificate(), region(), policy="trusted")[0]


def test_a_control_that_was_chosen_is_said_with_the_chances():
    chosen = certificate(control="predictions", chances={"groups": 0.123, "predictions": 0.9, "all": 0.9999})
    first, second, _ = lines(chosen, region())
    assert first == "The promise."
    assert second == "Control: predictions (estimated chance: groups 0.12, predictions 0.90, all 1.00)."


def test_a_promise_that_no_longer_holds_is_not_repeated():
    said = lines(certificate(holds=False), region(), warned=[(CertificateWarning, "It was changed.", "CERTIFY_AGAIN")])
    assert said == [
        "It admits what the paper's region at alpha 0.9 admits, 25 % of the calibration set: an estimate, no promise.",
        f"Warning: It was changed. {Remedy.CERTIFY_AGAIN.shell}",
    ]


def test_without_a_certificate_it_says_which_class_fails_and_what_may_help_once():
    why = [(NoRegionWarning, "No region.", "LOWER_ALPHA"), (NoCertificateWarning, "Why not.", "COARSER_CONTROL")]
    assert lines(refused(largest_alpha=0.85, n_needed=1600), no_region(), warned=why) == [
        "Why not.",
        "It admits nothing, as there is no region at alpha 0.9: class 'ham' stays below it.",
        "What may help: a lower target, sdm recalibrate model --alpha 0.85 (the promise then fails with probability up "
        "to 20 %); or about 8 times as many examples, 6,400.",
    ]


def test_too_few_examples_say_how_many_are_there_and_how_many_it_takes():
    few = refused(n_certification=0, fewest={"held_out": 45, "in_all": 180})
    assert lines(few, region())[::2] == [
        "Why not.",
        "What may help: about 180 examples of each class; there are 100 of class 'spam'; or training with --control "
        "pooled, which promises alpha for small classes taken together.",
    ]
    enough = few | {"fewest": {"held_out": 7, "in_all": 28}}  # of a model that was trained for a higher alpha
    assert lines(enough, region())[2] == (
        "What may help: sdm certify model DATA, with labelled data that nothing else has seen; or training with "
        "--control pooled, which promises alpha for small classes taken together."
    )
    assert "training with --control all" in lines(refused(control="pooled"), region())[-1]


def test_without_any_certificate_to_make_the_region_speaks():
    assert lines(None, no_region())[1] == (
        "What may help: a lower target without a promise, sdm recalibrate model --alpha 0.8123; or more examples of "
        "the classes that stay below, or a stronger language model."
    )
    assert lines(None, no_region(largest_alpha=None))[1].startswith("What may help: more examples of the classes")


def test_an_ensemble_is_not_said_to_admit_what_one_round_admits():
    rounds = [region(0.9, 0.31, 1), region(0.9, 0.235, 2), region(0.9, 0.4, 3)]
    assert lines(None, *rounds) == [
        "At alpha 0.9 its rounds admit 23.5 % to 40 % of their calibration sets. The ensemble admits only what all of "
        "them admit: at most 23.5 %, an estimate, no promise."
    ]
    first, second = lines(
        None, rounds[0], no_region(round=2), warned=[(NoRegionWarning, "Round 2: No region.", "LOWER_ALPHA")]
    )
    assert first == "It admits nothing at alpha 0.9: round 2 of 2 has no region."
    assert second.startswith("What may help: a lower target without a promise")


def test_the_help_names_the_prompts_that_there_are():
    assert tuple(PROMPTS) == PROMPT_NAMES
