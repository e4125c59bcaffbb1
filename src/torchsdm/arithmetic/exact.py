"""Floating-point arithmetic whose result does not depend on batch, block, thread or device.

The last bits of a matrix product depend on its shape and the thread count. Two facts help: an elementwise IEEE
operation gives the same bits everywhere, and the error of a product has a proven bound. So a *canonical* value is
defined by elementwise operations in a fixed order (numpy's, so that one line of numpy can check it), the fast product
decides wherever its bound allows only one answer, and the few open entries are computed canonically.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsdm.arithmetic.loops import blocks, call, has_loops, in_shares

_FEW_ROWS = 16  # for so few, converting the weights would take longer than the products
_CHUNK_ELEMENTS = 1 << 18  # float64 elements at once in the canonical evaluation: 2 MB, which stay in cache
_BLOCK_TERMS = 512  # terms of a product that are summed together: fewer tighten the bound, but slow the product down
_SHARED_TERMS = 1 << 19  # terms of products that are worth a thread
_CACHE_LINE = 16  # float32 numbers in 64 bytes


def canonical_sum(terms: Tensor) -> Tensor:
    """Sum of float64 terms over the last axis, bit for bit what ``numpy.sum`` gives for one contiguous row.

    On the CPU it is numpy's; elsewhere ``pairwise_sum`` makes the same additions in the same order.
    """
    if terms.device.type == "cpu":
        return torch.from_numpy(np.add.reduce(terms.contiguous().numpy(), axis=-1))
    return pairwise_sum(terms)


def pairwise_sum(terms: Tensor) -> Tensor:
    """numpy's order of summation in elementwise additions, which are the same on every device.

    Fewer than 8 terms one after the other; up to 128 in eight interleaved running sums; more by halves.
    """
    n = terms.shape[-1]
    if n > 128:
        half = n // 2 - (n // 2) % 8
        return pairwise_sum(terms[..., :half]) + pairwise_sum(terms[..., half:])
    if n < 8:
        total, rest = torch.full_like(terms[..., :1].sum(dim=-1), -0.0), range(n)
    else:
        running = terms[..., :8].clone()
        for start in range(8, n - n % 8, 8):
            running += terms[..., start : start + 8]
        a, b, c, d, e, f, g, h = running.unbind(-1)
        total, rest = ((a + b) + (c + d)) + ((e + f) + (g + h)), range(n - n % 8, n)
    for i in rest:
        total = total + terms[..., i]
    return total


def empty_float32(*shape: int, device: torch.device) -> Tensor:
    """A float32 tensor to write to.

    On the CPU its memory is numpy's, which asks the system for large pages where torch does not: filling a fresh block
    of tens of megabytes, and reading down its columns, is then much faster. It starts at a cache line, where numpy's
    does not; so does every row if its length is ``whole_lines``.
    """
    if device.type == "cpu":
        n = math.prod(shape)
        memory = np.empty(n + _CACHE_LINE, dtype=np.float32)
        first = -(memory.ctypes.data // memory.itemsize) % _CACHE_LINE
        return torch.from_numpy(memory[first : first + n].reshape(shape))
    return torch.empty(shape, dtype=torch.float32, device=device)


def whole_lines(n: int) -> int:
    """The smallest number of float32, from n, that fills whole cache lines.

    Products into rows that begin within a cache line can take half as long again (MKL on an AMD Zen 4).
    """
    return -(-n // _CACHE_LINE) * _CACHE_LINE


def pair_distances(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Euclidean distances (P,) of the pairs ``a[rows[p]], b[columns[p]]``, by direct difference in float64.

    Bit for bit what ``numpy.sqrt(((a - b) ** 2).sum(axis=-1))`` gives.
    """
    distances = torch.empty(len(rows), dtype=torch.float64, device=a.device)
    for part in blocks(len(rows), a.shape[-1], _CHUNK_ELEMENTS):
        difference = a[rows[part]].double() - b[columns[part]].double()  # (P, M)
        distances[part] = exact_sqrt(canonical_sum(difference.square_()))
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
    """Higham's gamma: |fl(x . y) - x . y| <= gamma_n |x| . |y|, for any order of summation."""
    n_roundoffs = n_terms * torch.finfo(dtype).eps / 2
    return n_roundoffs / (1 - n_roundoffs)


def rounded_interval(middle: Tensor, slack: Tensor | float, is_unknown: Tensor) -> tuple[Tensor, Tensor]:
    """float32 bounds on what is within ``slack`` of a float64, or infinite ones where nothing is known about it.

    The lower is the largest float32 not above, the upper the smallest not below.
    """
    low, high = middle - slack, middle + slack
    lower, upper = low.float(), high.float()
    infinity = torch.full_like(lower, torch.inf)
    lower = torch.where(lower.double() > low, torch.nextafter(lower, -infinity), lower)
    upper = torch.where(upper.double() < high, torch.nextafter(upper, infinity), upper)
    return lower.masked_fill_(is_unknown, -torch.inf), upper.masked_fill_(is_unknown, torch.inf)


