"""What we promise beyond the paper: certificate, lanes, drift guard."""

from torchsdm.trust.guard import DriftGuard, GuardReset

__all__ = ["DriftGuard", "GuardReset"]
