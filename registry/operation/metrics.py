"""Prometheus metrics of all worker processes, and the recorder of metrics and access log."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from headrace.registry.access.required_permissions import route_label
from headrace.registry.access.users import Principal
from headrace.registry.operation.access_log import AccessLog
from headrace.registry.operation.shared_counts import OTHER, SharedCounts

logger = logging.getLogger(__name__)

BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram's buckets; the last bucket has no bound."""

SUM_COLUMN: Final = len(BUCKETS_S) + 1  # nanoseconds of all requests
COLUMNS: Final = SUM_COLUMN + 1
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
SPARE_SLOTS: Final = 4  # for replacement workers that start before their predecessors have ended

RequestKey = tuple[str, str, str, str]
"""Method, route, status, and whether the response came from the cache (`true` or `false`)."""


class RequestMetrics:
    """Counts the requests of one process, called from one thread. The counts are in shared memory; see
    `SharedCounts`."""

    def __init__(self, counts: SharedCounts) -> None:
        self._counts = counts
        self._numbers = counts.numbers()
        self._offsets: dict[tuple[str, str, int, bool], int] = {}

    def count(self, method: str, route: str, status: int, seconds: float, *, cached: bool) -> None:
        """Counts a response. It runs some ten thousand times per second, so it does little work.

        Args:
            method: the HTTP method of the request.
            route: the matched URL rule; "" without a match.
            status: the HTTP status of the response.
            seconds: the duration of the request.
            cached: whether the response came from the cache.
        """
        key = (method, route, status, cached)
        offset = self._offsets.get(key)
        if offset is None:
            offset = self._row_offset(key)
        self._numbers[offset + bisect_left(BUCKETS_S, seconds)] += 1
        self._numbers[offset + SUM_COLUMN] += int(seconds * 1e9)

    def _row_offset(self, key: tuple[str, str, int, bool]) -> int:
        method, route, status, cached = key
        known = method if method in METHODS else OTHER
        label = "\t".join((known, route_label(route) or OTHER, str(status), str(cached).lower()))
        offset = self._counts.row_offset(label)
        # Unknown methods are not cached, because clients could send any number of them.
        if known == method:
            self._offsets[key] = offset
        return offset


def new_counts(workers: int) -> SharedCounts:
    """Allocates the shared memory in which all worker processes of one server count requests. It must be created before
    the workers are forked."""
    return SharedCounts(workers + SPARE_SLOTS, COLUMNS)


class RequestRecorder:
    """Writes metrics and the access log of a worker process. Its event loop calls `record` for every response, as the
    `RequestObserver` of the server."""

    def __init__(self, metrics: RequestMetrics | None, log: AccessLog | None = None) -> None:
        self._metrics = metrics
        self._log = log

    def record(
        self,
        scope: Any,
        route: str,
        status: int,
        size: int,
        seconds: float,
        principal: Principal | None,
        *,
        cached: bool,
    ) -> None:
        if self._metrics is not None:
            self._metrics.count(scope["method"], route, status, seconds, cached=cached)
        if self._log is not None:
            self._log.write(scope, status, size, seconds, "" if principal is None else principal.name, cached=cached)


def make_request_recorder(counts: SharedCounts, access_log: str) -> RequestRecorder:
    """Makes the recorder of the requests of this worker process, for metrics and the access log. If other processes
    have claimed all slots of the counts, it logs an error and the recorder counts nothing.

    Args:
        counts: the shared counts; the recorder gets a part of them that only this process writes.
        access_log: the file of the access log, or "-" for standard error; "" disables the log.

    Raises:
        OSError: the access log cannot be opened.
    """
    log = AccessLog(access_log) if access_log else None
    if not counts.claim():
        # The slots of replaced workers are free again when those have ended.
        logger.error(
            "requests_not_counted cause=replaced workers that have not ended use all counters; the requests of this "
            "worker are missing in /metrics until SIGHUP replaces it"
        )
        return RequestRecorder(None, log)
    return RequestRecorder(RequestMetrics(counts), log)


