"""The service on loopback beside the library: throughput and latency at 1, 8 and 64 clients, and the start.

Clients are threads of this process, with bytes that are ready and connections that stay open; each sends its next
request when it has the answer. They share the cores with the service, so what they do is part of its time. The library
decides on as many rows in one call as all clients have on their way together: the largest batch that the service could
make of them, and the same rows.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measure import THREADS, Figure, compare, judged, seconds
from problems import ENCODER, classifier_of_the_paper_s_size, documents, states

from torchsdm import SDMClassifier
from torchsdm.errors import SDMWarning
from torchsdm.estimators import SDMTextClassifier

CLIENTS, N_EACH = (1, 8, 64), 8  #: each client sends at least so many requests


def run() -> Iterator[Figure]:
    """States as JSON and as bytes, texts, then the start."""
    warnings.simplefilter("ignore", SDMWarning)
    with tempfile.TemporaryDirectory() as folder:
        yield from _states(Path(folder) / "states")
        yield from _texts(Path(folder) / "texts")
        yield _start(Path(folder) / "texts")


def _states(path: Path) -> Iterator[Figure]:
    """Requests of 8 states of the paper's width against a support of the paper's size."""
    n_rows, classifier = 8, classifier_of_the_paper_s_size()
    classifier.save(path)
    queries, _ = states(1024, seed=99)
    as_json = [
        _request("/v1/decide", json.dumps({"hidden_states": queries[start : start + n_rows].tolist()}).encode())
        for start in range(0, len(queries), n_rows)
    ]
    as_bytes = [_tensor_request(path.name, queries[start : start + n_rows]) for start in range(0, 1024, n_rows)]

    with _served(path) as service:
        for kind, requests in (("JSON", as_json), ("bytes", as_bytes)):
            yield from _under_load(
                f"states as {kind}",
                service,
                requests,
                n_rows,
                lambda part: classifier.decide(queries[part]).to_dicts(),
                1.3,
            )


def _texts(path: Path) -> Iterator[Figure]:
    """Requests of one text, read by a small encoder."""
    texts = documents(320)
    SDMTextClassifier(
        ENCODER, classifier=SDMClassifier(0.9, n_rounds=1, training="sdm", max_epochs=2, random_state=0), cache=False
    ).fit(texts[:256], [number % 2 for number in range(256)]).save(path)
    library, queries = SDMTextClassifier.load(path), texts[256:]
    requests = [_request("/v1/decide", json.dumps({"texts": [text]}).encode()) for text in queries]
    with _served(path) as service:
        yield from _under_load(
            "texts", service, requests, 1, lambda part: library.decide(queries[part]).to_dicts(), 1.1
        )


def _under_load(
    what: str,
    service: _Service,
    requests: Sequence[bytes],
    n_rows: int,
    decide: Callable[[slice], object],
    at_most: float,
) -> Iterator[Figure]:
    """Throughput, p50 and p99 at each number of clients; the goal is for the most.

    For the most, also the processor time of the service, without that of the clients.
    """

    def processor_seconds(work: Callable[[], None]) -> float:
        clock = time.process_time if work.__name__ == "call" else lambda: service.processor_seconds
        start = clock()
        work()
        return clock() - start

    for n_clients in CLIENTS:
        n_each = max(N_EACH, len(requests) // n_clients)
        n_together = n_clients * n_rows
        latencies: list[float] = []
        name = f"service, {what}, {n_clients} client{'s' * (n_clients > 1)} × {n_rows}"
        against = f"the library, {n_together} at a time"

        def ask() -> None:
            latencies.extend(_load(service.port, requests, n_clients, n_each))  # noqa: B023

        def call() -> None:
            for turn in range(n_each):  # noqa: B023
                first = turn * n_together % (len(requests) * n_rows)  # noqa: B023
                decide(slice(first, first + n_together))  # noqa: B023

        goal = at_most if n_clients == CLIENTS[-1] else None
        yield compare(f"{name}: time for all", ask, against, call, at_most=goal, repeats=5)
        if n_clients == CLIENTS[-1]:
            taken_by = f"{name}: processor time of the service"
            yield compare(taken_by, ask, against, call, at_most=at_most, repeats=5, clock=processor_seconds)
        alone = seconds(call) / n_each
        for share in (50, 99):
            taken = float(np.percentile(latencies, share))
            yield judged(f"{name}: p{share}", against, taken / alone, work_seconds=taken, yardstick_seconds=alone)


def _start(path: Path) -> Figure:
    """From starting the command to the first answer to a text."""
    request = _request("/v1/decide", b'{"texts": ["A film to remember."]}')

    def answer() -> None:
        with _served(path) as service, _connected(service.port) as connection:
            _ask(connection, request)

    load = f"from torchsdm.hidden_states import Backbone; Backbone.load({ENCODER!r})"
    return compare(
        "sdm serve: start to the first answer to a text",
        answer,
        "a process that loads the language model",
        lambda: subprocess.run([sys.executable, "-c", load], check=True),
        at_most=1.5,
        repeats=3,
    )


# --- A server and its clients ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Service:
    """A service that runs."""

    port: int
    process: int

    @property
    def processor_seconds(self) -> float:
        """The processor time that it has taken, of all its threads."""
        fields = Path(f"/proc/{self.process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _served(path: Path) -> Iterator[_Service]:
    """A service, which has answered once it is given."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "-c", "from torchsdm.cli import main; main()", "serve", str(path), "--port", str(port)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(THREADS))
    process = subprocess.Popen(command, env={**os.environ, **threads}, stderr=subprocess.DEVNULL)
    try:
        while not _is_ready(port):
            if process.poll() is not None:
                raise SystemExit(f"sdm serve ended with {process.returncode}.")
            time.sleep(0.01)
        yield _Service(port, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _is_ready(port: int) -> bool:
    try:
        with _connected(port) as connection:
            return b" 200 " in _ask(connection, b"GET /v1/health/ready HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")[:20]
    except OSError:
        return False


def _load(port: int, requests: Sequence[bytes], n_clients: int, n_each: int) -> list[float]:
    """How long each request took, when so many clients send so many each."""
    taken: list[float] = []

    def client(number: int) -> None:
        with _connected(port) as connection:
            for turn in range(n_each):
                start = time.perf_counter()
                answer = _ask(connection, requests[(turn * n_clients + number) % len(requests)])
                taken.append(time.perf_counter() - start)
                if b" 200 " not in answer[:20]:
                    raise SystemExit(f"The service answered {answer[:200]!r}.")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def _connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=300)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _ask(connection: socket.socket, request: bytes) -> bytes:
    """Send a request and read the answer, whose head gives its length."""
    connection.sendall(request)
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(1 << 16)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))[15:])
    parts, n_missing = [received], length - len(body)
    while n_missing > 0:
        parts.append(connection.recv(1 << 20))
        n_missing -= len(parts[-1])
    return b"".join(parts)


def _request(path: str, body: bytes, **headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    given = {"Content-Type": "application/json", **headers}
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def _tensor_request(name: str, states: np.ndarray) -> bytes:
    """States as bytes, decisions as bytes, by the Open Inference Protocol."""
    raw = states.astype("<f4").tobytes()
    tensor = {"name": "hidden_states", "shape": list(states.shape), "datatype": "FP32"}
    tensor["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    kind = {"Content-Type": "application/octet-stream", "Inference_Header_Content_Length": str(len(head))}
    return _request(f"/v2/models/{name}/infer", head + raw, **kind)
