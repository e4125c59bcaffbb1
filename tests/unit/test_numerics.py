"""Sums, roots, distances and products whose bits depend on their operands alone."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from torchsdm import numerics
from torchsdm.numerics import (
    exact_sqrt,
    full_float32_products,
    invariant_linear,
    pair_distances,
    product_error,
    tree_sum,
)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# --- Sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [*range(1, 18), 100, 1023, 1024])
def test_tree_sum_of_integers_is_exact(n):
    terms = torch.arange(3 * n, dtype=torch.float64).reshape(3, n) - n
    assert tree_sum(terms.clone()).tolist() == terms.sum(dim=1).tolist()


def test_tree_sum_of_nothing_is_zero():
    assert tree_sum(torch.empty(4, 0, dtype=torch.float64)).tolist() == [0.0] * 4


@pytest.mark.parametrize("n", [5, 64, 1000])
def test_tree_sum_keeps_its_error_bound(n):
    terms = normal(50, n) * 10.0 ** normal(50, n, seed=1)  # of very different sizes
    got = tree_sum(terms.clone())
    for row in range(50):
        values = terms[row].tolist()
        unit = torch.finfo(torch.float64).eps / 2
        bound = 1.01 * math.ceil(math.log2(n)) * unit * math.fsum(map(abs, values))
        assert abs(got[row].item() - math.fsum(values)) <= bound


def test_tree_sum_has_the_same_bits_in_any_batch():
    terms = normal(97, 333)
    whole = tree_sum(terms.clone())
    for row in range(0, 97, 8):
        assert torch.equal(tree_sum(terms[row : row + 1].clone()), whole[row : row + 1])
    columns = terms.T.contiguous().T  # the same numbers, another layout in memory
    assert torch.equal(tree_sum(columns.clone(memory_format=torch.preserve_format)), whole)


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
        monkeypatch.setattr(numerics, "_CHUNK_ELEMENTS", chunk)
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


def test_invariant_linear_is_the_correctly_rounded_product():
    x, weight, bias = normal(20, 31), normal(7, 31, seed=1).float(), normal(7, seed=2).float()
    got = invariant_linear(x, weight, bias)
    assert got.dtype == torch.float32
    assert torch.equal(got, exact_linear(x, weight, bias))


def test_invariant_linear_under_cancellation():
    x = torch.tensor([[1e8, 1.0, -1e8], [1e15, 3.0, -1e15]], dtype=torch.float64)
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


def test_invariant_linear_has_the_same_bits_in_any_batch_even_at_midpoints():
    x, weight, bias = midpoints()
    whole = invariant_linear(x, weight, bias)
    canonical = torch.stack([(tree_sum(row * weight.double()) + bias.double()).float() for row in x])
    assert torch.equal(whole, canonical)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for size in (1, 7, 97):
            assert torch.equal(torch.cat([invariant_linear(part, weight, bias) for part in x.split(size)]), whole)


def test_midpoints_are_a_test():
    # A plain float64 product, rounded, gets other bits than the canonical value for some of these.
    x, weight, bias = midpoints()
    assert not torch.equal(torch.addmm(bias.double(), x, weight.T).float(), invariant_linear(x, weight, bias))


def test_invariant_linear_in_chunks_is_the_same(monkeypatch):
    x, weight, bias = midpoints()
    whole = invariant_linear(x, weight, bias)
    monkeypatch.setattr(numerics, "_CHUNK_ELEMENTS", 2 * x.shape[1])
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


def test_float32_products_are_kept_full_and_the_setting_is_given_back():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with full_float32_products():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"

        def failing():
            with full_float32_products():
                raise KeyError

        with pytest.raises(KeyError):
            failing()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
