"""What the service counts, for Prometheus: requests, answers, the guard, the queue."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import Response
from starlette.types import Scope

from torchsdm import __version__

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The service's numbers; each application has its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        about = Gauge("torchsdm_info", "The package that is running.", ["version"], registry=registry)
        about.labels(__version__).set(1)
        self._requests = Counter(
            "torchsdm_requests", "Requests that were answered.", ["route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "torchsdm_request_seconds",
            "Time from a request's head to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._lanes = Counter("torchsdm_decisions", "Inputs that were decided on.", ["lane"], registry=registry)
        self._no_similarity = Counter("torchsdm_similarity_zero", "Decisions with q = 0.", registry=registry)
        self._too_far = Counter("torchsdm_distance_quantile_zero", "Decisions with d = 0.", registry=registry)
        self._batches = Histogram(
            "torchsdm_batch_rows", "Inputs that were answered together.", buckets=_ROWS, registry=registry
        )
        self.queue = Gauge("torchsdm_queue_length", "Requests waiting.", registry=registry)
        self.version = Gauge("torchsdm_support_version", "Version of the support in use.", registry=registry)
        self.reloads = Counter("torchsdm_reloads", "Models that replaced another while serving.", registry=registry)
        guard = {
            "log_martingale": ("torchsdm_guard_log_martingale", "The drift guard; it is raised at its threshold."),
            "log_threshold": ("torchsdm_guard_log_threshold", "Where the guard is raised."),
            "raised": ("torchsdm_guard_raised", "1 from the alarm until a reset."),
            "n_seen": ("torchsdm_guard_seen", "Inputs of the guard's stream so far."),
        }
        self._guard = {field: Gauge(*said, registry=registry) for field, said in guard.items()}

    def count_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Count the rows that were decided on."""
        for lane, n in collections.Counter(row["lane"] for row in rows).items():
            self._lanes.labels(lane).inc(n)
        self._no_similarity.inc(sum(row["similarity"] == 0 for row in rows))
        self._too_far.inc(sum(row["distance_quantile"] == 0 for row in rows))

    def count_batch(self, n_rows: int) -> None:
        """Count a batch."""
        self._batches.observe(n_rows)

    def show_guard(self, state: Mapping[str, Any]) -> None:
        """Show the status of the drift guard."""
        for name, gauge in self._guard.items():
            gauge.set(float(state[name]))

    def answer(self) -> Response:
        """All numbers, as Prometheus reads them."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    def count_request(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request that was answered; paths that do not exist are one, since clients choose them."""
        route = getattr(scope.get("route"), "path", "none")
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
