"""The same answers on Ray, when one machine is too small.

- ``connection`` joins or starts a cluster, and is the only module that imports Ray.

Ray belongs to the extra ``ray``: nothing of it is imported before something connects.
"""

from torchsdm.cluster.connection import AUTO, connect

__all__ = ["AUTO", "connect"]
