"""Decisions over HTTP."""

from torchsdm.service.app import create_app, run_service

__all__ = [
    "create_app",
    "run_service",
]
