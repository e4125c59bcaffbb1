"""The audit never calls clean what it could not look at."""

from __future__ import annotations

import json

import pytest

from tools.release.audit import FOUND, NOT_LOOKED, verdict

CLEAN = {"name": "a", "version": "1", "vulns": []}
WEAK = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1"}]}
SKIPPED = {"name": "c", "skip_reason": "not found on PyPI"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([CLEAN], 0, "No known weakness in 1 packages."),
        ([CLEAN, WEAK, SKIPPED], FOUND, "b 2: CVE-1"),
        ([CLEAN, SKIPPED], NOT_LOOKED, "knows nothing of 1 of 2 packages: they were not looked at"),
    ],
)
def test_an_answer_is_read(packages, code, said):
    found, sentence = verdict(json.dumps({"dependencies": packages, "fixes": []}))
    assert found == code and said in sentence


def test_no_answer_is_not_a_clean_bill():
    code, sentence = verdict("")
    assert code == NOT_LOOKED and "nothing was looked at" in sentence
