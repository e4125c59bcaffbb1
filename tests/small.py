"""What is small: settings of fits that take no time, with their warnings off, and files of a few rows."""

from __future__ import annotations

import json
import warnings
from contextlib import contextmanager

import numpy as np

from torchsdm.data import LabelledStates
from torchsdm.errors import SDMWarning

SMALL = {"n_filters": 8, "n_rounds": 1, "training": "sdm", "max_epochs": 5, "learning_rate": 1e-2, "random_state": 0}


def small_settings(**changes):
    """``SMALL`` with changes: settings of a classifier that is quickly trained."""
    return {**SMALL, **changes}


def labelled_points(seed, n=16):
    """Points of two labels, each with an id and a text of its own."""
    rng = np.random.default_rng(seed)
    X = (3 * rng.standard_normal((n, 4))).astype(np.float32)
    labels = rng.choice(np.array(["World", "Sports"]), n)
    return LabelledStates(X, labels, [f"{seed}-{i}" for i in range(n)], [f"text {seed}"] * n)


def two_groups(n, seed, names, distance=2.4, wrong=0.0):
    """Points around two means, and the names of their groups, a share of them wrong."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 2, n)
    X = rng.standard_normal((n, 4)) + distance * (numbers[:, None] - 0.5) * np.array([1, 1, 0, 0])
    return X.astype(np.float32), np.asarray(names)[np.where(rng.random(n) < wrong, 1 - numbers, numbers)]


@contextmanager
def quiet():
    """Without the warnings that fits this small give."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SDMWarning)
        yield


def quietly(call):
    """What a call gives, without its warnings."""
    with quiet():
        return call()


def write_jsonl(path, rows):
    """Write rows as a file of JSON lines, and give back its path; a row that is bytes is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def contents(directory):
    """Every file of a directory and of those in it, by its path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
