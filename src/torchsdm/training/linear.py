"""The linear start: a penalised logistic regression on the standardised states, judged out of fold.

The adaptor is linear after linear, so its logits are a linear function of h. The best of them is a convex problem,

    min over W, b of  sum_i w_i (log sum_c exp z_ic - z_iy) + penalty / 2 |W|^2,    z_i = W s_i + b,

with s_i the standardised state, y its class and w_i the weight of that class. It is solved K + 1 times at once: without
each of K folds, and with all points. Penalties are tried from strong to weak, each from the solutions before it, until
the loss out of fold has not improved twice in a row.

*Out of fold* means: the logits of a point by the regression that has not seen it. They choose the penalty, one number
among a dozen; nothing else is chosen by them, so they calibrate what new inputs will look like, with every point.

The solution becomes the first filters of an adaptor, one for each class; the others are random as ever:

    h' = (r z, R s),    z' = h'_{1..C} / r.

r makes the spread of the first ``LINEAR_SHARE`` times that of the others, so that near means near in meaning and in the
answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from torchsdm.core import Adaptor, ExemplarAdaptor, make_adaptor
from torchsdm.training.data import Part, TrainingSettings, Use, as_groups, random_generator
from torchsdm.validation import Array

N_FOLDS = 5
LINEAR_SHARE = 0.3  #: spread of the filters of the classes, in that of all others
PENALTIES = tuple(float(value) for value in 10 ** np.arange(5, -2.1, -0.5))  #: tried in this order
_PATIENCE = 2  # penalties without a smaller loss after which no weaker one is tried
_PRECISION = 1e-5  # relative improvement of the objective below which a step is the last
_MAX_STEPS = 200
_ROWS = 4096  # states in one product
_SUMMED = 512  # of them in one float32 sum: longer ones are shared out among threads, which changes the last bits
_KEPT_ENTRIES = 1 << 28  # standardised states that are kept from pass to pass (1 GB)
_PARAMETERS = 1 << 22  # weights that are solved for together


@dataclass(frozen=True)
class LinearSolution:
    """The regression with all points, and the logits of each point by one that has not seen it."""

    weights: Tensor  # (C, D), of standardised states
    bias: Tensor  # (C,)
    penalty: float
    out_of_fold: Tensor  # (N, C), float32
    loss: float
    """Mean loss out of fold."""

    def put_into(self, adaptor: Adaptor, train: Part) -> None:
        """Make an adaptor answer with this solution; the points tell how far its other filters spread."""
        with torch.no_grad():
            if not isinstance(adaptor, ExemplarAdaptor):  # matches the states themselves
                adaptor.output.weight.copy_(self.weights)
                adaptor.output.bias.copy_(self.bias)
                return
            n_classes = len(self.bias)
            exemplars, _ = adaptor.encode_quickly(train.states(slice(_ROWS)))
            others = exemplars[:, n_classes:].double().var(dim=0).sum()
            own = self.out_of_fold.double().var(dim=0).sum().to(others.device)
            ratio = float((LINEAR_SHARE * others / own).sqrt()) if own > 0 and others > 0 else 1.0
            adaptor.filters.weight[:n_classes] = ratio * self.weights
            adaptor.filters.bias[:n_classes] = ratio * self.bias
            adaptor.output.weight.zero_()
            adaptor.output.weight[:, :n_classes].fill_diagonal_(1 / ratio)
            adaptor.output.bias.zero_()


def solve_linear(
    train: Part, adaptor: Adaptor, settings: TrainingSettings, seed: int, groups: Array | None = None
) -> LinearSolution:
    """Solve for the points of a part, standardised as an adaptor does it; points of a group (N,) share a fold."""
    folds = torch.from_numpy(folds_of(train.labels.numpy(), N_FOLDS, random_generator(seed, 0, Use.FOLDS), groups))
    weights = torch.ones(len(train), dtype=torch.float64)
    if settings.class_weights is not None:
        weights = torch.tensor(settings.class_weights, dtype=torch.float64)[train.labels]
    states, labels = _Standardised(train, adaptor), train.labels
    is_seen = folds[:, None] != torch.arange(int(folds.max()) + 2)  # by all but its fold; the last has none
    shares = weights[:, None] * is_seen  # (N, K + 1)
    together = max(1, _PARAMETERS // (settings.n_classes * (states.width + 1)))
    problems = [_Regressions(states, labels, part, settings.n_classes) for part in shares.split(together, dim=1)]
    best = LinearSolution(*problems[-1].last(), math.inf, torch.zeros(len(folds), settings.n_classes), math.inf)
    n_worse = 0
    for penalty in PENALTIES:
        for problem in problems:
            problem.solve(penalty)
        logits = torch.cat([problem.logits() for problem in problems], dim=1)  # (N, K + 1, C)
        out_of_fold = logits[torch.arange(len(folds)), folds]
        log_p = torch.log_softmax(out_of_fold.double(), dim=1).gather(1, labels[:, None])[:, 0]
        loss = float(-(weights * log_p).sum() / weights.sum())
        if loss < best.loss:
            best, n_worse = LinearSolution(*problems[-1].last(), penalty, out_of_fold, loss), 0
        else:
            n_worse += 1
        if n_worse == _PATIENCE:
            break
    return best


def tuned_regression(
    states: Tensor, labels: Tensor, n_classes: int, class_weights: tuple[float, ...] | None = None
) -> tuple[Adaptor, LinearSolution]:
    """The regression alone, on states (N, D) that are standardised by dimension: as an adaptor that answers with it."""
    points = Part.whole(states, labels)
    adaptor = make_adaptor("identity", states.shape[1], n_classes, 1, torch.Generator())
    adaptor.standardise(states, per_dimension=True)
    solution = solve_linear(points, adaptor, TrainingSettings(n_classes, class_weights=class_weights), seed=0)
    solution.put_into(adaptor, points)
    return adaptor, solution


def folds_of(labels: Array, n_folds: int, rng: np.random.Generator, groups: Array | None = None) -> Array:
    """The fold of each point (N,), as many of each class, or of the groups that have it, in each as can be."""
    if groups is not None:
        labels_of_groups, numbers = as_groups(labels, groups)
        shared: Array = folds_of(labels_of_groups, n_folds, rng)[numbers]
        return shared
    folds = np.empty(len(labels), dtype=np.int64)
    first = 0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        folds[rows] = (first + np.arange(len(rows))) % n_folds
        first += len(rows)
    return folds


class _Standardised:
    """Standardised states of a part, a block at a time; kept if they are few."""

    def __init__(self, train: Part, adaptor: Adaptor) -> None:
        self.train, self.mean, self.scale = train, adaptor.mean.cpu(), adaptor.scale.cpu()
        self.width = train.hidden_states.shape[-1]
        self._kept = list(self._made()) if len(train) * self.width <= _KEPT_ENTRIES else None

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Which points, and their states."""
        start = 0
        for block in self._made() if self._kept is None else self._kept:
            yield slice(start, start + len(block)), block
            start += len(block)

    def _made(self) -> Iterator[Tensor]:
        for start in range(0, len(self.train), _ROWS):
            yield (self.train.states(slice(start, start + _ROWS)) - self.mean) / self.scale


