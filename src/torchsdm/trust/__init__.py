"""What we promise beyond the paper: certificate, lanes, drift guard, spot checks."""

from torchsdm.trust._path import points_needed
from torchsdm.trust.certificate import Certificate, ScoredSample, can_certify, certify
from torchsdm.trust.certified import CertifiedClassifier
from torchsdm.trust.choice import AlphaChoice, AlphaCurve, Prices
from torchsdm.trust.control import choose_control
from torchsdm.trust.draws import row_digests, uniform_of
from torchsdm.trust.guard import DriftGuard, GuardReset, Watcher
from torchsdm.trust.lanes import LaneRule, Reliability, SignalSample, demoted, familiarity_of, is_familiar
from torchsdm.trust.sources import SourceGuards, SourceReset, load_guard
from torchsdm.trust.spot_check import CheckedGroup, SpotCheck

__all__ = [
    "AlphaChoice",
    "AlphaCurve",
    "Certificate",
    "CertifiedClassifier",
    "CheckedGroup",
    "DriftGuard",
    "GuardReset",
    "LaneRule",
    "Prices",
    "Reliability",
    "ScoredSample",
    "SignalSample",
    "SourceGuards",
    "SourceReset",
    "SpotCheck",
    "Watcher",
    "can_certify",
    "certify",
    "choose_control",
    "demoted",
    "familiarity_of",
    "is_familiar",
    "load_guard",
    "points_needed",
    "row_digests",
    "uniform_of",
]
