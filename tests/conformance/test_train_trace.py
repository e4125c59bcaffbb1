"""Five recorded training epochs, replayed with plain Adam.

float32 sums taken in another order move the exemplars by about 1e-6, so two points that are almost equally far may
change places: one swap per 1,000 points and epoch is within reason. A swap changes the distance quantile of the two
points by one rank, and with it the losses of the next epoch; how much is computed from the points that differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchsdm

N_EPOCHS = 5
LOSS_TOLERANCE = 1e-6  # of one step's loss, in float32
SETS = ("tr", "ca")


@dataclass
class Epoch:
    """What one epoch of the replay left behind; signals and logits by set."""

    losses: list[float] = field(default_factory=list)
    allowed: list[float] = field(default_factory=list)
    similarity: dict[str, torch.Tensor] = field(default_factory=dict)
    nearest_distance: dict[str, torch.Tensor] = field(default_factory=dict)
    distance_quantile: dict[str, torch.Tensor] = field(default_factory=dict)
    class_counts: dict[str, list[int]] = field(default_factory=dict)
    logits: dict[str, torch.Tensor] = field(default_factory=dict)


@pytest.fixture(scope="module")
def trace(conformance: Path) -> dict[str, Any]:
    with np.load(conformance / "train_trace.npz") as data:
        return {name: data[name] for name in data.files}


def load_weights(adaptor: torchsdm.ExemplarAdaptor, trace: dict[str, Any], epoch: int) -> None:
    adaptor.load_state_dict(
        {
            "filters.weight": torch.tensor(trace["conv_w"][epoch]),
            "filters.bias": torch.tensor(trace["conv_b"][epoch]),
            "output.weight": torch.tensor(trace["fc_w"][epoch]),
            "output.bias": torch.tensor(trace["fc_b"][epoch]),
            "mean": torch.tensor(float(trace["mean"])),
            "scale": torch.tensor(float(trace["std"])),
        }
    )


def split(trace: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Hidden states and labels, by set."""
    n = int(trace["n_train"])
    h, y = torch.tensor(trace["h"]), torch.tensor(trace["label"])
    return {"tr": h[:n], "ca": h[n:]}, {"tr": y[:n], "ca": y[n:]}


def compute_signals(
    adaptor: torchsdm.ExemplarAdaptor, h: dict[str, torch.Tensor], y: dict[str, torch.Tensor], into: Epoch
) -> None:
    """q, d_nearest and d: training points against the other training points, calibration points against all of them."""
    with torch.no_grad():
        exemplars, logits = {}, {}
        for name in SETS:
            exemplars[name], logits[name] = adaptor(h[name])
    predictions = {name: logits[name].argmax(1) for name in SETS}
    support = torchsdm.SupportSet(exemplars["tr"], y["tr"], predictions["tr"])
    for name in SETS:
        m = support.match_self() if name == "tr" else support.match(exemplars["ca"], predictions["ca"])
        ecdfs = torchsdm.ClassEcdfs.fit(m.nearest_distance, m.similarity, y[name], 2)
        into.similarity[name] = m.similarity
        into.nearest_distance[name] = m.nearest_distance
        into.distance_quantile[name] = ecdfs.distance_quantile(m.nearest_distance)
        into.class_counts[name] = [int(((m.similarity > 0) & (y[name] == c)).sum()) for c in (0, 1)]
        into.logits[name] = logits[name]


def moved_loss(logits: torch.Tensor, quantile: torch.Tensor, recorded: np.ndarray) -> torch.Tensor:
    """How far, at the most, each point's loss moves because its d is not the recorded one.

    The derivative of Eq. 7 in d is the mean logit under sdm less the label's logit: at most the range of the logits.
    Differences of rounding only (1e-6) are not a swap and are left out.
    """
    moved = (quantile.double() - torch.as_tensor(recorded).double()).abs()
    spread = (logits.max(1).values - logits.min(1).values).double()
    return torch.where(moved > 1e-6, moved * spread, torch.zeros_like(moved))


