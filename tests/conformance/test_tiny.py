"""A whole small model on real data, step by step: 300 training points, then calibration, test and foreign points.

Each step starts from the recorded input of that step, so that an error is seen where it is made. Recorded values are
float32 unless they end in `_audit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchsdm

ALPHA = 0.8
UNIT = 2.0**-24  # unit roundoff of float32


@dataclass(frozen=True)
class Tiny:
    model: Any
    train: Any
    calib: Any
    test: Any
    ood: Any


@dataclass(frozen=True)
class Signals:
    """One set through Eqs. 4 to 8 from its recorded exemplars and logits."""

    similarity: torch.Tensor
    distance_quantile: torch.Tensor
    logits: torch.Tensor
    predictions: torch.Tensor
    probabilities: torch.Tensor
    confidence: torch.Tensor
    rescaled: torch.Tensor


@pytest.fixture(scope="module")
def tiny(conformance: Path) -> Tiny:
    return Tiny(*(np.load(conformance / f"tiny_{name}.npz") for name in ("model", "train", "calib", "test", "ood")))


@pytest.fixture(scope="module")
def support(tiny: Tiny) -> torchsdm.SupportSet:
    return torchsdm.SupportSet(tiny.train["hprime"], tiny.train["label"], tiny.train["pred"])


@pytest.fixture(scope="module")
def ecdfs(tiny: Tiny, support: torchsdm.SupportSet) -> torchsdm.ClassEcdfs:
    m = support.match(tiny.calib["hprime"], tiny.calib["pred"])
    return torchsdm.ClassEcdfs.fit(m.nearest_distance, m.similarity, tiny.calib["label"], 2)


@pytest.fixture(scope="module")
def signals(tiny: Tiny, support: torchsdm.SupportSet, ecdfs: torchsdm.ClassEcdfs) -> dict[str, Signals]:
    out = {}
    for name in ("calib", "test", "ood"):
        data = getattr(tiny, name)
        m = support.match(data["hprime"], data["pred"])
        d = ecdfs.distance_quantile(m.nearest_distance)
        z = torch.tensor(data["logits"], dtype=torch.float64)
        predictions = z.argmax(1)
        p = torchsdm.sdm_activation(z, m.similarity, d)
        confidence = p[torch.arange(len(p)), predictions]
        rescaled = torchsdm.rescaled_similarity(m.similarity, confidence)
        out[name] = Signals(m.similarity, d, z, predictions, p, confidence, rescaled)
    return out


@pytest.fixture(scope="module")
def region(tiny: Tiny, signals: dict[str, Signals]) -> Any:
    c = signals["calib"]
    return torchsdm.find_high_reliability_region(c.rescaled, c.probabilities, tiny.calib["label"], ALPHA)


def close(actual: torch.Tensor, expected: np.ndarray, rtol: float = 0.0, atol: float = 0.0) -> None:
    np.testing.assert_allclose(actual.double().numpy(), expected.astype(np.float64), rtol=rtol, atol=atol)


def same(actual: torch.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(actual.numpy(), expected)


SETS = pytest.mark.parametrize("name", ["calib", "test", "ood"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["train", "calib", "test", "ood"])
def test_adaptor(tiny: Tiny, name: str, dtype: torch.dtype) -> None:
    adaptor = torchsdm.ExemplarAdaptor(24, 2, n_filters=16)
    adaptor.load_state_dict(
        {
            "filters.weight": torch.tensor(tiny.model["conv_weight"]),
            "filters.bias": torch.tensor(tiny.model["conv_bias"]),
            "output.weight": torch.tensor(tiny.model["fc_weight"]),
            "output.bias": torch.tensor(tiny.model["fc_bias"]),
            "mean": torch.tensor(float(tiny.model["mean"])),
            "scale": torch.tensor(float(tiny.model["std"])),
        }
    )
    data = getattr(tiny, name)
    with torch.no_grad():
        exemplars, logits = adaptor.to(dtype)(torch.tensor(data["h"], dtype=dtype))
    # Sums of 24 and 16 float32 products of terms up to about 5: some 40 roundings at the most.
    close(exemplars, data["hprime"], atol=2e-6)
    close(logits, data["logits"], atol=2e-6)
    same(logits.argmax(1), data["pred"])


def test_training_pass(tiny: Tiny, support: torchsdm.SupportSet) -> None:
    m = support.match_self()
    same(m.similarity, tiny.train["q"])
    # Recorded distances are squared and float32: errors are relative to squared norms of about 10.
    close(m.nearest_distance**2, tiny.train["dnearest_sq"], atol=2e-6)
    np.testing.assert_array_equal(m.nearest_index.numpy(), tiny.train["top16_idx"][:, 1])  # [:, 0] is the point itself

    d = torchsdm.ClassEcdfs.fit(m.nearest_distance, m.similarity, tiny.train["label"], 2).distance_quantile(
        m.nearest_distance
    )
    close(d, tiny.train["d"], atol=UNIT)
    z = torch.tensor(tiny.train["logits"], dtype=torch.float64)
    log_p = torchsdm.sdm_log_activation(z, m.similarity, d)
    close(log_p, tiny.train["log_sdm_base2q"], atol=1e-6)
    loss = torchsdm.sdm_loss(z, tiny.train["label"], m.similarity, d)
    close(loss, tiny.train["nll"].astype(np.float64).mean(), atol=1e-6)


def test_training_pass_is_matching_with_oneself_excluded(tiny: Tiny, support: torchsdm.SupportSet) -> None:
    m = support.match(tiny.train["hprime"], tiny.train["pred"], exclude=np.arange(300))
    same(m.similarity, tiny.train["q"])
    assert torch.equal(m.nearest_index, support.match_self().nearest_index)
    assert torch.equal(m.nearest_distance, support.match_self().nearest_distance)


def test_neighbors(tiny: Tiny, support: torchsdm.SupportSet) -> None:
    distances, indices = support.neighbors(tiny.train["hprime"], 16)
    assert tiny.train["identity_is_first"].all()  # no duplicates here, so each point is its own first neighbour
    same(indices, tiny.train["top16_idx"])
    close(distances**2, tiny.train["top16_dsq"], atol=4e-6)


@SETS
def test_matches(tiny: Tiny, support: torchsdm.SupportSet, name: str) -> None:
    data = getattr(tiny, name)
    m = support.match(data["hprime"], data["pred"])
    same(m.similarity, data["q"])
    same(m.similarity, data["q_float64_audit"])
    same(m.nearest_index, data["nearest_idx"])
    # The audit is float64, squared: only the order of summation may differ.
    close(m.nearest_distance**2, data["dnearest_sq_float64_audit"], rtol=1e-13)
    # `is_ood` there is q = 0 alone; our out_of_distribution is also true for d = 0 and is not compared here.
    same(m.similarity == 0, data["is_ood"])


def test_class_distances(tiny: Tiny, ecdfs: torchsdm.ClassEcdfs) -> None:
    """The quantile falls by 1/n_c just beyond each recorded distance of the class that decides."""
    by_class = [np.sqrt(tiny.model[f"dcdf_class{c}"]) for c in (0, 1)]
    # Recorded distances carry float32 noise of 1e-6: look half way between neighbours that are further apart than that.
    x = np.sort(np.concatenate(by_class))
    between = ((x[1:] + x[:-1]) / 2)[np.diff(x) > 1e-5]
    expected = np.min([(values[:, None] >= between).mean(0) for values in by_class], axis=0)
    close(ecdfs.distance_quantile(between), expected, atol=1e-12)


@SETS
def test_signals(tiny: Tiny, signals: dict[str, Signals], name: str) -> None:
    data, s = getattr(tiny, name), signals[name]
    close(s.distance_quantile, data["d"], atol=UNIT)
    close(s.probabilities, data["sdm"], atol=1e-6)
    close(s.rescaled, data["qprime"], rtol=1e-6)


@SETS
def test_losses(tiny: Tiny, signals: dict[str, Signals], name: str) -> None:
    data, s = getattr(tiny, name), signals[name]
    labels = torch.as_tensor(data["label"])

    def loss(rows: torch.Tensor) -> float:
        return float(torchsdm.sdm_loss(s.logits[rows], labels[rows], s.similarity[rows], s.distance_quantile[rows]))

    assert loss(labels >= 0) == pytest.approx(float(data["marginal_loss"]), abs=1e-6)
    balanced = np.mean([loss(labels == c) for c in labels.unique()])
    assert balanced == pytest.approx(float(data["balanced_loss"]), abs=1e-6)


def test_region(tiny: Tiny, region: Any, signals: dict[str, Signals]) -> None:
    # The region rests on 16 and 21 points: (1 - α) n is 3.2 and 4.2, where both ways to take the index agree.
    assert region.found
    assert float(region.min_rescaled_similarity) == pytest.approx(float(tiny.calib["a0.8_qprime_min"]), rel=1e-6)
    close(torch.as_tensor(region.thresholds), tiny.calib["a0.8_psi"], atol=1e-6)
    for c in (0, 1):
        own = signals["calib"].rescaled.numpy()[tiny.calib["label"] == c]
        np.testing.assert_allclose(np.sort(own), tiny.model[f"qprime_cdf_class{c}"], rtol=1e-6)


@SETS
def test_admission(tiny: Tiny, region: Any, signals: dict[str, Signals], name: str) -> None:
    # The points that define ψ and q'_min stayed in the recorded region at this α, so there is nothing to set apart.
    s = signals[name]
    same(region.admits(s.rescaled, s.predictions, s.confidence), getattr(tiny, name)["a0.8_hr"])


@SETS
def test_effective_sample_sizes_and_lower_estimator(
    tiny: Tiny, region: Any, signals: dict[str, Signals], name: str
) -> None:
    data, s = getattr(tiny, name), signals[name]
    labels = tiny.calib["label"]
    sizes = torchsdm.core.effective_sample_sizes(signals["calib"].rescaled, labels, s.rescaled, 2)
    # The recorded sizes stop at n_c - 1. Only the calibration point with the largest q' (28) can be beyond a class.
    n_c = np.bincount(labels)
    same(torch.minimum(sizes, torch.as_tensor(n_c - 1)), data["a0.8_n_hat"])
    beyond = (sizes.numpy() == n_c).any(1)
    assert beyond.sum() == (1 if name == "calib" else 0)

    epsilon = torchsdm.core.dkw_epsilon(sizes, ALPHA)
    assert epsilon.dtype == torch.float64
    # Recorded per class: the largest belongs to the smallest size. The one row beyond has n_min = 145 in both: the
    # class that was capped is not the smaller one.
    recorded_epsilon = data["a0.8_epsilon_per_class"].max(1)
    close(epsilon, np.minimum(recorded_epsilon, 1.0), atol=4 * UNIT)

    lower = (s.distance_quantile - epsilon).clamp(min=0)
    upper = (s.distance_quantile + epsilon).clamp(max=1)
    close(lower, data["a0.8_d_lower"], atol=4 * UNIT)
    close(upper, data["a0.8_d_upper"], atol=4 * UNIT)
    p_lower = torchsdm.sdm_activation(s.logits, s.similarity, lower)
    close(p_lower, data["a0.8_sdm_lower"], atol=1e-6)
    close(torchsdm.sdm_activation(s.logits, s.similarity, upper), data["a0.8_sdm_upper"], atol=1e-6)
    confidence = p_lower[torch.arange(len(p_lower)), s.predictions]
    rescaled = torchsdm.rescaled_similarity(s.similarity, confidence)
    close(rescaled, data["a0.8_qprime_lower"], rtol=1e-6)
    same(region.admits(rescaled, s.predictions, confidence), data["a0.8_hr_lower"])
