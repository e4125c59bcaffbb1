"""Nothing is asked of a network: neither on import, by any module, nor to train, save, load and decide."""

from __future__ import annotations

import subprocess
import sys

# Python reports every use of its sockets to an audit hook, and no code can take the hook away.
GUARDED = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # a path, in AF_UNIX
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if host not in (None, "", "localhost", "127.0.0.1", "::1"):
        print("asked for", host)
        raise PermissionError(f"{event} to {host!r}")

sys.addaudithook(refuse)
"""
ASKING = """
import socket
for ask, what in ((socket.create_connection, ("192.0.2.1", 80)), (socket.gethostbyname, "example.org")):
    try:
        ask(what)
    except PermissionError:
        print("refused")
"""
EVERY_MODULE = """
import importlib, pkgutil
import torchsdm
for module in pkgutil.walk_packages(torchsdm.__path__, "torchsdm."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
names = [name for name in sys.modules if name.startswith("torchsdm.")]
print(len(names), "modules")
"""
TRAINING = """
import tempfile, warnings
import numpy as np
from torchsdm import SDMClassifier
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
y = rng.integers(0, 2, 120)
X = rng.standard_normal((120, 4)) + 3 * y[:, None]
classifier = SDMClassifier(0.8, n_filters=8, n_rounds=1, training="sdm", max_epochs=2, random_state=0).fit(X, y)
with tempfile.TemporaryDirectory() as folder:
    classifier.save(f"{folder}/model")
    loaded = SDMClassifier.load(f"{folder}/model")
    assert (loaded.decide(X).confidence == classifier.decide(X).confidence).all()
print("trained")
"""


def said_by(*parts: str) -> str:
    done = subprocess.run([sys.executable, "-c", "".join(parts)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_guard_refuses():
    assert said_by(GUARDED, ASKING).splitlines() == [
        "asked for 192.0.2.1",
        "refused",
        "asked for example.org",
        "refused",
    ]


def test_no_module_asks_a_network():
    said = said_by(GUARDED, EVERY_MODULE)
    assert "asked" not in said and int(said.split()[0]) > 100


def test_training_and_deciding_ask_no_network():
    assert said_by(GUARDED, TRAINING) == "trained\n"
