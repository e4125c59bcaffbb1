"""Large products by the faster of two libraries."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

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
    [
        ((1.0,), (2.0,), "first"),
        ((2.0,), (1.0,), "second"),
        ((9.0, 1.0), (2.0,), "first"),
        ((0.1, 3.0), (2.0,), "second"),
    ],
    ids=["first is faster", "second is faster", "a slow trial", "a lucky trial"],
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


def test_large_products_are_both_libraries(always_large, monkeypatch):
    monkeypatch.setattr(large_products, "_contest", cache(lambda *_: large_products._Contest()))
    a, b = factors()
    for _ in range(2 * large_products._TRIALS + 1):
        out = torch.empty(7, 11)
        multiply_into(out, a, b)
        assert out.numpy() == pytest.approx(a.numpy() @ b.numpy().T, abs=1e-5)
    contest = large_products._contest(torch.get_num_threads(), 3)
    assert [len(rates) for rates in contest.rates.values()] == [large_products._TRIALS] * 2


@pytest.mark.parametrize("n_threads", [1, 2, 3, 9])
def test_numpy_multiplies_with_torchs_number_of_threads(n_threads, monkeypatch):
    seen = []
    matmul = np.matmul

    def spy(rows, columns, out):
        seen.append((len(rows), blas_threads()))
        return matmul(rows, columns, out=out)

    monkeypatch.setattr(large_products.np, "matmul", spy)
    torch.set_num_threads(n_threads)
    a, b = factors()
    out = torch.empty(7, 11)
    with threadpool_limits(2, user_api="blas"):
        large_products._by_numpy(out, a, b)
        assert blas_threads() == {2}  # as it was
    assert out.numpy() == pytest.approx(a.numpy() @ b.numpy().T, abs=1e-5)
    assert len(seen) == n_threads and sum(rows for rows, _ in seen) == 7
    assert all(threads == {1} for _, threads in seen)


def test_several_users_of_one_thread_give_the_setting_back():
    with threadpool_limits(2, user_api="blas"):
        with large_products._one_blas_thread():
            with large_products._one_blas_thread():
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == {2}
        with pytest.raises(ZeroDivisionError), large_products._one_blas_thread():
            raise ZeroDivisionError
        assert blas_threads() == {2} and large_products._one_blas_thread.users == 0


def blas_threads():
    """The numbers of threads that products of numpy are set to use."""
    return {library.num_threads for library in large_products._one_blas_thread.controller.lib_controllers}
