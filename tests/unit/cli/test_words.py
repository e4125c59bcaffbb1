"""The command's words: for remedies, for regions, and for what may be chosen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import torchsdm.application
from torchsdm.choices import PROMPT_NAMES
from torchsdm.cli._words import IN_SHELL, region_lines, worded
from torchsdm.errors import DataWarning, InvalidInputError, Remedy
from torchsdm.hidden_states.prompts import PROMPTS


@pytest.mark.parametrize("remedy", Remedy)
def test_every_remedy_is_worded_for_the_shell(remedy):
    assert "=" not in IN_SHELL[remedy] and IN_SHELL[remedy] != remedy.value
    for kind in (InvalidInputError, DataWarning):
        assert worded(kind("What.", remedy=remedy)) == f"What. {IN_SHELL[remedy]}"


def test_the_layer_that_the_service_shares_names_no_option():
    modules = list(Path(torchsdm.application.__file__).parent.glob("*.py"))
    assert len(modules) > 5
    for module in modules:
        assert not re.search(r"--[a-z]|sdm [a-z]+", module.read_text(encoding="utf-8")), module.name


@pytest.mark.parametrize("said", [InvalidInputError("What."), DataWarning("What."), OSError("What."), "What."])
def test_what_has_no_remedy_is_said_as_it_is(said):
    assert worded(said) == "What."


def test_a_region_that_is_not_there_says_why_and_what_to_do():
    missing = {"alpha": 0.95, "found": False, "explanation": "No region.", "remedy": "LOWER_ALPHA"}
    found = {"alpha": 0.9, "found": True, "admitted_share": 0.25, "min_rescaled_similarity": 3.0}
    hopeless = missing | {"remedy": None}
    assert region_lines({"regions": [missing, found, hopeless]}) == [
        "alpha = 0.95: No region. To accept it: sdm recalibrate MODEL --alpha ALPHA.",
        "alpha = 0.9: the region admits 25.0% of the calibration set (q' at least 3).",
        "alpha = 0.95: No region.",
    ]


def test_the_help_names_the_prompts_that_there_are():
    assert tuple(PROMPTS) == PROMPT_NAMES
