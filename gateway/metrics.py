"""The gateway's metrics for Prometheus. Used by the event loop only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from headrace.version import VERSION

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
OTHER: Final = "other"
"""Label of methods that clients invented, and of paths without a route."""
UNAVAILABLE: Final = 503


class GatewayMetrics:
    """Counts of responses and records. Other parts add their own metrics to `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        info = Gauge("headrace_gateway_info", "Always 1.", ["version"], registry=self.registry)
        info.labels(VERSION).set(1)
        self._responses = Counter(
            "headrace_gateway_requests", "Responses.", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "headrace_gateway_request_seconds",
            "From the headers of a request to the end of its response.",
            ["method", "route"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self._records = Counter(
            "headrace_gateway_records",
            "Records that clients sent: stored ones, and others by the error of the Kafka client.",
            ["result"],
            registry=self.registry,
        )
        self._stored = self._records.labels("stored")
        self._rows: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self.responses = 0
        """All responses."""
        self.server_errors = 0
        """Those with status 5xx, except 503: another part does not respond, or the gateway is busy."""

    def count_response(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts a response.

        Args:
            method: the method of the request.
            route: the pattern of its path; "" without a route.
            status: the status of the response.
            seconds: the duration.
        """
        method, route = (method if method in METHODS else OTHER), route or OTHER
        row = self._rows.get((method, route, status))
        if row is None:  # methods, routes and statuses are few
            row = self._responses.labels(method, route, status), self._seconds.labels(method, route)
            self._rows[method, route, status] = row
        row[0].inc()
        row[1].observe(seconds)
        self.responses += 1
        self.server_errors += status >= 500 and status != UNAVAILABLE

    def count_records(self, stored: int, failed: Mapping[str, int] | None = None) -> None:
        """Counts stored records, and failed ones by the names of their errors."""
        self._stored.inc(stored)
        for name, number in (failed or {}).items():
            self._records.labels(name).inc(number)

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Adds a gauge, whose value `read` returns."""
        Gauge(f"headrace_gateway_{name}", text, registry=self.registry).set_function(read)

    def page(self, accept: str) -> tuple[bytes, str]:
        """Returns the page for Prometheus and its content type, by the value of the header `Accept`."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
