"""What is small: settings of fits that take no time, with their warnings off, and files of a few rows."""

from __future__ import annotations

import json
import warnings
from contextlib import contextmanager

from torchsdm.errors import SDMWarning

SMALL = {"n_filters": 8, "n_rounds": 1, "training": "sdm", "max_epochs": 5, "learning_rate": 1e-2, "random_state": 0}


def small_settings(**changes):
    """``SMALL`` with changes: settings of a classifier that is quickly trained."""
    return {**SMALL, **changes}


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
