"""Activation, log-activation, loss and rescaled similarity: closed forms, torch's softmax, naive formulas, stress."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import reference
from torchsdm import rescaled_similarity, sdm_activation, sdm_log_activation, sdm_loss
from torchsdm.core import SDMActivation, SDMLogActivation, SDMLoss
from torchsdm.core.activation import sdm_losses
from torchsdm.errors import InvalidInputError, InvalidTypeError

DTYPES = [torch.float32, torch.float64]
PROBABILITY_ERROR = {torch.float32: 2e-5, torch.float64: 1e-11}
LOGARITHM_ERROR = {torch.float32: 2e-6, torch.float64: 1e-13}  # relative


def draw(n=200, n_classes=4, spread=5.0, seed=0):
    """Logits that float32 holds exactly, q, d and labels."""
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(rng.normal(0, spread, (n, n_classes)).astype(np.float32)).double()
    q = torch.from_numpy(rng.integers(0, 500, n))
    d = torch.from_numpy(rng.random(n).astype(np.float32)).double()
    return z, q, d, torch.from_numpy(rng.integers(0, n_classes, n))


def stress():
    """Every combination of extreme logits, q and d; all of them exact in float32."""
    shapes = torch.tensor(
        [
            [1e4, -1e4, 0.0],
            [-1e4, -1e4, -1e4],
            [1e4, 9999.75, 9990.0],
            [-1e4, -9999.5, 1e4],
            [1e4, 9999.9375, -1e4],
            [0.0, 0.125, -0.25],
        ],
        dtype=torch.float64,
    )
    q = torch.tensor([0.0, 1.0, 37.0, 1e4, 1e7], dtype=torch.float64)
    d = torch.tensor([0.0, 2.0**-20, 0.25, 0.9990234375, 1.0], dtype=torch.float64)
    grid = torch.cartesian_prod(torch.arange(len(shapes)).double(), q, d)
    return shapes[grid[:, 0].long()], grid[:, 1], grid[:, 2]


def naive_activation(z, q, d):
    """Eq. 6 as printed."""
    powers = (2 + q).unsqueeze(1) ** (d.unsqueeze(1) * z)
    return powers / powers.sum(dim=1, keepdim=True)


# --- Values ----------------------------------------------------------------------------------------------------------


def test_values_by_hand():
    z = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 0.0], [3.0, 3.0]], dtype=torch.float64)
    p = sdm_activation(z, [6, 1, 2, 9], [1.0, 0.5, 0.5, 0.7])
    # 8^1 : 1, 1 : 3^1, 4^0.5 : 1, equal
    expected = torch.tensor([[8 / 9, 1 / 9], [1 / 4, 3 / 4], [2 / 3, 1 / 3], [0.5, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(p, expected, rtol=1e-14, atol=0)
    logs = sdm_log_activation(z, [6, 1, 2, 9], [1.0, 0.5, 0.5, 0.7])
    assert logs[0, 0].item() == pytest.approx(math.log(8 / 9, 8), rel=1e-14)
    assert logs[1, 0].item() == pytest.approx(math.log(1 / 4, 3), rel=1e-14)
    assert logs[3, 1].item() == pytest.approx(math.log(0.5, 11), rel=1e-14)
    # the mean of -log_8(8/9), -log_3(1/4)
    expected_loss = -(math.log(8 / 9, 8) + math.log(1 / 4, 3)) / 2
    assert sdm_loss(z[:2], [0, 0], [6, 1], [1.0, 0.5]).item() == pytest.approx(expected_loss, rel=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_the_reference(dtype):
    z, q, d, y = draw()
    p = sdm_activation(z.to(dtype), q, d)
    logs = sdm_log_activation(z.to(dtype), q, d)
    assert p.dtype == logs.dtype == dtype
    rows = list(zip(z.tolist(), q.tolist(), d.tolist(), strict=True))
    expected = torch.tensor([reference.sdm_activation(*row) for row in rows], dtype=torch.float64)
    expected_logs = torch.tensor([reference.sdm_log_activation(*row) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(p.double(), expected, rtol=0, atol=PROBABILITY_ERROR[dtype])
    torch.testing.assert_close(logs.double(), expected_logs, rtol=LOGARITHM_ERROR[dtype], atol=PROBABILITY_ERROR[dtype])
    loss = sdm_loss(z.to(dtype), y, q, d)
    assert loss.dtype == dtype and loss.ndim == 0
    expected_loss = reference.sdm_loss(z.tolist(), y.tolist(), q.tolist(), d.tolist())
    assert loss.item() == pytest.approx(expected_loss, rel=3e-6 if dtype == torch.float32 else 1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
def test_stress_equals_the_reference(dtype):
    z, q, d = stress()
    p, logs = sdm_activation(z.to(dtype), q, d).double(), sdm_log_activation(z.to(dtype), q, d).double()
    for row in range(len(z)):
        expected = reference.sdm_activation(z[row].tolist(), q[row].item(), d[row].item())
        assert p[row].tolist() == pytest.approx(expected, abs=PROBABILITY_ERROR[dtype])
        expected_logs = reference.sdm_log_activation(z[row].tolist(), q[row].item(), d[row].item())
        error = {"rel": LOGARITHM_ERROR[dtype], "abs": PROBABILITY_ERROR[dtype]}
        assert logs[row].tolist() == pytest.approx(expected_logs, **error)
    torch.testing.assert_close(p.sum(dim=1), torch.ones(len(p), dtype=torch.float64), rtol=0, atol=1e-6)


def test_nearby_large_logits_stay_apart_in_float32():
    # ln(2 + 10^7) * 10^4 is 161 181, where float32 numbers lie 1/64 apart: a plain product would blur the difference.
    p = sdm_activation(torch.tensor([[1e4, 9999.9375]]), [10**7], [1.0]).double()
    assert p[0, 0].item() == pytest.approx(1 / (1 + (2 + 1e7) ** -0.0625), abs=1e-6)


def test_log_activation_is_the_logarithm_of_the_activation():
    z, q, d, _ = draw(spread=2.0)
    back = (2 + q.double()).unsqueeze(1) ** sdm_log_activation(z, q, d)
    torch.testing.assert_close(back, sdm_activation(z, q, d), rtol=1e-12, atol=0)


def test_loss_is_the_mean_of_the_true_labels_log_activation():
    z, q, d, y = draw()
    terms = -sdm_log_activation(z, q, d)[torch.arange(len(y)), y]
    torch.testing.assert_close(sdm_losses(z, y, q, d), terms, rtol=1e-14, atol=0)
    assert sdm_loss(z, y, q, d).item() == pytest.approx(math.fsum(terms.tolist()) / len(terms), rel=1e-13)


def test_zero_quantile_is_uniform():
    z = torch.tensor([[1e4, -1e4, 3.0], [5.0, 5.0, 5.0]])
    p = sdm_activation(z, [10**7, 0], [0.0, 0.0])
    assert torch.equal(p, p[:1, :1].expand(2, 3))
    torch.testing.assert_close(p, torch.full((2, 3), 1 / 3), rtol=2e-7, atol=0)


def test_a_number_stands_for_every_row():
    z, _, _, y = draw(n=7)
    several = [7] * 7, [0.1] * 7
    # 0.1 is no float32: it must not pass through one on its way
    assert torch.equal(sdm_activation(z, 7, 0.1), sdm_activation(z, *several))
    assert torch.equal(sdm_log_activation(z, 7, 0.1), sdm_log_activation(z, *several))
    assert torch.equal(sdm_loss(z, y, 7, 0.1), sdm_loss(z, y, *several))


def test_arrays_and_lists_are_as_good_as_tensors():
    z, q, d, y = draw(n=9)
    p = sdm_activation(z, q, d)
    assert torch.equal(sdm_activation(z.numpy(), q.numpy(), d.numpy()), p)
    assert torch.equal(sdm_activation(z.tolist(), q.tolist(), d.tolist()), p)
    assert torch.equal(sdm_loss(z.numpy(), y.tolist(), q.numpy(), d.numpy()), sdm_loss(z, y, q, d))
    integers = sdm_activation([[2, 0]], [2], [0.5])
    assert integers.dtype == torch.float32
    torch.testing.assert_close(integers, torch.tensor([[0.8, 0.2]]))  # 4^1 : 1


def test_a_row_does_not_depend_on_its_batch():
    z, q, d, _ = draw(n=97, n_classes=3)
    p, logs = sdm_activation(z, q, d), sdm_log_activation(z, q, d)
    for rows in (slice(0, 1), slice(40, 47), slice(90, 97)):
        assert torch.equal(sdm_activation(z[rows], q[rows], d[rows]), p[rows])
        assert torch.equal(sdm_log_activation(z[rows], q[rows], d[rows]), logs[rows])


# --- Softmax limits and modules --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_signals_the_modules_are_torchs_own(dtype):
    z, _, _, y = draw(spread=20.0)
    z = z.to(dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-14}
    torch.testing.assert_close(SDMActivation()(z), nn.Softmax(dim=-1)(z), **tolerance)
    torch.testing.assert_close(SDMLogActivation()(z), nn.LogSoftmax(dim=-1)(z), **tolerance)
    torch.testing.assert_close(SDMLoss()(z, y), nn.CrossEntropyLoss()(z, y), **tolerance)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5), (0, 5), (2, 0, 5)])
def test_logits_may_have_any_shape_whose_last_axis_is_the_classes(shape):
    z = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(SDMActivation()(z), nn.Softmax(dim=-1)(z), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(SDMLogActivation()(z), nn.LogSoftmax(dim=-1)(z), rtol=1e-6, atol=1e-9)
    q, d = torch.full(shape[:-1], 7), torch.full(shape[:-1], 0.25)
    expected = naive_activation(z.reshape(-1, 5), q.reshape(-1).double(), d.reshape(-1).double()).reshape(shape)
    torch.testing.assert_close(sdm_activation(z, q, d), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_answered_in_its_own_kind(dtype):
    z = torch.tensor([[100.0, 99.0, 0.0], [1.0, 0.0, 0.5]], dtype=dtype)
    for function in (sdm_activation, sdm_log_activation):
        got = function(z, [6, 6], [1.0, 0.5])
        assert got.dtype == dtype
        assert torch.equal(got, function(z.float(), [6, 6], [1.0, 0.5]).to(dtype))  # computed in float32


def test_q_of_e_minus_two_is_softmax():
    z, _, _, y = draw()
    q, d = torch.full((len(z),), math.e - 2, dtype=torch.float64), torch.ones(len(z))
    torch.testing.assert_close(sdm_activation(z, q, d), torch.softmax(z, dim=1), rtol=1e-12, atol=0)
    torch.testing.assert_close(sdm_log_activation(z, q, d), torch.log_softmax(z, dim=1), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(sdm_loss(z, y, q, d), nn.functional.cross_entropy(z, y), rtol=1e-12, atol=0)


def test_modules_take_signals():
    z, q, d, y = draw()
    assert torch.equal(SDMActivation()(z, q, d), sdm_activation(z, q, d))
    assert torch.equal(SDMLogActivation()(z, q, d), sdm_log_activation(z, q, d))
    assert torch.equal(SDMLoss()(z, y, q, d), sdm_loss(z, y, q, d))


def test_modules_take_the_place_of_torchs_in_a_network():
    torch.manual_seed(3)
    linear, x, y = nn.Linear(5, 3).double(), torch.randn(8, 5, dtype=torch.float64), torch.arange(8) % 3
    gradients = []
    for loss in (nn.CrossEntropyLoss(), SDMLoss()):
        network = nn.Sequential(linear)
        network.zero_grad()
        loss(network(x), y).backward()
        gradients.append(linear.weight.grad.clone())
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-9)
    theirs, ours = nn.Sequential(linear, nn.Softmax(dim=-1)), nn.Sequential(linear, SDMActivation())
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-7, atol=0)
    assert list(ours.state_dict()) == list(theirs.state_dict())  # nothing of their own to store


# --- Gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_equals_that_of_the_naive_formula(dtype):
    z, q, d, y = draw(spread=1.5)
    weights = torch.randn(z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def gradient(of, logits):
        logits = logits.detach().clone().requires_grad_()
        of(logits).backward()
        return logits.grad.double()

    def log_base(p):
        return torch.log(p) / torch.log(2 + q.double()).unsqueeze(1)

    naive = {
        "activation": lambda logits: (naive_activation(logits, q.double(), d) * weights).sum(),
        "log": lambda logits: (log_base(naive_activation(logits, q.double(), d)) * weights).sum(),
        "loss": lambda logits: -log_base(naive_activation(logits, q.double(), d))[torch.arange(len(y)), y].mean(),
    }
    ours = {
        "activation": lambda logits: (sdm_activation(logits, q, d) * weights.to(dtype)).sum(),
        "log": lambda logits: (sdm_log_activation(logits, q, d) * weights.to(dtype)).sum(),
        "loss": lambda logits: sdm_loss(logits, y, q, d),
    }
    error = 2e-5 if dtype == torch.float32 else 1e-12
    for name in naive:
        expected, got = gradient(naive[name], z), gradient(ours[name], z.to(dtype))
        torch.testing.assert_close(got, expected, rtol=error, atol=error, msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_the_loss_in_the_stress_range(dtype):
    # Of -log_(2+q) sdm(z)_y it is d (sdm(z) - [i = y]), free of q and of the base.
    z, q, d = stress()
    for label in range(3):
        y = torch.full((len(z),), label)
        logits = z.to(dtype, copy=True).requires_grad_()
        sdm_losses(logits, y, q, d).sum().backward()
        expected = d.unsqueeze(1) * (sdm_activation(z, q, d) - nn.functional.one_hot(y, 3))
        torch.testing.assert_close(logits.grad.double(), expected, rtol=0, atol=PROBABILITY_ERROR[dtype])
        for function in (sdm_activation, sdm_log_activation):
            logits = z.to(dtype, copy=True).requires_grad_()
            function(logits, q, d)[:, label].sum().backward()
            assert bool(torch.isfinite(logits.grad).all())


def test_second_derivatives_exist():
    z, q, d, y = draw(n=5, n_classes=3, spread=1.0)
    assert torch.autograd.gradgradcheck(lambda logits: sdm_loss(logits, y, q, d), z.requires_grad_())


def test_signals_are_constants_to_the_gradient():
    z, q, d, y = draw(n=5)
    z, d = z.requires_grad_(), d.requires_grad_()
    sdm_loss(z, y, q, d).backward()
    assert z.grad is not None and d.grad is None


# --- Rescaled similarity ---------------------------------------------------------------------------------------------


def test_rescaled_similarity_by_hand():
    #  0: 2^p is at least 1 but q is 0; 2 < 4^1; 16^0.5 = 4 < 14; 4^0.5 = 2 = q; 10^0 = 1 < 8
    got = rescaled_similarity([0, 2, 14, 2, 8], [0.9, 1.0, 0.5, 0.5, 0.0])
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx([0.0, 2.0, 4.0, 2.0, 1.0], rel=1e-14)
    assert got[0] == 0.0


def test_rescaled_similarity_equals_the_reference():
    rng = np.random.default_rng(2)
    q, p = rng.integers(0, 10**7, 300), rng.random(300)
    q[:50] = rng.integers(0, 5, 50)
    expected = [reference.rescaled_similarity(*pair) for pair in zip(q, p, strict=True)]
    got = rescaled_similarity(q, p)
    assert got.tolist() == pytest.approx(expected, rel=1e-13)
    for rows in (slice(0, 1), slice(3, 10), slice(299, 300)):
        assert torch.equal(rescaled_similarity(q[rows], p[rows]), got[rows])


# --- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logits", "q", "d", "message"),
    [
        (1.0, 1, 1.0, "'logits' of {caller} must have a last axis of classes. Got a single number"),
        ([1.0, 2.0], [1, 2], 1.0, r"'similarity' of {caller} must have shape \(\). Got \(2,\)"),
        ([[1.0, 2.0]], [1, 2], 1.0, r"'similarity' of {caller} must have shape \(1,\). Got \(2,\)"),
        ([[1.0, 2.0]], 1, [[1.0]], r"'distance_quantile' of {caller} must have shape \(1,\). Got \(1, 1\)"),
        ([[1.0, 2.0]], -1, 1.0, "'similarity' of {caller} must be finite and at least 0. Got -1"),
        ([[1.0, 2.0]], [math.nan], 1.0, "'similarity' of {caller} must be finite and at least 0. Got nan"),
        ([[1.0, 2.0]], [math.inf], 1.0, "'similarity' of {caller} must be finite and at least 0. Got inf"),
        ([[1.0, 2.0]], 1, 1.5, r"'distance_quantile' of {caller} must be in \[0, 1\]. Got 1.5 .*ClassEcdfs"),
        ([[1.0, 2.0]], 1, [math.nan], r"'distance_quantile' of {caller} must be in \[0, 1\]. Got nan"),
    ],
)
def test_bad_signals_are_refused(logits, q, d, message):
    for function in (sdm_activation, sdm_log_activation):
        with pytest.raises(InvalidInputError, match=message.format(caller=function.__name__)):
            function(logits, q, d)


@pytest.mark.parametrize("labels", [[2], [-1]])
def test_labels_beyond_the_classes_are_refused(labels):
    with pytest.raises(InvalidInputError, match=rf"'labels' of sdm_loss must be in 0..1. Got {labels[0]}"):
        sdm_loss([[1.0, 2.0]], labels, 1, 1.0)


def test_labels_that_are_no_class_numbers_are_refused():
    with pytest.raises(InvalidInputError, match="'labels' of sdm_loss must be integers"):
        sdm_loss([[1.0, 2.0]], [0.5], 1, 1.0)
    with pytest.raises(InvalidInputError, match=r"'labels' of sdm_loss must have shape \(1,\). Got \(2,\)"):
        sdm_loss([[1.0, 2.0]], [0, 1], 1, 1.0)
    with pytest.raises(InvalidInputError, match=r"'logits' of sdm_loss must have shape \(any, any\). Got \(2,\)"):
        sdm_loss([1.0, 2.0], [0], 1, 1.0)
    with pytest.raises(InvalidTypeError, match="'logits' of sdm_loss must be real"):
        sdm_loss(torch.zeros(1, 2, dtype=torch.complex64), [0], 1, 1.0)


def test_confidence_of_another_length_is_refused():
    with pytest.raises(InvalidInputError, match=r"'confidence' of rescaled_similarity must have shape \(2,\)"):
        rescaled_similarity([1, 2], [0.5])
