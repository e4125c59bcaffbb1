"""What we promise beyond the paper: certificate, lanes, drift guard, spot checks."""

from torchsdm.trust._path import UNLABELLED, points_needed
from torchsdm.trust.asking import Floor
from torchsdm.trust.certificate import Certificate, ScoredSample, can_certify, certify
from torchsdm.trust.certified import CertifiedClassifier
from torchsdm.trust.choice import AlphaChoice, AlphaCurve, Prices
from torchsdm.trust.control import choose_control
from torchsdm.trust.draws import row_digests, uniform_of
from torchsdm.trust.guard import DriftGuard, GuardReset
from torchsdm.trust.lanes import LaneRule, Reliability, SignalSample, demoted, familiarity_of, is_familiar
from torchsdm.trust.spot_check import CheckedGroup, SpotCheck

__all__ = [
    "UNLABELLED",
    "AlphaChoice",
    "AlphaCurve",
    "Certificate",
    "CertifiedClassifier",
    "CheckedGroup",
    "DriftGuard",
    "Floor",
    "GuardReset",
    "LaneRule",
    "Prices",
    "Reliability",
    "ScoredSample",
    "SignalSample",
    "SpotCheck",
    "can_certify",
    "certify",
    "choose_control",
    "demoted",
    "familiarity_of",
    "is_familiar",
    "points_needed",
    "row_digests",
    "uniform_of",
]
