"""``RayBackend``: the switch between this process and a cluster.

``backend=`` in Python and ``--ray`` on the command line take the same values. Nothing of Ray is imported before a
backend is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torchsdm.cluster.connection import AUTO, connect
from torchsdm.errors import InvalidInputError, InvalidTypeError
from torchsdm.validation import check_positive


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
    """The value of ``backend=``, checked; None is this process."""
    if backend is None or isinstance(backend, RayBackend):
        return backend
    if not isinstance(backend, str):
        raise InvalidTypeError(
            f"'backend' of {caller} must be None, 'auto', HOST:PORT or a RayBackend. Got {type(backend).__name__}."
        )
    return RayBackend(backend)
