"""A service in a process of its own, and clients that ask it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass

import tiny_models
from small import small_settings
from torchsdm import SDMClassifier, SDMTextClassifier
from warm_process import ONE_THREAD, SDM, WarmProcess

HOST = "127.0.0.1"


def small_classifier(random_state=0):
    """A classifier that is quickly trained."""
    return SDMClassifier(0.8, **small_settings(random_state=random_state))


def save_states_model(folder, states, labels):
    """That classifier of states, saved."""
    small_classifier().fit(states, labels).save(folder / "model")
    return folder / "model"


def save_text_model(folder, texts, labels):
    """That classifier of texts, saved beside the tiny language model that reads them."""
    language_model = tiny_models.save_model(folder / "bert", *tiny_models.bert())
    SDMTextClassifier(language_model, classifier=small_classifier()).fit(texts, labels).save(folder / "model")
    return folder / "model"


@dataclass
class Server:
    """A running service."""

    port: int
    process: WarmProcess

    def ask(self, path, body=None, *, method=None, token=None, timeout=60, **headers):
        """Status and JSON of an answer; 0 where nobody answers. A body that is not bytes is sent as JSON."""
        status, _, content = self.raw(path, body, method=method, token=token, timeout=timeout, **headers)
        return status, None if status == 0 else json.loads(content)

    def raw(self, path, body=None, *, method=None, token=None, timeout=60, **headers):
        """Status, headers (in small letters) and bytes of an answer."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"content-type": "application/json", **given}
        given |= {} if token is None else {"authorization": f"Bearer {token}"}
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        try:
            connection.request(method or ("GET" if data is None else "POST"), path, data, given)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        except OSError:
            return 0, {}, b""
        finally:
            connection.close()

    def metric(self, name):
        """A number of /metrics, by the beginning of its line."""
        lines = self.raw("/metrics")[2].decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def wait_for(self, condition, seconds=60):
        """Until a condition holds."""
        until = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.process.stderr
            assert time.monotonic() < until, self.process.stderr
            time.sleep(0.02)

    def kill(self):
        """End it at once."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=20)


def free_port():
    with socket.create_server((HOST, 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def server(model, *options, env=None):
    """A service of a model, which is stopped whatever happens."""
    port = free_port()
    process = WarmProcess(
        SDM, "serve", model, "--port", port, *options, env={**os.environ, **ONE_THREAD, **(env or {})}
    )
    running = Server(port, process)
    try:
        running.wait_for(lambda: running.ask("/v1/health/ready")[0] == 200)
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
