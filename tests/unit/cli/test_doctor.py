"""``sdm doctor`` says which loops are in use, and compiles those that are missing."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from torchsdm.arithmetic import loops
from torchsdm.cli.doctor import doctor
from torchsdm.errors import TorchSDMError


def test_the_loops_in_use_are_said():
    assert json.loads(CliRunner().invoke(doctor, ["--json"]).output)["compiled_loops"] == loops.loops_in_use()
    assert f"compiled loops: {loops.loops_in_use()}" in CliRunner().invoke(doctor).output


def test_what_to_do_without_them_is_said(monkeypatch):
    monkeypatch.setattr("torchsdm.application.describe.loops_in_use", lambda: "none")
    assert "compiled loops: none, so matching is slow  ->  install a C compiler" in CliRunner().invoke(doctor).output


def test_they_are_compiled_into_the_package(monkeypatch, tmp_path):
    monkeypatch.setattr(loops._build, "compile_loops", lambda: [tmp_path / "library"])
    assert CliRunner().invoke(doctor, ["--compile"]).exit_code == 0


@pytest.mark.parametrize(("compiler", "said"), [("no-such-compiler", "No C compiler was found"), ("false", "status 1")])
def test_a_compiler_that_is_missing_or_fails_is_a_sentence(monkeypatch, compiler, said):
    monkeypatch.setenv("CC", compiler)
    error = CliRunner().invoke(doctor, ["--compile"]).exception
    assert isinstance(error, TorchSDMError) and said in str(error)
