"""Algorithm 1 over a grid of α, on 300 and on 4,245 calibration points.

The recorded probabilities and q' are the input, so thresholds and q'_min are elements of it and must be equal exactly.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference
import torchsdm

# For these the recorded index, floor((1 - α) n) in binary floating point, decides the outcome: at α = 0.9 the first
# candidate that holds by decision 5 rests on n = 40 points of class 0, where (1 - α) n = 4; the recorded rule takes 3.
DECIDED_BY_THE_INDEX = {("movie", 0.9)}


@pytest.fixture(scope="module", params=["tiny", "movie"])
def recorded(request: pytest.FixtureRequest, conformance: Path) -> tuple[str, Any]:
    return request.param, np.load(conformance / f"{request.param}_thresholds.npz")


def arguments(data: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return data["calib_qprime_stored"], data["calib_sdm_stored"], data["calib_label"]


@pytest.mark.filterwarnings("ignore")  # regions on few points are warned about, by intention
def test_regions_over_the_grid(recorded: tuple[str, Any]) -> None:
    name, data = recorded
    for alpha, min_rescaled, psi in zip(data["alpha"], data["qprime_min"], data["psi"], strict=True):
        if (name, float(alpha)) in DECIDED_BY_THE_INDEX:
            continue
        region = torchsdm.find_high_reliability_region(*arguments(data), float(alpha))
        assert region.found == math.isfinite(min_rescaled), alpha
        assert float(region.min_rescaled_similarity) == min_rescaled, alpha
        # No region: ψ is zero there, infinite with us.
        expected = psi if region.found else np.full_like(psi, np.inf)
        np.testing.assert_array_equal(np.asarray(region.thresholds), expected, err_msg=str(alpha))


@pytest.mark.filterwarnings("ignore")
def test_region_decided_by_the_index(recorded: tuple[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    name, data = recorded
    alphas = [alpha for of, alpha in DECIDED_BY_THE_INDEX if of == name]
    for alpha in alphas:
        row = int(np.flatnonzero(data["alpha"] == alpha)[0])
        region = torchsdm.find_high_reliability_region(*arguments(data), alpha)

        # By decision 5 our region is that of the reference ...
        expected = reference.find_high_reliability_region(*arguments(data), alpha)
        assert float(region.min_rescaled_similarity) == expected.min_rescaled_similarity
        np.testing.assert_array_equal(np.asarray(region.thresholds), expected.thresholds)

        # ... which becomes the recorded one when nothing but the index is taken as it was there.
        with monkeypatch.context() as patch:
            patch.setattr(reference, "inverse_cdf_index", lambda n, a: int((1 - a) * n))
            theirs = reference.find_high_reliability_region(*arguments(data), alpha)
        assert theirs.min_rescaled_similarity == data["qprime_min"][row]
        np.testing.assert_array_equal(theirs.thresholds, data["psi"][row])


@pytest.mark.filterwarnings("ignore")
def test_nothing_found_nothing_admitted(recorded: tuple[str, Any]) -> None:
    _, data = recorded
    region = torchsdm.find_high_reliability_region(*arguments(data), 0.99)
    assert not region.found
    rescaled, probabilities, _ = arguments(data)
    admitted = region.admits(rescaled, data["calib_pred_stored"], probabilities.max(1))
    assert not np.asarray(admitted).any()
