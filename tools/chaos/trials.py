"""How the long trials are started, and where their figures go."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tools.pages import machine
from torchsdm.application import LiveModel
from torchsdm.data import LabelledStates

SIGNED = {"who": "chaos", "why": "a trial"}


def started(says: str, run: Callable[..., dict[str, Any]], **numbers: float | str) -> int:
    """Run a trial in a temporary folder with settings from the command line; print its figures, or write them.

    The exit code is 1 if the figures have something that is ``broken``.
    """
    parser = argparse.ArgumentParser(description=says.splitlines()[0])
    for name, usual in numbers.items():
        parser.add_argument(f"--{name}", type=type(usual), default=usual)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = vars(parser.parse_args())
    target = options.pop("json")
    os.environ.setdefault("TORCHSDM_CACHE", str(Path(".venv/cache").resolve()))
    with tempfile.TemporaryDirectory(prefix="chaos-") as place:
        figures = {"machine": machine(), **run(Path(place), *options.values())}
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    print(text)
    if target is not None:
        target.write_text(f"{text}\n", encoding="utf-8")
    return 1 if figures.get("broken") else 0


def make_change(live: LiveModel, change: dict[str, Any]) -> int:
    """Make a change that was sent to a service in the library; the version it makes."""
    if change["what"] == "add":
        states = np.array(change["hidden_states"], dtype=np.float32)
        return live.add(LabelledStates(states, change["labels"], change["ids"]), **SIGNED).version
    if change["what"] == "remove":
        return live.remove(change["ids"], **SIGNED).version
    if change["what"] == "relabel":
        return live.relabel(change["ids"], change["labels"], **SIGNED).version
    return live.recalibrate(**SIGNED).version
