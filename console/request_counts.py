"""Counts the console's own requests, for its metrics."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from typing import Final

from flask import Flask, current_app, g, request
from werkzeug.wrappers import Response

from headrace.pipeline.status.metric import StatusMetric, histogram

EXTENSION: Final = "headrace-request-counts"
UNAVAILABLE: Final = "503"
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class ConsoleRequestCounts:
    """The responses of this process by endpoint and status, and their durations. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._responses: Counter[tuple[str, str]] = Counter()
        self._durations = [0] * (len(BOUNDS_S) + 1)
        self._total_s = 0.0

    def count(self, endpoint: str, status: int, seconds: float) -> None:
        with self._lock:
            self._responses[endpoint, str(status)] += 1
            self._durations[bisect_left(BOUNDS_S, seconds)] += 1
            self._total_s += seconds

    def totals(self) -> tuple[int, int]:
        """Returns the number of responses, and of those with status 5xx, except 503: another part does not respond, or
        the console is busy."""
        with self._lock:
            errors = sum(
                number
                for (_, status), number in self._responses.items()
                if status.startswith("5") and status != UNAVAILABLE
            )
            return self._responses.total(), errors

    def metrics(self) -> list[StatusMetric]:
        with self._lock:
            found = [
                StatusMetric("headrace_console_requests_total", number, (("endpoint", endpoint), ("status", status)))
                for (endpoint, status), number in sorted(self._responses.items())
            ]
            return found + histogram("headrace_console_request_seconds", BOUNDS_S, self._durations, self._total_s)


def install(app: Flask) -> None:
    """Counts each request of the application. Must be called before other functions that handle its requests, so that
    the requests that these reject count too."""
    counts = app.extensions[EXTENSION] = ConsoleRequestCounts()

    def begin() -> None:
        g.began_s = time.perf_counter()

    def end(response: Response) -> Response:
        counts.count(request.endpoint or "", response.status_code, time.perf_counter() - g.began_s)
        return response

    app.before_request(begin)
    app.after_request(end)


def request_counts() -> ConsoleRequestCounts:
    """Returns the counts of the application that handles this request."""
    found = current_app.extensions[EXTENSION]
    assert isinstance(found, ConsoleRequestCounts)
    return found
