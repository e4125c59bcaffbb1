"""Warnings that a description has are not said twice."""

from __future__ import annotations

import warnings

from torchsdm.application.describe import told_once
from torchsdm.errors import DataWarning, RegionWarning


def test_only_what_is_not_said_later_is_shown_at_once(monkeypatch):
    class Fitted:
        def warnings(self):
            return [RegionWarning("Later.")]

    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
    with told_once(Fitted()):
        for kind, text in ((RegionWarning, "Later."), (RegionWarning, "Now."), (DataWarning, "Before.")):
            warnings.warn(kind(text), stacklevel=1)
    assert shown == ["Now."]