def invariant_linear(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor | None = None, scale: Tensor | None = None
) -> Tensor:
    """``x @ weight.T + bias`` rounded to float32, with the same bits for a row in any batch.

    Parameters are (N, D), (K, D), (K,); the result is (N, K). With a mean and a scale, numbers or (D,), x is
    standardised first. The canonical value is the sum of the products in float64, in numpy's order. A float64 matrix
    product is within ``bound`` of it; where both ends of that interval round to the same float32, there is nothing left
    to decide.
    """
    bias, standardised = bias.double(), partial(_standardised, mean=mean, scale=scale)
    products, row_norms, norms, n_roundings = _products_and_norms(x, weight, standardised)
    fast = products.add_(bias)
    error = sum(product_error(n + 2, torch.float64) for n in (n_roundings, _canonical_roundings(x.shape[1])))
    size = row_norms[:, None] * norms + bias.abs()
    bound = size.mul_(1.05 * error).add_(torch.finfo(torch.float64).tiny)
    result: Tensor = (fast - bound).float()
    rows, columns = torch.nonzero(result != fast.add_(bound).float(), as_tuple=True)
    for part in blocks(len(rows), x.shape[1], _CHUNK_ELEMENTS):
        r, c = rows[part], columns[part]
        result[r, c] = (canonical_sum(standardised(x[r]).mul_(weight[c])) + bias[c]).float()
    return result


def _standardised(x: Tensor, terms: slice = slice(None), *, mean: Tensor | None, scale: Tensor | None) -> Tensor:
    """Some columns of x in float64, a copy; standardised if there is a mean."""
    part = x[:, terms].to(torch.float64, copy=True)
    if mean is None or scale is None:
        return part
    centre, unit = (one.double()[terms] if one.ndim else one.double() for one in (mean, scale))
    return part.sub_(centre).div_(unit)


def _products_and_norms(
    x: Tensor, weight: Tensor, standardised: Callable[..., Tensor]
) -> tuple[Tensor, Tensor, Tensor, int]:
    """``x @ weight.T`` (N, K), the norms of x (N,) and of the weights (K,), and how often a term is rounded.

    In float64 and in any order of summation; but a sum over blocks of terms rounds each of them less often.
    """
    n_terms = x.shape[1]
    if len(x) > _FEW_ROWS or x.device.type != "cpu" or weight.dtype != torch.float32 or not has_loops():
        memory = empty_float32(len(x), len(weight), 2, device=x.device)
        products = memory.view(torch.float64).squeeze(-1).zero_()
        squared = torch.zeros(len(weight), dtype=torch.float64, device=x.device)
        row_squares = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for start in range(0, n_terms, _BLOCK_TERMS):
            terms = slice(start, start + _BLOCK_TERMS)
            mine, theirs = standardised(x, terms), weight[:, terms].double()
            products.addmm_(mine, theirs.T)
            row_squares += torch.linalg.vecdot(mine, mine)
            squared += torch.linalg.vecdot(theirs, theirs)
        return products, row_squares.sqrt_(), squared.sqrt_(), min(n_terms, _BLOCK_TERMS) + -(-n_terms // _BLOCK_TERMS)
    given, w = standardised(x).contiguous(), weight.detach().contiguous()
    products, squared = torch.empty(len(x), len(w), dtype=torch.float64), torch.empty(len(w), dtype=torch.float64)
    in_shares(
        lambda begin, end: call("products_and_norms", given, len(given), w, *w.shape, products, squared, begin, end),
        len(w),
        max(1, _SHARED_TERMS // max(1, n_terms)),
    )
    return products, given.norm(dim=1), squared.sqrt_(), n_terms


def _canonical_roundings(n_terms: int) -> int:
    """How often at most a term is rounded in ``canonical_sum`` of products.

    Once as a product, 15 times in one of eight running sums, 3 times when they are joined, 7 times for what is left
    over, and once for each time that the terms are halved.
    """
    return min(n_terms, 26 + n_terms.bit_length())


_precision_lock, _precisions = threading.Lock(), list[tuple[str, ...]]()  # the user's settings, for each who asks


@contextmanager
def full_float32_products(device: torch.device) -> Iterator[None]:
    """Context in which float32 products are float32: the error bound does not hold for TF32, bfloat16 or autocast.

    Several may be in it at once; the user's settings are restored when the last one leaves.
    """
    backends: Any = torch.backends  # its type hints lack these settings
    settings = backends.mkldnn.matmul, backends.cuda.matmul
    with _precision_lock:
        _precisions.append(_precisions[-1] if _precisions else tuple(one.fp32_precision for one in settings))
        for one in settings:
            if one.fp32_precision != "ieee":
                one.fp32_precision = "ieee"
    try:
        is_cast = torch.is_autocast_enabled(device.type)
        with torch.autocast(device.type, enabled=False) if is_cast else nullcontext():
            yield
    finally:
        with _precision_lock:
            before = _precisions.pop()
            for one, precision in zip(settings, before, strict=True):
                if not _precisions and one.fp32_precision != precision:
                    one.fp32_precision = precision
