"""Reads of brokers for pages, with time limits.

A read has its own connections. After a read that found no broker, further reads fail at once for `OUTAGE_S`; after a
rejected login for `REFUSED_S`, because repeated failing logins would lock the account. At most `READS_MAX` reads run at
once, so that brokers that do not respond leave threads for other sources.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
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


class BrokersBusy(ConsoleError):
    """`READS_MAX` earlier reads of the brokers have not ended."""


class BrokerReader:
    """Reads the brokers of the settings. Thread-safe. Its methods raise `KafkaError`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._running = threading.BoundedSemaphore(READS_MAX)
        self._outage: tuple[float, KafkaError] | None = None

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
                return read(cluster)
        except (AuthenticationFailed, KafkaUnavailable) as error:
            with self._lock:
                if self._outage is None:
                    wait_s = REFUSED_S if isinstance(error, AuthenticationFailed) else OUTAGE_S
                    self._outage = (time.monotonic() + wait_s, error)
            raise
        finally:
            self._running.release()
