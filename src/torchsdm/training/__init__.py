"""Training in rounds: splits, learners, one loop over J rounds, checkpoints, and the training history.

Every estimator that trains in rounds uses this room, baselines included.
"""

from torchsdm.training.callbacks import Callback
from torchsdm.training.checkpoint import remove_checkpoint, seed_of_fit, stored_epochs
from torchsdm.training.data import (
    Part,
    TrainingData,
    TrainingSettings,
    Use,
    certification_split,
    fingerprint,
    random_generator,
    split_of_round,
)
from torchsdm.training.history import EpochRecord, History, LossRecord
from torchsdm.training.learner import Learner, Round, Spread, best_round, part_of
from torchsdm.training.rounds import Run, RunningRound, Training, train_rounds
from torchsdm.training.sdm_learner import AdaptorLearner, SDMLearner, balanced_mean

__all__ = [
    "AdaptorLearner",
    "Callback",
    "EpochRecord",
    "History",
    "Learner",
    "LossRecord",
    "Part",
    "Round",
    "Run",
    "RunningRound",
    "SDMLearner",
    "Spread",
    "Training",
    "TrainingData",
    "TrainingSettings",
    "Use",
    "balanced_mean",
    "best_round",
    "certification_split",
    "fingerprint",
    "part_of",
    "random_generator",
    "remove_checkpoint",
    "seed_of_fit",
    "split_of_round",
    "stored_epochs",
    "train_rounds",
]
