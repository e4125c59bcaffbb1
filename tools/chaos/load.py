"""A service at saturation while its model is changed: python load.py [--minutes M] ...

Clients keep asking on connections that stay open; another adds, relabels, removes, recalibrates and undoes; others
are slow, stuck, or merely connected. Every answer is compared afterwards with what the library decides at the version
that the answer names, row by row. At the end the service is told to leave while questions are on their way.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from served import HOST, free_port
from tools.chaos.trials import SIGNED, make_change, started
from torchsdm import SDMClassifier
from torchsdm.application import LiveModel
from torchsdm.errors import SDMWarning
from torchsdm.trust.lanes import demoted
from warm_process import SDM

D, N_PROBES, N_CLIENTS, ROWS = 64, 256, 64, 4
N_IDLE, N_SLOW, N_STUCK = 1000, 20, 20
OPEN_FILES = 4096


@dataclass
class Seen:
    """What clients saw."""

    answers: list[tuple[int, tuple[int, ...], tuple[str, ...]]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    changes: list[dict[str, Any]] = field(default_factory=list)
    resident: list[tuple[float, int]] = field(default_factory=list)
    lost: int = 0
    given_up: int = 0


def problem(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    return (rng.normal(size=(n, D)) + 0.6 * np.eye(3, D)[labels] * 4).astype(np.float32), labels


def trained(path: Path) -> None:
    X, y = problem(0, 4000)
    SDMClassifier(0.8, n_filters=64, n_rounds=1, training="sdm", max_epochs=4, learning_rate=1e-3, random_state=0).fit(
        X, y
    ).save(path)


PROBES = problem(1, N_PROBES)[0]
AS_JSON = [json.dumps(row.tolist()) for row in PROBES]


# --- Clients ---------------------------------------------------------------------------------------------------------


def request(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)


def signature(row: dict[str, Any]) -> str:
    """What a decision says, as words that can be compared."""
    return json.dumps({name: value for name, value in row.items() if name not in ("id", "line")}, sort_keys=True)


async def client(port: int, number: int, seed: int, leaving: asyncio.Event, seen: Seen) -> None:
    """Ask the next question when the last one is answered."""
    rng = random.Random(seed * 1000 + number)
    reader, writer = await asyncio.open_connection(HOST, port)
    while not leaving.is_set():
        rows = tuple(rng.randrange(N_PROBES) for _ in range(rng.randint(1, 2 * ROWS)))
        body = f'{{"hidden_states": [{", ".join(AS_JSON[row] for row in rows)}]}}'.encode()
        begun = time.perf_counter()
        writer.write(request("/v1/decide", body))
        try:
            status, content = await answered(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            seen.lost += 1
            return
        seen.seconds.append(time.perf_counter() - begun)
        seen.statuses[status] = seen.statuses.get(status, 0) + 1
        if status == 200:
            answer = json.loads(content)
            seen.answers.append((answer["version"], rows, tuple(map(signature, answer["decisions"]))))
    writer.close()


async def changer(port: int, seed: int, leaving: asyncio.Event, seen: Seen) -> None:
    """Change the model twice a second; what is added is removed again, so that it does not grow."""
    rng, number, added = random.Random(seed), 0, []
    while not leaving.is_set():
        await asyncio.sleep(0.5)
        number += 1
        kind = rng.choice(["add", "add", "remove", "relabel", "recalibrate"])
        if kind == "add" or not added:
            X, y = problem(seed + 100 + number, 8)
            ids = [f"n{number}-{i}" for i in range(8)]
            change = {"what": "add", "hidden_states": X.tolist(), "labels": y.tolist(), "ids": ids}
            added.append(ids)
        elif kind == "recalibrate":
            change = {"what": "recalibrate"}
        elif kind == "relabel":
            ids = rng.choice(added)
            change = {"what": "relabel", "ids": ids[:2], "labels": [rng.randrange(3) for _ in ids[:2]]}
        else:
            change = {"what": "remove", "ids": added.pop(0)}
        signed = {**SIGNED, "key": f"{seed}-{number}"}
        path, body = "/v1/exemplars", {"changes": [change], **signed}
        if change["what"] == "recalibrate":
            path, body = "/v1/recalibrate", signed
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(request(path, json.dumps(body).encode()))
        status, content = await answered(reader)
        writer.close()
        assert status == 200, (status, content[:500])
        seen.changes.append({"version": json.loads(content)["version"], **change})


async def slow(port: int, leaving: asyncio.Event, seen: Seen) -> None:
    """A client that sends a byte a second."""
    while not leaving.is_set():
        reader, writer = await asyncio.open_connection(HOST, port)
        for byte in request("/v1/decide", b"{}"):
            if leaving.is_set() or reader.at_eof() or writer.is_closing():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(1)
        else:
            continue
        seen.given_up += not leaving.is_set()
        writer.close()


async def stuck(port: int, leaving: asyncio.Event) -> None:
    """A client that asks much and never reads."""
    body = f'{{"hidden_states": [{", ".join(AS_JSON[:100])}]}}'.encode()
    _, writer = await asyncio.open_connection(HOST, port, limit=1)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(3):
        writer.write(request("/v1/decide", body))
    await leaving.wait()
    writer.transport.abort()


async def idle(port: int, leaving: asyncio.Event) -> None:
    """A connection on which nobody says anything; opened again when it is closed."""
    while not leaving.is_set():
        reader, writer = await asyncio.open_connection(HOST, port)
        closed = asyncio.ensure_future(reader.read(1))
        await asyncio.wait([closed, asyncio.ensure_future(leaving.wait())], return_when=asyncio.FIRST_COMPLETED)
        closed.cancel()
        writer.close()


async def watch(process: int, leaving: asyncio.Event, seen: Seen) -> None:
    """The memory of the service, in bytes, once a second."""
    begun, page = time.monotonic(), resource.getpagesize()
    while not leaving.is_set():
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
        seen.resident.append((time.monotonic() - begun, pages * page))
        await asyncio.sleep(1)


async def ready(port: int) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(f"GET /v1/health/ready HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            status, _ = await answered(reader)
            writer.close()
            if status == 200:
                return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        await asyncio.sleep(0.1)


async def under_load(process: subprocess.Popen[bytes], port: int, seconds: float, seed: int, seen: Seen) -> float:
    """All of them at once; at the end the service is told to leave while questions are on their way."""
    await asyncio.wait_for(ready(port), 120)
    leaving, quiet = asyncio.Event(), asyncio.Event()
    rude = [idle(port, quiet) for _ in range(N_IDLE)]
    rude += [slow(port, quiet, seen) for _ in range(N_SLOW)] + [stuck(port, quiet) for _ in range(N_STUCK)]
    around = [asyncio.ensure_future(one) for one in [*rude, watch(process.pid, quiet, seen)]]
    asking = [asyncio.ensure_future(client(port, number, seed, leaving, seen)) for number in range(N_CLIENTS)]
    changing = asyncio.ensure_future(changer(port, seed, quiet, seen))
    await asyncio.sleep(seconds)
    quiet.set()
    await changing
    await asyncio.gather(*around)
    process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    leaving.set()  # each client reads the answer to the question it has sent
    await asyncio.gather(*asking)
    while process.poll() is None:
        await asyncio.sleep(0.05)
    return time.monotonic() - begun


# --- What the library says -------------------------------------------------------------------------------------------


def expected(path: Path, changes: list[dict[str, Any]]) -> dict[int, list[set[str]]]:
    """What the library decides on every probe at every version, with the same changes made one after the other.

    Probes come again and again, as no stream of new inputs does, so the drift guard may be raised on the way. A
    decision is then as one that is raised leaves it.
    """
    with LiveModel.open(path) as live:
        by_version = {0: _decided(live)}
        for change in changes:
            version = make_change(live, change)
            assert version == change["version"], "a change was made twice, or another one between"
            by_version[version] = _decided(live)
    return by_version


def _decided(live: LiveModel) -> list[set[str]]:
    calm = live.snapshot.saved.classifier.decide(PROBES)
    raised = demoted(calm, np.zeros(len(calm), dtype=bool))
    rows = (json.loads(json.dumps(decisions.to_dicts())) for decisions in (calm, raised))
    return [{signature(row) for row in either} for either in zip(*rows, strict=True)]


def compared(seen: Seen, by_version: dict[int, list[set[str]]]) -> int:
    """How many answers differ from the library's at the version that they name, in any row or in their order."""
    return sum(
        len(said) != len(rows) or any(one not in by_version[version][row] for row, one in zip(rows, said, strict=True))
        for version, rows, said in seen.answers
    )


