"""The benchmarks' own arithmetic and reports. No test asserts a time: that is what ``make bench`` is for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Import a module of the benchmarks as they import each other."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def by_name(name):
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return by_name


def test_ratios_goals_and_turning_round(load, monkeypatch):
    measure = load("measure")
    times = {"work": [9.0, 3.0, 2.0, 4.0], "yardstick": [9.0, 2.0, 2.0, 8.0]}  # the first of each warms up
    calls = {name: iter(values) for name, values in times.items()}
    monkeypatch.setattr(measure, "seconds", lambda do: do())
    work, yardstick = (lambda: next(calls["work"])), (lambda: next(calls["yardstick"]))
    figure = measure.compare("w", work, "y", yardstick, at_most=1.4, repeats=3)
    assert figure.ratio == 3.0 / 2.0 and figure.reached is False and (figure.low, figure.high) == (0.5, 1.5)
    assert figure.goal == "≤ 1.4" and figure.spread == "0.50 to 1.50"
    calls = {name: iter(values) for name, values in times.items()}
    figure = measure.compare("w", work, "y", yardstick, at_least=0.5, repeats=3)
    assert figure.ratio == 2.0 / 3.0 and figure.reached is True and (figure.low, figure.high) == (2 / 3, 2.0)


def test_the_time_of_processes_is_theirs_alone(load):
    measure = load("measure")
    busy = "import time; start = time.process_time()\nwhile time.process_time() < start + 0.3: pass"
    assert measure.process_seconds(lambda: subprocess.run([sys.executable, "-c", busy], check=True)) >= 0.3
    assert abs(measure.process_seconds(lambda: sum(range(3_000_000)))) < 1e-9  # 0 but for the rounding of sums
    taken = iter([2.0, 6.0])  # the yardstick's, the work's
    figure = measure.compare("w", lambda: None, "y", lambda: None, repeats=1, clock=lambda do: next(taken))
    assert figure.ratio == 3.0


def test_peak_memory_sees_what_came_and_went(load):
    measure = load("measure")
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is read from Linux's /proc")
    with measure.PeakMemory() as memory:
        block = bytearray(200_000_000)
        block[::4096] = b"x" * len(block[::4096])
        del block
    assert 190e6 < memory.extra < 400e6


def test_the_page_is_written_between_its_marks(load, monkeypatch, tmp_path):
    run = load("run")
    one = {"work": "w", "against": "y", "ratio": 1.234, "spread": "1.00 to 2.00", "goal": "≤ 1", "reached": False}
    growth = [
        {"work": f"{series}: {value}", "against": "p", "ratio": 1.5, "spread": "", "work_seconds": 0.1}
        for series, value in (("support", "1,000"), ("support", "10,000"), ("classes", "2"), ("filters", "64"))
    ]
    machine = dict.fromkeys(("processor", "python", "torch", "numba", "faiss-cpu", "usearch", "scikit-learn"), "x")
    page, picture = tmp_path / "page.md", tmp_path / "growth.svg"
    page.write_text(f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(run, "PAGE", page)
    monkeypatch.setattr(run, "PICTURE", picture)
    run._publish({"machine": machine, "figures": {"passes": [one | {"note": "why"}], "growth": growth}})
    text = page.read_text(encoding="utf-8")
    assert "| w | y | 1.23 | 1.00 to 2.00 | ≤ 1 | **no** |" in text and "- w: why." in text
    assert "| support: 1,000 (p) | 1.50 |  |" in text
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert picture.read_text(encoding="utf-8").count("<svg") == 1


def test_a_wrong_name_is_refused_in_one_sentence():
    done = subprocess.run([sys.executable, BENCHMARKS / "run.py", "speed"], capture_output=True, text=True)
    assert done.returncode == 2 and "unknown benchmark 'speed'" in done.stderr and "Traceback" not in done.stderr


def test_the_documentation_has_the_marks_that_results_are_written_between(load):
    run = load("run")
    text = run.PAGE.read_text(encoding="utf-8")
    assert text.count(run.BEGIN) == text.count(run.END) == 1
