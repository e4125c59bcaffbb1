"""Callbacks of the loop over rounds and epochs: when to stop a round, and what to show."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from torchsdm.progress import Progress
from torchsdm.training.learner import Round, Trained


class Callback:
    """Called by ``train_rounds`` at fixed points. Methods do nothing unless a subclass overrides them."""

    def start(self) -> None:
        """Training begins."""

    def restore(self, number: int) -> tuple[Round, Mapping[str, Tensor]] | None:
        """A round that an interrupted fit left behind, and the state of its learner (empty if it is finished)."""
        return None

    def begin_round(self, current: Round) -> None:
        """A round begins, or resumes after its last epoch before an interruption."""

    def is_finished(self, current: Round) -> bool:
        """Whether a round should end now."""
        return False

    def after_epoch(self, current: Round, learner: Trained) -> None:
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
    """A bar of the epochs of all rounds on a terminal; nothing in a pipe."""

    def __init__(self, n_rounds: int, max_epochs: int) -> None:
        self.n_rounds, self.max_epochs = n_rounds, max_epochs

    def start(self) -> None:
        """Show an empty bar."""
        self._bar = Progress(self.n_rounds * self.max_epochs, "epoch")

    def begin_round(self, current: Round) -> None:
        """Skip the epochs that were trained before an interruption."""
        self._bar.skip(current.epoch)

    def after_epoch(self, current: Round, learner: Trained) -> None:
        """Show the epoch and its losses."""
        self._bar.set_description(f"round {current.number + 1}/{self.n_rounds}", refresh=False)
        self._bar.set_postfix(
            loss=f"{current.losses[-1]:.4f}",
            best=f"{current.best_loss:.4f}",
            **{name: f"{value:.3f}" for name, value in current.records[-1].shown.items()},
            refresh=False,
        )
        self._bar.update()

    def after_round(self, finished: Round) -> None:
        """Skip the epochs that patience spared."""
        self._bar.skip(self.max_epochs - finished.epoch)

    def end(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
