"""`/metrics` for Prometheus, over HTTP on a port of its own: what the broker counted, holds, and has room for."""

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

from headrace.broker.connection import Connections
from headrace.broker.counts import BUCKETS_S, OTHER, TOPICS_MAX, Histogram, RequestCounts
from headrace.broker.errors import AddressUnusable
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.api_versions import BY_KEY
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.version import VERSION

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX = 16 * 1024
HEAD_S = 5.0
"""For a client to send the head of its request, and to take the answer."""
CLIENTS_MAX = 16
"""At once; more are closed."""


class MetricsPage:
    """The text that Prometheus reads, made when it asks."""

    def __init__(self, node: BrokerNode, connections: Connections, counts: RequestCounts) -> None:
        self._node, self._connections, self._counts = node, connections, counts

    def page(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, of the formats that a client accepts."""
        self._counts.keep_within({topic.name for topic in self._node.topics})
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        registry.register(_Collected([*self._of_requests(), *self._of_logs(), *self._of_work()]))
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    def _of_requests(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("headrace_broker_info", "Always 1, for the version in its label.", labels=["version"])
        info.add_metric([VERSION], 1)
        yield info
        yield GaugeMetricFamily(
            "headrace_broker_connections", "Connections of clients.", value=len(self._connections.open)
        )
        yield GaugeMetricFamily(
            "headrace_broker_fetch_sessions", "Fetch sessions of clients.", value=len(self._node.fetch_sessions)
        )
        times = HistogramMetricFamily(
            "headrace_broker_request_seconds",
            "From a request to its answer; a fetch may wait for messages, and a member for its group.",
            labels=["api"],
        )
        for key, histogram in sorted(self._counts.seconds.items()):
            times.add_metric([BY_KEY[key].name], _buckets(histogram), sum_value=histogram.sum_s)
        yield times
        errors = CounterMetricFamily(
            "headrace_broker_errors", "Error codes in answers, of each part that has one.", labels=["api", "error"]
        )
        for (key, code), number in sorted(self._counts.errors.items()):
            errors.add_metric([BY_KEY[key].name, _error_name(code)], number)
        yield errors
        for name, text, counter in (
            ("received", "Bytes of record batches that producers sent", self._counts.received),
            ("sent", "Bytes of record batches that were fetched", self._counts.sent),
        ):
            family = CounterMetricFamily(
                f"headrace_broker_{name}_bytes",
                f'{text}; "{OTHER}" is all topics beyond {TOPICS_MAX}.',
                labels=["topic"],
            )
            for topic, number in sorted(counter.items()):
                family.add_metric([topic], number)
            yield family

    def _of_logs(self) -> Iterator[Metric]:
        sizes: Counter[str] = Counter()
        for (topic, _), log in self._node.logs.items():
            sizes[topic] += log.size
        yield GaugeMetricFamily("headrace_broker_topics", "Topics, with our own.", value=len(self._node.topics))
        yield GaugeMetricFamily("headrace_broker_partitions", "Partitions of all topics.", value=len(self._node.logs))
        largest = dict(sizes.most_common(TOPICS_MAX))
        family = GaugeMetricFamily(
            "headrace_broker_log_bytes",
            f'Bytes of batches that are kept; "{OTHER}" is all but the {TOPICS_MAX} largest topics.',
            labels=["topic"],
        )
        for topic, size in sorted(largest.items()):
            family.add_metric([topic], size)
        if len(sizes) > len(largest):
            family.add_metric([OTHER], sizes.total() - sum(largest.values()))
        yield family
        with contextlib.suppress(OSError):
            disk = shutil.disk_usage(self._node.config.data_dir)
            yield GaugeMetricFamily("headrace_broker_disk_free_bytes", "Of the data directory's disk.", value=disk.free)
            yield GaugeMetricFamily(
                "headrace_broker_disk_total_bytes", "Of the data directory's disk.", value=disk.total
            )

    def _of_work(self) -> Iterator[Metric]:
        forced = HistogramMetricFamily(
            "headrace_broker_fsync_seconds", "To force to disk what waited for it together.", labels=[]
        )
        histogram = self._node.flusher.seconds
        forced.add_metric([], _buckets(histogram), sum_value=histogram.sum_s)
        yield forced
        yield CounterMetricFamily(
            "headrace_broker_paused_seconds",
            "While nobody was served, of a second and more at a time.",
            value=self._node.pauses.total_s,
        )
        groups = GaugeMetricFamily(
            "headrace_broker_groups", "Consumer groups with or without members.", labels=["state"]
        )
        states = Counter(group.state.value for group in self._node.groups.groups.values())
        for state, number in sorted(states.items()):
            groups.add_metric([str(state)], number)
        yield groups
        cleaner = self._node.cleaner
        yield CounterMetricFamily("headrace_broker_compactions", "Logs compacted.", value=cleaner.compactions)
        yield CounterMetricFamily(
            "headrace_broker_compacted_bytes", "Bytes that compaction took out of logs.", value=cleaner.freed_bytes
        )
        yield GaugeMetricFamily(
            "headrace_broker_logs_not_compacted",
            "Logs that are not compacted any more, since a batch of theirs is damaged.",
            value=cleaner.given_up_count,
        )


class _Collected:
    """What prometheus_client asks for metrics."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        return self._metrics


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    reached = 0
    for end, number in zip((*map(str, BUCKETS_S), "+Inf"), histogram.counts, strict=True):
        reached += number
        buckets.append((end, reached))
    return buckets


def _error_name(code: int) -> str:
    return _ERROR_NAMES.get(code, str(code))


_ERROR_NAMES = {int(code): code.name for code in ErrorCode}


class MetricsListener:
    """Answers GET /metrics and nothing else; one request for each connection."""

    def __init__(self, page: MetricsPage) -> None:
        self._page = page
        self._server: asyncio.Server | None = None
        self._clients = 0

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """
        Raises:
            AddressUnusable: the address is taken, or not this machine's.
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
                async with asyncio.timeout(HEAD_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head.decode("latin-1")))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            logger.debug("metrics not read error=%s", error)
        except Exception:
            logger.exception("metrics failed")
        finally:
            self._clients -= 1
            writer.close()

    def _answer(self, head: str) -> bytes:
        request, *lines = head.split("\r\n")
        words = request.split(" ")
        if len(words) != 3 or words[0] not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"GET /metrics is answered here\n")
        if words[1].partition("?")[0] != "/metrics":
            return _response("404 Not Found", b"GET /metrics is answered here\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body, content_type = self._page.page(headers.get("accept", ""))
        return _response("200 OK", body, content_type, with_body=words[0] == "GET")


def _response(
    status: str, body: bytes, content_type: str = "text/plain; charset=utf-8", *, with_body: bool = True
) -> bytes:
    fields: Mapping[str, object] = {"Content-Type": content_type, "Content-Length": len(body), "Connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + (body if with_body else b"")
