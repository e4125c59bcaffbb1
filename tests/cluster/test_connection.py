"""Joining a cluster, and what is said where there is none."""

from __future__ import annotations

import sys

import pytest

from torchsdm.cluster import connect
from torchsdm.errors import ClusterError, InvalidInputError, MissingExtraError


def test_tasks_run_on_the_nodes(ray, nodes):
    place = ray.remote(scheduling_strategy="SPREAD")(lambda: ray.get_runtime_context().get_node_id())
    places = set(ray.get([place.remote() for _ in range(20)]))
    assert places <= {node.node_id for node in nodes.workers}
    assert len(places) > 1


def test_a_process_has_one_connection(ray, nodes):
    assert connect(nodes.address) is ray
    assert connect("auto") is ray
    with pytest.raises(InvalidInputError, match=rf"connected to the cluster at {nodes.address}, not to 127.0.0.1:1"):
        connect("127.0.0.1:1")


@pytest.mark.parametrize("address", ["", None, 6379, "ray://head", "head:"])
def test_an_address_is_a_word(address):
    with pytest.raises(InvalidInputError, match="'auto' or HOST:PORT"):
        connect(address)


def test_ray_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'torchsdm\[ray\]'"):
        connect()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999999"])
def test_nobody_answers(monkeypatch, address):
    monkeypatch.setattr(pytest.importorskip("ray"), "is_initialized", lambda: False)  # whatever ran before
    with pytest.raises(ClusterError, match=rf"no Ray cluster at {address} .*'ray start --head'"):
        connect(address)
