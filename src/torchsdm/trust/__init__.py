"""What we promise beyond the paper: certificate, lanes, drift guard, spot checks."""

from torchsdm.trust._path import UNLABELLED, points_needed
from torchsdm.trust.asking import Floor
from torchsdm.trust.certificate import Certificate, ScoredSample, can_certify, certify
from torchsdm.trust.certified import CertifiedClassifier
from torchsdm.trust.choice import AlphaChoice, AlphaCurve, Prices
from torchsdm.trust.control import choose_control
from torchsdm.trust.draws import row_digests, uniform_of
from torchsdm.trust.guard import DriftGuard, GuardReset, Watcher
from torchsdm.trust.keys import keys_of
from torchsdm.trust.lanes import LaneRule, Reliability, SignalSample, demoted, familiarity_of, is_familiar
from torchsdm.trust.ledger import (
    MOST_KEYS,
    Ledger,
    Look,
    current_ledger,
    keep_ledger,
    separate_ledger,
    share_rows,
)
from torchsdm.trust.sources import SourceGuards, SourceReset, load_guard
from torchsdm.trust.spot_check import CheckedGroup, SpotCheck

__all__ = [
    "MOST_KEYS",
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
    "Ledger",
    "Look",
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
    "current_ledger",
    "demoted",
    "familiarity_of",
    "is_familiar",
    "keep_ledger",
    "keys_of",
    "load_guard",
    "points_needed",
    "row_digests",
    "separate_ledger",
    "share_rows",
    "uniform_of",
]
