"""The nodes of a real Ray cluster, all on loopback."""

from __future__ import annotations

HOST = "127.0.0.1"
N_NODES = 3
CPUS = 2  # of each node, as far as Ray knows
STORE_BYTES = 256 << 20
_QUICK_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 3,
}


class Nodes:
    """The nodes of a cluster: its head, where this process is, and those that work."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": _QUICK_HEALTH_CHECKS}
        self.cluster = Cluster(initialize_head=True, head_node_args={**head, **self._settings()})
        self.workers = [self.add() for _ in range(N_NODES)]

    @property
    def address(self):
        """HOST:PORT of the head."""
        return self.cluster.address

    def add(self, **resources):
        """One more node that works."""
        return self.cluster.add_node(num_cpus=CPUS, resources=resources or None, **self._settings())

    def lose(self, node):
        """Kill a node with all that runs on it, and put another in its place."""
        self.cluster.remove_node(node, allow_graceful=False)
        self.workers[self.workers.index(node)] = self.add()

    def _settings(self):
        return {"node_ip_address": HOST, "object_store_memory": STORE_BYTES}
