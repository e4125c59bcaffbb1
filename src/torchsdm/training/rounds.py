"""The J rounds of a fit, with progress and checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from tqdm.auto import tqdm

from torchsdm.training.checkpoint import Checkpoints
from torchsdm.training.data import TrainingData, TrainingSettings
from torchsdm.training.round import RoundResult, RoundState, train_round


def train_rounds(
    data: TrainingData,
    settings: TrainingSettings,
    seed: int,
    n_rounds: int,
    *,
    checkpoint: str | Path | None = None,
    data_fingerprint: str = "",
    verbose: bool = False,
) -> list[RoundResult]:
    """Train J rounds; with a checkpoint directory, go on from whatever an interrupted call left there.

    ``verbose`` shows a progress bar on a terminal, and nothing in a pipe.
    """
    store = None
    if checkpoint is not None:
        store = Checkpoints(checkpoint, _fingerprint(settings, seed, data_fingerprint))
    results = []
    with tqdm(total=n_rounds * settings.max_epochs, unit="epoch", disable=None if verbose else True) as bar:
        for number in range(n_rounds):
            result = store.load_round(number) if store else None
            if result is None:
                state = store.load_epoch(number) if store else None
                if state is not None:
                    bar.update(state.epoch)
                result = train_round(data, settings, seed, number, state, _after_epoch(bar, store, seed, n_rounds))
                if store:
                    store.save_round(result, seed)
            results.append(result)
            bar.update((number + 1) * settings.max_epochs - bar.n)  # epochs that patience or a checkpoint saved
    return results


def _after_epoch(bar: tqdm[None], store: Checkpoints | None, seed: int, n_rounds: int) -> Callable[[RoundState], None]:
    def report(state: RoundState) -> None:
        if store:
            store.save_epoch(state, seed)
        record = state.records[-1]
        bar.set_description(f"round {state.number + 1}/{n_rounds}", refresh=False)
        bar.set_postfix(
            loss=f"{record.calibration_balanced_loss:.4f}",
            best=f"{state.best_loss:.4f}",
            accuracy=f"{record.calibration_balanced_accuracy:.3f}",
            refresh=False,
        )
        bar.update()

    return report


def _fingerprint(settings: TrainingSettings, seed: int, data_fingerprint: str) -> str:
    """What must be the same for a checkpoint to be continued; the block size changes no answer."""
    fixed = {**dataclasses.asdict(settings), "block_size": None, "seed": seed, "data": data_fingerprint}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()
