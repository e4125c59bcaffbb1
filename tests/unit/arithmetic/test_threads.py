"""Work in shares: all of it is done once, whoever does it, and nobody waits for somebody else's work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from torchsdm.arithmetic import loops
from torchsdm.arithmetic.loops import blocks, in_shares


@pytest.fixture(autouse=True)
def two_threads(one_thread):
    """Instead of one; afterwards there are as many as before."""
    torch.set_num_threads(2)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize(("n", "share"), [(0, 3), (1, 3), (3, 3), (10, 3), (1000, 1)])
def test_everything_is_done_once(n_threads, n, share):
    torch.set_num_threads(n_threads)
    done = []
    in_shares(lambda begin, end: done.extend(range(begin, end)), n, share)
    assert sorted(done) == list(range(n))


def test_a_helper_takes_part():
    both, seen = threading.Barrier(2), set()

    def work(begin, end):
        both.wait(60)  # until somebody else has begun, too
        seen.add(threading.get_ident())

    in_shares(work, 2, 1)
    assert len(seen) == 2


def test_who_is_done_does_not_wait_for_a_helper_that_is_busy_elsewhere():
    pool, free = loops._helpers(os.getpid(), 1), threading.Event()
    busy = pool.submit(free.wait, 60)
    done = []
    in_shares(lambda begin, end: done.append(begin), 5, 1)  # would take a minute
    assert done == [0, 1, 2, 3, 4] and not busy.done()
    free.set()
    assert busy.result(60)


def test_shares_within_shares_do_not_wait_for_each_other():
    done = []
    in_shares(lambda a, _: in_shares(lambda b, _: done.append((a, b)), 4, 1), 4, 1)
    assert sorted(done) == [(a, b) for a in range(4) for b in range(4)]


@pytest.mark.parametrize("who", ["the caller", "the helper"])
def test_an_error_reaches_the_caller(who):
    caller, both, begun = threading.get_ident(), threading.Barrier(2), []

    def work(begin, end):
        begun.append(begin)
        if begin < 2:
            both.wait(60)  # each has a share
            if (threading.get_ident() == caller) == (who == "the caller"):
                raise ZeroDivisionError("here")
        time.sleep(0.2)

    with pytest.raises(ZeroDivisionError, match="here"):
        in_shares(work, 5, 1)
    assert sorted(begun) == ([0, 1] if who == "the caller" else [0, 1, 2, 3, 4])  # after it, the caller begins nothing


def test_work_is_done_while_the_interpreter_ends():
    program = """
import atexit, torch
torch.set_num_threads(2)
from torchsdm.arithmetic.loops import in_shares
in_shares(lambda begin, end: None, 9, 1)
atexit.register(lambda: in_shares(lambda begin, end: print(begin), 3, 1))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["0", "1", "2"] and done.stderr == ""


@pytest.mark.parametrize(
    ("n", "width", "sizes"), [(0, 4, []), (5, 4, [3, 2]), (3, 12, [1, 1, 1]), (2, 99, [1, 1]), (7, 0, [7])]
)
def test_blocks_have_no_more_elements_than_allowed_but_for_a_single_row(n, width, sizes):
    rows = range(n)
    assert [len(rows[block]) for block in blocks(n, width, 12)] == sizes
    assert [row for block in blocks(n, width, 12) for row in rows[block]] == [*rows]
