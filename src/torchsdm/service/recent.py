"""Recent inputs, minute by minute, for people to look at; kept in memory until the service ends."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_MINUTES = 24 * 60
_N_BINS = 20  # of the distance quantile within the predicted class


class Recent:
    """Lanes and distances of each of the last 24 hours' minutes; any thread may write.

    Parameters
    ----------
    clock : callable
        Seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._minutes: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._started = clock()

    def record(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in decided rows."""
        with self._lock:
            minute = int(self._clock() // 60)
            blank = {"lanes": Counter(), "distances": [0] * _N_BINS, "no_similarity": 0}
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
