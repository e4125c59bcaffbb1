"""``RayBackend``: the switch between this process and a cluster.

``backend=`` in Python and ``--ray`` on the command line take the same values. Nothing of Ray is imported before a
backend is used.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torchsdm.errors import ClusterError, InvalidInputError, InvalidTypeError, MissingExtraError
from torchsdm.validation import check_positive

AUTO = "auto"  #: the cluster of this machine, or a new one on it
MOST_LOSSES = 5  #: times that one piece of work is begun again before it is taken to be what kills its workers
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
        try:  # fail at once if nothing answers; Ray alone would try for minutes
            socket.create_connection((host, port), timeout=_SECONDS_TO_ANSWER).close()
        except (OSError, OverflowError) as error:
            raise _not_there(f"{host}:{port}", error) from error
    settings = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        ray.init(address=address, **settings)
    except ConnectionError as error:
        if address != AUTO:
            raise _not_there(address, error) from error
        _LOGGER.info("Starting Ray on this machine")
        ray.init(address="local", include_dashboard=False, _system_config=_QUICK_HEALTH_CHECKS, **settings)
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


def _not_there(address: str, error: Exception) -> ClusterError:
    return ClusterError(
        f"There is no Ray cluster at {address} that this machine belongs to: {error}. Start one with 'ray start "
        "--head', join it with 'ray start --address HOST:PORT', or give 'auto'."
    )


class Lost(Exception):
    """A worker, its node or its answer is gone; the work can be done again."""


def answer_of(ray: Any, reference: Any) -> Any:
    """The answer of a task; ``Lost`` if it has to be asked again, and the task's own error if it raised one."""
    errors = ray.exceptions
    gone = (
        *(errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError),
        *(errors.OutOfMemoryError, errors.LocalRayletDiedError),
    )
    try:
        return ray.get(reference)
    except gone as error:
        raise Lost(str(error)) from error
    except errors.RayTaskError as error:
        raise error.cause from None


def check_losses(n_losses: int, what: str, error: Lost) -> None:
    """Give up a piece of work that was lost too often."""
    if n_losses >= MOST_LOSSES:
        raise ClusterError(f"{what} was lost {n_losses} times with the worker it ran on. The last time: {error}")


@dataclass(frozen=True)
class RayBackend:
    """A Ray cluster to work on, and how to use it.

    Parameters
    ----------
    address : str
        ``"auto"``: the cluster that this machine belongs to, or a new one of this machine alone. ``"HOST:PORT"``: the
        cluster with this head node.
    shards : int, optional
        Actors that a support is spread over; by default one per node.
    threads : int, optional
        Threads of each worker, and the processors it takes. By default as many as this process would use itself:
        the last bits of training steps and of language models can depend on it.
    spread_training : bool
        For training points too many to be matched with each other on one node: their exemplars are spread over the
        shards after every epoch, and rounds are trained in this process, one after the other. The model is the same.
    """

    address: str = AUTO
    shards: int | None = None
    threads: int | None = None
    spread_training: bool = False

    def __post_init__(self) -> None:
        if not self.address:
            raise InvalidInputError(f"'address' of RayBackend must be 'auto' or HOST:PORT. Got {self.address!r}.")
        for name in ("shards", "threads"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name, "RayBackend", integer=True)

    def connect(self) -> Any:
        """Ray, connected to the cluster."""
        return connect(self.address)

    @property
    def n_threads(self) -> int:
        """The threads of a worker."""
        import torch

        return torch.get_num_threads() if self.threads is None else self.threads

    def worker_options(self, device_type: str = "cpu") -> dict[str, Any]:
        """What a worker takes: as many processors as it has threads, if any node has so many; for cuda, a GPU."""
        largest = max(int(node["Resources"].get("CPU", 0)) for node in self.connect().nodes() if node["Alive"])
        n_gpus = {"num_gpus": 1} if device_type == "cuda" else {}
        return {"num_cpus": max(1, min(self.n_threads, largest)), "scheduling_strategy": "SPREAD", **n_gpus}

    def n_workers(self, options: Mapping[str, Any]) -> int:
        """How many workers with these options the cluster has room for; at least one."""
        has = self.connect().cluster_resources()
        names = {"num_cpus": "CPU", "num_gpus": "GPU"}
        return max(1, min(int(has.get(kind, 0) // options[name]) for name, kind in names.items() if name in options))


Backend: TypeAlias = "str | RayBackend | None"
"""What ``backend=`` takes: None for this process, an address, or how to use a cluster."""


def as_backend(backend: Backend, caller: str) -> RayBackend | None:
    """The value of ``backend=``, checked."""
    if not isinstance(backend, str | RayBackend | None):
        raise InvalidTypeError(
            f"'backend' of {caller} must be None, 'auto', HOST:PORT or a RayBackend. Got {type(backend).__name__}."
        )
    return RayBackend(backend) if isinstance(backend, str) else backend
