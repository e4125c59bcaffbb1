"""What the service counts, for Prometheus: requests, answers, the guard, the queue."""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import Response

from torchsdm import __version__
from torchsdm.service.security import App, Message, Receive, Scope, Send

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_NO_ROUTE = "none"  # paths that do not exist are one: whoever asks must not choose how many series there are


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
        self.queue = Gauge("torchsdm_queue_length", "Requests that wait.", registry=registry)
        self.version = Gauge("torchsdm_support_version", "Version of the support that answers.", registry=registry)
        self.reloads = Counter("torchsdm_reloads", "Models that took the place of another.", registry=registry)
        self._guard = {
            "log_martingale": Gauge(
                "torchsdm_guard_log_martingale", "The drift guard; it is raised at its threshold.", registry=registry
            ),
            "log_threshold": Gauge("torchsdm_guard_log_threshold", "Where the guard is raised.", registry=registry),
            "raised": Gauge("torchsdm_guard_raised", "1 from the alarm until a reset.", registry=registry),
            "n_seen": Gauge("torchsdm_guard_seen", "Inputs of the guard's stream so far.", registry=registry),
        }

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
        """Show what a guard has come to."""
        for name, gauge in self._guard.items():
            gauge.set(float(state[name]))

    def answer(self) -> Response:
        """All numbers, as Prometheus reads them."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)


class MeasuredRequests:
    """Counts every request, by the route that it took."""

    def __init__(self, app: App, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def noting_send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, noting_send)
        finally:
            route = getattr(scope.get("route"), "path", _NO_ROUTE)
            self.metrics.count_request(route, status, time.perf_counter() - start)
