"""Callbacks of the loop over rounds and epochs: when to stop a round, and what to show."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from tqdm.auto import tqdm

from torchsdm.training.learner import Learner, Round


class Callback:
    """Called by ``train_rounds`` at fixed points. Methods do nothing unless a subclass overrides them."""

    def start(self) -> None:
        """Training begins."""

    def restore(self, number: int) -> tuple[Round, Mapping[str, Tensor]] | None:
        """A round that an interrupted fit left behind, and the state of its learner (empty if it is finished)."""
        return None

    def is_finished(self, current: Round) -> bool:
        """Whether a round should end now."""
        return False

    def after_epoch(self, current: Round, learner: Learner) -> None:
        """An epoch is finished."""

    def after_round(self, finished: Round) -> None:
        """A round is finished, now or before an interruption."""

    def end(self) -> None:
        """Training is over, whether it succeeded or failed."""


class Patience(Callback):
    """Ends a round after ``n_epochs`` epochs without a smaller calibration loss."""

    def __init__(self, n_epochs: int) -> None:
        self.n_epochs = n_epochs

    def is_finished(self, current: Round) -> bool:
        """Whether the best epoch is too long ago."""
        return current.epoch > 0 and current.epoch - current.best_epoch >= self.n_epochs


class ProgressBar(Callback):
    """A bar of epochs on a terminal; nothing in a pipe."""

    def __init__(self, n_rounds: int, max_epochs: int) -> None:
        self.n_rounds, self.max_epochs = n_rounds, max_epochs

    def start(self) -> None:
        """Show an empty bar."""
        self._bar = tqdm(total=self.n_rounds * self.max_epochs, unit="epoch", disable=None)

    def after_epoch(self, current: Round, learner: Learner) -> None:
        """Show the epoch and its losses."""
        self._bar.set_description(f"round {current.number + 1}/{self.n_rounds}", refresh=False)
        self._bar.set_postfix(
            loss=f"{current.losses[-1]:.4f}",
            best=f"{current.best_loss:.4f}",
            **{name: f"{value:.3f}" for name, value in current.records[-1].shown.items()},
            refresh=False,
        )
        self._move_to(current.number * self.max_epochs + current.epoch)

    def after_round(self, finished: Round) -> None:
        """Count the epochs that patience or a checkpoint skipped."""
        self._move_to((finished.number + 1) * self.max_epochs)

    def end(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()

    def _move_to(self, n_epochs: int) -> None:
        self._bar.update(n_epochs - self._bar.n)
