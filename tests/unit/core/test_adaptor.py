"""The adaptors: torch's own convolution, numpy's mean and standard deviation, and bits that no batch changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from torchsdm import ExemplarAdaptor
from torchsdm.core import Encoded, IdentityAdaptor
from torchsdm.core import adaptor as adaptor_module
from torchsdm.core.adaptor import make_adaptor
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.matching import SupportSet


def test_the_background_wins_only_with_the_highest_logit():
    logits = torch.tensor([[1.0, 2.0, 1.9], [1.0, 2.0, 2.1], [3.0, 2.0, 2.5], [1.0, 1.0, 1.0]])
    points = Encoded.of(torch.zeros(4, 2), logits, n_classes=2)
    assert points.is_background.tolist() == [False, True, False, False]  # a tie is the class's
    assert points.predictions.tolist() == [1, 1, 0, 0]
    assert points.recognised_as.tolist() == [1, 2, 0, 0]
    assert torch.equal(points.logits, logits[:, :2])


def test_without_a_further_logit_nothing_is_background():
    points = Encoded.of(torch.zeros(3, 2), torch.randn(3, 4), n_classes=4)
    assert not points.is_background.any()
    assert torch.equal(points.recognised_as, points.predictions)


def test_nothing_vouches_for_background():
    rng = np.random.default_rng(0)
    exemplars = torch.from_numpy(rng.normal(size=(30, 3)).astype(np.float32))
    labels = torch.zeros(30, dtype=torch.int64)
    support = SupportSet(exemplars, labels, labels)
    logits = torch.tensor([[2.0, 0.0, 1.0]] * 5 + [[2.0, 0.0, 3.0]] * 5)
    points = Encoded.of(exemplars[:10], logits, n_classes=2)
    found = support.match(points.exemplars, points.predictions)
    assert (found.similarity == 30).all()
    silenced = points.unvouched(found)
    assert silenced.similarity.tolist() == [30] * 5 + [0] * 5
    assert torch.equal(silenced.nearest_distance, found.nearest_distance)


def test_blocks_and_back():
    points = Encoded.of(torch.randn(7, 2), torch.randn(7, 3), n_classes=2)
    blocks = points.split(3)
    assert [len(block.logits) for block in blocks] == [3, 3, 1]
    joined = Encoded.concatenate(blocks)
    assert all(torch.equal(getattr(joined, name), getattr(points, name)) for name in Encoded.__dataclass_fields__)


N, D, M, C = 150, 33, 19, 3


def states(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3 + 1


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


def standardised(adaptor, h):
    return (h.double() - adaptor.mean.double()) / adaptor.scale.double()


@pytest.fixture
def adaptor():
    made = ExemplarAdaptor(D, C, M, generator=seeded())
    made.standardise(states(N, D), per_dimension=True)
    return made


# --- Forward ---------------------------------------------------------------------------------------------------------


def convolution_of(adaptor):
    """The paper's layer: a 1-D convolution over one channel whose kernel spans the input."""
    convolution = nn.Conv1d(in_channels=1, out_channels=M, kernel_size=D)
    with torch.no_grad():
        convolution.weight.copy_(adaptor.filters.weight.unsqueeze(1))
        convolution.bias.copy_(adaptor.filters.bias)
    return convolution


def test_equals_a_convolution_whose_kernel_spans_the_input(adaptor):
    h = states(40, D, seed=2)
    exemplars, logits = adaptor(h)
    expected = convolution_of(adaptor)(standardised(adaptor, h).float().unsqueeze(1)).squeeze(2)  # (N, M, 1) -> (N, M)
    torch.testing.assert_close(exemplars, expected, rtol=1e-5, atol=1e-5)
    expected_logits = nn.functional.linear(expected, adaptor.output.weight, adaptor.output.bias)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-5, atol=1e-5)


