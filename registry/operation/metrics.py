"""Counts of requests and how long they took, for Prometheus, over all worker processes."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from headrace.registry.access.needs import route_label
from headrace.registry.operation.shared_counts import OTHER, SharedCounts

BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends; the last bucket is without one."""

SUM_COLUMN: Final = len(BUCKETS_S) + 1  # nanoseconds of all requests
COLUMNS: Final = SUM_COLUMN + 1
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
SPARE_SLOTS: Final = 4  # for workers that replace others which have not quite ended

RequestKey = tuple[str, str, str, str]
"""Method, route, status, and whether the answer was kept from before (`true` or `false`)."""


class RequestMetrics:
    """Counts in shared memory, in one process and thread; see `SharedCounts`."""

    def __init__(self, counts: SharedCounts) -> None:
        self._counts = counts
        self._numbers = counts.numbers()
        self._places: dict[tuple[str, str, int, bool], int] = {}

    def count(self, method: str, route: str, status: int, seconds: float, *, cached: bool) -> None:
        """One answer. It is called for each one of some ten thousand in a second, so it does little."""
        key = (method, route, status, cached)
        place = self._places.get(key)
        if place is None:
            place = self._place(key)
        self._numbers[place + bisect_left(BUCKETS_S, seconds)] += 1
        self._numbers[place + SUM_COLUMN] += int(seconds * 1e9)

    def _place(self, key: tuple[str, str, int, bool]) -> int:
        method, route, status, cached = key
        known = method if method in METHODS else OTHER
        label = "\t".join((known, route_label(route) or OTHER, str(status), str(cached).lower()))
        place = self._counts.place(label)
        # Methods are a client's words, and not kept.
        if known == method:
            self._places[key] = place
        return place


def new_counts(workers: int) -> SharedCounts:
    """What the workers of one server count in; made before they are."""
    return SharedCounts(workers + SPARE_SLOTS, COLUMNS)


class MetricsPage:
    """The text that Prometheus reads."""

    def __init__(self, counts: SharedCounts, version: str) -> None:
        self._counts = counts
        self._version = version

    def page(self, accept: str, stored: Mapping[str, int] | None, behind_s: float | None = None) -> tuple[bytes, str]:
        """The page and its content type.

        Args:
            accept: the formats that a client accepts.
            stored: how much there is in the database, by what it is; None when that does not answer.
            behind_s: how far behind the registry that it follows this one may be; None when it follows none.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(
            _Collected([*self._of_server(stored is not None), *_stored(stored or {}), *_behind(behind_s)])
        )
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    def _of_server(self, database_answers: bool) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "headrace_registry_info", "Always 1, for the version in its label.", labels=["version"]
        )
        info.add_metric([self._version], 1)
        yield info
        yield GaugeMetricFamily(
            "headrace_registry_workers", "Processes that answer requests.", value=self._counts.live()
        )
        yield GaugeMetricFamily(
            "headrace_registry_database_up", "1 when the database answers, else 0.", value=float(database_answers)
        )
        totals = {_request_key(label): row for label, row in sorted(self._counts.totals().items())}
        yield _requests(totals)
        yield _durations(totals)


class _Collected:
    """What prometheus_client asks for metrics."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        return self._metrics


def _stored(stored: Mapping[str, int]) -> Iterator[Metric]:
    for name, number in stored.items():
        text = f"{name.replace('_', ' ').capitalize()} in the database."
        yield GaugeMetricFamily(f"headrace_registry_{name}", text, value=number)


def _behind(seconds: float | None) -> Iterator[Metric]:
    if seconds is not None:
        text = "How far behind the registry that is followed this one may be."
        yield GaugeMetricFamily("headrace_registry_following_behind_seconds", text, value=seconds)


def _request_key(label: str) -> RequestKey:
    if label == OTHER:
        return (OTHER, OTHER, "0", "false")
    method, route, status, cached = label.split("\t")
    return (method, route, status, cached)


def _requests(totals: Mapping[RequestKey, tuple[int, ...]]) -> Metric:
    family = CounterMetricFamily(
        "headrace_registry_requests",
        "Requests answered; `cached` says that the answer was given before and still held.",
        labels=["method", "route", "status", "cached"],
    )
    for key, row in totals.items():
        family.add_metric(list(key), sum(row[:SUM_COLUMN]))
    return family


def _durations(totals: Mapping[RequestKey, tuple[int, ...]]) -> Metric:
    family = HistogramMetricFamily(
        "headrace_registry_request_seconds",
        "From the head of a request to the end of its answer.",
        labels=["method", "route"],
    )
    merged: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * COLUMNS)
    for (method, route, _, _), added in totals.items():
        merged[method, route] = [sum(pair) for pair in zip(merged[method, route], added, strict=True)]
    for labels, row in sorted(merged.items()):
        buckets: list[Any] = []
        reached = 0
        for end, number in zip([*map(str, BUCKETS_S), "+Inf"], row, strict=False):
            reached += number
            buckets.append((end, reached))
        family.add_metric(list(labels), buckets, sum_value=row[SUM_COLUMN] / 1e9)
    return family
