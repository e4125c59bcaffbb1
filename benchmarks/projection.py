"""What a cluster would do with a hundred million exemplars: arithmetic on the constants that ``cluster`` measured.

    python benchmarks/projection.py

What is assumed, and not measured: cores of a node work side by side without slowing one another down, as two do here,
and the time of a query grows with exemplars and filters in proportion.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from page import KEPT

import cluster

EXEMPLARS = 100_000_000
WIDTHS = (256, 1_000)  # filters
NODES = (4, 8, 16, 32, 64)
CORES, MEMORY_GB, NETWORK = 16, 128, 1.25e9  # of a node; bytes a second between nodes
USABLE = 0.7  # share of a node's memory that exemplars may take: the rest is for products, queries and the system
MILLION = 1_000_000


@dataclass(frozen=True)
class Constants:
    """What was measured on one kind of machine."""

    pairs_per_second: float
    """Of one core: queries × exemplars of ``cluster.M`` filters."""
    bytes_ratio: float
    """Memory of an exemplar over its own bytes."""
    moved_ratio: float
    """Bytes moved for a query, to and from one node, over its own bytes."""
    twice: float
    overhead: float
    recovery: float
    """Seconds."""

    @classmethod
    def of(cls, figures: list[dict[str, Any]]) -> Constants:
        """From the figures of the benchmark ``cluster``."""
        by_work = {one["work"]: one for one in figures}
        shards = [one for one in figures if one["work"].startswith(cluster.PROCESSOR_TIME)]
        pairs = cluster.BATCH * cluster.SUPPORT / shards[0]["yardstick_seconds"]
        (twice,) = (one["ratio"] for work, one in by_work.items() if work.endswith(cluster.TWICE))
        moved = next(one["ratio"] for work, one in by_work.items() if work.startswith(f"{cluster.MOVED} on 1 "))
        lost = by_work[cluster.LOST]
        return cls(
            pairs,
            by_work[cluster.MEMORY]["ratio"],
            moved,
            twice,
            max(one["ratio"] for one in shards),
            lost["work_seconds"] - lost["yardstick_seconds"],
        )


@dataclass(frozen=True)
class Projection:
    """Some exemplars of some width on some nodes."""

    constants: Constants
    n_exemplars: int
    width: int
    n_nodes: int

    @property
    def node_bytes(self) -> float:
        """Memory for the exemplars of a node."""
        return self.n_exemplars / self.n_nodes * self.width * 4 * self.constants.bytes_ratio

    @property
    def fits(self) -> bool:
        """Whether that leaves room on a node."""
        return self.node_bytes <= USABLE * MEMORY_GB * 1e9

    @property
    def queries_per_second(self) -> float:
        """Limited by arithmetic, or by what one process can send."""
        c = self.constants
        pairs = c.pairs_per_second * cluster.M / self.width * CORES * self.n_nodes / (c.twice * c.overhead)
        return min(pairs / self.n_exemplars, self.sent_per_second)

    @property
    def sent_per_second(self) -> float:
        """Queries that the driver's network carries: one copy for every node."""
        return NETWORK / (self.width * 4 * self.constants.moved_ratio * self.n_nodes)

    @property
    def node_hours(self) -> float:
        """For a million queries."""
        return self.n_nodes * MILLION / self.queries_per_second / 3600


def markdown(machines: list[dict[str, Any]]) -> str:
    """A table for each kind of machine that ran the benchmark."""
    return "\n".join(line for one in machines if "cluster" in one["figures"] for line in _table(one))


def _table(machine: dict[str, Any]) -> list[str]:
    c = Constants.of(machine["figures"]["cluster"])
    lines = [
        f"Measured on **{machine['machine']['processor']}**, two cores: {c.pairs_per_second / 1e6:,.0f} million pairs "
        f"of query and exemplar a second for each core ({cluster.M} filters); {c.bytes_ratio:.2f} times the bytes of "
        f"an exemplar in memory; {c.moved_ratio:.2f} times the bytes of a query moved to and from a node; "
        f"{c.twice:.2f} times the time where products are computed twice; at most {c.overhead:.2f} times the processor "
        f"time of one process; a killed shard back after {c.recovery:.1f} seconds. A node of the table has {CORES} "
        f"such cores and {MEMORY_GB} GB.",
        "",
        f"| {EXEMPLARS:,} exemplars of | nodes | memory per node | queries a second | node-hours a million queries |",
        "|---|---|---|---|---|",
    ]
    for width in WIDTHS:
        for n in NODES:
            one = Projection(c, EXEMPLARS, width, n)
            if one.fits:
                lines.append(
                    f"| {width:,} filters | {n} | {one.node_bytes / 1e9:,.0f} GB | {one.queries_per_second:,.1f} | "
                    f"{one.node_hours:,.0f} |"
                )
            else:
                lines.append(f"| {width:,} filters | {n} | {one.node_bytes / 1e9:,.0f} GB: does not fit | – | – |")
    largest = USABLE * MEMORY_GB * 1e9 / (cluster.M * 4 * c.bytes_ratio)
    beyond = Projection(c, EXEMPLARS, cluster.M, 1)
    per_node = beyond.queries_per_second
    n_most = (beyond.sent_per_second / per_node) ** 0.5
    return [
        *lines,
        "",
        f"One node holds {largest / 1e6:,.0f} million exemplars of {cluster.M} filters. Queries a second grow with the "
        f"nodes up to about {n_most:,.0f} of them: then sending each query to every node over "
        f"{NETWORK * 8 / 1e9:g} Gbit/s takes as long as the arithmetic.",
        "",
    ]


if __name__ == "__main__":
    print(markdown([json.loads(path.read_text(encoding="utf-8")) for path in sorted(KEPT.glob("*.json"))]))
