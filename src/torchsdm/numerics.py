"""Floating-point arithmetic whose result does not depend on batch, block, thread or device.

Matrix products give other last bits for other shapes and thread counts. Two facts help: an elementwise IEEE
operation gives the same bits everywhere, and the error of a product has a proven bound. So a *canonical* value is
defined by elementwise operations alone, the fast product decides wherever its bound allows only one answer, and the
few open entries are computed canonically.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

_CHUNK_ELEMENTS = 1 << 22  # float64 elements that the canonical evaluation holds at once (32 MB)


def tree_sum(terms: Tensor) -> Tensor:
    """Sum over the last axis by repeated halving; overwrites ``terms``.

    Only elementwise additions are used, so the bits depend on the terms alone. The relative error is at most
    ceil(log2 n) units of roundoff times the sum of absolute values.
    """
    n = terms.shape[-1]
    if n == 0:
        return terms.new_zeros(terms.shape[:-1])
    while n > 1:
        half = n // 2
        terms[..., :half] += terms[..., n - half : n]
        n -= half
    return terms[..., 0]


def pair_distances(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Euclidean distances (P,) in float64 of the pairs ``a[rows[p]], b[columns[p]]``, by direct difference."""
    distances = torch.empty(len(rows), dtype=torch.float64, device=a.device)
    chunk = max(1, _CHUNK_ELEMENTS // max(1, a.shape[-1]))
    for start in range(0, len(rows), chunk):
        part = slice(start, start + chunk)
        difference = a[rows[part]].double() - b[columns[part]].double()  # (P, M)
        distances[part] = exact_sqrt(tree_sum(difference.square_()))
    return distances


def exact_sqrt(values: Tensor) -> Tensor:
    """The correctly rounded square root.

    torch's own on the CPU goes through a vector library that may be off by one unit in the last place (sqrt(2) is);
    numpy's is the processor's instruction, which IEEE 754 defines to the bit.
    """
    if values.device.type == "cpu":
        return torch.from_numpy(np.sqrt(values.numpy()))
    return values.sqrt()


def product_error(n_terms: int, dtype: torch.dtype) -> float:
    """Higham's gamma: |fl(x . y) - x . y| <= gamma_n |x| . |y|, whatever the order of summation."""
    n_roundoffs = n_terms * torch.finfo(dtype).eps / 2
    return n_roundoffs / (1 - n_roundoffs)


def invariant_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x @ weight.T + bias`` rounded to float32, the same bits for a row whatever else is in the batch.

    Parameters are (N, D), (K, D), (K,); the answer is (N, K). The canonical value is the tree sum of the products
    in float64. A float64 matrix product lies within ``bound`` of it; where both ends of that interval round to the same
    float32 there is nothing to decide.
    """
    x, weight, bias = x.double(), weight.double(), bias.double()
    fast = torch.addmm(bias, x, weight.T)  # (N, D) x (D, K) -> (N, K)
    scale = x.norm(dim=1, keepdim=True) * weight.norm(dim=1) + bias.abs()
    bound = scale.mul_(2.1 * product_error(x.shape[1] + 2, torch.float64)).add_(torch.finfo(torch.float64).tiny)
    result: Tensor = (fast - bound).float()
    rows, columns = torch.nonzero(result != (fast + bound).float(), as_tuple=True)
    chunk = max(1, _CHUNK_ELEMENTS // max(1, x.shape[1]))
    for start in range(0, len(rows), chunk):
        r, c = rows[start : start + chunk], columns[start : start + chunk]
        result[r, c] = (tree_sum(x[r] * weight[c]) + bias[c]).float()
    return result


@contextmanager
def full_float32_products() -> Iterator[None]:
    """Keep float32 products float32: the error bound does not hold for TF32 or bfloat16 passes."""
    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
