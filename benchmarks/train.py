"""Where the time of ``sdm train`` goes: 3,000 short texts whose hidden states are cached, one thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import Figure, judged
from problems import ENCODER

from torchsdm.experiments.demonstration import read_films

N = 3_000
STEPS = {  # by the end of a module's path and the name of a function; none is called within another
    "epochs": ("training/sdm_learner.py", "epoch"),
    "the first optimiser of a process": ("training/sdm_learner.py", "__init__"),
    "reading texts and cached states": ("application/training.py", "read_training_parts"),
    "checkpoints": ("training/checkpoint.py", "after_epoch"),
    "the certificate and its advice": ("estimators/_trust.py", "_certify"),
    "saving": ("estimators/_saving.py", "save"),
}
ARITHMETIC = ("epochs",)
PROGRAM = """
import cProfile, json, sys, time
profile = cProfile.Profile(time.thread_time)
start = time.thread_time()
try:
    profile.runcall(lambda: __import__("torchsdm.cli").cli.main())
except SystemExit:
    pass
total = time.thread_time() - start
profile.create_stats()
times = [(file, name, cumulative) for (file, _, name), (_, _, _, cumulative, _) in profile.stats.items()]
json.dump({"total": total, "times": [one for one in times if "torchsdm" in one[0]]}, open(sys.argv[-1] + ".json", "w"))
"""


def run() -> Iterator[Figure]:
    """The share of each step in the CPU time of the whole command, profiled."""
    with tempfile.TemporaryDirectory() as folder:
        texts, model = Path(folder) / "texts.jsonl", Path(folder) / "model"
        reviews = read_films(n_verdicts=N)["verdicts"]
        rows = ({"text": one.text, "label": one.label, "id": one.id} for one in reviews)
        texts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        words = ["train", str(texts), "-m", ENCODER, "--alpha", "0.8", "--seed", "0", "--overwrite", "-o", str(model)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        for _ in range(2):  # the first time fills the cache
            subprocess.run([sys.executable, "-c", PROGRAM, *words], check=True, capture_output=True, env=environment)
        found = json.loads(Path(f"{model}.json").read_text(encoding="utf-8"))
    total = found["total"]
    seconds = {
        step: sum(time for file, name, time in found["times"] if file.endswith(path) and name == function)
        for step, (path, function) in STEPS.items()
    }
    seconds["imports and everything else"] = total - sum(seconds.values())
    for step, time in seconds.items():
        work = f"sdm train, {N:,} texts with cached states: {step}"
        at_most = None if step in ARITHMETIC else 0.05
        yield judged(work, "the whole command", time / total, at_most, work_seconds=time, yardstick_seconds=total)
