"""Decisions over HTTP, and for agents over the Model Context Protocol."""

from torchsdm.service.app import create_app, run_service
from torchsdm.service.tools import create_tools

__all__ = [
    "create_app",
    "create_tools",
    "run_service",
]
