"""Arithmetic: sums and products whose bits depend on neither batch nor device, loops in C, and threads for them."""

from torchsdm.arithmetic._build import compile_loops
from torchsdm.arithmetic.exact import (
    canonical_sum,
    empty_float32,
    exact_sqrt,
    full_float32_products,
    invariant_linear,
    pair_distances,
    product_error,
    rounded_interval,
    whole_lines,
)
from torchsdm.arithmetic.loops import LEVELS, blocks, call, has_coarse_products, has_loops, in_shares, loops_in_use

__all__ = [
    "LEVELS",
    "blocks",
    "call",
    "canonical_sum",
    "compile_loops",
    "empty_float32",
    "exact_sqrt",
    "full_float32_products",
    "has_coarse_products",
    "has_loops",
    "in_shares",
    "invariant_linear",
    "loops_in_use",
    "pair_distances",
    "product_error",
    "rounded_interval",
    "whole_lines",
]
