"""The first use of an installation, before Python has cached any of its modules, against every other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from measure import Figure, compare
from problems import ENCODER

import torchsdm
from torchsdm.application.demo import read_films

N, N_TEXTS, WIDTH = 3_000, 300, 384
SAY = "; import sys, time; print(time.time() - float(sys.argv[1]))"  # since the process was asked for
FIT = f"""
import sys, warnings, numpy as np
from torchsdm import SDMClassifier
warnings.simplefilter("ignore")
random = np.random.default_rng(0)
y = random.integers(0, 2, {N})
X = random.normal(size=({N}, {WIDTH})).astype(np.float32) + 0.1 * y[:, None].astype(np.float32)
classifier = SDMClassifier(random_state=0).fit(X, y)
if len(sys.argv) > 2:
    classifier.save(sys.argv[2])
classifier.decide(X[:5]){SAY}
"""
DECIDE = f"""
import sys, numpy as np
from torchsdm import SDMClassifier
SDMClassifier.load(sys.argv[2]).decide(np.zeros((5, {WIDTH}), dtype=np.float32)){SAY}
"""
TRAIN = f"from torchsdm.cli.command import sdm; import sys; sdm(sys.argv[2:], standalone_mode=False){SAY}"


def run() -> Iterator[Figure]:
    """A saved model's first decision, fitting to states, and training on texts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, texts, used = folder / "model", folder / "texts.jsonl", _installed(folder / "used")
        rows = [{"text": one.text, "label": one.label} for one in read_films(n_verdicts=N_TEXTS)["verdicts"]]
        texts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        _seconds(FIT, (str(model),), used)
        words = ("train", str(texts), "-m", ENCODER, "--alpha", "0.8", "--overwrite", "-o", str(folder / "trained"))
        for work, program, arguments in (
            ("load a model and decide", DECIDE, (str(model),)),
            (f"fit to {N:,} states and decide", FIT, ()),
            (f"sdm train on {N_TEXTS} texts", TRAIN, words),
        ):

            def first(program: str = program, arguments: tuple[str, ...] = arguments) -> float:
                with tempfile.TemporaryDirectory() as empty:
                    return _seconds(program, arguments, _installed(Path(empty) / "new"))

            def later(program: str = program, arguments: tuple[str, ...] = arguments) -> float:
                return _seconds(program, arguments, used)

            named = f"{work}, the first time after an installation"
            figure = compare(named, first, "every other time", later, repeats=3, clock=lambda measured: measured())
            extra = (figure.work_seconds or 0.0) - (figure.yardstick_seconds or 0.0)
            yield replace(figure, note=f"{extra:+.1f} s to {figure.yardstick_seconds:.1f} s until the last decision")


def _installed(folder: Path) -> Path:
    """The package as it is after an installation: with its libraries, and nothing that is made at first use."""
    shutil.copytree(Path(torchsdm.__file__).parent, folder / "torchsdm", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _seconds(program: str, words: tuple[str, ...], package: Path) -> float:
    """Until a program has its result, with the package in a folder."""
    with tempfile.TemporaryDirectory() as empty:
        places = {"PYTHONPATH": str(package), "TORCHSDM_CACHE": f"{empty}/states"}
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        command = [sys.executable, "-c", program, str(time.time()), *words]
        done = subprocess.run(command, env={**environment, **places}, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])
