"""Kill the driver of a job on Ray again and again: python ../cluster/loopback.py python scoring.py [--kills N] ...

The job decides on a file of states, block by block. Killed at any moment and started again, it ends with the bytes
that one process writes, and leaves nothing else. Ray runs only where there is no network but loopback.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from loopback import has_only_loopback
from nodes import Nodes

from sdm_command import good
from tools.chaos.trials import started
from tools.chaos.works import environment, states_file, trained_model
from warm_process import SDM

N_INPUTS = 6000  # six blocks


def run(place: Path, n_kills: int, seed: int) -> dict[str, Any]:
    """Jobs one after the other, each killed until it gets through."""
    begun, rng = time.monotonic(), random.Random(seed)
    model, inputs, alone = trained_model(place), place / "new.npz", place / "alone.jsonl"
    states_file(inputs, 3, N_INPUTS)
    good("predict", model, inputs, "-o", alone)
    nodes = Nodes()
    killed = jobs = resumed = 0
    folder = place / "job"
    command = ["predict", model, inputs, "-o", folder / "out.jsonl", "--ray", nodes.address]
    try:
        folder.mkdir()
        usual = _undisturbed(command, folder)
        while killed < n_kills:
            jobs += 1
            while True:
                process = _driver(command, folder)
                time.sleep(rng.uniform(0, 1.1 * usual))
                process.send_signal(signal.SIGKILL)
                if process.wait() != -signal.SIGKILL:
                    assert process.returncode == 0, process.returncode
                    break
                killed += 1
                assert not (folder / "out.jsonl").exists() or (folder / "out.jsonl").read_bytes() == alone.read_bytes()
                resumed += any(folder.glob("out.jsonl.parts/block-*"))
                if (folder / "out.jsonl").exists() and not (folder / "out.jsonl.parts").exists():
                    break  # killed after its work
            assert (folder / "out.jsonl").read_bytes() == alone.read_bytes(), "the bytes differ"
            left = {path.name for path in folder.iterdir()} - {"cache"}
            assert left == {"out.jsonl"}, f"left behind: {left}"
            shutil.rmtree(folder)
            folder.mkdir()
    finally:
        nodes.cluster.shutdown()
    seconds = round(time.monotonic() - begun)
    return {"kills": killed, "seed": seed, "seconds": seconds, "jobs": jobs, "killed_with_finished_blocks": resumed}


def _driver(command: list[Any], folder: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", SDM, *map(str, command)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(words, env=environment(folder), **quiet)


def _undisturbed(command: list[Any], folder: Path) -> float:
    """How long a job takes that nobody kills; the first one starts the workers."""
    for _ in range(2):
        begun = time.monotonic()
        assert _driver(command, folder).wait() == 0
        seconds = time.monotonic() - begun
        (folder / "out.jsonl").unlink()
    return seconds


if __name__ == "__main__":
    if not has_only_loopback():
        sys.exit("Ray would use another address than loopback: run this with tests/cluster/loopback.py.")
    sys.exit(started(__doc__, run, kills=30))
