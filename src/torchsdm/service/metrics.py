"""What the service counts: for Prometheus requests, answers, the guard, the queue; for people recent inputs.

Recent inputs are counted minute by minute, and kept in memory until the service ends.
"""

from __future__ import annotations

import collections
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
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
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        gauge("torchsdm_info", "The package that is running.", ["version"]).labels(__version__).set(1)
        self._requests = counter("torchsdm_requests", "Requests that were answered.", ["route", "status"])
        said = "Time from a request's head to the end of its answer."
        self._seconds = histogram("torchsdm_request_seconds", said, ["route"], buckets=_SECONDS)
        self._lanes = counter("torchsdm_decisions", "Inputs that were decided on.", ["lane"])
        self._no_similarity = counter("torchsdm_similarity_zero", "Decisions with q = 0.")
        self._too_far = counter("torchsdm_distance_quantile_zero", "Decisions with d = 0.")
        self.batches = histogram("torchsdm_batch_rows", "Inputs that were answered together.", buckets=_ROWS)
        self.queue = gauge("torchsdm_queue_length", "Requests waiting.")
        self.version = gauge("torchsdm_support_version", "Version of the support in use.")
        self.reloads = counter("torchsdm_reloads", "Models that replaced another while serving.")
        self._guard = {
            "log_martingale": gauge("torchsdm_guard_log_martingale", "The drift guard; it is raised at its threshold."),
            "log_threshold": gauge("torchsdm_guard_log_threshold", "Where the guard is raised."),
            "raised": gauge("torchsdm_guard_raised", "1 from the alarm until a reset."),
            "n_raised": gauge(
                "torchsdm_guard_sources_raised", "Sources whose alarm is raised; 1 at most without sources."
            ),
            "n_seen": gauge("torchsdm_guard_seen", "Inputs of the guard's stream so far."),
        }
        self._checks = {
            "n_drawn": gauge("torchsdm_checks_drawn", "Answers that were drawn for a spot check."),
            "n_waiting": gauge("torchsdm_checks_waiting", "Drawn answers without a verdict."),
            "n_checked": gauge("torchsdm_checks_checked", "Verdicts since the last reset."),
            "n_wrong": gauge("torchsdm_checks_wrong", "Those that an answer is wrong."),
            "raised": gauge("torchsdm_checks_raised", "1 from the alarm of the spot checks until a reset."),
        }
        self.recent = Recent()

    def count_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Count decisions that were given out."""
        self.recent.record(rows)
        for lane, n in collections.Counter(row["lane"] for row in rows).items():
            self._lanes.labels(lane).inc(n)
        self._no_similarity.inc(sum(row["similarity"] == 0 for row in rows))
        self._too_far.inc(sum(row["distance_quantile"] == 0 for row in rows))

    def show_guard(self, state: Mapping[str, Any]) -> None:
        """Show the status of the drift guard."""
        for name, gauge in self._guard.items():
            gauge.set(float(state[name]))

    def count_drawn(self, n: int) -> None:
        """Count answers that were drawn for a spot check."""
        for name in ("n_drawn", "n_waiting"):
            self._checks[name].inc(n)

    def show_checks(self, state: Mapping[str, Any]) -> None:
        """Show the status of the spot checks."""
        for name, gauge in self._checks.items():
            gauge.set(float(state[name]))

    def answer(self) -> Response:
        """All numbers, as Prometheus reads them."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    def count_request(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request that was answered; paths that do not exist are one, since clients choose them."""
        route = getattr(scope.get("route"), "path", "none")
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)


_MINUTES = 24 * 60
_N_BINS = 20  # of the distance quantile within the predicted class


class Recent:
    """Lanes and distances of each of the last 24 hours' minutes; any thread may write. ``clock`` gives the seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._minutes: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._started = clock()

    def record(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in decided rows."""
        with self._lock:
            minute = int(self._clock() // 60)
            blank = {"lanes": collections.Counter(), "distances": [0] * _N_BINS, "no_similarity": 0}
            one = self._minutes.setdefault(minute, blank)
            while len(self._minutes) > _MINUTES:
                self._minutes.popitem(last=False)
            for row in rows:
                one["lanes"][row["lane"]] += 1
                one["no_similarity"] += row.get("similarity") == 0
                d = row.get("class_distance_quantile")
                if d is not None:
                    one["distances"][min(int(d * _N_BINS), _N_BINS - 1)] += 1

    def to_dict(self) -> dict[str, Any]:
        """The minutes in which something came in, the oldest first.

        ``distances`` counts class_distance_quantile in 20 bins from 0 to 1. Inputs like the calibration set are spread
        evenly over them; strangers are near 0.
        """
        with self._lock:
            oldest = int(self._clock() // 60) - _MINUTES
            minutes = [
                {"at": minute * 60, **one, "lanes": dict(one["lanes"]), "distances": list(one["distances"])}
                for minute, one in self._minutes.items()
                if minute > oldest
            ]
            return {"started": self._started, "now": self._clock(), "minutes": minutes}
