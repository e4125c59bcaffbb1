"""Where the time of ``sdm train`` goes: 3,000 short texts whose hidden states are cached, one thread.

No step but arithmetic should take more than a twentieth of the command. Importing torch has no such goal: the
arithmetic is torch's, so nothing can be trained without it. The other libraries keep the goal, because which of them
are imported is our choice. Neither time grows with the number of texts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import steps
from measure import Figure, judged
from problems import ENCODER

from torchsdm.application.demo import read_films

N = 3_000
STEPS = {
    "epochs": "torchsdm.training:SDMLearner.epoch",
    "beginning a round": "torchsdm.training:SDMLearner.__init__",
    "reading texts and cached states": "torchsdm.application:read_training_parts",
    "checkpoints": "torchsdm.training.callbacks:Checkpointing.after_epoch",
    "the certificate and its advice": "torchsdm.estimators:SDMClassifier._certify",
    "saving": "torchsdm.estimators:SDMClassifier.save",
}
WITHOUT_GOAL = ("epochs", steps.TORCH)


def run() -> Iterator[Figure]:
    """The share of each step in the CPU time of the whole command."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, **one_thread}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installation has its bytecode
    with tempfile.TemporaryDirectory() as folder:
        texts, model, times = (Path(folder) / name for name in ("texts.jsonl", "model", "times.json"))
        reviews = read_films(n_verdicts=N)["verdicts"]
        rows = ({"text": one.text, "label": one.label, "id": one.id} for one in reviews)
        texts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        words = ["train", str(texts), "-m", ENCODER, "--alpha", "0.8", "--seed", "0", "--overwrite", "-o", str(model)]
        command = [sys.executable, steps.__file__, str(times), json.dumps(STEPS), *words]
        for _ in range(2):  # the first time fills the cache
            subprocess.run(command, check=True, capture_output=True, env=environment)
        seconds = json.loads(times.read_text(encoding="utf-8"))
    total = sum(seconds.values())
    for step in (*STEPS, steps.TORCH, steps.LIBRARIES, steps.OURS, steps.REST):
        work = f"sdm train, {N:,} texts with cached states: {step}"
        at_most = None if step in WITHOUT_GOAL else 0.05
        time = seconds[step]
        yield judged(work, "the whole command", time / total, at_most, work_seconds=time, yardstick_seconds=total)
