"""What the script for other Pythons leaves out, and that the page shows what it found."""

from __future__ import annotations

import json

import pytest

from tools.chaos.page import PAGE, VERSIONS, versions
from tools.release import versions as script


@pytest.fixture
def registry(monkeypatch, tmp_path):
    """A registry with a CPU build of torch for Python 3.11 alone; returns the Pythons that got a torch."""
    pythons = []
    monkeypatch.setattr(script, "interpreter", lambda version: version)
    monkeypatch.setattr(script, "fresh_environment", lambda folder, python: tmp_path / python)
    monkeypatch.setattr(
        script,
        "would_install",
        lambda environment, *what: {"torch"} if environment.name == "3.11" else {"torch", "nvidia-cublas"},
    )
    monkeypatch.setattr(script, "install", lambda environment, *what: pythons.append((environment.name, *what)))
    return pythons


def test_torch_with_cuda_is_not_installed(registry):
    with pytest.raises(script.NotTested, match=r"no CPU build of torch==[\d.]+ for Python 3.12"):
        script.prepared("3.12", "3.12", with_cuda=False)
    assert registry == []


def test_torch_with_cuda_is_installed_on_demand(registry):
    script.prepared("3.12", "3.12", with_cuda=True)
    ((python, *what),) = registry
    assert python == "3.12" and what[0] == "--no-deps" and what[1].startswith("torch==")


def test_the_oldest_python_is_the_oldest_that_can_be_had(registry):
    assert script.oldest_prepared(with_cuda=False).name == "3.11"
    assert [python for python, *_ in registry] == ["3.11"]


def test_a_python_that_is_missing_is_left_out(registry, monkeypatch):
    monkeypatch.setattr(script, "interpreter", lambda version: None)
    with pytest.raises(script.NotTested, match=r"Python 3.13 is not installed"):
        script.oldest_prepared(with_cuda=True)
    assert registry == []


def test_the_page_shows_the_results():
    assert versions(json.loads(VERSIONS.read_text(encoding="utf-8"))) in PAGE.read_text(encoding="utf-8")


def test_the_table_names_what_was_tested_and_what_was_not():
    tested = {"passed": 3, "failed": 0, "skipped": 1, "versions": {"python": "3.11.7", "numpy": "2.0.0"}}
    text = versions({"combinations": {"3.11": tested, "3.12": {"not_tested": "Python 3.12 is not installed"}}})
    assert text.splitlines() == [
        "|  | Python 3.11 |",
        "| --- | ---: |",
        "| Python | 3.11.7 |",
        "| tests passed | 3 |",
        "| tests failed | 0 |",
        "| tests skipped | 1 |",
        "| `numpy` | 2.0.0 |",
        "",
        "Not tested: Python 3.12 is not installed.",
    ]
