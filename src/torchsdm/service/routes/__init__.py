"""What can be asked, by what it is about; each module has a router."""

from torchsdm.service.routes import changes, decisions, guard, health, model

__all__ = ["changes", "decisions", "guard", "health", "model"]
