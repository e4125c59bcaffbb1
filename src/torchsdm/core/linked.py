"""Rows that belong together, such as copies of a text or the rows of a patient: in which group each is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from torchsdm.validation import Array


def linked(columns: Sequence[Array]) -> Array | None:
    """Group numbers (N,) of rows, where two with the same value in some column (N,) belong to one group.

    So do rows that are linked through others. None if every row is alone.

    Examples
    --------
    >>> linked([np.array([1, 2, 3, 4]), np.array(["a", "b", "b", "c"])])
    array([0, 1, 1, 2])
    >>> linked([np.array([1, 2, 3])]) is None
    True
    """
    n, nodes = len(columns[0]), list[Array]()  # a graph of rows and of the values that they have
    n_nodes = n
    for column in columns:
        values, of_row = np.unique(column, return_inverse=True)
        nodes.append(n_nodes + of_row.reshape(n))
        n_nodes += len(values)
    if all(len(np.unique(one)) == n for one in nodes):
        return None
    ends = np.tile(np.arange(n), len(nodes)), np.concatenate(nodes)
    _, group = connected_components(coo_array((np.ones(len(ends[0])), ends), shape=(n_nodes, n_nodes)), directed=False)
    numbers: Array = np.unique(group[:n], return_inverse=True)[1]
    return numbers


def one_of_each(groups: Array, rng: np.random.Generator) -> Array:
    """One row of each group, drawn at random; ascending."""
    order = rng.permutation(len(groups))
    chosen: Array = np.sort(order[np.unique(groups[order], return_index=True)[1]])
    return chosen
