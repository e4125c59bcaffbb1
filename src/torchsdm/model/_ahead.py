"""Compiling ahead: the loops of matching and deciding, in the background, while something else is loaded or trained."""

from __future__ import annotations

import os
import threading
from functools import cache

import numpy as np
import torch

from torchsdm.core import ExemplarAdaptor
from torchsdm.matching import SupportSet, match
from torchsdm.model.examples import ListedExamples
from torchsdm.model.model import Points, SDMModel


@cache
def compile_ahead() -> threading.Thread:
    """Compile in the background what a model on the CPU needs, or read it from the cache; once per process.

    Who needs a small loop before it is ready waits for it; the work of the kernels of matching, which take longest, is
    done by torch operations until then, unless there is much of it. The thread is not a daemon: a process that ends
    in the middle of a compilation might crash. A fork waits for it, too: a child would inherit the compiler's lock.
    """
    thread = threading.Thread(target=_decide_with_a_small_model, name="torchsdm-compile-ahead")
    thread.start()
    os.register_at_fork(before=thread.join)
    return thread


def _decide_with_a_small_model() -> None:
    """Take a model of a few points the way of every other: support, calibration, decisions, neighbours."""
    labels = torch.arange(16) % 2
    states = torch.arange(16.0)[:, None] / 100 + 10 * labels[:, None]
    adaptor = ExemplarAdaptor(1, 2, 1, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():  # a filter that passes the state on, and logits that tell the two classes apart
        adaptor.filters.weight.fill_(1.0)
        adaptor.output.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        adaptor.output.bias.copy_(torch.tensor([5.0, -5.0]))
    points = Points([states], labels, ListedExamples(range(len(states))))
    model = SDMModel.build(adaptor, points, points, np.arange(2), [0.9])
    model.decide_with_neighbors(states[:1], k=1)
    model.has_points(states[:1])
    support = SupportSet(states, labels, labels)  # the kernels themselves, which take longest
    match(states, labels, support.parts, k=1, compiled=True)
    support.match_self()
