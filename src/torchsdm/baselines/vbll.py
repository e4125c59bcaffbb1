"""Variational Bayesian last layers (Harrison et al., 2024) over hidden states, as in the paper's comparison (A.8)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from torchsdm.arithmetic import canonical_sum, exact_sqrt, invariant_linear
from torchsdm.baselines.cross_entropy import RoundsClassifier
from torchsdm.core import Decisions, ExemplarAdaptor
from torchsdm.errors import import_extra
from torchsdm.training import Learner, Use, random_generator
from torchsdm.validation import (
    Array,
    ArrayLike,
    RandomState,
    check_alphas,
    check_choice,
    check_hidden_states,
    check_positive,
    require_fitted,
)

KINDS = ("discriminative", "generative")
WEIGHT_DECAY = 1e-4  #: of AdamW, for all but the last layer
MAX_GRADIENT_NORM = 1.0
N_DRAWS = 512  #: averaged in a discriminative predictive

_BLOCK_ELEMENTS = 1 << 22  # float64 terms of the last layer in memory at once (32 MB)


@dataclass(eq=False, repr=False)
class VBLLClassifier(RoundsClassifier):
    """A multi-layer perceptron with a variational Bayesian last layer from the ``vbll`` package.

    The network is an input linear layer, two core linear layers, each followed by ELU, and the last layer, trained on
    that layer's own bound with the KL term weighted by

        regularization_factor / |D_tr|.

    Training keeps the epoch of all rounds with the lowest mean of -log p(y | x) over the calibration part. An input is
    admitted if p(yhat | x) >= alpha.

    Parameters
    ----------
    kind : {'discriminative', 'generative'}
        ``vbll.DiscClassification`` or ``vbll.GenClassification``, both with diagonal covariances.
    alpha : float or sequence of float, default=0.95
        The smallest predictive probability that is admitted, in (0.5, 1].
    regularization_factor : float, default=1.0
        The paper also tries 50.
    n_hidden : int, default=795
        Width of every layer; the default has about as many weights as an adaptor with 1000 filters.
    n_rounds, max_epochs, batch_size, learning_rate, random_state, device
        As in ``CrossEntropyClassifier``. The optimiser is AdamW, with gradients clipped to norm 1 and a weight decay of
        1e-4 on all but the last layer.
    standardization, calibration_size, patience, checkpoint, verbose, backend
        As in ``CrossEntropyClassifier``. A ``fit`` that resumes may have another ``alpha``: it changes no weights.

    Notes
    -----
    The discriminative predictive is a mean over draws of the logits. The package makes 20 new draws in every call; here
    the draws are part of the model and the same for every input, so an answer is the same in any batch. An error shared
    by all inputs would shift a whole class, so there are many draws, spread evenly (``normal_draws``).
    """

    _width: ClassVar[str] = "n_hidden"

    kind: str = "discriminative"
    alpha: float | Sequence[float] = 0.95
    regularization_factor: float = 1.0
    n_hidden: int = 795
    n_rounds: int = 10
    max_epochs: int = 200
    batch_size: int = 50
    learning_rate: float = 1e-5
    random_state: RandomState = None
    device: str | None = None

    def decide(self, X: ArrayLike) -> Decisions:
        """Decide on each input: the label, and at which alphas its predictive probability is high enough."""
        require_fitted(self, "network_")
        probabilities = self._probabilities(check_hidden_states(self, X, "VBLLClassifier.decide", reset=False))
        admitted_at = probabilities.max(axis=1)[:, None] >= self.alphas_  # (N, 1) >= (A,) -> (N, A)
        return Decisions.of_probabilities(
            self.classes_, self.alphas_.tolist(), _log(probabilities), probabilities, admitted_at
        )

    def predict_proba(self, X: ArrayLike) -> Array:
        """The predictive probabilities p(y | x) (N, C)."""
        return self.decide(X).probabilities

    def _learner(self) -> tuple[type[Learner], dict[str, Any]]:
        return VBLLLearner, {"kind": self.kind, "regularization_factor": float(self.regularization_factor)}

    def _probabilities(self, states: Tensor) -> Array:
        return self.network_.probabilities(self.network_.encode_exactly(states)).cpu().numpy()

    def _logits(self, states: Tensor) -> Array:
        return _log(self._probabilities(states))

    def _check_parameters(self, caller: str) -> None:
        super()._check_parameters(caller)
        check_choice(self.kind, KINDS, "kind", caller)
        check_positive(self.regularization_factor, "regularization_factor", caller)
        self.alphas_ = np.sort(np.array(check_alphas(self.alpha, caller)))


class VBLLNetwork(nn.Module):
    """Input linear layer, two core linear layers with ELU, and a variational last layer.

    The input layer and the first core layer come from an ``ExemplarAdaptor``, with its standardisation and its pass
    that gives the same bits in any batch. Initial weights are torch's, from its global generator.
    """

    draws: Tensor

    def __init__(
        self, n_inputs: int, n_classes: int, n_hidden: int, kind: str, regularization_weight: float, draws: Array
    ) -> None:
        super().__init__()
        self.kind = kind
        self.input = ExemplarAdaptor(n_inputs, n_classes=n_hidden, n_filters=n_hidden)
        self.core = nn.Linear(n_hidden, n_hidden, dtype=torch.float32)
        vbll = import_extra("vbll", "baselines", "VBLLClassifier")
        layer = vbll.DiscClassification if kind == "discriminative" else vbll.GenClassification
        # the generative layer supports only diagonal covariances
        self.last = layer(n_hidden, n_classes, regularization_weight, parameterization="diagonal")
        self.register_buffer("draws", torch.from_numpy(draws))  # (S, C)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Features (N, H) of hidden states (N, D), the input of the last layer."""
        hidden = nn.functional.elu(self.input(hidden_states)[1])
        return nn.functional.elu(self.core(hidden))

    @torch.no_grad()
    def encode_exactly(self, hidden_states: Tensor) -> Tensor:
        """The same in float64, rounded to float32 between layers; a row has the same bits in any batch."""
        hidden = _elu(self.input.encode_exactly(hidden_states)[1])
        return _elu(invariant_linear(hidden, self.core.weight, self.core.bias))

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Tensor:
        """The last layer's predictive p(y | x) (N, C) in float64.

        - discriminative: mean_s softmax(m + sqrt(v) e_s) over draws e_s of N(0, I), where the logits W h + noise have
          mean m_c = E[W_c] h + E[noise_c] and variance v_c = sum_k Var[W_ck] h_k^2 + Var[noise_c];
        - generative: softmax_c(log N(h; E[mu_c], Var[mu_c] + Var[noise])).
        """
        rows = max(1, _BLOCK_ELEMENTS // (self.draws.shape[1] * max(features.shape[1], self.draws.shape[0])))
        of_block = self._discriminative if self.kind == "discriminative" else self._generative
        return torch.cat([of_block(h.double().unsqueeze(1)) for h in features.split(rows)])  # h is (N, 1, H)

    def _discriminative(self, h: Tensor) -> Tensor:
        weights, noise = self.last.W(), self.last.noise()  # (C, H), (C,)
        mean = canonical_sum(h * weights.mean) + noise.mean
        variance = canonical_sum(h.square() * weights.var) + noise.var
        logits = mean.unsqueeze(1) + exact_sqrt(variance).unsqueeze(1) * self.draws  # (N, 1, C), (S, C) -> (N, S, C)
        return canonical_sum(logits.softmax(dim=-1).transpose(1, 2)) / len(self.draws)

    def _generative(self, h: Tensor) -> Tensor:
        mean, variance = self.last.mu().mean, self.last.mu().var.double() + self.last.noise().var  # (C, H)
        log_likelihood = -0.5 * canonical_sum((h - mean).square() / variance + variance.log())  # up to a constant
        return log_likelihood.softmax(dim=-1)


def normal_draws(n_classes: int, rng: np.random.Generator) -> Array:
    """Draws e_s of N(0, I), (S, C): scrambled Sobol points u_s through the inverse normal distribution function.

    The mean of a smooth function over them is closer to its expectation than over as many independent draws.
    """
    engine = torch.quasirandom.SobolEngine(n_classes, scramble=True, seed=int(rng.integers(2**63)))
    uniforms = engine.draw(N_DRAWS, dtype=torch.float64) + 2.0**-31  # 30 bits each: 0 becomes the middle of a cell
    return torch.special.ndtri(uniforms).numpy()


class VBLLLearner(Learner):
    """A round of AdamW on the last layer's own bound.

    The package draws initial weights, and samples that the bound does not use, from torch's global generators; their
    state is restored afterwards.
    """

    network: VBLLNetwork

    def __init__(self, *of_every_learner: Any, kind: str, regularization_factor: float) -> None:
        super().__init__(*of_every_learner)
        train, settings, seed, number = self.train, self.settings, self.seed, self.number
        shape = train.hidden_states.shape[-1], settings.n_classes, settings.n_filters
        draws = normal_draws(settings.n_classes, random_generator(seed, number, Use.VBLL_DRAWS))
        with self._own_randomness():
            torch.default_generator.manual_seed(int(random_generator(seed, number, Use.VBLL_WEIGHTS).integers(2**63)))
            self.network = VBLLNetwork(*shape, kind, regularization_factor / len(train), draws)
        per_dimension = settings.standardization == "per_dimension"
        self.network.input.standardise(train.hidden_states, train.rows, per_dimension=per_dimension)
        self.network.to(self.device)
        trunk = [*self.network.input.parameters(), *self.network.core.parameters()]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": trunk, "weight_decay": WEIGHT_DECAY},
                {"params": list(self.network.last.parameters()), "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
        )

    def _train(self, epoch: int) -> dict[str, Any]:
        """Train an epoch, and measure the mean of -log p(y | x) over the calibration part after it."""
        with self._own_randomness():
            for batch in self.batches(epoch, Use.VBLL_SHUFFLE):
                self._step(self.train.states(batch), self.train.labels[batch], epoch)
        with torch.no_grad():
            features = [self.network(block.to(self.device)) for block in self.calibration.blocks()]
        probabilities = torch.cat([self.network.probabilities(block) for block in features]).cpu()
        true = probabilities.gather(1, self.calibration.labels.unsqueeze(1)).numpy()
        return {"calibration_loss": float(-_log(true).mean())}

    def _own_randomness(self) -> AbstractContextManager[None]:
        return torch.random.fork_rng([self.device] if self.device.type == "cuda" else [])

    def _step(self, hidden_states: Tensor, labels: Tensor, epoch: int) -> None:
        try:
            features = self.network(hidden_states.to(self.device))
            loss = self.network.last(features).train_loss_fn(labels.to(self.device))
        except ValueError as error:  # torch's distributions reject NaN
            what = f"The weights became NaN in epoch {epoch} of round {self.number + 1}."
            raise self.settings.divergence(what) from error
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()


def _elu(values: Tensor) -> Tensor:
    """ELU in float64 with numpy, whose functions give a value the same bits anywhere in an array."""
    array = values.double().cpu().numpy()
    return torch.from_numpy(np.where(array > 0, array, np.expm1(np.minimum(array, 0.0)))).to(values.device)


def _log(probabilities: Array) -> Array:
    """Logarithms, finite even where a probability is 0."""
    return np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
