"""The compiled loop of ``numerics.invariant_linear`` for few rows (CPU)."""

from __future__ import annotations

from torchsdm.compilation import compiled_in_any_order
from torchsdm.validation import Array


@compiled_in_any_order
def products_and_norms(x: Array, weight: Array, products: Array, squared: Array) -> None:
    """x . w for each row of x and of weight, and |w|^2, in float64; any order of summation works.

    Weights are read once, as they are: for one row, a float64 copy of them would take ten times as long as the product.
    """
    for j in range(len(weight)):
        row, norm = weight[j], 0.0
        for k in range(len(row)):
            norm += float(row[k]) * float(row[k])
        squared[j] = norm
        for i in range(len(x)):
            mine, total = x[i], 0.0
            for k in range(len(row)):
                total += float(row[k]) * mine[k]
            products[i, j] = total
