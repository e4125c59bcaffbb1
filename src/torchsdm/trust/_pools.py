"""Which classes share a group, because they have too few points for a promise of their own.

A group can pass the test only with n points where alpha^n <= delta, all of them right (``points_needed``), and with a
few errors only if it has some times as many. So, with m_c the points that class c can be expected to have on
certification, truly or by prediction, whichever are fewer:

1. a class with m_c >= ENOUGH * points_needed has a group of its own;
2. the others share one with those of their family, such as the intents of one domain, if together they have enough;
3. what is left shares one, and if that has not enough either, the smallest other group takes it in.

Why sizes alone. m_c is counted on calibration, and nothing here asks who is right. Any rule that looks at calibration
alone would do: given the calibration sample, the pools are fixed, so a group is a fixed set of true classes or of
predictions, and its admitted certification points are drawn independently. That is all that the proof in
``certificate`` asks of a group. Pools chosen by the errors of the certification sample would void it: whoever puts
classes that happened to err with classes that happened not to, tests the luck of the draw.
"""

from __future__ import annotations

import math

import numpy as np

from torchsdm.validation import Array

ENOUGH = 4  #: times the points of the smallest group that can pass, to have a group of one's own


def points_needed(alpha: float, delta: float) -> int:
    """The smallest group that can pass the test, without any error: alpha^n <= delta."""
    return math.ceil(math.log(delta) / math.log(alpha) - 1e-9)


def pooled(expected: Array, *, alpha: float, delta: float, families: Array | None = None) -> Array:
    """The pool of each class (C,), numbered from 0 by the first class of each.

    Parameters
    ----------
    expected : (C,)
        The points that each class can be expected to have on certification.
    alpha, delta : float
        Of the certificate.
    families : (C,), optional
        Number of the family of each class; classes of one family are pooled first. By default they are all one.

    Examples
    --------
    >>> pooled(np.array([400, 20, 500, 30, 60]), alpha=0.9, delta=0.1).tolist()  # a class of its own takes 88
    [0, 1, 2, 1, 1]
    >>> pooled(np.array([400, 20, 500, 3]), alpha=0.9, delta=0.1).tolist()  # 23 are still too few
    [0, 0, 1, 0]
    """
    enough = ENOUGH * points_needed(alpha, delta)
    n_classes = len(expected)
    family = np.zeros(n_classes, dtype=int) if families is None else np.asarray(families)
    is_small = expected < enough
    pool = np.where(is_small, n_classes + family, np.arange(n_classes))  # a number for each class, then each family
    sizes = {name: expected[pool == name].sum() for name in np.unique(pool).tolist()}
    rest = [name for name in sizes if sizes[name] < enough]
    left = sum(sizes[name] for name in rest)
    if rest and left < enough and len(rest) < len(sizes):
        rest.append(min((name for name in sizes if name not in rest), key=lambda name: sizes[name]))
    pool[np.isin(pool, rest)] = -1
    _, first, number = np.unique(pool, return_index=True, return_inverse=True)
    order: Array = np.argsort(np.argsort(first))[number]
    return order
