"""What we promise beyond the paper: certificate, lanes, drift guard."""

from torchsdm.trust.certificate import Certificate, GroupCheck, ScoredSample, certify

__all__ = ["Certificate", "GroupCheck", "ScoredSample", "certify"]
