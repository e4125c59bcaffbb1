"""Keys of rows: 64 bits by which a row is known again, in any order, among any others, and after a little noise.

Of a row x of D numbers, with 2^e the power of two above the largest and fixed random w_k, the key is a hash of e and of

    round(sum_j w_kj asinh(1000 x_j / 2^e) / step),    k = 1 .. min(8, D),    step = 0.0025 sqrt(D) 2^(1 - 16 // V)

where V, at most 17, is how many different numbers the row has. asinh, a logarithm that goes through 0, keeps a column
of large numbers from hiding the others. The grid is fine enough that different rows fall apart, also where they have
few numbers or most of these are 0 or 1, and so coarse that noise of a millionth, such as a language model's in another
batch, leaves nearly all keys of hidden states as they are. Labels are no part of a key.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from torchsdm.validation import Array

_PROJECTIONS = 8
_STEP = 0.0025
_CURVE = 1000.0  # entries below this part of the largest count as they are, larger ones by their logarithm
_VARIED = 16  # different numbers: a row of more needs no finer grid
_LOOKED_AT = 64  # columns, to count them
_AT_ONCE = 1 << 20  # numbers


def keys_of(X: Any, texts: Sequence[str | None] | None = None) -> Array:
    """Keys of rows (N, K) uint64, of whatever a scikit-learn classifier takes; rows are the same if any of the K are.

    ``texts`` that the rows were made of have keys, too: they are the same under another language model.
    """
    keys = _row_keys(X)
    if texts is None or all(text is None for text in texts):
        return keys[:, None]
    of_texts = (own if text is None else _digest(_normal(text)) for own, text in zip(keys, texts, strict=True))
    return np.stack([keys, np.fromiter(of_texts, dtype=np.uint64, count=len(keys))], axis=1)


def _row_keys(X: Any) -> Array:
    """Keys (N,): of numbers by their values, of texts by themselves, of anything else by a digest of the row."""
    if hasattr(X, "to_numpy"):
        X = X.to_numpy()
    elif hasattr(X, "detach"):
        X = X.detach().cpu().float().numpy()
    elif not hasattr(X, "shape"):
        X = list(X)
        X = X if X and isinstance(X[0], str) else np.asarray(X)
    dtype = getattr(X, "dtype", None)
    if dtype is not None and dtype.kind in "fiub" and len(X.shape) > 1:
        return _number_keys(X)
    named = (_normal(row) if isinstance(row, str) else repr(np.asarray(row).tolist()) for row in X)
    return _digests(named, X.shape[0] if dtype is not None else len(X))


def _number_keys(X: Any) -> Array:
    n, width = X.shape[0], int(np.prod(X.shape[1:]))
    rng = np.random.default_rng(width)
    w = rng.standard_normal((width, min(_PROJECTIONS, width)))
    mixing = rng.integers(0, 2**64, w.shape[1] + 1, dtype=np.uint64) | np.uint64(1)
    keys, at_once = np.empty(n, dtype=np.uint64), max(1, _AT_ONCE // max(width, 1))
    for start in range(0, n, at_once):
        block = X[start : start + at_once]
        with np.errstate(over="ignore"):
            rows = np.asarray(block.toarray() if hasattr(block, "toarray") else block, dtype=np.float32)
        rows = rows.reshape(len(rows), width)
        _, exponent = np.frexp(np.abs(rows).max(axis=1, initial=0))
        ordered = np.sort(rows[:, :_LOOKED_AT], axis=1)
        varied = 1 + np.minimum((np.diff(ordered, axis=1) > 0).sum(axis=1), _VARIED)
        step = _STEP * np.sqrt(width) * 2.0 ** (1 - _VARIED // varied)
        curved = np.arcsinh(_CURVE * np.ldexp(rows.astype(np.float64), -exponent[:, None]))
        with np.errstate(invalid="ignore"):
            cells = np.rint(curved @ w / step[:, None]).astype(np.int64)
        numbers = np.column_stack([cells, exponent]).astype(np.uint64)
        keys[start : start + at_once] = (numbers * mixing).sum(axis=1, dtype=np.uint64)
        strange = np.flatnonzero(~np.isfinite(rows).all(axis=1))  # missing values, which some classifiers take
        keys[start + strange] = _digests((rows[row].tobytes() for row in strange), len(strange))
    return keys


def _normal(text: str) -> str:
    """A text without what copying often changes: spaces, case, and other forms of the same characters."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _digest(content: str | bytes) -> np.uint64:
    plain = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    return np.uint64(int.from_bytes(hashlib.sha256(plain).digest()[:8], "big"))


def _digests(contents: Iterable[str | bytes], n: int) -> Array:
    return np.fromiter(map(_digest, contents), dtype=np.uint64, count=n)
