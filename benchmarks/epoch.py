"""One full training epoch against its floating-point work at the rate of one large product."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

import torch
from measure import Figure, judged, seconds

from torchsdm.training import SDMLearner, TrainingData, TrainingSettings, split_of_round

N, D, M, EPOCHS = 18_000, 6_144, 1_000, 5


def run() -> Iterator[Figure]:
    """Training steps, both passes, eCDFs and losses."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (N,), generator=generator)
    states = torch.randn(N, D, generator=generator)
    states[:, :64] += 0.5 * (2 * labels[:, None] - 1)
    settings = TrainingSettings(n_classes=2, n_filters=M)
    learner = SDMLearner(*split_of_round(TrainingData(states, labels), settings, 0, 0), settings, 0, 0)
    half = N // 2
    # Forward and gradient of the steps, forward of both halves, both matching passes.
    operations = 4 * 2 * half * D * M + 2 * 2 * half * half * M
    square = torch.randn(half, M, generator=generator)

    def product() -> None:
        square @ square.T

    product()
    learner.epoch(1)
    ratios, times, ideals = [], [], []
    for number in range(2, EPOCHS + 2):
        rate = 2 * half * half * M / statistics.median(seconds(product) for _ in range(3))

        times.append(seconds(partial(learner.epoch, number)))
        ideals.append(operations / rate)
        ratios.append(times[-1] / ideals[-1])
    yield judged(
        f"epoch, N = {N:,} in halves, D = {D:,}, M = {M:,}, batch 50",
        f"its {operations / 1e9:.0f} GFLOP at the rate of a large product",
        statistics.median(times) / statistics.median(ideals),
        at_most=1.25,
        low=min(ratios),
        high=max(ratios),
        work_seconds=statistics.median(times),
        yardstick_seconds=statistics.median(ideals),
        note=profile(learner),
    )


def profile(learner: SDMLearner) -> str:
    """Where the time of a training step goes, in shares of the step."""
    import torch.nn.functional as F

    adaptor, batch = learner.network, 50
    states = learner.train.states(torch.arange(batch))
    weight = adaptor.filters.weight.detach()
    gradient = torch.randn(batch, weight.shape[0])
    forward = statistics.median(seconds(lambda: F.linear(states, weight)) for _ in range(20))
    backward = statistics.median(seconds(lambda: gradient.T @ states) for _ in range(20))
    adam = statistics.median(seconds(learner.optimizer.step) for _ in range(20))
    large = torch.randn(4_096, weight.shape[1])
    rate = (
        2 * len(large) * weight.numel() / statistics.median(seconds(lambda: F.linear(large, weight)) for _ in range(3))
    )
    ideal = 2 * batch * weight.numel() / rate
    return (
        f"a step's forward product takes {forward / ideal:.1f} ×, its gradient {backward / ideal:.1f} × and Adam "
        f"{adam / ideal:.1f} × the cost of 50 rows in a large product"
    )
