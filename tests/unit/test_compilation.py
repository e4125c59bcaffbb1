"""Whether a loop is compiled, and the word to the person who waits for it: once, and only if there is a wait."""

from __future__ import annotations

import logging
import os

import numba
import pytest

from torchsdm import compilation


def double(x):
    return 2 * x


@pytest.fixture
def said(monkeypatch, tmp_path, caplog):
    """What was said of calls of ``double``, as a loop of ours, each by a process of its own; caches are empty."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(double, "__module__", "torchsdm.matching._doubling")
    caplog.set_level(logging.INFO, logger="torchsdm")
    kept = []  # what numba caches of a function whose module cannot be imported is read only while it lives

    def by_calls(*numbers):
        monkeypatch.setattr(compilation._ANNOUNCEMENT, "is_due", True)  # as in a new process
        caplog.clear()
        function = compilation.compiled(double)
        kept.append(function)
        assert [function(number) for number in numbers] == [2 * number for number in numbers]
        return [record.getMessage() for record in caplog.records if record.name == "torchsdm.compilation"]

    return by_calls


def test_it_is_said_once_and_only_where_the_cache_has_nothing(said):
    assert said(1, 2, 1.5) == ["Compiling the matching kernels, once per installation: about ten seconds."]
    assert said(1, 1.5) == []
    assert said(1, 1j) == ["Compiling the matching kernels, once per installation: about ten seconds."]


def test_loops_of_others_are_none_of_our_business(said, monkeypatch):
    monkeypatch.setattr(double, "__module__", "elsewhere")
    assert said(1) == []


def test_without_a_place_to_keep_it_a_remedy_is_named(said, monkeypatch):
    def no_place(*args, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return numba.njit(*args, **options)

    monkeypatch.setattr(compilation, "njit", no_place)
    monkeypatch.setattr(compilation._ANNOUNCEMENT, "how_often", "once per installation")  # given back afterwards
    (text,) = said(1)
    assert "in every process" in text and "NUMBA_CACHE_DIR" in text


def test_a_loop_is_compiled_once_it_was_called_here_or_the_cache_has_it(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    here = compilation.compiled(double)
    assert not compilation.is_compiled(here)
    here(1)
    assert compilation.is_compiled(here)
    elsewhere = compilation.compiled(double)
    assert not elsewhere.signatures and compilation.is_compiled(elsewhere)
    for entry in tmp_path.rglob("*.nbi"):
        os.utime(entry, (0, 0))  # older than the source
    assert not compilation.is_compiled(elsewhere)
    assert not compilation.is_compiled(numba.njit(double))  # nowhere to look