def run(place: Path, minutes: float, seed: int) -> dict[str, Any]:
    """The figures of a run; what must be nothing is listed as broken if it is something."""
    warnings.simplefilter("ignore", SDMWarning)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    seen, model, twin, port = Seen(), place / "model", place / "twin", free_port()
    trained(model)
    shutil.copytree(model, twin)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-c", SDM, "serve", str(model), "--port", str(port), "--body-seconds", "10"]
    with open(place / "said", "w+b") as said:
        process = subprocess.Popen(command, env={**os.environ, **threads}, stdout=said, stderr=said)
        try:
            drained = asyncio.run(under_load(process, port, 60 * minutes, seed, seen))
        finally:
            process.kill()
        said.seek(0)
        spoken = said.read().decode()
    memory = [size for at, size in seen.resident if at > min(60.0, 12 * minutes)]
    growth = float(np.mean(memory[-30:]) / np.mean(memory[:30])) - 1
    kept = LiveModel.open(model, writable=False).snapshot.version
    must_be_nothing = {
        "answers that were lost": seen.lost,
        "answers that differ from the library's, or are out of order": compared(seen, expected(twin, seen.changes)),
        "acknowledged changes that are missing": seen.changes[-1]["version"] - kept,
        "tracebacks": spoken.count("Traceback"),
        "memory that grew by more than 5 %": int(growth > 0.05),
        "exit code": 0 if process.returncode == -signal.SIGTERM else process.returncode,
    }
    return {
        "minutes": minutes,
        "seed": seed,
        "clients": N_CLIENTS,
        "connections": N_CLIENTS + N_IDLE + N_SLOW + N_STUCK,
        "answers": len(seen.answers),
        "rows": sum(len(rows) for _, rows, _ in seen.answers),
        "statuses": {str(status): n for status, n in sorted(seen.statuses.items())},
        "changes": len(seen.changes),
        "versions_answered": len({version for version, _, _ in seen.answers}),
        "slow_clients_given_up": seen.given_up,
        "p50_ms": round(1000 * float(np.percentile(seen.seconds, 50)), 1),
        "p99_ms": round(1000 * float(np.percentile(seen.seconds, 99)), 1),
        "memory_mb": round(float(np.mean(memory[:30])) / 2**20),
        "memory_growth": round(growth, 4),
        "drain_seconds": round(drained, 2),
        "broken": {name: value for name, value in must_be_nothing.items() if value},
    }


if __name__ == "__main__":
    sys.exit(started(__doc__, run, minutes=10.0))
