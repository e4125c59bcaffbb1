"""Large products by the faster of two libraries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchsdm import _large_products as large_products
from torchsdm._large_products import multiply_into

LIBRARIES = (large_products._by_torch, large_products._by_numpy)


def factors(n=7, m=11, k=5):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, k, generator=generator), torch.randn(m, k, generator=generator)


@pytest.fixture
def always_large(monkeypatch):
    monkeypatch.setattr(large_products, "_LARGE", 0)
    monkeypatch.setattr(large_products, "_FEWEST_ROWS", 2)


@pytest.mark.parametrize("multiply", LIBRARIES)
def test_each_library_multiplies_into_part_of_a_block(multiply):
    a, b = factors()
    block = torch.full((9, 20), 3.0)
    multiply(block[:7, 4:15], a, b)
    expected = a.double().numpy() @ b.double().numpy().T
    assert block[:7, 4:15].numpy() == pytest.approx(expected, abs=1e-5)
    block[:7, 4:15] = 3.0
    assert (block == 3).all()  # nothing else was written to


@pytest.mark.parametrize("n", [1, 2, 7])
def test_small_products_are_torchs(n, monkeypatch):
    monkeypatch.setattr(large_products, "_contest", None)
    a, b = factors(n)
    out = torch.empty(n, 11)
    multiply_into(out, a, b)
    assert out.numpy() == pytest.approx(a.numpy() @ b.numpy().T, abs=1e-5)


class Clock:
    """A clock that only the work moves on, and libraries that take a given time."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def library(self, name, *seconds):
        def multiply(*_):
            self.now += seconds[min(self.calls.count(name), len(seconds) - 1)]
            self.calls.append(name)

        return multiply


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [((1.0,), (2.0,), "first"), ((2.0,), (1.0,), "second"), ((9.0, 9.0, 1.0, 9.0), (2.0,), "first")],
    ids=["first is faster", "second is faster", "the best trial counts"],
)
def test_the_faster_library_gets_all_but_the_trials(monkeypatch, first, second, winner):
    clock = Clock()
    monkeypatch.setattr(large_products.time, "perf_counter", lambda: clock.now)
    contest = large_products._Contest()
    contest.rates = {clock.library("first", *first): [], clock.library("second", *second): []}
    trials = 2 * large_products._TRIALS
    for _ in range(trials + 5):
        contest.multiply(torch.empty(0), torch.empty(0), torch.empty(0), 100)
    assert sorted(clock.calls[:trials]) == ["first"] * (trials // 2) + ["second"] * (trials // 2)
    assert clock.calls[trials:] == [winner] * 5


def test_products_of_other_sizes_are_another_contest():
    assert large_products._contest(2, 8) is large_products._contest(2, 8)
    assert large_products._contest(2, 8) is not large_products._contest(2, 11)
    assert large_products._contest(2, 8) is not large_products._contest(1, 8)


def test_numpy_takes_part_only_with_as_many_threads_as_torch(always_large, monkeypatch):
    from threadpoolctl import threadpool_limits

    asked = []
    monkeypatch.setattr(large_products, "_contest", lambda *key: asked.append(key) or large_products._Contest())
    a, b = factors()
    for torch_threads, numpy_threads in ((1, 1), (2, 1), (1, 2), (2, 2)):
        torch.set_num_threads(torch_threads)
        with threadpool_limits(numpy_threads, user_api="blas"):
            out = torch.empty(7, 11)
            multiply_into(out, a, b)
            assert out.numpy() == pytest.approx(np.matmul(a.numpy(), b.numpy().T), abs=1e-5)
    assert asked == [(1, 3), (2, 3)]
