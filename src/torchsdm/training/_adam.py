"""Adam, without the second that the first optimiser of ``torch.optim`` takes in every process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


class Optimizer(Protocol):
    """What training needs of an optimiser, ours or one of torch's."""

    def zero_grad(self) -> None:
        """Forget the gradients."""
        ...

    def step(self) -> Any:
        """Change the parameters by their gradients."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Under 'state', the tensors of each parameter by its number."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state."""
        ...


class Adam:
    """Adam by torch's fused kernel, to the bit what ``torch.optim.Adam(parameters, lr, fused=True)`` does.

    The first use of a class of ``torch.optim`` imports torch's compiler, whether it is needed or not.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        self.parameters, self.lr = list(parameters), lr
        self.state = {
            number: {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
            for number, parameter in enumerate(self.parameters)
        }

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change the parameters by their gradients, which all must have."""
        weights: list[Tensor] = [parameter.detach() for parameter in self.parameters]
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        steps, means, squares = (self._all(name) for name in ("step", "exp_avg", "exp_avg_sq"))
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            weights,
            gradients,
            means,
            squares,
            [],  # of amsgrad
            steps,
            lr=self.lr,
            beta1=_BETA_1,
            beta2=_BETA_2,
            weight_decay=0.0,
            eps=_EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Under 'state', the tensors of each parameter by its number, as torch names them."""
        return {"state": self.state}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state."""
        for number, tensors in state_dict["state"].items():
            for name, tensor in tensors.items():
                self.state[number][name].copy_(tensor)

    def _all(self, name: str) -> list[Tensor]:
        return [one[name] for one in self.state.values()]
