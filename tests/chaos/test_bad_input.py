"""A few thousand cases of bad input for every reader, loader and endpoint; ``fuzz.py`` runs as many as you like."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tools.chaos import fuzz
from tools.chaos.harness import Target, Wrong
from tools.chaos.targets import TARGETS, WEIGHTS

N_CASES = 10  # for each unit of weight


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chaos")
    fuzz.make_seeds(folder / "seeds")
    return folder / "seeds"


@pytest.mark.parametrize("name", TARGETS)
def test_bad_input_is_read_or_refused_in_our_own_words(name, seeds, tmp_path):
    report = fuzz.run(name, 0, range(max(5, round(N_CASES * WEIGHTS[name]))), tmp_path / "work", seeds)
    assert report.cases and not fuzz.distinct(report.failures)


# --- The harness finds what it is there to find ----------------------------------------------------------------------


class _Broken(Target):
    """Breaks as the number in its case says."""

    name = "broken"
    writes = True

    def case(self, random):
        return {"how": self.how}

    def read(self, folder):
        exec((folder / "how").read_text(), {"folder": folder, "Wrong": Wrong})


FAULTS = {
    "exception": b"{}['a']",
    "memory": b"bytearray(2 << 30)",
    "slow": b"while True: pass",
    "executed": b"import subprocess; subprocess.run(['true'])",
    "outside": b"import os; os.truncate(folder.parent / 'outside', 3)",
    "wrong": b"raise Wrong('a wrong number')",
}
ONE = """
import sys
from pathlib import Path
from chaos import test_bad_input
from tools.chaos import harness
harness.SECONDS = 1
folder = Path(sys.argv[1])
folder.mkdir()
target = test_bad_input._Broken(folder)
target.how = test_bad_input.FAULTS[sys.argv[2]]
report = harness.run_cases(target, 0, range(1), folder)
print([one.kind for one in report.failures])
"""


@pytest.mark.parametrize("kind", FAULTS)
def test_the_harness_notices(kind, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ONE, str(tmp_path / "seeds"), kind]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == f"['{kind}']", done.stderr


def test_a_case_is_the_same_again(seeds):
    target = TARGETS["states-npz"](seeds)
    one, again = (target.case(fuzz.random_of("states-npz", 0, 7)) for _ in range(2))
    assert one == again != target.case(fuzz.random_of("states-npz", 1, 7))
