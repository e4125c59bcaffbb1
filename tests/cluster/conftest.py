"""A real Ray cluster of several nodes, all on loopback."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from loopback import has_only_loopback
from nodes import Nodes


def pytest_collection_modifyitems(items):
    if has_only_loopback():
        return
    reason = "Ray would use another address than loopback; 'make test-cluster' runs these in a network of their own"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def nodes():
    """A cluster of three nodes beside its head; this process is not connected to it yet."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["OMP_WAIT_POLICY"] = "passive"  # workers share few processors
    started = Nodes()
    yield started
    started.cluster.shutdown()


@pytest.fixture(scope="session")
def ray(nodes):
    """Ray, connected to the cluster."""
    from torchsdm.cluster import connect

    connected = connect(nodes.address)
    yield connected
    connected.shutdown()
