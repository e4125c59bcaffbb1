"""Training in rounds: splits, one round, J rounds, checkpoints, and the history of what happened.

Every estimator that trains in rounds uses this room, baselines included.
"""

from torchsdm.training.checkpoint import CURRENT, CheckpointFiles, resumable_seed, round_name
from torchsdm.training.data import (
    Part,
    TrainingData,
    TrainingSettings,
    Use,
    fingerprint,
    random_generator,
    split_of_round,
)
from torchsdm.training.history import EpochRecord, History
from torchsdm.training.round import Learner, RoundResult, RoundState, balanced_mean, best_round
from torchsdm.training.rounds import train_rounds

__all__ = [
    "CURRENT",
    "CheckpointFiles",
    "EpochRecord",
    "History",
    "Learner",
    "Part",
    "RoundResult",
    "RoundState",
    "TrainingData",
    "TrainingSettings",
    "Use",
    "balanced_mean",
    "best_round",
    "fingerprint",
    "random_generator",
    "resumable_seed",
    "round_name",
    "split_of_round",
    "train_rounds",
]
