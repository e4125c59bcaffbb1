"""Sums, roots, distances and products whose bits depend on their operands alone."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import torch

from torchsdm.arithmetic import exact
from torchsdm.arithmetic.exact import (
    canonical_sum,
    empty_float32,
    exact_sqrt,
    full_float32_products,
    invariant_linear,
    pair_distances,
    pairwise_sum,
    product_error,
    whole_lines,
)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# --- Sums ------------------------------------------------------------------------------------------------------------

LENGTHS = [*range(1, 18), 63, 64, 65, 127, 128, 129, 136, 137, 255, 256, 257, 300, 1000, 1023]


@pytest.mark.parametrize("add", [canonical_sum, pairwise_sum])
def test_sums_of_integers_are_exact(add):
    for n in LENGTHS:
        terms = torch.arange(3 * n, dtype=torch.float64).reshape(3, n) - n
        assert add(terms.clone()).tolist() == [sum(row) for row in terms.tolist()], f"{n} terms"


@pytest.mark.parametrize("add", [canonical_sum, pairwise_sum])
def test_a_sum_of_nothing_is_zero(add):
    assert add(torch.empty(4, 0, dtype=torch.float64)).tolist() == [0.0] * 4


def test_sums_are_numpys_of_one_row_in_any_batch_and_layout():
    for n in LENGTHS:
        terms = normal(97, n) * 10.0 ** normal(97, n, seed=1)  # of very different sizes, so that the order matters
        expected, where = [float(np.sum(row)) for row in terms.numpy()], f"{n} terms"
        assert canonical_sum(terms).tolist() == expected, where
        assert pairwise_sum(terms).tolist() == expected, where  # what other devices do
        assert [canonical_sum(row[None]).item() for row in terms[:9]] == expected[:9], where
        assert canonical_sum(terms.T.contiguous().T).tolist() == expected, where  # another layout in memory
        assert canonical_sum(terms.repeat_interleave(2, dim=0)[::2]).tolist() == expected, where


def test_the_order_of_summation_matters_here():
    terms = normal(97, 300) * 10.0 ** normal(97, 300, seed=1)
    one_by_one = [sum(row) for row in terms.tolist()]
    assert one_by_one != canonical_sum(terms).tolist()  # else the test above would say nothing


@pytest.mark.parametrize("n", [5, 64, 1000])
def test_sums_are_accurate(n):
    terms = normal(50, n) * 10.0 ** normal(50, n, seed=1)
    got = canonical_sum(terms)
    for row in range(50):
        values = terms[row].tolist()
        bound = product_error(n, torch.float64) * math.fsum(map(abs, values))
        assert abs(got[row].item() - math.fsum(values)) <= bound


# --- Roots -----------------------------------------------------------------------------------------------------------


def test_square_root_is_correctly_rounded():
    rng = np.random.default_rng(0)
    values = np.concatenate([[0.0, 1.0, 2.0, 3.0, 5e-324, 1e-310, 1e308], np.exp(rng.uniform(-600, 600, 20_000))])
    got = exact_sqrt(torch.from_numpy(values))
    assert got.tolist() == [math.sqrt(value) for value in values.tolist()]


# --- Distances -------------------------------------------------------------------------------------------------------


def test_distances_by_hand():
    a, b = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[3.0, 4.0], [1.0, 1.0], [2.0, 2.0]])
    got = pair_distances(a, b, torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 2, 1]))
    assert got.dtype == torch.float64
    assert got.tolist() == [5.0, 0.0, math.sqrt(2), math.sqrt(2)]


@pytest.mark.parametrize("chunk", [None, 40])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.float64, torch.float32)])
def test_distances_are_direct_differences_in_float64(monkeypatch, chunk, dtypes):
    if chunk:
        monkeypatch.setattr(exact, "_CHUNK_ELEMENTS", chunk)
    a, b = normal(6, 17, dtype=dtypes[0]) + 1e4, normal(9, 17, seed=1, dtype=dtypes[1]) + 1e4
    rows, columns = (grid.flatten() for grid in torch.meshgrid(torch.arange(6), torch.arange(9), indexing="ij"))
    got = pair_distances(a, b, rows, columns)
    for distance, i, j in zip(got.tolist(), rows.tolist(), columns.tolist(), strict=True):
        squares = [(x - y) ** 2 for x, y in zip(a[i].tolist(), b[j].tolist(), strict=True)]
        assert distance == pytest.approx(math.sqrt(math.fsum(squares)), rel=1e-14)
    alone = [pair_distances(a, b, rows[p : p + 1], columns[p : p + 1]).item() for p in range(len(rows))]
    assert got.tolist() == alone


def test_no_pairs_no_distances():
    nothing = torch.empty(0, dtype=torch.int64)
    assert pair_distances(normal(3, 2), normal(3, 2), nothing, nothing).tolist() == []


# --- Products --------------------------------------------------------------------------------------------------------


def exact_linear(x, weight, bias):
    """Rounded to float32 from the exact value, as fractions."""
    out = np.empty((len(x), len(weight)), dtype=np.float32)
    for i, row in enumerate(x.tolist()):
        for j, (w, b) in enumerate(zip(weight.tolist(), bias.tolist(), strict=True)):
            exact = sum((Fraction(p) * Fraction(q) for p, q in zip(row, w, strict=True)), Fraction(b))
            out[i, j] = nearest_float32(exact)
    return torch.from_numpy(out)


def nearest_float32(exact):
    guess = np.float32(float(exact))
    around = (guess, np.nextafter(guess, np.float32(-np.inf)), np.nextafter(guess, np.float32(np.inf)))
    return min(around, key=lambda value: abs(Fraction(float(value)) - exact))


@pytest.mark.parametrize("n", [1, 16, 17, 40])  # few rows are a loop, more are a product
def test_invariant_linear_is_the_correctly_rounded_product(n):
    x, weight, bias = normal(n, 31), normal(7, 31, seed=1).float(), normal(7, seed=2).float()
    got = invariant_linear(x, weight, bias)
    assert got.dtype == torch.float32
    assert torch.equal(got, exact_linear(x, weight, bias))


def test_invariant_linear_under_cancellation():
    x = torch.tensor([[2.0**30, 1.0, -(2.0**30)], [2.0**31, 3.0, -(2.0**31)]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 2.0**-20, 1.0]])
    got = invariant_linear(x, weight, torch.tensor([0.0]))
    assert got.flatten().tolist() == [2.0**-20, 3 * 2.0**-20]


def midpoints(n=97, n_terms=300, n_outputs=5):
    """Rows whose products lie within a few units of float64 of the middle between two float32 numbers."""
    x, weight = normal(n, n_terms), normal(n_outputs, n_terms, seed=1)
    product = x @ weight.T
    below = product.float()
    above = torch.nextafter(below, torch.full_like(below, torch.inf))
    missing = (below.double() + above.double()) / 2 - product  # one more input makes up for it, exactly for its output
    x = torch.cat([x, missing], dim=1)
    return x, torch.cat([weight, torch.eye(n_outputs, dtype=torch.float64)], dim=1), torch.zeros(n_outputs)


@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("per_dimension", [False, True])
def test_invariant_linear_standardises_as_if_it_were_done_before(n, per_dimension):
    x, weight = normal(n, 700).float(), normal(6, 700, seed=1).float()
    before, bias = x.clone(), normal(6, seed=2).float()
    mean, scale = normal(700, seed=3).float(), normal(700, seed=4).float().abs() + 0.1
    if not per_dimension:
        mean, scale = mean[0], scale[0]
    expected = invariant_linear((x.double() - mean.double()) / scale.double(), weight, bias)
    assert torch.equal(invariant_linear(x, weight, bias, mean, scale), expected)
    assert torch.equal(x, before)


@pytest.mark.parametrize("block", [None, 32])  # terms that are summed together, in ten blocks or in one
def test_invariant_linear_has_the_same_bits_in_any_batch_even_at_midpoints(monkeypatch, block):
    if block:
        monkeypatch.setattr(exact, "_BLOCK_TERMS", block)
    x, weight, bias = midpoints()
    whole = invariant_linear(x, weight, bias)
    canonical = torch.stack([(canonical_sum(row * weight.double()) + bias.double()).float() for row in x])
    assert torch.equal(whole, canonical)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for size in (1, 7, 97):
            assert torch.equal(torch.cat([invariant_linear(part, weight, bias) for part in x.split(size)]), whole)


def test_canonical_roundings_bound_those_of_numpy_s_order():
    def additions(n):
        if n > 128:
            half = n // 2 - (n // 2) % 8
            return 1 + max(additions(half), additions(n - half))
        return n - 1 if n < 8 else (n // 8 - 1) + 3 + n % 8

    for n in (*range(1, 3000), 6_144, 10_007, 1_000_003):
        assert 1 + additions(n) <= exact._canonical_roundings(n) <= n


def test_the_product_of_many_terms_leaves_little_to_the_canonical_sum(monkeypatch):
    # One in 500 numbers of 6,144 terms: with a single bound over all of the terms it would be one in 70.
    x, weight, bias = normal(200, 6_144), normal(100, 6_144, seed=1).float(), torch.zeros(100)
    n_open = []
    canonical = exact.canonical_sum
    monkeypatch.setattr(exact, "canonical_sum", lambda terms: n_open.append(len(terms)) or canonical(terms))
    whole = invariant_linear(x, weight, bias)
    assert sum(n_open) < x.shape[0] * weight.shape[0] / 500
    assert torch.equal(whole[:5], invariant_linear(x[:5], weight, bias))


def test_midpoints_are_a_test():
    # A plain float64 product, rounded, gets other bits than the canonical value for some of these.
    x, weight, bias = midpoints()
    assert not torch.equal(torch.addmm(bias.double(), x, weight.T).float(), invariant_linear(x, weight, bias))


def test_invariant_linear_in_chunks_is_the_same(monkeypatch):
    x, weight, bias = midpoints()
    whole = invariant_linear(x, weight, bias)
    monkeypatch.setattr(exact, "_CHUNK_ELEMENTS", 2 * x.shape[1])
    assert torch.equal(invariant_linear(x, weight, bias), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 8, 500])
def test_product_error_bounds_the_error_of_a_product(dtype, n):
    x, y = normal(100, n, dtype=dtype), normal(100, n, seed=1, dtype=dtype)
    products = torch.stack([torch.dot(a, b) for a, b in zip(x, y, strict=True)])
    unit = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}[dtype]
    assert product_error(n, dtype) == pytest.approx(n * unit / (1 - n * unit), rel=1e-12)
    for row in range(100):
        pairs = [Fraction(a) * Fraction(b) for a, b in zip(x[row].tolist(), y[row].tolist(), strict=True)]
        bound = product_error(n, dtype) * float(sum(map(abs, pairs)))
        assert abs(Fraction(products[row].item()) - sum(pairs)) <= bound


def precision():
    return [backend.fp32_precision for backend in (torch.backends.mkldnn.matmul, torch.backends.cuda.matmul)]


@pytest.fixture
def reduced_precision():
    before = precision()
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.mkldnn.matmul.fp32_precision, torch.backends.cuda.matmul.fp32_precision = before


def test_float32_products_are_kept_full_and_the_setting_is_given_back(reduced_precision):
    cpu = torch.device("cpu")
    with full_float32_products(cpu):
        assert precision() == ["ieee", "ieee"]
        with full_float32_products(cpu):
            assert precision() == ["ieee", "ieee"]
        assert precision() == ["ieee", "ieee"]  # the outer one still needs it
    assert precision() == ["bf16", "tf32"]

    def failing():
        with full_float32_products(cpu):
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert precision() == ["bf16", "tf32"]


def test_autocast_does_not_reach_full_products():
    x = normal(4, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with full_float32_products(torch.device("cpu")):
            assert (x @ x).dtype == torch.float32


def test_full_products_in_several_threads_give_the_setting_back(reduced_precision):
    def work(_):
        with full_float32_products(torch.device("cpu")):
            return precision()

    with ThreadPoolExecutor(4) as pool:
        assert all(seen == ["ieee", "ieee"] for seen in pool.map(work, range(50)))
    assert precision() == ["bf16", "tf32"]


@pytest.mark.parametrize("n_columns", [1, 16, 17, 9_000])
def test_rows_of_whole_lines_begin_at_cache_lines(n_columns):
    held = [empty_float32(7, whole_lines(n_columns), device=torch.device("cpu")) for _ in range(9)]
    for block in held:  # several: one may be at a cache line by chance
        assert block.shape == (7, -(-n_columns // 16) * 16) and block.is_contiguous()
        assert all(row.data_ptr() % 64 == 0 for row in block)
        block.fill_(1.0)
        assert block.sum() == block.numel()