class _Regressions:
    """M regressions on the same states, which differ in what each point counts, (N, M)."""

    def __init__(self, states: _Standardised, labels: Tensor, counts: Tensor, n_classes: int) -> None:
        self.states, self.labels, self.n_classes = states, labels, n_classes
        self.totals = counts.sum(dim=0)  # (M,)
        self.shares = (counts / self.totals).float()
        self.parameters = np.zeros(len(self.totals) * n_classes * (states.width + 1))

    def solve(self, penalty: float) -> None:
        """Minimise the mean of their objectives, each divided by its number of points, from where they are."""
        settings = {"maxiter": _MAX_STEPS, "ftol": _PRECISION, "gtol": 0.1 * _PRECISION}
        found = minimize(self._objective, self.parameters, (penalty,), "L-BFGS-B", jac=True, options=settings)
        self.parameters = found.x

    def logits(self) -> Tensor:
        """z (N, M, C) of all points by each regression."""
        weights, bias = self._split(self.parameters)
        return torch.cat([self._logits(block, weights, bias) for _, block in self.states.blocks()])

    def last(self) -> tuple[Tensor, Tensor]:
        """Weights (C, D) and bias (C,) of the last regression."""
        weights, bias = self._split(self.parameters)
        return weights[-self.n_classes :].clone(), bias[-self.n_classes :].clone()

    def _objective(self, parameters: Array, penalty: float) -> tuple[float, Array]:
        weights, bias = self._split(parameters)
        value, gradient = 0.0, torch.zeros(len(bias), self.states.width + 1, dtype=torch.float64)
        for rows, block in self.states.blocks():
            log_p = torch.log_softmax(self._logits(block, weights, bias), dim=2)  # (n, M, C)
            y = self.labels[rows, None, None].expand(-1, log_p.shape[1], 1)
            share = self.shares[rows, :, None]
            value -= float((share * log_p.gather(2, y)).double().sum())
            residual = log_p.exp_().scatter_add_(2, y, torch.full(y.shape, -1.0)).mul_(share).flatten(1)  # (n, M C)
            for part, states in zip(residual.split(_SUMMED), block.split(_SUMMED), strict=True):
                gradient[:, :-1] += part.T @ states
            gradient[:, -1] += residual.sum(dim=0)
        w = torch.from_numpy(parameters).reshape(gradient.shape)[:, :-1]
        ridge = (penalty / self.totals).repeat_interleave(self.n_classes)[:, None]
        value += float((ridge * w * w).sum()) / 2
        gradient[:, :-1] += ridge * w
        n = len(self.totals)
        return value / n, (gradient / n).reshape(-1).numpy()

    def _split(self, parameters: Array) -> tuple[Tensor, Tensor]:
        values = torch.from_numpy(parameters).float().reshape(-1, self.states.width + 1)
        return values[:, :-1], values[:, -1]

    def _logits(self, block: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        return (block @ weights.T + bias).reshape(len(block), -1, self.n_classes)