def test_several_positions_equal_a_strided_convolution_and_max_pooling(adaptor):
    positions = 5
    h = states(40, positions, D, seed=3)
    exemplars, logits = adaptor(h)
    convolution = convolution_of(adaptor)
    convolution.stride = (D,)  # one step per position of the states laid end to end
    filtered = convolution(standardised(adaptor, h).float().reshape(40, 1, positions * D))  # (N, M, positions)
    expected = nn.functional.max_pool1d(filtered, kernel_size=positions).squeeze(2)
    torch.testing.assert_close(exemplars, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits, adaptor.output(expected), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(exemplars, filtered.mean(dim=2), atol=1e-2)


def test_one_position_is_no_position(adaptor):
    h = states(9, D)
    torch.testing.assert_close(adaptor(h.unsqueeze(1))[0], adaptor(h)[0], rtol=1e-6, atol=1e-6)
    assert torch.equal(adaptor.encode_exactly(h.unsqueeze(1))[0], adaptor.encode_exactly(h)[0])


def test_identity_matches_the_standardised_states_directly():
    identity = IdentityAdaptor(D, C, generator=seeded())
    h = states(40, D)
    identity.standardise(h)
    expected = (h - h.double().mean().float()) / h.double().std().float()
    for exemplars, logits in (identity(h), identity.encode_exactly(h)):
        torch.testing.assert_close(exemplars, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(logits, identity.output(expected), rtol=1e-5, atol=1e-5)
    assert [name for name, _ in identity.named_parameters()] == ["output.weight", "output.bias"]
    assert identity.n_filters == D


def test_identity_takes_one_position_only():
    with pytest.raises(InvalidInputError, match=r"\(N, D\). Got shape \(2, 3, 33\); use ExemplarAdaptor"):
        IdentityAdaptor(D, C)(states(2, 3, D))


def test_gradients_reach_every_weight_but_not_the_standardisation(adaptor):
    _, logits = adaptor(states(8, D))
    logits.square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in adaptor.parameters())
    assert {name for name, _ in adaptor.named_buffers()} == {"mean", "scale"}
    assert not adaptor.mean.requires_grad


# --- Initial weights -------------------------------------------------------------------------------------------------


def test_initial_weights_come_from_the_generator_alone():
    torch.manual_seed(0)
    first = ExemplarAdaptor(D, C, M, generator=seeded(7)).state_dict()
    torch.manual_seed(1)
    again = ExemplarAdaptor(D, C, M, generator=seeded(7)).state_dict()
    other = ExemplarAdaptor(D, C, M, generator=seeded(8)).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["filters.weight"], other["filters.weight"])


def test_initial_weights_are_distributed_as_torchs():
    made = ExemplarAdaptor(400, 4, 300, generator=seeded())
    for layer in (made.filters, made.output):
        bound = 1 / math.sqrt(layer.in_features)
        weights = layer.weight.detach()
        assert weights.abs().max() <= bound and weights.abs().max() > 0.99 * bound
        assert weights.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)  # of a uniform distribution
        assert layer.bias.abs().max() <= bound and layer.bias.std() > 0


def test_make_adaptor_by_name():
    assert type(make_adaptor("identity", D, C, M)) is IdentityAdaptor
    made = make_adaptor("filters", D, C, M, seeded(7))
    assert type(made) is ExemplarAdaptor and made.n_filters == M
    assert torch.equal(made.filters.weight, ExemplarAdaptor(D, C, M, generator=seeded(7)).filters.weight)


@pytest.mark.parametrize(("name", "value"), [("n_inputs", 0), ("n_classes", -1), ("n_filters", 0)])
def test_sizes_must_be_positive(name, value):
    sizes = {"n_inputs": D, "n_classes": C, "n_filters": M, name: value}
    with pytest.raises(InvalidInputError, match=f"'{name}' of ExemplarAdaptor must be positive. Got {value}"):
        ExemplarAdaptor(**sizes)
    with pytest.raises(InvalidTypeError, match=f"'{name}' of ExemplarAdaptor must be an integer. Got 2.5"):
        ExemplarAdaptor(**{**sizes, name: 2.5})


# --- Standardisation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(50, D), (50, 4, D)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("rows_per_block", [None, 7])
def test_standardisation_equals_numpy(monkeypatch, shape, offset, rows_per_block):
    if rows_per_block:
        monkeypatch.setattr(adaptor_module, "_BLOCK_ELEMENTS", rows_per_block * math.prod(shape[1:]))
    h = states(*shape) * torch.arange(1, D + 1) + offset
    rows = torch.arange(0, 50, 3)
    for chosen in (None, rows):
        entries = h.numpy().astype(np.float64) if chosen is None else h.numpy().astype(np.float64)[chosen.numpy()]
        made = ExemplarAdaptor(D, C, M)
        made.standardise(h, chosen)
        assert made.mean.item() == pytest.approx(entries.mean(), rel=1e-6)
        assert made.scale.item() == pytest.approx(entries.std(ddof=1), rel=1e-6)
        made.standardise(h, chosen, per_dimension=True)
        by_dimension = entries.reshape(-1, D)
        np.testing.assert_allclose(made.mean, by_dimension.mean(axis=0), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(made.scale, by_dimension.std(axis=0, ddof=1), rtol=1e-6)


def test_divisor_is_n_minus_one():
    made = ExemplarAdaptor(2, C, M)
    made.standardise(torch.tensor([[0.0, 0.0], [2.0, 4.0]]), per_dimension=True)
    assert made.mean.tolist() == [1.0, 2.0]
    assert made.scale.tolist() == pytest.approx([math.sqrt(2), math.sqrt(8)])  # (1 + 1)/1, (4 + 4)/1
    made.standardise(torch.tensor([[0.0, 0.0], [2.0, 4.0]]))
    assert made.mean.item() == 1.5
    assert made.scale.item() == pytest.approx(math.sqrt((2.25 + 2.25 + 0.25 + 6.25) / 3))


def test_a_dimension_that_never_varies_is_centred_and_not_divided():
    h = states(30, 3)
    h[:, 1] = 5
    made = IdentityAdaptor(3, C)
    made.standardise(h, per_dimension=True)
    assert made.mean[1] == 5 and made.scale[1] == 1
    assert torch.equal(made(h)[0][:, 1], torch.zeros(30))
    made.standardise(torch.full((4, 3), 7.0))
    assert made.mean == 7 and made.scale == 1


def test_one_row_can_be_standardised():
    made = IdentityAdaptor(3, C)
    made.standardise(torch.tensor([[1.0, 2.0, 6.0]]), per_dimension=True)
    assert made.mean.tolist() == [1, 2, 6] and made.scale.tolist() == [1, 1, 1]


def test_half_precision_and_integer_states_are_taken_as_float32():
    made = ExemplarAdaptor(3, C, M)
    for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.float64):
        h = torch.tensor([[1, 2, 4], [3, 5, 0]]).to(dtype)
        made.standardise(h)
        assert made.mean.item() == 2.5 and made.mean.dtype == torch.float32
        assert torch.equal(made.encode_exactly(h)[0], made.encode_exactly(h.float())[0])


