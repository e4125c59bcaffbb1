"""The connection to a Ray cluster: the only place that imports Ray and starts or joins one."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from torchsdm.errors import ClusterError, InvalidInputError, MissingExtraError

AUTO = "auto"  #: the cluster of this machine, or a new one on it

_SECONDS_TO_ANSWER = 10
_LOGGER = logging.getLogger(__name__)
# A lost node is noticed after three seconds instead of about fifteen. Only a cluster that starts here can be set up so.
_QUICK_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 3,
}


def connect(address: str = AUTO) -> Any:
    """Ray, connected to a cluster; a process has one connection, which later calls share.

    Parameters
    ----------
    address : str
        ``"auto"``: the cluster that this machine belongs to, or, if there is none, a new one of this machine alone,
        which ends with the process. ``"HOST:PORT"``: the cluster with this head node. This process must run on a node
        of it, because what is sent goes through the shared memory of the node.
    """
    host, port = _host_and_port(address)
    ray = import_ray()
    if ray.is_initialized():
        connected = ray.get_runtime_context().gcs_address
        if address not in (AUTO, connected):
            raise InvalidInputError(f"This process is connected to the cluster at {connected}, not to {address}.")
        return ray
    if address != AUTO:
        _check_reachable(host, port)
    settings = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        ray.init(address=address, **settings)
    except ConnectionError as error:
        if address != AUTO:
            raise _not_there(address, error) from error
        _LOGGER.info("Starting Ray on this machine")
        ray.init(
            address="local",
            include_dashboard=False,
            _system_config=_QUICK_HEALTH_CHECKS,
            **settings,
        )
    return ray


def import_ray() -> Any:
    """Ray, which then sends no statistics of its use anywhere."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "A cluster") from error
    return ray


def _host_and_port(address: object) -> tuple[str, int]:
    """The parts of HOST:PORT; nothing for "auto"."""
    if address == AUTO:
        return "", 0
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isdigit():
        raise InvalidInputError(f"'address' of connect must be 'auto' or HOST:PORT. Got {address!r}.")
    return host.strip("[]"), int(port)


def _check_reachable(host: str, port: int) -> None:
    """Fail at once if nothing answers; Ray alone would try for minutes."""
    try:
        socket.create_connection((host, port), timeout=_SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise _not_there(f"{host}:{port}", error) from error


def _not_there(address: str, error: Exception) -> ClusterError:
    return ClusterError(
        f"There is no Ray cluster at {address} that this machine belongs to: {error}. Start one with 'ray start "
        "--head', join it with 'ray start --address HOST:PORT', or give 'auto'."
    )
