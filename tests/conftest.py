"""Shared test material: pinned threads, the worked example, two Gaussian blobs, the conformance files."""

from __future__ import annotations

import atexit
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

torch.set_num_threads(1)  # the problems are small: sharing them out costs more than it gains

REPOSITORY = Path(__file__).resolve().parent.parent

# Each process has a cache of its own, but for converted models, which are locked: a test that finds the states of an
# earlier run says nothing of today's code.
_CACHE = tempfile.TemporaryDirectory(prefix="torchsdm-cache-")
atexit.register(_CACHE.cleanup)
_MODELS = Path(os.environ.get("TORCHSDM_CACHE") or REPOSITORY / ".venv" / "cache") / "models"
_MODELS.mkdir(parents=True, exist_ok=True)
(Path(_CACHE.name) / "models").symlink_to(_MODELS)
os.environ["TORCHSDM_CACHE"] = _CACHE.name
os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: no test asks a hub


# --- The ledger of looks ---------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _own_ledger():
    """Each test is an experiment of its own: what others asked the same rows does not count, in any thread."""
    from torchsdm.trust import Ledger, keep_ledger, separate_ledger

    keep_ledger(Ledger())
    with separate_ledger():
        yield


@pytest.fixture(autouse=True, scope="module")
def _own_ledger_of_module():
    """The same for what the tests of a module share."""
    from torchsdm.trust import separate_ledger

    with separate_ledger():
        yield


# --- The worked example ----------------------------------------------------------------------------------------------


def _floats(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, dtype=np.float32)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True)
class WorkedExample:
    """Twelve support points in the plane, nine calibration points, seven queries; two classes.

    Class 0 lives around the origin, class 1 around (20, 0)::

        y
        4 |           4(3,4) wrong                                    9
        3 | 1=3                                            7
        0 | 0               2              5(12,0) other   6        8
       -3 | 11                                             10
             0              4              12              20       24  x

    - 1 and 3 are duplicates; from the x axis 1, 3 and 11 are equally far.
    - 4 has label 0 but is predicted 1: it matches nobody.
    - 5 has label 2, which is no class: it matches nobody.
    """

    n_classes: int = 2

    support_exemplars: np.ndarray = field(
        default_factory=lambda: _floats(
            (0, 0), (0, 3), (4, 0), (0, 3), (3, 4), (12, 0), (20, 0), (20, 3), (24, 0), (23, 4), (20, -3), (0, -3)
        )
    )
    support_labels: np.ndarray = field(default_factory=lambda: _ints(0, 0, 0, 0, 0, 2, 1, 1, 1, 1, 1, 0))
    support_predictions: np.ndarray = field(default_factory=lambda: _ints(0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 0))

    calibration_exemplars: np.ndarray = field(
        default_factory=lambda: _floats((0, 0), (1, 0), (2, 0), (8, 0), (20, 0), (21, 0), (22, 0), (16, 0), (3, 0))
    )
    calibration_labels: np.ndarray = field(default_factory=lambda: _ints(0, 0, 0, 0, 1, 1, 1, 1, 1))
    calibration_logits: np.ndarray = field(
        default_factory=lambda: _floats((1, 0), (2, -2), (2, 0), (3, 0), (0, 2), (-1, 3), (0, 8), (0, 1), (2, 0))
    )

    query_exemplars: np.ndarray = field(
        default_factory=lambda: _floats((1, 0), (10, 0), (30, 0), (20, 0), (20, 3), (20, 0), (0, 2))
    )
    query_logits: np.ndarray = field(
        default_factory=lambda: _floats((2, -2), (4, 0), (0, 9), (0, 1), (0, 3), (1, 0), (4, 0))
    )

    @property
    def calibration_predictions(self) -> np.ndarray:
        return self.calibration_logits.argmax(1)

    @property
    def query_predictions(self) -> np.ndarray:
        return self.query_logits.argmax(1)


@pytest.fixture(scope="session")
def worked_example() -> WorkedExample:
    return WorkedExample()


# --- Two Gaussian blobs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blobs:
    """Draws of two classes, equally likely, with P(y = 1 | x) known."""

    X: np.ndarray
    y: np.ndarray
    posterior: np.ndarray


def blob_posterior(X: np.ndarray, distance: float) -> np.ndarray:
    """P(y = 1 | x) = 1 / (1 + exp(-distance x_0)) for unit covariances and means at -distance/2 and +distance/2."""
    return 1.0 / (1.0 + np.exp(-distance * np.asarray(X, dtype=np.float64)[:, 0]))


def make_blobs(seed: int, n: int, distance: float, n_inputs: int = 2) -> Blobs:
    """n draws of two unit Gaussians whose means lie `distance` apart on the first axis, half way around 0."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, size=n)
    X = rng.standard_normal((n, n_inputs))
    X[:, 0] += distance * (y - 0.5)
    X = X.astype(np.float32)
    return Blobs(X, y, blob_posterior(X, distance))


@pytest.fixture
def blobs() -> Blobs:
    return make_blobs(seed=0, n=400, distance=3.0)


# --- Files that are no part of the repository ------------------------------------------------------------------------


def shared_folder(name: str) -> Path:
    """$TORCHSDM_SHARED/name, or that of a folder beside the repository; the test is skipped where there is none."""
    folder = Path(os.environ.get("TORCHSDM_SHARED") or REPOSITORY / "../shared") / name
    if not folder.is_dir():
        pytest.skip(f"no files at {folder}; set TORCHSDM_SHARED to the folder that holds {name!r}")
    return folder


@pytest.fixture(scope="session")
def conformance() -> Path:
    """The folder of conformance files."""
    return shared_folder("conformance")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of the paper's data sets."""
    return shared_folder("data")


@pytest.fixture(scope="session")
def shared_paper() -> Path:
    """The folder of the paper's source."""
    return shared_folder("paper")
