"""What is compiled ahead is what a model needs: afterwards nothing is left to compile."""

from __future__ import annotations

import json

import pytest
from tests.warm_process import run

PROGRAM = """
import json, os, warnings
import numpy as np
from numba.core.dispatcher import Dispatcher

from torchsdm import SDMClassifier, _linear_kernel
from torchsdm.core import _candidates
from torchsdm.matching import _kernels
from torchsdm.model import compile_ahead

KERNELS = [one for room in (_linear_kernel, _candidates, _kernels) for one in vars(room).values()]

def n_compiled():
    return {one.__name__: len(one.signatures) for one in KERNELS if isinstance(one, Dispatcher)}

warnings.simplefilter("error")
thread = compile_ahead()
child = os.fork()  # waits for the compiler
if child == 0:
    os._exit(thread.is_alive())
alone = os.waitpid(child, 0)[1]
warnings.simplefilter("ignore")
ahead = n_compiled()
X = np.random.default_rng(0).normal(size=(300, 12)).astype(np.float32)
y = (X[:, 0] > 0).astype(int)
classifier = SDMClassifier(0.9, n_filters=16, n_rounds=1, max_epochs=2, random_state=0).fit(X, y)
classifier.decide(X[:1])
classifier.decide(X)
classifier.explain(X[:2])
print(json.dumps([alone, compile_ahead() is thread, ahead, n_compiled()]))
"""


@pytest.fixture(scope="module")
def told():
    done = run(PROGRAM)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_fitting_and_deciding_compile_nothing_more(told):
    _, _, ahead, after = told
    assert after == ahead
    for name in ("find_first", "count_matches", "find_neighbors", "query_bounds", "best_candidates"):
        assert ahead[name] == 1


def test_it_is_done_once_and_a_fork_waits_for_it(told):
    status_of_child, is_same, _, _ = told
    assert status_of_child == 0 and is_same
