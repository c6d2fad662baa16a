"""`/metrics` for Prometheus, over HTTP on a separate port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from headrace.broker.connection import ClientConnections
from headrace.broker.errors import AddressUnusable
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.api_versions import BY_KEY
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.request_counts import BUCKETS_S, OTHER, TOPICS_MAX, Histogram, RequestCounts
from headrace.version import VERSION

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX = 16 * 1024
REQUEST_TIMEOUT_S = 5.0
"""Time for a client to send its request head and to receive the response."""
CLIENTS_MAX = 16
"""Concurrent clients; further connections are closed."""


class BrokerMetricsPage:
    """Renders the metrics when Prometheus scrapes them."""

    def __init__(self, node: BrokerNode, connections: ClientConnections, counts: RequestCounts) -> None:
        self._node, self._connections, self._counts = node, connections, counts

    def render(self, accept: str) -> tuple[bytes, str]:
        """Returns the metrics page and its content type, in a format that the `Accept` header allows, or else in
        Prometheus's text format."""
        self._counts.retain_topics({topic.name for topic in self._node.topics})
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        registry.register(_StaticCollector([*self._request_metrics(), *self._log_metrics(), *self._work_metrics()]))
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    def _request_metrics(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("headrace_broker_info", "Always 1; the label is the version.", labels=["version"])
        info.add_metric([VERSION], 1)
        yield info
        yield GaugeMetricFamily(
            "headrace_broker_connections", "Open client connections.", value=len(self._connections.open)
        )
        yield GaugeMetricFamily(
            "headrace_broker_fetch_sessions", "Open fetch sessions.", value=len(self._node.fetch_sessions)
        )
        times = HistogramMetricFamily(
            "headrace_broker_request_seconds",
            "Time from request to response, including a fetch's wait for records and a member's wait for a rebalance.",
            labels=["api"],
        )
        for key, histogram in sorted(self._counts.seconds.items()):
            times.add_metric([BY_KEY[key].name], _buckets(histogram), sum_value=histogram.sum_s)
        yield times
        errors = CounterMetricFamily(
            "headrace_broker_errors",
            "Error codes in responses; a response counts once for every partition or topic with an error.",
            labels=["api", "error"],
        )
        for (key, code), number in sorted(self._counts.errors.items()):
            errors.add_metric([BY_KEY[key].name, _error_name(code)], number)
        yield errors
        for name, text, counter in (
            ("received", "Bytes of record batches received from producers", self._counts.received),
            ("sent", "Bytes of record batches sent to consumers", self._counts.sent),
        ):
            family = CounterMetricFamily(
                f"headrace_broker_{name}_bytes",
                f'{text}; "{OTHER}" is all topics beyond {TOPICS_MAX}.',
                labels=["topic"],
            )
            for topic, number in sorted(counter.items()):
                family.add_metric([topic], number)
            yield family

    def _log_metrics(self) -> Iterator[Metric]:
        sizes: Counter[str] = Counter()
        for (topic, _), log in self._node.logs.items():
            sizes[topic] += log.size
        yield GaugeMetricFamily(
            "headrace_broker_topics", "Number of topics, including internal ones.", value=len(self._node.topics)
        )
        yield GaugeMetricFamily(
            "headrace_broker_partitions", "Number of partitions of all topics.", value=len(self._node.logs)
        )
        largest = dict(sizes.most_common(TOPICS_MAX))
        family = GaugeMetricFamily(
            "headrace_broker_log_bytes",
            f'Bytes of record batches in the logs; "{OTHER}" is all but the {TOPICS_MAX} largest topics.',
            labels=["topic"],
        )
        for topic, size in sorted(largest.items()):
            family.add_metric([topic], size)
        if len(sizes) > len(largest):
            family.add_metric([OTHER], sizes.total() - sum(largest.values()))
        yield family
        with contextlib.suppress(OSError):
            disk = shutil.disk_usage(self._node.config.data_dir)
            yield GaugeMetricFamily(
                "headrace_broker_disk_free_bytes", "Free space of the data directory's disk.", value=disk.free
            )
            yield GaugeMetricFamily(
                "headrace_broker_disk_total_bytes", "Size of the data directory's disk.", value=disk.total
            )

    def _work_metrics(self) -> Iterator[Metric]:
        fsyncs = HistogramMetricFamily(
            "headrace_broker_fsync_seconds", "Duration of one fsync of everything that waited for it.", labels=[]
        )
        histogram = self._node.flusher.seconds
        fsyncs.add_metric([], _buckets(histogram), sum_value=histogram.sum_s)
        yield fsyncs
        yield CounterMetricFamily(
            "headrace_broker_paused_seconds",
            "Total time in which the event loop served no client, counting pauses of a second or more.",
            value=self._node.pauses.total_s,
        )
        groups = GaugeMetricFamily(
            "headrace_broker_groups", "Consumer groups, with and without members.", labels=["state"]
        )
        states = Counter(group.state.value for group in self._node.groups.groups.values())
        for state, number in sorted(states.items()):
            groups.add_metric([str(state)], number)
        yield groups
        cleaner = self._node.cleaner
        yield CounterMetricFamily("headrace_broker_compactions", "Logs compacted.", value=cleaner.compactions)
        yield CounterMetricFamily(
            "headrace_broker_compacted_bytes", "Bytes that compaction removed from logs.", value=cleaner.freed_bytes
        )
        yield GaugeMetricFamily(
            "headrace_broker_logs_not_compacted",
            "Logs excluded from compaction because of a corrupt batch.",
            value=cleaner.uncleanable_count,
        )


class _StaticCollector:
    """Collector for prometheus_client: returns the metrics that it was given."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        return self._metrics


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    cumulative = 0
    for end, number in zip((*map(str, BUCKETS_S), "+Inf"), histogram.counts, strict=True):
        cumulative += number
        buckets.append((end, cumulative))
    return buckets


def _error_name(code: int) -> str:
    return _ERROR_NAMES.get(code, str(code))


_ERROR_NAMES = {int(code): code.name for code in ErrorCode}


class MetricsListener:
    """HTTP server for GET and HEAD /metrics; one request per connection."""

    def __init__(self, page: BrokerMetricsPage) -> None:
        self._page = page
        self._server: asyncio.Server | None = None
        self._clients = 0

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens for requests of the metrics page. Returns the host and the port, which the system chose if `port` is
        0.

        Raises:
            AddressUnusable: the address cannot be listened on, for example because it is in use.
        """
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES_MAX)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise AddressUnusable(f"{host}:{port}", reason, "broker.metrics_listen") from error
        return host, int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients <= CLIENTS_MAX:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._respond(head.decode("latin-1")))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            logger.debug("metrics request failed error=%s", error)
        except Exception:
            logger.exception("metrics failed")
        finally:
            self._clients -= 1
            writer.close()

    def _respond(self, head: str) -> bytes:
        request, *lines = head.split("\r\n")
        words = request.split(" ")
        if len(words) != 3 or words[0] not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"use GET /metrics\n")
        if words[1].partition("?")[0] != "/metrics":
            return _response("404 Not Found", b"use GET /metrics\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body, content_type = self._page.render(headers.get("accept", ""))
        return _response("200 OK", body, content_type, with_body=words[0] == "GET")


def _response(
    status: str, body: bytes, content_type: str = "text/plain; charset=utf-8", *, with_body: bool = True
) -> bytes:
    fields: Mapping[str, object] = {"Content-Type": content_type, "Content-Length": len(body), "Connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + (body if with_body else b"")
