"""Reads of brokers for pages, with time limits.

A read has its own connections. After a read that found no broker, further reads fail at once for `OUTAGE_S`; after a
rejected login for `REFUSED_S`, because repeated failing logins would lock the account. At most `READS_MAX` reads run at
once, so that brokers that do not respond leave threads for other sources.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from headrace.console.errors import ConsoleError
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import AuthenticationFailed, KafkaError, KafkaUnavailable
from headrace.kafka_wire.group_lag import GroupLags, topic_group_lags
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.inspect.offsets import BrokerOffsets, TopicOffsets, all_offsets, topic_offsets
from headrace.loader.plan.discover import is_wanted
from headrace.pipeline.load import kafka_cluster
from headrace.settings import Settings

T = TypeVar("T")

TIMEOUT_S: Final = 2.0
OUTAGE_S: Final = 5.0
REFUSED_S: Final = 60.0
READS_MAX: Final = 6
USER_READS_MAX: Final = 2
"""Reads of messages at once for each user."""


class BrokersBusy(ConsoleError):
    """Earlier reads of the brokers have not ended."""


@dataclass(frozen=True, slots=True)
class TopicTimes:
    """The partitions of a topic at a time. `offsets` has the first message at or after it of the partitions with one,
    `messages` is the number of offsets up to a second time. `problem` is "", or the reason of missing partitions."""

    partitions: tuple[int, ...]
    offsets: Mapping[int, int]
    errors: Mapping[int, str]
    messages: int = 0
    problem: str = ""


class BrokerReader:
    """Reads the brokers of the settings. Thread-safe. Its methods raise `KafkaError`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._running = threading.BoundedSemaphore(READS_MAX)
        self._outage: tuple[float, KafkaError] | None = None
        self._of_users: Counter[str] = Counter()

    def all_partitions(self) -> Mapping[TopicPartition, BrokerOffsets]:
        """Returns the offsets of all topics that loads read."""
        loader = self._settings.loader
        return self.use(
            lambda cluster: all_offsets(
                cluster, lambda topic: is_wanted(topic, loader.topics_include, loader.topics_exclude)
            )
        )

    def topic(self, topic: str, next_offsets: Mapping[int, int]) -> TopicOffsets:
        """Returns the offsets of one topic, see `topic_offsets`."""
        return self.use(lambda cluster: topic_offsets(cluster, topic, next_offsets))

    def groups(self, ends: Mapping[TopicPartition, int | None]) -> GroupLags:
        """Returns the groups that have committed offsets of these partitions."""
        return self.use(lambda cluster: topic_group_lags(cluster, ends))

    def times(self, topic: str, time_ms: int) -> TopicTimes:
        """Returns the offsets of a topic's partitions at a time, with one request per broker."""
        return self.use(lambda cluster: _times(cluster, topic, time_ms))

    def between(self, topic: str, since_ms: int, until_ms: int) -> TopicTimes:
        """Returns the offsets of a topic's partitions at a time, and the number of offsets up to a later one, with two
        requests per broker, and a third one for partitions without a message after the later time."""

        def read(cluster: KafkaCluster) -> TopicTimes:
            first = _times(cluster, topic, since_ms)
            starts = {TopicPartition(topic, number): offset for number, offset in first.offsets.items()}
            until = cluster.lookup_offsets_at(dict.fromkeys(starts, until_ms))
            open_ended = [tp for tp, offset in until.offsets.items() if offset < 0]
            ends = {**until.offsets, **cluster.lookup_offsets(open_ended, "latest", read_committed=False).offsets}
            errors = {tp.partition: text for tp, text in until.errors.items()}
            messages = sum(max(0, ends.get(tp, start) - start) for tp, start in starts.items())
            return replace(first, errors={**first.errors, **errors}, messages=messages)

        return self.use(read)

    @contextlib.contextmanager
    def read_of(self, user: str) -> Iterator[None]:
        """Counts a read of messages for a user while the context is open.

        Raises:
            BrokersBusy: `USER_READS_MAX` reads of this user have not ended.
        """
        with self._lock:
            if self._of_users[user] >= USER_READS_MAX:
                raise BrokersBusy(f"{USER_READS_MAX} earlier reads of this user have not ended; try again later")
            self._of_users[user] += 1
        try:
            yield
        finally:
            with self._lock:
                self._of_users[user] -= 1
                if not self._of_users[user]:
                    del self._of_users[user]

    def use(self, read: Callable[[KafkaCluster], T]) -> T:
        """Returns the result of `read`, which gets a client with a time limit for each request."""
        if not self._running.acquire(blocking=False):
            raise BrokersBusy(f"{READS_MAX} earlier reads of the brokers have not ended; try again later")
        try:
            with self._lock:
                if self._outage is not None and time.monotonic() < self._outage[0]:
                    raise self._outage[1].with_traceback(None)
                self._outage = None
            with kafka_cluster(self._settings, TIMEOUT_S) as cluster:
                try:
                    return read(cluster)
                except AuthenticationFailed as error:
                    self._note(error, REFUSED_S)
                    raise
                except KafkaUnavailable as error:
                    if not cluster.is_reached:  # else one broker or partition is unavailable
                        self._note(error, OUTAGE_S)
                    raise
        finally:
            self._running.release()

    def _note(self, error: KafkaError, wait_s: float) -> None:
        with self._lock:
            self._outage = (time.monotonic() + wait_s, error)


def _times(cluster: KafkaCluster, topic: str, time_ms: int) -> TopicTimes:
    found = cluster.metadata([topic]).topics.get(topic)
    if found is None or found.error:
        problem = found.error if found is not None else "the brokers return no metadata of the topic"
        return TopicTimes((), {}, {}, problem=problem)
    partitions = sorted(found.partitions)
    response = cluster.lookup_offsets_at({TopicPartition(topic, number): time_ms for number in partitions})
    return TopicTimes(
        tuple(partitions),
        {tp.partition: offset for tp, offset in response.offsets.items() if offset >= 0},
        {tp.partition: text for tp, text in response.errors.items()},
    )
