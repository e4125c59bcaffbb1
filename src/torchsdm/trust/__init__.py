"""What we promise beyond the paper: certificate, lanes, drift guard."""

from torchsdm.trust.certificate import Certificate, GroupCheck, ScoredSample, certify
from torchsdm.trust.certified import CertifiedClassifier
from torchsdm.trust.guard import DriftGuard, GuardReset

__all__ = ["Certificate", "CertifiedClassifier", "DriftGuard", "GroupCheck", "GuardReset", "ScoredSample", "certify"]