def run(trace: dict[str, Any], recorded_signals: bool) -> list[Epoch]:
    """Replay the training, each epoch with the q and d that the replay found, or with those that were recorded."""
    h, y = split(trace)
    adaptor = torchsdm.ExemplarAdaptor(768, 2, n_filters=64)
    load_weights(adaptor, trace, 0)
    optimizer = torch.optim.Adam(adaptor.parameters(), lr=float(trace["lr"]))
    batch = int(trace["batch"])

    n = len(y["tr"])
    similarity, quantile = torch.full((n,), math.e - 2), torch.ones(n)  # the first epoch is a softmax
    recorded_quantile = np.ones(n, dtype=np.float32)
    epochs = []
    for e in range(N_EPOCHS):
        epoch = Epoch()
        for rows in torch.tensor(trace["perm"][e]).split(batch):
            optimizer.zero_grad()
            _, logits = adaptor(h["tr"][rows])
            loss = torchsdm.sdm_loss(logits, y["tr"][rows], similarity[rows], quantile[rows])
            loss.backward()
            optimizer.step()
            epoch.losses.append(loss.item())
            epoch.allowed.append(float(moved_loss(logits.detach(), quantile[rows], recorded_quantile[rows]).mean()))
        recorded_quantile = trace["d_tr"][e]
        if recorded_signals:
            similarity, quantile = torch.tensor(trace["q_tr"][e]), torch.tensor(trace["d_tr"][e])
        else:
            compute_signals(adaptor, h, y, epoch)
            similarity, quantile = epoch.similarity["tr"], epoch.distance_quantile["tr"]
        epochs.append(epoch)
    return epochs


@pytest.fixture(scope="module")
def replay(trace: dict[str, Any]) -> list[Epoch]:
    return run(trace, recorded_signals=False)


def check_signals(epoch: Epoch, trace: dict[str, Any], e: int, name: str) -> None:
    """At most one swap: one q, and the d of the two points that changed places, by one rank."""
    q_differs = epoch.similarity[name].numpy() != trace[f"q_{name}"][e]
    assert q_differs.sum() <= 1, f"q differs for {np.flatnonzero(q_differs)}"
    moved = np.abs(epoch.distance_quantile[name].numpy() - trace[f"d_{name}"][e].astype(np.float64))
    # A point whose q changes to or from 0 also enters or leaves its class's eCDF; that moves every d by up to a rank.
    one_rank = 1 / min(epoch.class_counts[name]) + 1e-6
    swapped = moved > 1e-6
    assert swapped.sum() <= 2, f"d differs for {np.flatnonzero(swapped)}"
    assert moved.max() <= one_rank
    # Recorded distances are squared. Exemplars have norms of up to about 15 and differ at 1e-6: δ(d²) = 2 d δ.
    squared = epoch.nearest_distance[name].double().numpy() ** 2
    np.testing.assert_allclose(squared, trace[f"dsq_{name}"][e], rtol=2e-5, atol=1e-4)


def metrics(epoch: Epoch, y: torch.Tensor, name: str) -> list[float]:
    """Balanced and marginal loss, accuracy and q; balanced is the mean over the classes of the class's mean."""
    logits, q, d = epoch.logits[name], epoch.similarity[name], epoch.distance_quantile[name]
    correct = (logits.argmax(1) == y).double()

    def loss(rows: torch.Tensor) -> float:
        return float(torchsdm.sdm_loss(logits[rows], y[rows], q[rows], d[rows]))

    def both(of: Any) -> list[float]:
        return [float(np.mean([of(y == c) for c in (0, 1)])), of(torch.ones_like(y, dtype=torch.bool))]

    return [
        *both(loss),
        *both(lambda rows: float(correct[rows].mean())),
        *both(lambda rows: float(q[rows].double().mean())),
    ]


