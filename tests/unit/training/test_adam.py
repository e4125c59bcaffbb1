"""Our Adam is torch's, to the bit, and no process that fits imports torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from torchsdm.training._adam import Adam

SHAPES = [(5, 7), (5,), (3, 5), (3,)]


def parameters():
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def walk(optimizer, weights, n_steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n_steps):
        optimizer.zero_grad()
        assert all(weight.grad is None for weight in weights)
        sum((weight * torch.randn(weight.shape, generator=generator)).sum() ** 2 for weight in weights).backward()
        optimizer.step()


@pytest.mark.parametrize("lr", [1e-5, 0.1])
def test_steps_and_states_are_those_of_torch(lr):
    ours, theirs = parameters(), parameters()
    mine, its = Adam(ours, lr), torch.optim.Adam(theirs, lr=lr, fused=True)
    walk(mine, ours, 30)
    walk(its, theirs, 30)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
    states, expected = mine.state_dict()["state"], its.state_dict()["state"]
    assert states.keys() == expected.keys()
    for number, tensors in expected.items():
        assert tensors.keys() == states[number].keys()
        assert all(torch.equal(states[number][name], tensor) for name, tensor in tensors.items())


def test_a_restored_state_goes_on_with_the_same_bits():
    weights, again = parameters(), parameters()
    whole, first = Adam(weights, 0.01), Adam(again, 0.01)
    walk(whole, weights, 5)
    walk(whole, weights, 5, seed=2)
    walk(first, again, 5)
    second = Adam(again, 0.01)
    second.load_state_dict(first.state_dict())
    walk(second, again, 5, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))


def test_fitting_does_not_import_torch_s_compiler():  # nor sympy, for shapes that nobody wants to know
    program = """
import sys, warnings
import numpy as np
from torchsdm import SDMClassifier

warnings.simplefilter("ignore")
X = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
SDMClassifier(0.8, 8, n_rounds=1, training="sdm", max_epochs=2, random_state=0).fit(X, X[:, 0] > 0).decide(X)
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
