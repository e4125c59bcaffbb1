"""Kill a service again and again while it is changed: python serving.py [--kills N] ...

A client sends changes, one after the other, each with a key, and sends again what was not acknowledged when the
service was killed. At the end every change was made exactly once, in order, and the model is that of a twin which
nobody killed.
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from served import Server, server
from tools.chaos.trials import SIGNED, make_change, started
from tools.chaos.works import D, fingerprint, trained_model
from torchsdm.application import LiveModel


def changes(seed: int) -> Any:
    """Changes without end, the same for the same seed."""
    rng, number, added = random.Random(seed), 0, []
    while True:
        number += 1
        kind = rng.choice(["add", "add", "add", "remove", "relabel"])
        if kind == "add" or not added:
            states = np.random.default_rng([seed, number]).normal(size=(6, D)).astype(np.float32)
            ids = [f"n{number}-{i}" for i in range(6)]
            added.append(ids)
            labels = [rng.choice(["no", "yes"]) for _ in ids]
            yield {"what": "add", "hidden_states": states.tolist(), "labels": labels, "ids": ids}
        elif kind == "remove":
            yield {"what": "remove", "ids": added.pop(rng.randrange(len(added)))}
        else:
            ids = rng.choice(added)[:2]
            yield {"what": "relabel", "ids": ids, "labels": [rng.choice(["no", "yes"]) for _ in ids]}


class Client(threading.Thread):
    """Sends changes until the service is gone; what it was not told about, it sends again to the next one."""

    def __init__(self, running: Server, made: list[dict[str, Any]], source: Any):
        super().__init__(daemon=True)
        self.running, self.made, self.source = running, made, source

    def run(self) -> None:
        number = sum(one["acknowledged"] for one in self.made)
        while True:
            if number == len(self.made):
                self.made.append({"change": next(self.source), "acknowledged": False})
            body = {"changes": [self.made[number]["change"]], "key": f"key-{number}", **SIGNED}
            status, answer = self.running.ask("/v1/exemplars", body)
            if status == 0:
                return
            assert status == 200, answer
            assert answer["version"] == number + 1, (answer["version"], number + 1)
            self.made[number]["acknowledged"] = True
            number += 1


def run(place: Path, n_kills: int, seed: int) -> dict[str, Any]:
    """Lives of a service, each ended by kill -9."""
    begun, rng = time.monotonic(), random.Random(seed)
    old = trained_model(place)
    model, twin = place / "model", place / "twin"
    shutil.copytree(old, model)
    shutil.copytree(old, twin)
    made: list[dict[str, Any]] = []
    source, sent_again = changes(seed), 0
    for _ in range(n_kills):
        with server(model) as running:
            client = Client(running, made, source)
            sent_again += any(not one["acknowledged"] for one in made)
            client.start()
            time.sleep(rng.uniform(0, 0.6))
            running.kill()
            client.join(timeout=30)
            assert not client.is_alive()
        n_acknowledged = sum(one["acknowledged"] for one in made)
        with LiveModel.open(model, writable=False, verify=True) as live:
            assert live.snapshot.version - n_acknowledged in (0, 1), "an acknowledged change is lost, or made twice"
            keys = [one.key for one in live.changes()]
        assert keys == [f"key-{number}" for number in range(len(keys))], "a change is missing, doubled or out of order"
    n_there = len(keys)
    with LiveModel.open(twin) as live:
        for one in made[:n_there]:
            make_change(live, one["change"])
    assert fingerprint(twin) == fingerprint(model), "the model differs from that of a twin which nobody killed"
    return {
        "kills": n_kills,
        "seed": seed,
        "seconds": round(time.monotonic() - begun),
        "changes_acknowledged": n_acknowledged,
        "changes_sent_again": sent_again,
    }


if __name__ == "__main__":
    sys.exit(started(__doc__, run, kills=100))
