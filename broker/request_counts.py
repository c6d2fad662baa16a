"""Counters of requests, errors and bytes, as plain numbers; `metrics` renders them for Prometheus.

Their number is bounded: API keys and error codes come from the protocol, and topics after the first TOPICS_MAX are
counted together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final
from uuid import UUID

from headrace.broker.protocol.api_versions import FETCH, PRODUCE

BUCKETS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the histogram buckets, in seconds; one more bucket counts all longer durations."""
TOPICS_MAX = 200
OTHER = "(other)"
"""Label under which deleted topics, and topics beyond TOPICS_MAX, are counted; not a valid topic name."""

_NESTED = (
    "responses",
    "results",
    "topics",
    "groups",
    "coordinators",
    "partitions",
    "members",
    "results_by_topic_v3_and_below",
    "results_by_partition",
    "filter_results",
    "matching_acls",
    "replica_election_results",
    "partition_result",
    "transaction_states",
)
"""Names of the fields in responses that are lists, and in whose elements error codes are looked for."""


class Histogram:
    """A histogram of durations in seconds."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


class RequestCounts:
    """Totals of all connections: `seconds` is the histogram of durations by API key, `errors` counts by API key and
    error code, `received` and `sent` are record bytes by topic.

    Args:
        topic_name: returns the name of a topic id, "" for an unknown id.
    """

    def __init__(self, topic_name: Callable[[UUID], str]) -> None:
        self.seconds: defaultdict[int, Histogram] = defaultdict(Histogram)
        self.errors: Counter[tuple[int, int]] = Counter()
        self.received: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._topics: set[str] = set()
        self._topic_name = topic_name

    def count_request(self, api_key: int, request: Any) -> None:
        """Counts the record bytes of a Produce request by topic; ignores requests with another API key. Call it before
        the request's frame is overwritten."""
        if api_key == PRODUCE:
            for topic in request.topics:
                self.received[self._label(topic.name)] += sum(len(one.records or b"") for one in topic.partitions)

    def count_response(self, api_key: int, response: Any, seconds: float) -> None:
        """Counts a response to a request of this API: its duration `seconds`, its error codes and, for Fetch, its
        record bytes. `response` is None if the client expects no response and the request was not refused."""
        self.seconds[api_key].add(seconds)
        if response is None:
            return
        for code in _codes(api_key, response):
            if code:
                self.errors[api_key, code] += 1
        if api_key == FETCH:
            for topic in response.topics:
                size = sum(len(one.records) for one in topic.partitions)
                if size:
                    self.sent[self._label(topic.name or self._topic_name(topic.topic_id))] += size

    def _label(self, topic: str) -> str:
        if topic in self._topics:
            return topic
        if len(self._topics) >= TOPICS_MAX:
            return OTHER
        self._topics.add(topic)
        return topic

    def retain_topics(self, topics: Collection[str]) -> None:
        """Removes the byte counts of topics that are not in `topics`, and adds these bytes to the count of OTHER."""
        for deleted in [topic for topic in self._topics if topic not in topics]:
            self._topics.discard(deleted)
            for counter in (self.received, self.sent):
                if deleted in counter:
                    counter[OTHER] += counter.pop(deleted)


def _codes(api_key: int, response: Any) -> Iterator[int]:
    if api_key == PRODUCE:
        yield from (one.error for topic in response for one in topic.partitions)
    elif api_key == FETCH:
        yield response.error
        yield from (one.error for topic in response.topics for one in topic.partitions)
    else:
        yield from _generated_codes(response)


def _generated_codes(message: Any) -> Iterator[int]:
    yield getattr(message, "error_code", None) or getattr(message, "partition_error_code", None) or 0
    for name in _NESTED:
        for part in getattr(message, name, None) or ():
            if not isinstance(part, (str, int, bytes)):
                yield from _generated_codes(part)
