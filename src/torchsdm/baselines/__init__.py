"""The estimators that the paper compares against, and the ones a user would pick today, behind one interface."""

from torchsdm.baselines.base import LogitModel, SelectiveClassifier
from torchsdm.baselines.certified import CertifiedScore, RiskControlledAbstention, negative_energy
from torchsdm.baselines.conformal import APS, RAPS
from torchsdm.baselines.cross_entropy import CrossEntropyClassifier
from torchsdm.baselines.logistic import LogisticModel, TunedLogisticModel
from torchsdm.baselines.neighbors import (
    CalibratedThreshold,
    CosineNeighborVote,
    MahalanobisThreshold,
    NearestNeighborThreshold,
)
from torchsdm.baselines.sdm_rules import RULES, SDMRule
from torchsdm.baselines.softmax import NoReject, SoftmaxThreshold, TemperatureScaling
from torchsdm.baselines.vbll import VBLLClassifier

__all__ = [
    "APS",
    "RAPS",
    "RULES",
    "CalibratedThreshold",
    "CertifiedScore",
    "CosineNeighborVote",
    "CrossEntropyClassifier",
    "LogisticModel",
    "LogitModel",
    "MahalanobisThreshold",
    "NearestNeighborThreshold",
    "NoReject",
    "RiskControlledAbstention",
    "SDMRule",
    "SelectiveClassifier",
    "SoftmaxThreshold",
    "TemperatureScaling",
    "TunedLogisticModel",
    "VBLLClassifier",
    "negative_energy",
]
