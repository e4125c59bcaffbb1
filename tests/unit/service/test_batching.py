"""One thread, a queue, batches of what waits."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from torchsdm.service.batching import Closed, QueueFull, Worker, result_of


class Gatekeeper:
    """Answers with what was asked; the first batch waits until it is let through."""

    def __init__(self):
        self.batches, self.may = [], threading.Event()
        self.has_begun = threading.Event()

    def __call__(self, questions):
        self.has_begun.set()
        assert self.may.wait(10)
        self.batches.append(list(questions))
        return list(questions)


@pytest.fixture
def keeper():
    return Gatekeeper()


@pytest.fixture
def busy(keeper):
    """A worker that has begun with a question and waits."""
    worker = Worker(keeper, max_waiting=6)
    worker.ask("first", 0.5)
    assert keeper.has_begun.wait(10)
    yield worker
    keeper.may.set()
    worker.close(10)


def test_what_waits_together_is_answered_together_in_order(busy, keeper):
    futures = [busy.ask(number, 0.3) for number in range(5)]
    keeper.may.set()
    assert [future.result(10) for future in futures] == list(range(5))
    assert keeper.batches == [["first"], [0, 1, 2], [3, 4]]  # a batch weighs at most 1


def test_questions_wait_a_moment_for_those_who_were_just_answered(keeper):
    def slow(questions):
        time.sleep(0.5)  # so that a tenth of it is long beside the pauses below
        return keeper(questions)

    keeper.may.set()
    worker = Worker(slow, max_waiting=20)
    worker.ask("first", 0.01)
    for future in [worker.ask(number, 0.01) for number in range(3)]:
        future.result(10)
    again = [worker.ask("a", 0.01)]
    time.sleep(0.005)
    again += [worker.ask(name, 0.01) for name in "bc"]
    assert [future.result(10) for future in again] == ["a", "b", "c"]
    assert keeper.batches[-1] == ["a", "b", "c"]
    assert worker.ask("alone", 0.01).result(10) == "alone"  # a tenth of the last batch, no longer
    worker.close(10)


@pytest.mark.parametrize(
    ("now", "last_arrival", "seconds"),
    [
        (100.0, 90.0, 1.0),  # a tenth of what the batch took, from its end
        (101.5, 100.8, 0.3),  # from the last who came
        (104.5, 104.4, 0.5),  # but no more than half of it in all
        (101.5, 100.2, -0.3),
    ],
)
def test_others_are_waited_for_as_long_as_they_keep_coming(busy, monkeypatch, now, last_arrival, seconds):
    busy.ask("next", 0.1)
    busy._n_expected, busy._batch_end, busy._batch_seconds, busy._last_arrival = 64, 100.0, 10.0, last_arrival
    with monkeypatch.context() as patched:
        patched.setattr("torchsdm.service.batching.time", SimpleNamespace(monotonic=lambda: now))
        assert busy._seconds_to_wait() == pytest.approx(seconds)


def patient(n_expected):
    """A worker that would wait for ten minutes."""
    worker = Worker(lambda questions: list(questions), max_waiting=2)
    worker._n_expected, worker._batch_end, worker._batch_seconds = n_expected, time.monotonic(), 6000.0
    return worker


@pytest.mark.parametrize(("weight", "n_expected"), [(0.1, 1), (1.0, 64)], ids=["all are there", "a whole batch"])
def test_who_need_not_wait_does_not(weight, n_expected):
    worker = patient(n_expected)
    assert worker.ask("next", weight).result(10) == "next"
    worker.close(10)


def test_a_call_waits_for_nobody():
    worker = patient(64)
    assert worker.call(lambda: "called").result(10) == "called"
    worker.close(10)


def test_an_end_waits_for_nobody():
    worker = patient(64)
    last = worker.ask("last", 0.1)
    assert worker.close(10) and last.result(0) == "last"


def test_what_is_heavier_than_a_batch_is_one(busy, keeper):
    futures = [busy.ask(name, weight) for name, weight in (("a", 0.1), ("b", 7.0), ("c", 0.1))]
    keeper.may.set()
    assert [future.result(10) for future in futures] == ["a", "b", "c"]
    assert keeper.batches[1:] == [["a"], ["b"], ["c"]]


def test_a_call_is_made_in_its_turn_and_alone(busy, keeper):
    order = []
    before = busy.ask("before", 0.1)
    call = busy.call(lambda: order.append(list(keeper.batches)) or "called")
    after = busy.ask("after", 0.1)
    keeper.may.set()
    assert (before.result(10), call.result(10), after.result(10)) == ("before", "called", "after")
    assert order == [[["first"], ["before"]]] and keeper.batches[2:] == [["after"]]


def test_a_full_queue_says_when_to_come_back_and_still_takes_calls(busy, keeper):
    for number in range(6):
        busy.ask(number, 0.5)
    with pytest.raises(QueueFull) as full:
        busy.ask("too much", 0.5)
    assert full.value.seconds >= 1 and busy.n_waiting == 6
    called = busy.call(lambda: "called")
    keeper.may.set()
    assert called.result(10) == "called"


def test_the_time_to_come_back_grows_with_what_waits():
    release = threading.Event()

    def slow(questions):
        time.sleep(0.6)
        release.wait(10 if questions == ["hold"] else 0)
        return questions

    worker = Worker(slow, max_waiting=4)
    worker.ask("one", 1).result(10)
    worker.ask("hold", 1)
    time.sleep(0.1)
    for number in range(4):
        worker.ask(number, 1)
    with pytest.raises(QueueFull) as full:
        worker.ask("too much", 1)
    assert full.value.seconds == 3  # 4 batches of 0.6 seconds
    release.set()
    assert worker.close(20)


def test_a_failure_is_told_to_whoever_asked_and_the_worker_goes_on():
    def answer(questions):
        if "bad" in questions:
            raise ZeroDivisionError
        return [KeyError("mine") if question == "own" else question for question in questions]

    worker = Worker(answer, max_waiting=4)
    with pytest.raises(ZeroDivisionError):
        worker.ask("bad", 1).result(10)
    with pytest.raises(KeyError):
        worker.ask("own", 1).result(10)
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 // 0).result(10)
    assert worker.ask("good", 1).result(10) == "good" and worker.is_alive
    assert worker.close(10)


def test_closing_answers_what_waits_and_takes_no_more(busy, keeper):
    waiting = [busy.ask(number, 1) for number in range(3)]
    closing = threading.Thread(target=busy.close)
    closing.start()
    while busy.is_alive:
        time.sleep(0.001)
    with pytest.raises(Closed):
        busy.ask("late", 1)
    assert not busy.close(0.01)  # not in time
    keeper.may.set()
    closing.join(10)
    assert [future.result(0) for future in waiting] == [0, 1, 2]


def test_who_gave_up_waiting_is_not_answered(busy, keeper):
    gone, there = busy.ask("gone", 0.1), busy.ask("there", 0.1)
    assert gone.cancel()
    keeper.may.set()
    assert there.result(10) == "there" and keeper.batches[1:] == [["there"]]


# --- Results for coroutines ------------------------------------------------------------------------------------------


def test_results_of_the_worker_reach_the_coroutines_that_wait():
    worker = Worker(lambda asked: [KeyError(q) if q % 7 == 0 else q * q for q in asked], 1000)

    async def ask(number):
        try:
            return await result_of(worker.ask(number, 0.05))
        except KeyError:
            return "refused"

    async def main():
        return await asyncio.gather(*(ask(number) for number in range(500)))

    expected = ["refused" if number % 7 == 0 else number * number for number in range(500)]
    for _ in range(5):
        assert asyncio.run(main()) == expected
    assert worker.close(10)


def test_who_is_cancelled_is_not_answered(busy, keeper):
    async def main():
        gone = asyncio.ensure_future(result_of(busy.ask("gone", 0.1)))
        there = asyncio.ensure_future(result_of(busy.ask("there", 0.1)))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        keeper.may.set()
        return await there

    assert asyncio.run(main()) == "there" and keeper.batches[1:] == [["there"]]


def test_what_the_end_cancels_is_told_so_and_others_get_their_results():
    async def ask():
        cancelled, done = Future(), Future()
        waiting = [asyncio.ensure_future(result_of(one)) for one in (cancelled, done)]
        await asyncio.sleep(0)
        cancelled.cancel()
        done.set_result(7)
        return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)

    first, second = asyncio.run(ask())
    assert isinstance(first, Closed) and second == 7
