"""The same answers on Ray, when one machine is too small.

- ``connection`` joins or starts a cluster, and is the only module that imports Ray.
- ``support`` is a support on several machines; ``shards`` search it, ``blocks`` say where its points are.

Ray belongs to the extra ``ray``: nothing of it is imported before something connects.
"""

from torchsdm.cluster.blocks import StoredSupport
from torchsdm.cluster.connection import AUTO, connect
from torchsdm.cluster.shards import Shards
from torchsdm.cluster.support import ShardedSupport

__all__ = ["AUTO", "ShardedSupport", "Shards", "StoredSupport", "connect"]
