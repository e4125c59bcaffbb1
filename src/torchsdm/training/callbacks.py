"""Callbacks of the loop over rounds and epochs, and the one that shows where it is."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from tqdm.auto import tqdm

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


class ProgressBar(Callback):
    """A bar of the epochs of all rounds on a terminal; nothing in a pipe."""

    def __init__(self, n_rounds: int, max_epochs: int) -> None:
        self.n_rounds, self.max_epochs = n_rounds, max_epochs

    def start(self) -> None:
        """Show an empty bar."""
        self._bar = tqdm(total=self.n_rounds * self.max_epochs, unit="epoch", disable=None)

    def begin_round(self, current: Round) -> None:
        """Skip the epochs that were trained before an interruption."""
        self._skip(current.epoch)

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
        self._skip(self.max_epochs - finished.epoch)

    def end(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()

    def _skip(self, n: int) -> None:
        """Move on by n without work: rate and remaining time are those of the work done now."""
        if not self._bar.disable:
            self._bar.n += n
            self._bar.last_print_n += n
            self._bar.initial += n  # the rate is (n - initial) / elapsed
            self._bar.refresh()