class RegistryMetricsPage:
    """The page that Prometheus scrapes."""

    def __init__(self, counts: SharedCounts, version: str, lost_audit_lines: Callable[[], int] | None = None) -> None:
        """Creates the page.

        Args:
            counts: the request counts of all worker processes.
            version: the version that the registry reports.
            lost_audit_lines: returns the number of lines that could not be written to the audit log; None without an
                audit log.
        """
        self._counts = counts
        self._version = version
        self._lost_audit_lines = lost_audit_lines

    @property
    def lost_audit_lines(self) -> int:
        """The number of lines that could not be written to the audit log since the server started."""
        return 0 if self._lost_audit_lines is None else self._lost_audit_lines()

    def render(self, accept: str, stored: Mapping[str, int] | None, lag_s: float | None = None) -> tuple[bytes, str]:
        """Returns the page and its content type.

        Args:
            accept: the value of the `Accept` header.
            stored: number of objects in the database by kind; None when the database is unreachable.
            lag_s: replication lag in seconds; None when this registry is not a replica or the database is unreachable.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(
            _MetricList([*self._of_server(stored is not None), *_stored(stored or {}), *_replication_lag(lag_s)])
        )
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    def _of_server(self, database_is_up: bool) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "headrace_registry_info", "Always 1, for the version in its label.", labels=["version"]
        )
        info.add_metric([self._version], 1)
        yield info
        yield GaugeMetricFamily(
            "headrace_registry_workers", "Processes that serve requests.", value=self._counts.process_count()
        )
        yield GaugeMetricFamily(
            "headrace_registry_database_up",
            "1 when the database is reachable, else 0.",
            value=float(database_is_up),
        )
        if self._lost_audit_lines is not None:
            yield CounterMetricFamily(
                "headrace_registry_audit_lines_lost",
                "Changes that could not be written to the audit log, since the start.",
                value=self._lost_audit_lines(),
            )
        totals = {_request_key(label): row for label, row in sorted(self._counts.totals().items())}
        yield _requests(totals)
        yield _durations(totals)


class _MetricList:
    """Passes a list of metrics to prometheus_client, which requires an object with a method `collect`."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        return self._metrics


def _stored(stored: Mapping[str, int]) -> Iterator[Metric]:
    for name, number in stored.items():
        text = f"{name.replace('_', ' ').capitalize()} in the database."
        yield GaugeMetricFamily(f"headrace_registry_{name}", text, value=number)


def _replication_lag(seconds: float | None) -> Iterator[Metric]:
    if seconds is not None:
        text = "Replication lag of this replica behind its source, in seconds."
        yield GaugeMetricFamily("headrace_registry_replication_lag_seconds", text, value=seconds)


def _request_key(label: str) -> RequestKey:
    if label == OTHER:
        return (OTHER, OTHER, "0", "false")
    method, route, status, cached = label.split("\t")
    return (method, route, status, cached)


def _requests(totals: Mapping[RequestKey, tuple[int, ...]]) -> Metric:
    family = CounterMetricFamily(
        "headrace_registry_requests",
        "Responses; `cached` is true when the response came from the cache.",
        labels=["method", "route", "status", "cached"],
    )
    for key, row in totals.items():
        family.add_metric(list(key), sum(row[:SUM_COLUMN]))
    return family


def _durations(totals: Mapping[RequestKey, tuple[int, ...]]) -> Metric:
    family = HistogramMetricFamily(
        "headrace_registry_request_seconds",
        "From the headers of a request to the end of its response.",
        labels=["method", "route"],
    )
    merged: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * COLUMNS)
    for (method, route, _, _), added in totals.items():
        merged[method, route] = [sum(pair) for pair in zip(merged[method, route], added, strict=True)]
    for labels, row in sorted(merged.items()):
        buckets: list[Any] = []
        cumulative = 0
        for end, number in zip([*map(str, BUCKETS_S), "+Inf"], row, strict=False):
            cumulative += number
            buckets.append((end, cumulative))
        family.add_metric(list(labels), buckets, sum_value=row[SUM_COLUMN] / 1e9)
    return family
