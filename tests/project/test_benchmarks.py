"""The benchmarks' own arithmetic and reports. No test asserts a time: that is what ``make bench`` is for."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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


def test_times_of_steps_add_up_and_a_step_within_another_is_not_counted_twice(load):
    steps = load("steps")
    now = iter([1.0, 3.0, 6.0, 10.0, 15.0])
    watch = steps.Stopwatch(lambda: next(now))
    inner = watch.timed("inner", lambda: "answer")
    assert watch.timed("outer", inner)() == "answer"
    watch.stop()
    assert (watch.seconds["outer"], watch.seconds["inner"], watch.seconds[steps.REST]) == (2.0 + 4.0, 3.0, 1.0 + 5.0)


def test_an_import_belongs_to_the_library_that_needed_it(load):
    steps = load("steps")
    ticks = itertools.count(1.0)
    watch = steps.Stopwatch(lambda: next(ticks))
    loads = {"torchsdm.core": ["torch", "scipy"], "torch": ["numpy"], "scipy": ["numpy"]}

    def load_module(name, *_):
        for needed in loads.get(name, []):
            timed(needed)

    timed = watch.timed_import(load_module)
    timed("torchsdm.core")
    timed("", {"__package__": "sklearn.utils"}, None, ("fixes",), 1)
    watch.stop()
    assert watch.seconds == {steps.TORCH: 1.0, steps.LIBRARIES: 2.0, steps.OURS: 3.0, steps.REST: 3.0}


def test_functions_are_wrapped_once_they_are_imported_and_missing_ones_are_known(load, monkeypatch):
    steps = load("steps")
    ticks = itertools.count(1.0)
    watch = steps.Stopwatch(lambda: next(ticks))
    places = steps.Places(watch, {"adding": "torchsdm_sums:Sum.__call__", "other": "torchsdm_sums:Difference.__call__"})

    class Sum:
        def __call__(self, one, other):
            return one + other

    def load_module(name):
        monkeypatch.setitem(sys.modules, "torchsdm_sums", SimpleNamespace(Sum=Sum))

    timed = places.after(load_module)
    timed("torchsdm_sums"), timed("torchsdm_sums")  # the second time changes nothing
    assert Sum()(1, 2) == 3 and watch.seconds["adding"] == 1.0
    assert list(places.missing) == ["other"]


def test_peak_memory_sees_what_came_and_went(load):
    measure = load("measure")
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is read from Linux's /proc")
    with measure.PeakMemory() as memory:
        block = bytearray(200_000_000)
        block[::4096] = b"x" * len(block[::4096])
        del block
    assert 190e6 < memory.extra < 400e6


@pytest.fixture
def page(load, monkeypatch, tmp_path):
    """The page's module, on a page and a folder of results of its own."""
    module = load("page")
    monkeypatch.setattr(module, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(module, "PICTURE", tmp_path / "growth.svg")
    monkeypatch.setattr(module, "KEPT", tmp_path / "results")
    module.PAGE.write_text(f"before\n{module.BEGIN}\nold\n{module.END}\nafter\n", encoding="utf-8")
    return module


def measured(processor, **figures):
    packages = ("python", "torch", "faiss-cpu", "usearch", "scikit-learn")
    return {"machine": {"processor": processor, **dict.fromkeys(packages, "x")}, "figures": figures}


def figure(work, ratio, reached=None, note="", goal="≤ 1"):
    return {
        "work": work,
        "against": "y",
        "ratio": ratio,
        "spread": "1.00 to 2.00",
        "goal": goal,
        "reached": reached,
        "note": note,
    }


def test_the_page_is_written_between_its_marks(page):
    growth = [
        figure(f"{series}: {value}", 1.5, goal="") | {"work_seconds": 0.1}
        for series, value in (("support", "1,000"), ("support", "10,000"), ("classes", "2"), ("filters", "64"))
    ]
    page.publish(measured("A (R) chip", passes=[figure("w", 1.234, False, "why")], growth=growth))
    text = page.PAGE.read_text(encoding="utf-8")
    assert "| w | y | ≤ 1 | **1.23** (1.00 to 2.00) |" in text and "- A (R) chip: w: why." in text
    assert "| support: 1,000 | y |  | 1.50 (1.00 to 2.00) |" in text
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert page.PICTURE.read_text(encoding="utf-8").count("<svg") == 1


def test_each_machine_has_a_column_and_keeps_what_was_not_measured_again(page):
    page.publish(measured("A", passes=[figure("w", 1.0, True)], queries=[figure("v", 3.0, False)]))
    page.publish(measured("B", passes=[figure("w", 2.0, False)]))
    page.publish(measured("A", passes=[figure("w", 0.5, True)]))
    text = page.PAGE.read_text(encoding="utf-8")
    assert "| work | against | goal | A | B |" in text
    assert "| w | y | ≤ 1 | 0.50 (1.00 to 2.00) | **2.00** (1.00 to 2.00) |" in text
    assert "| v | y | ≤ 1 | **3.00** (1.00 to 2.00) | – |" in text


def test_a_wrong_name_is_refused_in_one_sentence():
    done = subprocess.run([sys.executable, BENCHMARKS / "run.py", "speed"], capture_output=True, text=True)
    assert done.returncode == 2 and "unknown benchmark 'speed'" in done.stderr and "Traceback" not in done.stderr


def test_the_documentation_has_the_marks_that_results_are_written_between(load):
    page = load("page")
    text = page.PAGE.read_text(encoding="utf-8")
    assert text.count(page.BEGIN) == text.count(page.END) == 1


def test_a_projection_is_arithmetic_on_what_was_measured(load):
    """By hand: 2 × 10^8 pairs in 2 core-seconds; half again for each exemplar; ...; one network of 1.25 GB a second."""
    cluster, projection = load("cluster"), load("projection")

    def figure(work, ratio, work_seconds=None, yardstick_seconds=None):
        times = {"work_seconds": work_seconds, "yardstick_seconds": yardstick_seconds}
        return {"work": work, "against": "", "ratio": ratio, **times}

    figures = [
        *(figure(f"{cluster.PROCESSOR_TIME} on {n} shards", r, r * 2, 2.0) for n, r in ((1, 1.1), (2, 1.25), (4, 1.2))),
        *(figure(f"{cluster.MOVED} on {n} shards, of one node", r) for n, r in ((1, 1.0), (4, 2.0))),
        *(figure(cluster.MEMORY, 1.5), figure(f"a, {cluster.TWICE}", 1.6), figure(cluster.LOST, 3.0, 7.5, 2.5)),
    ]
    c = projection.Constants.of(figures)
    assert (c.pairs_per_second, c.bytes_ratio, c.moved_ratio, c.twice, c.overhead, c.recovery) == (
        *(1e8, 1.5, 1.0, 1.6, 1.25, 5.0),
    )
    one = projection.Projection(c, 100_000_000, 512, 8)
    assert one.node_bytes == 12.5e6 * 512 * 4 * 1.5 and one.fits
    assert one.queries_per_second == pytest.approx(1e8 / 2 * 16 * 8 / 2 / 1e8)  # half the pairs: twice as wide
    assert one.node_hours == pytest.approx(8 * 1e6 / 32 / 3600)
    assert not projection.Projection(c, 100_000_000, 512, 2).fits
    crowded = projection.Projection(c, 1_000, 256, 64)
    assert crowded.queries_per_second == crowded.sent_per_second == pytest.approx(1.25e9 / (1024 * 64))
    table = projection.markdown([{"machine": {"processor": "P"}, "figures": {"cluster": figures}}])
    assert "| 256 filters | 8 | 19 GB | 64.0 | 35 |" in table
    assert "| 1,000 filters | 4 | 150 GB: does not fit | – | – |" in table
    assert projection.markdown([{"machine": {"processor": "P"}, "figures": {}}]) == ""


@pytest.mark.filterwarnings("ignore")
def test_every_step_of_evaluating_is_measured_as_one_thing_grows(load, monkeypatch):
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is read from Linux's /proc")
    evaluating = load("evaluating")
    small, audit = evaluating.Problem(40, 2, 300), evaluating.Problem(40, 2, 0)
    larger, audits = (evaluating.Problem(80, 2, 300),), (evaluating.Problem(120, 2, 0), evaluating.Problem(40, 4, 0))
    sizes = {"N_FITTED": 600, "M": 8, "SMALL": small, "LARGER": larger, "SMALL_AUDIT": audit, "LARGER_AUDITS": audits}
    for name, value in sizes.items():
        monkeypatch.setattr(evaluating, name, value)
    figures = list(evaluating.run())
    assert [one.work for one in figures] == [
        *(f"{step}: 80 inputs, 2 classes, 300 exemplars" for step in ("decide", "certify", "evaluate", "report")),
        *("audit: 120 inputs, 2 classes", "audit: 40 inputs, 4 classes"),
    ]
    assert [one.goal for one in figures] == ["≤ 2"] * 4 + ["≤ 9", "≤ 2"]  # pairs of inputs, of an audit
    assert figures[-1].against == "CPU time with 40 inputs, 2 classes"