# --- Encoding --------------------------------------------------------------------------------------------------------


def half_ulp(values):
    return 0.5 * np.spacing(np.abs(values).astype(np.float32)).astype(np.float64)


@pytest.mark.parametrize("shape", [(60, D), (60, 3, D)])
def test_encode_is_the_float64_pass_rounded_once(adaptor, shape):
    h = states(*shape, seed=5)
    exemplars, logits = adaptor.encode_exactly(h)
    assert exemplars.dtype == logits.dtype == torch.float32
    weight, bias = adaptor.filters.weight.detach().double().numpy(), adaptor.filters.bias.detach().double().numpy()
    exact = standardised(adaptor, h).numpy() @ weight.T + bias
    exact = exact.max(axis=1) if len(shape) == 3 else exact
    assert (np.abs(exemplars.double().numpy() - exact) <= half_ulp(exact) * (1 + 1e-5)).all()
    weight, bias = adaptor.output.weight.detach().double().numpy(), adaptor.output.bias.detach().double().numpy()
    exact_logits = exemplars.double().numpy() @ weight.T + bias  # from the exemplars that are stored
    assert (np.abs(logits.double().numpy() - exact_logits) <= half_ulp(exact_logits) * (1 + 1e-5)).all()


@pytest.mark.parametrize("kind", ["filters", "identity"])
@pytest.mark.parametrize("shape", [(194, 257), (97, 3, 64)])
def test_encode_gives_a_row_the_same_bits_in_any_batch(kind, shape):
    if kind == "identity" and len(shape) == 3:
        shape = (194, 64)
    made = make_adaptor(kind, shape[-1], C, 40, seeded())
    h = states(*shape, seed=4)
    made.standardise(h)
    whole = made.encode_exactly(h)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for size in (1, 7, 97, len(h)):
            parts = [made.encode_exactly(block) for block in h[: 97 if size < 97 else None].split(size)]
            for tensor, blocks in zip(whole, zip(*parts, strict=True), strict=True):
                joined = torch.cat(blocks)
                assert torch.equal(joined, tensor[: len(joined)]), (threads, size)
    assert torch.equal(made.encode_exactly(h.flip(0))[0], whole[0].flip(0))


def test_encode_in_blocks_is_encode(adaptor, monkeypatch):
    h = states(50, D)
    whole = adaptor.encode_exactly(h)
    monkeypatch.setattr(adaptor_module, "_BLOCK_ELEMENTS", 3 * D)
    for tensor, again in zip(whole, adaptor.encode_exactly(h), strict=True):
        assert torch.equal(again, tensor)


def test_encode_is_near_the_training_pass(adaptor):
    h = states(50, D)
    for exact, quick in zip(adaptor.encode_exactly(h), adaptor(h), strict=True):
        torch.testing.assert_close(exact, quick, rtol=1e-4, atol=1e-5)
        assert not exact.requires_grad


def test_weights_and_standardisation_go_with_the_state(adaptor):
    other = ExemplarAdaptor(D, C, M)
    other.mean, other.scale = torch.zeros(D), torch.zeros(D)
    other.load_state_dict(adaptor.state_dict())
    h = states(5, D)
    assert torch.equal(other.encode_exactly(h)[1], adaptor.encode_exactly(h)[1])


@pytest.mark.parametrize(("n_inputs", "n_filters", "n_classes"), [(64, 4, 2), (4, 64, 2), (4, 8, 64)])
def test_blocks_are_small_in_states_exemplars_and_logits(monkeypatch, n_inputs, n_filters, n_classes):
    sizes, linear = [], adaptor_module.invariant_linear
    monkeypatch.setattr(adaptor_module, "_BLOCK_ELEMENTS", 640)
    monkeypatch.setattr(adaptor_module, "invariant_linear", lambda x, *layer: sizes.append(len(x)) or linear(x, *layer))
    adaptor = ExemplarAdaptor(n_inputs, n_classes, n_filters, generator=torch.Generator().manual_seed(0))
    adaptor.encode_exactly(torch.zeros(25, n_inputs))
    assert sizes == [10, 10, 10, 10, 5, 5]
