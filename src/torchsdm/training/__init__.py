"""Training: the linear start; and rounds, with their splits, learners, checkpoints and history.

Every estimator that trains uses this room, baselines included.
"""

from torchsdm.training.callbacks import Callback, remove_checkpoint, seed_of_fit, stored_epochs
from torchsdm.training.data import (
    Part,
    TrainingData,
    TrainingSettings,
    Use,
    certification_split,
    fingerprint,
    random_generator,
    split_of_round,
    stratified_split,
)
from torchsdm.training.history import EpochRecord, History, LossRecord
from torchsdm.training.learner import (
    AdaptorLearner,
    Learner,
    Round,
    SDMLearner,
    Spread,
    balanced_mean,
    best_round,
    epoch_summary,
    initial_adaptor,
    part_of,
)
from torchsdm.training.linear import solve_linear, tuned_regression
from torchsdm.training.rounds import Run, RunningRound, Training, train_rounds

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
    "epoch_summary",
    "fingerprint",
    "initial_adaptor",
    "part_of",
    "random_generator",
    "remove_checkpoint",
    "seed_of_fit",
    "solve_linear",
    "split_of_round",
    "stored_epochs",
    "stratified_split",
    "train_rounds",
    "tuned_regression",
]