def test_step_losses_with_the_recorded_signals(trace: dict[str, Any]) -> None:
    """Adaptor, loss and gradient alone: without matching there are no swaps, and every step must agree."""
    losses = [epoch.losses for epoch in run(trace, recorded_signals=True)]
    np.testing.assert_allclose(losses, trace["step_loss"], rtol=0, atol=LOSS_TOLERANCE)


def test_step_losses(replay: list[Epoch], trace: dict[str, Any]) -> None:
    """The whole loop, matching included."""
    losses = np.concatenate([epoch.losses for epoch in replay])
    # Where a point of the batch changed places after the previous epoch, its d differs by a rank in this one. That step
    # also moves the weights of the later ones, whose losses follow by less than that step's own.
    allowed = np.maximum.accumulate(np.concatenate([epoch.allowed for epoch in replay]))
    difference = np.abs(losses - trace["step_loss"].ravel())
    assert (difference <= LOSS_TOLERANCE + allowed).all(), difference.max()


@pytest.mark.parametrize("name", SETS)
def test_signals_after_each_epoch(replay: list[Epoch], trace: dict[str, Any], name: str) -> None:
    for e, epoch in enumerate(replay):
        check_signals(epoch, trace, e, name)


@pytest.mark.parametrize("name", SETS)
def test_metrics_after_each_epoch(replay: list[Epoch], trace: dict[str, Any], name: str) -> None:
    _, y = split(trace)
    for e, epoch in enumerate(replay):
        difference = np.abs(np.array(metrics(epoch, y[name], name)) - trace[f"metrics_{name}"][e])
        moved_q = np.abs(epoch.similarity[name].numpy() - trace[f"q_{name}"][e]).sum()
        moved = float(moved_loss(epoch.logits[name], epoch.distance_quantile[name], trace[f"d_{name}"][e]).sum())
        smaller = min(int((y[name] == c).sum()) for c in (0, 1))
        # A point counts 1/n in the marginal mean and 1/(2 n_c) in the balanced one: both at most 1/n_c.
        assert (difference[:2] <= LOSS_TOLERANCE + moved / smaller).all(), (e, difference)
        assert (difference[2:4] <= 1e-6).all(), (e, difference)
        assert (difference[4:] <= 2e-6 + moved_q / smaller).all(), (e, difference)


@pytest.mark.parametrize("name", SETS)
def test_signals_from_the_recorded_weights(trace: dict[str, Any], name: str) -> None:
    """The same without the drift of five epochs: each epoch's recorded weights, loaded."""
    h, y = split(trace)
    adaptor = torchsdm.ExemplarAdaptor(768, 2, n_filters=64)
    for e in range(N_EPOCHS):
        load_weights(adaptor, trace, e + 1)
        epoch = Epoch()
        compute_signals(adaptor, h, y, epoch)
        check_signals(epoch, trace, e, name)


def test_the_chosen_epoch_and_its_region(replay: list[Epoch], trace: dict[str, Any]) -> None:
    """The lowest balanced calibration loss is that of the third epoch; its region at α = 0.9 is the recorded one."""
    _, y = split(trace)
    losses = [metrics(epoch, y["ca"], "ca")[0] for epoch in replay]
    assert int(np.argmin(losses)) == 2
    assert min(losses) == pytest.approx(float(trace["best_calib_loss"]), abs=1e-5)

    best = replay[2]
    z = best.logits["ca"].double()
    p = torchsdm.sdm_activation(z, best.similarity["ca"], best.distance_quantile["ca"])
    confidence = p[torch.arange(len(p)), z.argmax(1)]
    rescaled = torchsdm.rescaled_similarity(best.similarity["ca"], confidence)
    # It rests on 44 and 82 points: (1 - α) n is 4.4 and 8.2, where both ways to take the index agree.
    region = torchsdm.find_high_reliability_region(rescaled, p, y["ca"], float(trace["alpha"]))
    assert float(region.min_rescaled_similarity) == pytest.approx(float(trace["final_qprime_min"]), rel=1e-6)
