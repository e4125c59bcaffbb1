"""Single functions against recorded values, on random and extreme input.

The recorded values were computed in float32. What float32 may lose is bounded row by row below, rather than by one
tolerance wide enough for the worst row.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchsdm

UNIT = 2.0**-24  # unit roundoff of float32


@pytest.fixture(scope="module")
def recorded(conformance: Path) -> Any:
    return np.load(conformance / "unit_functions.npz")


@pytest.fixture(params=["C2", "C4"])
def case(request: pytest.FixtureRequest, recorded: Any) -> dict[str, np.ndarray]:
    prefix = request.param + "_"
    return {name.removeprefix(prefix): recorded[name] for name in recorded.files if name.startswith(prefix)}


def float32_error(case: dict[str, np.ndarray]) -> np.ndarray:
    """Bound, per row, on the error of an exponent ln(2 + q) d z computed in float32, and so of ln sdm, (N, 1).

    The logarithm and two products round three times, relative to the exponent; sdm depends on the difference of two
    exponents, hence the factor 2. The few units that do not grow with the exponent are those of exp, sum and division.
    """
    largest = np.log(2 + case["q"].astype(np.float64)) * case["d"] * np.abs(case["z"]).max(1)
    return (UNIT * (8 + 2 * 3 * largest))[:, None]


def within(actual: torch.Tensor, expected: np.ndarray, bound: np.ndarray | float) -> None:
    error = np.abs(actual.detach().double().numpy() - expected.astype(np.float64))
    excess = error - bound
    assert (excess <= 0).all(), f"error {error.flat[excess.argmax()]:.3e} exceeds its bound by {excess.max():.3e}"


# float32 results carry their own error on top of the recorded one.
@pytest.mark.parametrize(("dtype", "shares"), [(torch.float64, 1), (torch.float32, 2)])
class TestActivation:
    def test_activation(self, case: dict[str, np.ndarray], dtype: torch.dtype, shares: int) -> None:
        p = torchsdm.sdm_activation(torch.tensor(case["z"], dtype=dtype), case["q"], case["d"])
        assert p.dtype == dtype
        within(p, case["sdm"], shares * float32_error(case))
        within(p.sum(1), np.ones(len(p)), 4 * torch.finfo(dtype).eps)

    def test_log_activation(self, case: dict[str, np.ndarray], dtype: torch.dtype, shares: int) -> None:
        log_p = torchsdm.sdm_log_activation(torch.tensor(case["z"], dtype=dtype), case["q"], case["d"])
        # In natural units the bound is that of the exponent; the change of base divides it by ln(2 + q) and rounds
        # the result, which can be as large as the logits, twice more.
        bound = float32_error(case) / np.log(2 + case["q"].astype(np.float64))[:, None]
        bound = bound + 2 * UNIT * np.abs(case["log_sdm_base2q"])
        within(log_p, case["log_sdm_base2q"], shares * bound)

    def test_loss_and_gradient(self, case: dict[str, np.ndarray], dtype: torch.dtype, shares: int) -> None:
        z = torch.tensor(case["z"], dtype=dtype, requires_grad=True)
        loss = torchsdm.sdm_loss(z, case["label"], case["q"], case["d"])
        loss.backward()
        assert loss.shape == ()
        # A mean of 400 values, each at the precision of the log activation.
        own = np.abs(case["log_sdm_base2q"]).max(1)
        per_row = float32_error(case)[:, 0] / np.log(2 + case["q"].astype(np.float64)) + 4 * UNIT * own
        within(loss, case["mean_nll"], shares * per_row.mean())
        # The gradient is d (sdm - one-hot) / N.
        bound = float32_error(case) * case["d"].astype(np.float64)[:, None] / len(z)
        within(z.grad, case["grad_z"], shares * (bound + UNIT / len(z)))

    def test_rescaled_similarity(self, case: dict[str, np.ndarray], dtype: torch.dtype, shares: int) -> None:
        p = torchsdm.sdm_activation(torch.tensor(case["z"], dtype=dtype), case["q"], case["d"])
        confidence = p[torch.arange(len(p)), torch.as_tensor(case["z"].argmax(1))]
        rescaled = torchsdm.rescaled_similarity(case["q"], confidence)
        # (2 + q)^p passes an error of p on by the factor ln(2 + q) (2 + q)^p, and rounds relative to its size.
        base = 2 + case["q"].astype(np.float64)
        bound = base ** case["sdm"].max(1) * (np.log(base) * float32_error(case)[:, 0] + 16 * UNIT)
        within(rescaled, case["qprime"], shares * bound)


def test_distance_quantile(recorded: Any) -> None:
    # The recorded distances are squared; the quantile only sees their order, so they serve as they are.
    distance = np.concatenate([recorded["ecdf_class0"], recorded["ecdf_class1"]])
    labels = np.repeat([0, 1], [len(recorded["ecdf_class0"]), len(recorded["ecdf_class1"])])
    ecdfs = torchsdm.ClassEcdfs.fit(distance, np.ones(len(labels), dtype=np.int64), labels, 2)
    d = ecdfs.distance_quantile(recorded["ecdf_x"].astype(np.float64))
    within(d, recorded["ecdf_d"], UNIT)


def test_distance_quantile_of_a_class_without_points(recorded: Any) -> None:
    distance = recorded["ecdf_class0"]
    with pytest.warns(match="1"):  # the warning names the class
        ecdfs = torchsdm.ClassEcdfs.fit(
            distance, np.ones(len(distance), dtype=np.int64), np.zeros(len(distance), dtype=np.int64), 2
        )
    d = ecdfs.distance_quantile(recorded["ecdf_x"].astype(np.float64))
    within(d, recorded["ecdf_d_class1_empty"], 0.0)


def test_effective_sample_sizes_and_epsilon(recorded: Any) -> None:
    # The queries were stored in float32 but compared with float64 values of the same decimals: 1.2 must equal 1.2.
    classes = [recorded["nhat_class0"].astype(np.float32), recorded["nhat_class1"].astype(np.float32)]
    labels = np.repeat([0, 1], [len(values) for values in classes])
    sizes = torchsdm.core.effective_sample_sizes(np.concatenate(classes), labels, recorded["nhat_qprime"], 2)
    assert sizes.dtype == torch.int64

    # The recorded sizes stop at n_c - 1; ours reach n_c beyond the largest value (the last three rows).
    n_c = np.array([len(values) for values in classes])
    np.testing.assert_array_equal(np.minimum(sizes.numpy(), n_c - 1), recorded["nhat_out"])
    np.testing.assert_array_equal(sizes[-1].numpy(), n_c)

    # The recorded ε is per class (for α = 0.95, and that of the capped sizes) and is not cut at 1; ours is that of the
    # smallest size, at most 1. For equal sizes of both classes the smallest is the class's own.
    for c in (0, 1):
        capped = torch.as_tensor(recorded["nhat_out"][:, [c, c]], dtype=torch.int64)
        epsilon = torchsdm.core.dkw_epsilon(capped, 0.95)
        assert epsilon.dtype == torch.float64
        within(epsilon, np.minimum(recorded["nhat_eps"][:, c], 1.0), 4 * UNIT)
    within(torchsdm.core.dkw_epsilon(sizes, 0.95)[:1], np.ones(1), 0.0)


def test_position_of_the_threshold(recorded: Any) -> None:
    """Algorithm 1 on one candidate shows which element of the sorted probabilities it takes."""
    for n, alpha, index in zip(recorded["psi_n"], recorded["psi_alpha"], recorded["psi_index"], strict=True):
        n, alpha, exact = int(n), float(alpha), (1 - float(alpha)) * int(n)
        # Decision 5 rounds (1 - α) n to 1e-9 before it takes the floor. The recorded index takes the floor in binary
        # floating point, so it may be one less where (1 - α) n is an integer, and nowhere else.
        expected = min(math.floor(round(exact, 9)), n - 1)
        assert expected == index or (abs(exact - round(exact)) < 1e-9 and expected == index + 1)

        # n probabilities per class, all of them at least α and, unless α = 1, all different.
        values = alpha + (1 - alpha) * (np.arange(n) + 1) / (n + 1)
        labels = np.repeat([0, 1], n)
        true_label = np.concatenate([values, values])
        probabilities = np.where(np.arange(2) == labels[:, None], true_label[:, None], 1 - true_label[:, None])
        shuffled = np.random.default_rng(n).permutation(2 * n)
        region = torchsdm.find_high_reliability_region(np.ones(2 * n), probabilities[shuffled], labels[shuffled], alpha)
        assert region.found
        np.testing.assert_array_equal(np.asarray(region.thresholds), [values[expected]] * 2)
