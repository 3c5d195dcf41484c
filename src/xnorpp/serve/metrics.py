"""Counters of a server in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from collections import Counter

# Upper bounds of the histogram of seconds per request.
BOUNDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """What a server counts; its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._statuses: Counter[int] = Counter()
        self._buckets = [0] * len(BOUNDS)
        self._seconds = 0.0
        self._images = self._batches = 0
        self._engine_seconds = 0.0

    def request(self, status: int, seconds: float) -> None:
        """One answered request and the time from its arrival to its answer."""
        with self._lock:
            self._statuses[status] += 1
            self._seconds += seconds
            for index, bound in enumerate(BOUNDS):
                if seconds <= bound:
                    self._buckets[index] += 1

    def batch(self, images: int, seconds: float) -> None:
        """One call of the model."""
        with self._lock:
            self._images += images
            self._batches += 1
            self._engine_seconds += seconds

    def text(self, waiting: int) -> str:
        """All counters, one per line."""
        with self._lock:
            total = sum(self._statuses.values())
            lines = [
                "# HELP xnorpp_requests_total Answered requests by status.",
                "# TYPE xnorpp_requests_total counter",
                *(
                    f'xnorpp_requests_total{{status="{status}"}} {count}'
                    for status, count in sorted(self._statuses.items())
                ),
                "# HELP xnorpp_request_seconds Time from a request's arrival to its answer.",
                "# TYPE xnorpp_request_seconds histogram",
                *(
                    f'xnorpp_request_seconds_bucket{{le="{bound}"}} {count}'
                    for bound, count in zip(BOUNDS, self._buckets)
                ),
                f'xnorpp_request_seconds_bucket{{le="+Inf"}} {total}',
                f"xnorpp_request_seconds_sum {self._seconds:.6f}",
                f"xnorpp_request_seconds_count {total}",
                "# HELP xnorpp_images_total Images that the model classified.",
                "# TYPE xnorpp_images_total counter",
                f"xnorpp_images_total {self._images}",
                "# HELP xnorpp_batches_total Calls of the model.",
                "# TYPE xnorpp_batches_total counter",
                f"xnorpp_batches_total {self._batches}",
                "# HELP xnorpp_engine_seconds_total Time inside the model, all threads together.",
                "# TYPE xnorpp_engine_seconds_total counter",
                f"xnorpp_engine_seconds_total {self._engine_seconds:.6f}",
                "# HELP xnorpp_waiting Images that wait for a thread.",
                "# TYPE xnorpp_waiting gauge",
                f"xnorpp_waiting {waiting}",
            ]
        return "\n".join(lines) + "\n"
