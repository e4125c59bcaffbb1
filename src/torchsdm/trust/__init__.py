"""What we promise beyond the paper: certificate, lanes, drift guard."""

from torchsdm.trust.certificate import Certificate, GroupCheck, ScoredSample, can_certify, certify, points_needed
from torchsdm.trust.certified import CertifiedClassifier
from torchsdm.trust.guard import DriftGuard, GuardReset
from torchsdm.trust.lanes import LaneRule, SignalSample, demoted
from torchsdm.trust.reliability import Reliability

__all__ = [
    "Certificate",
    "CertifiedClassifier",
    "DriftGuard",
    "GroupCheck",
    "GuardReset",
    "LaneRule",
    "Reliability",
    "ScoredSample",
    "SignalSample",
    "can_certify",
    "certify",
    "demoted",
    "points_needed",
]
