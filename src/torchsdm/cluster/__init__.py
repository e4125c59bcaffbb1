"""The same answers on Ray, when one machine is too small.

- ``backend`` is the switch: ``backend=`` in Python, ``--ray`` on the command line; it joins or starts a cluster, and is
  the only module that imports Ray;
- ``training`` trains the rounds of a fit side by side;
- ``support`` is a support on several machines; ``shards`` search it, ``blocks`` say where its points are;
- ``replicas`` gives pieces of work to copies of a model, and documents to copies of a language model.

Ray belongs to the extra ``ray``: nothing of it is imported before something connects.
"""

from torchsdm.cluster.backend import Backend, RayBackend, as_backend, connect
from torchsdm.cluster.blocks import StoredSupport
from torchsdm.cluster.replicas import extract_on, map_in_order, portable
from torchsdm.cluster.shards import Shards
from torchsdm.cluster.support import ShardedSupport, spread_on
from torchsdm.cluster.training import run_rounds

__all__ = [
    "Backend",
    "RayBackend",
    "ShardedSupport",
    "Shards",
    "StoredSupport",
    "as_backend",
    "connect",
    "extract_on",
    "map_in_order",
    "portable",
    "run_rounds",
    "spread_on",
]
