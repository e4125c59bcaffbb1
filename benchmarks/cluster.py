"""A support on shards of a Ray cluster on this machine, against the same support in this process with as many threads.

The shards share the two cores, so that a ratio is what the cluster costs: two rounds instead of one, queries and
answers that travel, and processes that wait for one another.
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from measure import THREADS, Figure, compare, judged, seconds
from problems import clouds, support_of

from torchsdm.cluster import ShardedSupport, Shards
from torchsdm.matching import SupportSet, search

SUPPORT, M, BATCH = 200_000, 256, 1_000
N_SHARDS = (1, 2, 4)
ALONE = f"{BATCH:,} × {SUPPORT:,} × {M} in one process"
MOVED, MEMORY, TWICE = "bytes moved per query", "memory of a shard per exemplar", "products computed twice"
PROCESSOR_TIME = f"processor time of {BATCH:,} × {SUPPORT:,} × {M}"
LOST = "a batch in whose middle a shard is killed"


def run() -> Iterator[Figure]:
    """Overhead for 1, 2 and 4 shards; then what a projection to larger clusters needs."""
    import ray

    others = {name for _, name in socket.if_nameindex()} - {"lo"}
    if others:
        raise SystemExit(f"Ray would use the network {others.pop()}: run this where there is only loopback.")
    ray.init(
        address="local",
        num_cpus=2 * max(N_SHARDS),  # room for shards that are rebuilt
        object_store_memory=2 << 30,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _system_config={"worker_niceness": 0},  # both sides of a ratio have the same priority
    )
    try:
        yield from _figures(ray)
    finally:
        ray.shutdown()


def _figures(ray: Any) -> Iterator[Figure]:
    alone = support_of(*clouds(SUPPORT, M))
    queries, predictions = clouds(BATCH, M, seed=1)
    own = M * 4
    for n in N_SHARDS:
        on = f"on {n} {'shard' if n == 1 else 'shards'}"
        spread = ShardedSupport.of(alone, Shards(n, n_threads=max(1, THREADS // n)))
        yield compare(
            f"{BATCH:,} × {SUPPORT:,} × {M} {on}",
            lambda spread=spread: spread.match(queries, predictions),
            ALONE,
            lambda: alone.match(queries, predictions),
            at_most=1.3,
        )
        yield compare(
            f"{PROCESSOR_TIME} {on}",
            lambda spread=spread: spread.match(queries, predictions),
            ALONE,
            lambda: alone.match(queries, predictions),
            repeats=5,
            clock=lambda work, spread=spread: _processor_seconds(work, spread, ray),
        )
        moved = _bytes_moved(spread, queries, predictions, ray)
        yield judged(f"{MOVED} {on}, of one node", "the query's own bytes", moved / own)
    yield judged(MEMORY, "the exemplar's own bytes", _bytes_held(alone) / (SUPPORT * own))
    yield _twice(alone, queries, predictions)
    spread = ShardedSupport.of(alone, Shards(2))
    usual = statistics.median(seconds(lambda: spread.match(queries, predictions)) for _ in range(5))
    lost = [seconds(lambda: _with_a_loss(spread, queries, predictions, ray)) for _ in range(5)]
    delay = statistics.median(lost) - usual
    note = f"the shard is back after {delay:.1f} seconds, most of which a new process takes to import torch"
    ratio = statistics.median(lost) / usual
    against = "the same without a loss"
    yield judged(LOST, against, ratio, None, None, min(lost) / usual, max(lost) / usual, delay + usual, usual, note)


def _processor_seconds(work: Callable[[], Any], spread: ShardedSupport, ray: Any) -> float:
    """Of this process and the shards; other processes of a busy machine do not count."""

    def so_far() -> float:
        return time.process_time() + sum(
            ray.get([actor.__ray_call__.remote(_seconds) for actor in spread.shards.actors])
        )

    start = so_far()
    work()
    return so_far() - start


def _bytes_moved(spread: ShardedSupport, queries: Any, predictions: Any, ray: Any) -> float:
    """Of what is sent to shards and what they answer; the queries once, as for shards on one node."""
    shards, moved = spread.shards, 0
    originals = shards.put, shards.find_first, shards.count_matches, shards.gathered, shards.match

    def count(value: Any) -> None:
        nonlocal moved
        moved += len(ray.cloudpickle.dumps(value))

    def put(batch: Any) -> Any:
        count(batch)
        return originals[0](batch)

    def find_first(shard: int, state: Any, batch: Any, **how: Any) -> Any:
        count(state.name)
        return originals[1](shard, state, batch, **how)

    def count_matches(shard: int, state: Any, batch: Any, boundary: Any) -> Any:
        count((state.name, boundary))
        return originals[2](shard, state, batch, boundary)

    def match(shard: int, state: Any, batch: Any) -> Any:
        count(state.name)
        return originals[4](shard, state, batch)

    def gathered(answers: Any) -> Any:
        found = originals[3](answers)
        count(found)
        return found

    shards.put, shards.find_first, shards.count_matches = put, find_first, count_matches
    shards.gathered, shards.match = gathered, match
    spread.match(queries, predictions)
    shards.put, shards.find_first, shards.count_matches, shards.gathered, shards.match = originals
    return moved / len(queries)


def _bytes_held(support: SupportSet) -> int:
    """Of all that is kept for the points of a support, once it was searched."""
    (part,) = support.parts
    points, bounds = part.points, part.points.bounds
    tensors = (
        *(points.points, points.squared_norms, points.index, part.labels, part.predictions, part.groups),
        *(bounds.lower, bounds.upper, bounds.outliers),
    )
    return sum(tensor.nbytes for tensor in tensors)


def _twice(alone: SupportSet, queries: Any, predictions: Any) -> Figure:
    """What it costs if products are not kept, as on a shard of more than two million exemplars."""
    kept = search._KEPT_BLOCKS

    def match(n_blocks: int) -> None:
        search._KEPT_BLOCKS = n_blocks
        alone.match(queries, predictions)
        search._KEPT_BLOCKS = kept

    return compare(f"{BATCH:,} × {SUPPORT:,} × {M}, {TWICE}", lambda: match(0), "the same, kept", lambda: match(kept))


def _with_a_loss(spread: ShardedSupport, queries: Any, predictions: Any, ray: Any) -> None:
    """A match in whose middle a shard is killed."""
    shards = spread.shards
    process, answers, is_lost = ray.get(shards.actors[0].__ray_call__.remote(_process)), shards.gathered, False

    def gathered(asked: Any) -> Any:
        nonlocal is_lost
        found = answers(asked)
        if not is_lost:
            is_lost = True
            os.kill(process, signal.SIGKILL)
        return found

    shards.gathered = gathered
    spread.match(queries, predictions)
    shards.gathered = answers


def _process(shard: Any) -> int:
    return os.getpid()


def _seconds(shard: Any) -> float:
    return time.process_time()
