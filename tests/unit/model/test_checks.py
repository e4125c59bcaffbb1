"""Spot checks on disk: what was acknowledged is there, for any process, and a stream is about one certificate."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from torchsdm import SpotCheck
from torchsdm.errors import InvalidInputError, ModelFileError
from torchsdm.model import CheckStore, Offered, Stream, read_checks

AT = "2026-01-01T00:00:00+00:00"
EVERY = {"rate": 1.0, "per_week": None}


def stream(promise="a", version=1, target=0.9, seed=7):
    return Stream(promise, version, SpotCheck(target, ["ham", "spam"], seed=seed))


def offered(n, start=0, **facts):
    return [Offered("spam" if i % 2 else "ham", 0.9, f"n{i}", digest=b"%d" % i, **facts) for i in range(start, n)]


def draw(store, n=4, of=None, start=0, **rate):
    return store.draw(of or stream(), offered(n, start), "new.jsonl", 0.0, AT, **(rate or EVERY))


@pytest.fixture
def store(tmp_path):
    return CheckStore(tmp_path / "changes" / "checks.sqlite")


def test_draws_are_those_of_the_state_however_they_are_cut(store):
    whole, parts = stream(), [range(0, 5), range(5, 60), range(60, 200)]
    expected = whole.fresh.draw(SimpleNamespace(admitted=np.ones(200, dtype=bool)))
    for part in parts:  # each in a process of its own, with a seed of its own that is not used
        of = stream(seed=7 if part.start == 0 else 99)
        CheckStore(store.path).draw(of, offered(part.stop, part.start), "x", 0.0, AT, rate=0.05, per_week=None)
    kept, n, rows = read_checks(store.path, -1)
    assert [row["id"] for row in rows] == [f"n{i}" for i in expected.nonzero()[0]] and n == expected.sum() > 3
    assert kept.checks.n_admitted == 200 and kept.checks.seed == 7


def test_a_decision_is_offered_once(store):
    assert draw(store, 4) == (4, 4)
    assert draw(store, 6) == (2, 2)
    one = Offered("ham")  # one that never is again
    assert [store.draw(stream(), [one], "sent", 0.0, AT, **EVERY) for _ in range(2)] == [(1, 1)] * 2


def test_verdicts_are_taken_once_in_the_order_of_the_draws(store):
    draw(store, 30)
    verdicts = [(number, number > 12) for number in range(30, 0, -1)]
    done = store.judge(stream(), verdicts, "ada", AT)
    plain = SpotCheck(0.9, ["ham", "spam"])
    raised = plain.update(["spam" if i % 2 else "ham" for i in range(30)], [i >= 12 for i in range(30)])
    assert (done.n_taken, done.n_known, done.n_late) == (30, 0, 0) and raised
    assert [one.name for one in done.raised] == [one.name for one in raised]
    checks = read_checks(store.path)[0].checks
    assert checks.groups == plain.groups
    again = store.judge(stream(), verdicts[:5], "eve", AT)
    assert (again.n_taken, again.n_known, again.raised) == (0, 5, ())
    assert read_checks(store.path)[0].checks.groups == plain.groups


@pytest.mark.parametrize("wrong", [[(2, True), (9, True)], [(2, True), (2, False)], [(2, True), (1, False)]])
def test_of_verdicts_with_an_error_none_is_taken(store, wrong):
    draw(store)
    store.judge(stream(), [(1, True)], "ada", AT)
    with pytest.raises(InvalidInputError, match=r"number 9|ada said|eve said"):
        store.judge(stream(), wrong, "eve", AT)
    kept, n, _ = read_checks(store.path)
    assert n == 3 and kept.checks.n_checked == 1


def test_another_certificate_ends_the_stream_and_an_alarm_stays(store):
    draw(store, 30)
    store.judge(stream(), [(number, number % 2 > 0) for number in range(1, 21)], "ada", AT)  # all spam is wrong
    before = read_checks(store.path)[0].checks
    assert "spam" in before.raised_by and "ham" not in before.raised_by
    later = stream("b", 2, 0.8)
    assert later.continued(read_checks(store.path)[0]).raised_by == before.raised_by  # also before it is written
    assert store.judge(later, [(25, True)], "ada", AT).n_late == 1
    kept, n, _ = read_checks(store.path)
    assert (n, kept.promise, kept.version, kept.checks.target) == (0, "b", 2, 0.8)
    assert kept.checks.raised_by == before.raised_by and kept.checks.raised_at == 0
    assert (kept.checks.n_checked, kept.checks.resets[-1].n_seen) == (0, 20)
    assert (kept.checks.seed, kept.checks.n_admitted) == (7, 30)
    store.reset(later, "relabelled", "ada", AT)
    assert not read_checks(store.path)[0].checks.raised


def test_a_process_with_an_earlier_version_draws_nothing_and_ends_nothing(store):
    draw(store, 4, stream("b", 2))
    assert draw(store, 8, stream("a", 1), start=4) == (0, 0)
    assert store.judge(stream("a", 1), [(1, True)], "ada", AT).n_taken == 1
    kept, n, _ = read_checks(store.path)
    assert (kept.promise, kept.version, kept.checks.n_checked, n) == ("b", 2, 1, 3)
    assert draw(store, 8, stream("b", 1), start=4) == (4, 4)  # the same certificate


def test_a_reset_says_who_and_why_and_what_waits_goes_on_waiting(store):
    draw(store)
    store.judge(stream(), [(1, False)], "ada", AT)
    store.reset(stream(), "a slip", "eve", AT)
    kept, n, _ = read_checks(store.path)
    assert (kept.checks.n_checked, kept.checks.resets[-1].reason, n) == (0, "a slip", 3)
    assert [(row["reason"], row["who"]) for row in store._ask("SELECT * FROM resets")] == [("a slip", "eve")]


def test_the_rate_may_change_with_every_draw(store):
    assert draw(store, 100, rate=0.01, per_week=None)[1] < 10
    assert draw(store, 200, start=100, **EVERY) == (100, 100)
    assert draw(store, 10_200, start=200, rate=0.05, per_week=20)[1] < 200


_KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_checks import AT, CheckStore, draw, stream
store = CheckStore(Path(sys.argv[1]))
draw(store, 40)
store.judge(stream(), [(1, False), (2, True)], "ada", AT)
print("told", flush=True)
with store._stream(stream()) as (connection, checks, _):  # a third verdict, killed before it is told
    checks.update(["ham"], [False])
    connection.execute("UPDATE drawn SET is_right = 0 WHERE number = 3")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_told_survives_kill_9_between_draw_and_verdict(store):
    here = os.path.dirname(__file__)
    words = [sys.executable, "-c", _KILLED, str(store.path), here]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "told\n"), done.stderr
    kept, n, _ = read_checks(store.path)
    assert (n, kept.checks.n_drawn, kept.checks.n_checked, kept.checks.n_wrong) == (38, 40, 2, 1)
    assert store.judge(stream(), [(1, False), (2, True), (3, True)], "ada", AT).n_taken == 1


def test_checks_are_read_where_nothing_can_be_written(store, tmp_path):
    assert read_checks(tmp_path / "none") == (None, 0, [])
    draw(store)
    copy = tmp_path / "copy.sqlite"  # with what waits in its -wal file, and nothing else
    shutil.copy(store.path, copy)
    shutil.copy(f"{store.path}-wal", f"{copy}-wal")
    assert read_checks(copy)[1] == 4


def test_a_damaged_file_is_told_and_an_empty_one_is_as_none(tmp_path):
    path = tmp_path / "checks.sqlite"
    path.touch()
    assert read_checks(path) == (None, 0, [])
    path.write_bytes(b"no database")
    with pytest.raises(ModelFileError, match=r"checks\.sqlite"):
        read_checks(path)


def test_a_damaged_state_is_told(store):
    draw(store)
    store._connection.execute("UPDATE stream SET state = '{}'")
    with pytest.raises(ModelFileError, match="spot check"):
        read_checks(store.path)
