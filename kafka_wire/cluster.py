"""A small blocking Kafka client: metadata, offsets, raw record batches, group offsets. Made for the loader; commands
that describe a cluster and the check of a login use it, too.

It has one connection per broker address and no threads. Fetches are sessionless and return the record batches of the
log unchanged. From Fetch 13 on, a request identifies the topic by id, so the broker rejects a re-created topic; in
older versions the caller compares topic ids. Create a client after a fork, not before.

Retries of a failing broker are limited for all requests together, not for each request (`circuit_breaker`). After a
broker has throttled a fetch, the next request to it waits for the throttle time, except for a prefetched one.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

from headrace.kafka_wire.circuit_breaker import COOL_DOWN_S, FAILURES_MAX, CircuitBreaker
from headrace.kafka_wire.connection import (
    NONE,
    BrokerConnection,
    ReceiveBuffers,
    close_all,
    error_name,
    parse_bootstrap_servers,
)
from headrace.kafka_wire.errors import AuthenticationFailed, BrokerSuspended, KafkaError, KafkaUnavailable
from headrace.kafka_wire.log_heads import LogHead, log_heads
from headrace.kafka_wire.requests import (
    EARLIEST,
    LATEST,
    RETRIABLE,
    AbortedTransaction,
    ClusterMetadata,
    EpochEnd,
    EpochQuery,
    FetchSlice,
    PartitionMetadata,
    RetriableError,
    TopicMetadata,
    commit_offsets,
    epoch_ends,
    fetch_batches,
    fetch_committed,
    fetch_request,
    find_coordinator,
    list_offsets,
    parse_metadata,
    request_metadata,
)
from headrace.kafka_wire.security import UNSECURED, KafkaSecurity
from headrace.kafka_wire.topic_partition import TopicPartition

__all__ = [
    "AbortedTransaction",
    "ClusterMetadata",
    "EpochEnd",
    "EpochEndLookup",
    "EpochQuery",
    "FetchSlice",
    "KafkaCluster",
    "OffsetLookup",
    "PartitionMetadata",
    "TopicMetadata",
]

logger = logging.getLogger(__name__)

ATTEMPTS = 4  # of a request with a retriable error; they cover one leader election
RETRY_WAIT_S = 0.25  # before the second attempt, doubled each time
THROTTLE_S_MAX = 600.0  # limit of the throttle time that is respected; quotas cover seconds

T = TypeVar("T")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class OffsetLookup:
    """The result of a request for offsets: the offset of each partition, or else the error in `errors`."""

    offsets: Mapping[TopicPartition, int]
    errors: Mapping[TopicPartition, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EpochEndLookup:
    """The result of a request for the ends of leader epochs: the end for each partition, or else the error in `errors`.

    An end is None if the broker does not support the request or permits it to brokers only.
    """

    ends: Mapping[TopicPartition, EpochEnd | None]
    errors: Mapping[TopicPartition, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogHeadLookup:
    """The result of a request for logs from a position on: the log of each partition, None if the position is not in
    it, or else the error in `errors`."""

    heads: Mapping[TopicPartition, LogHead | None]
    errors: Mapping[TopicPartition, str] = field(default_factory=dict)


class KafkaCluster:
    """A client of one cluster. Not thread-safe, and not usable after a fork.

    Args:
        bootstrap_servers: `host:port,…`.
        timeout_s: timeout of connecting, and of each read and write of a socket.
        security: TLS and SASL settings.
        clock: monotonic clock in seconds.
        sleep: sleeps for a number of seconds.

    Raises:
        ValueError: `bootstrap_servers` contains no server, or an entry that is not an address.
        AuthenticationFailed: a login failed; raised by the methods that send requests, except `prefetch`. The login is
            never retried, with any broker; existing connections keep working.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        timeout_s: float = 30.0,
        *,
        security: KafkaSecurity = UNSECURED,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bootstrap = parse_bootstrap_servers(bootstrap_servers)
        if not self._bootstrap:
            raise ValueError("no broker address is given; set kafka.bootstrap_servers to at least one host:port")
        self._timeout_s = timeout_s
        self._security = security
        self._clock = clock
        self._sleep = sleep
        self._connections: dict[Address, BrokerConnection] = {}
        self._buffers = ReceiveBuffers()
        self._breakers: dict[Address, CircuitBreaker] = defaultdict(CircuitBreaker)
        self._throttled_until: dict[Address, float] = {}
        self._metadata: ClusterMetadata = ClusterMetadata("", {}, {})
        self._expected_topics: frozenset[str] = frozenset()
        self._refused: AuthenticationFailed | None = None

    def __enter__(self) -> KafkaCluster:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        close_all(self._connections.values())
        self._connections.clear()

    @property
    def is_reached(self) -> bool:
        """Whether a broker has responded with metadata."""
        return bool(self._metadata.brokers)

    def expect_topics(self, topics: Iterable[str]) -> None:
        """Announces topics that later calls use, so that one metadata request covers them all."""
        self._expected_topics = frozenset(topics)

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        """Requests the metadata of `topics`, or of all topics if None; never creates a topic. A missing topic has an
        `error`.

        Raises:
            KafkaUnavailable: no broker responds.
            ErrorResponse: a broker does not support the request.
        """
        response = self._request_any_broker(lambda connection: request_metadata(connection, topics))
        metadata = parse_metadata(response)
        known = {} if topics is None else {**self._metadata.topics}
        self._metadata = ClusterMetadata(metadata.cluster_id, metadata.brokers, {**known, **metadata.topics})
        return metadata

    def topic_for_producing(self, topic: str) -> TopicMetadata:
        """Requests the metadata of a topic and the client's permissions as a producer does: brokers with automatic
        creation begin to create a missing topic.

        Raises:
            KafkaUnavailable: no broker responds.
            ErrorResponse: a broker does not support the request.
        """
        response = self._request_any_broker(
            lambda connection: request_metadata(connection, [topic], for_producing=True)
        )
        return parse_metadata(response).topics[topic]

    def offsets(
        self,
        topic_partitions: Iterable[TopicPartition],
        position: Literal["earliest", "latest"],
        read_committed: bool = True,
    ) -> Mapping[TopicPartition, int]:
        """Returns the start offset (`position` is "earliest") or end offset ("latest") of partitions; with
        `read_committed` the end is the last stable offset.

        Errors of partitions are logged; `lookup_offsets` returns them.
        """
        responses = self.lookup_offsets(topic_partitions, position, read_committed)
        for topic_partition, reason in responses.errors.items():
            logger.warning(
                "partition_skipped cause=the %s offset of the partition could not be requested topic=%s partition=%d "
                "reason=%s",
                "start" if position == "earliest" else "end",
                topic_partition.topic,
                topic_partition.partition,
                reason,
            )
        return responses.offsets

    def lookup_offsets(
        self,
        topic_partitions: Iterable[TopicPartition],
        position: Literal["earliest", "latest"],
        read_committed: bool = True,
    ) -> OffsetLookup:
        """Returns the start offset (`position` is "earliest") or end offset ("latest") of partitions, and the error of
        each partition for which none was found. With `read_committed` the end is the last stable offset. Sends one
        request per broker, and up to ATTEMPTS for partitions with a retriable error."""
        timestamp = EARLIEST if position == "earliest" else LATEST
        call = partial(list_offsets, timestamp_of=lambda tp: timestamp, read_committed=read_committed)
        return OffsetLookup(*self._request_leaders(topic_partitions, call))

    def lookup_offsets_at(self, timestamps: Mapping[TopicPartition, int]) -> OffsetLookup:
        """Returns for each partition the offset of its first message at or after a time, -1 if there is none, and the
        errors as `lookup_offsets` does. Sends one request per broker, without errors.

        Args:
            timestamps: the time of each partition, in milliseconds since 1970.
        """
        call = partial(list_offsets, timestamp_of=timestamps.__getitem__, read_committed=False)
        return OffsetLookup(*self._request_leaders(timestamps, call))

    def lookup_epoch_ends(self, queries: Mapping[TopicPartition, EpochQuery]) -> EpochEndLookup:
        """Returns the end offsets of leader epochs (OffsetForLeaderEpoch, KIP-320). Sends one request per broker, and
        up to ATTEMPTS for partitions with a retriable error.

        If the broker's leader epoch differs from `leader_epoch` of the query, and this is not -1, the result is an
        error.

        Args:
            queries: the epoch to look up for each partition.
        """
        return EpochEndLookup(*self._request_leaders(queries, partial(epoch_ends, queries=queries)))

    def lookup_log_heads(self, positions: Mapping[TopicPartition, int]) -> LogHeadLookup:
        """Returns the log of each partition of one topic from a position on: its ends, and the time of the first batch.
        Sends one request per broker, and up to ATTEMPTS for partitions with a retriable error.

        Args:
            positions: the offset by partition.
        """
        return LogHeadLookup(*self._request_leaders(positions, partial(log_heads, positions=positions)))

    def _request_leaders(
        self,
        topic_partitions: Iterable[TopicPartition],
        call: Callable[[BrokerConnection, Sequence[TopicPartition]], Mapping[TopicPartition, tuple[int, T]]],
    ) -> tuple[dict[TopicPartition, T], dict[TopicPartition, str]]:
        """Sends requests to the leaders of partitions, with retries; returns results and errors by partition.

        Args:
            call: sends one request to one broker; returns an error code and a result for each partition.
        """
        waiting = list(dict.fromkeys(topic_partitions))
        found: dict[TopicPartition, T] = {}
        errors: dict[TopicPartition, str] = {}
        for attempt in range(ATTEMPTS):
            if not waiting:
                break
            if attempt:
                self._sleep(RETRY_WAIT_S * 2 ** (attempt - 1))
            self._refresh_metadata(waiting, refresh=attempt > 0)
            waiting = self._request_leaders_once(waiting, call, found, errors)
        return found, {tp: reason for tp, reason in errors.items() if tp not in found}

    def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        topic_id: str = "",
        leader_epoch: int = -1,
        max_wait_ms: int = 500,
        read_committed: bool = True,
    ) -> FetchSlice:
        """Fetches raw batches of a partition below the last stable offset, from `offset` on; the first batch may begin
        before it. Batches of aborted transactions are included, and these transactions are listed.

        Args:
            max_bytes: size limit of the response, except for a larger first batch.
            topic_id: required id of the topic, if the broker supports Fetch 13; "" accepts any topic with the name.
            leader_epoch: the broker rejects the request if its epoch is another one; -1 skips the check.
            max_wait_ms: how long the broker waits for records if it has none from `offset` on.
            read_committed: False includes the batches of open transactions, and lists no aborted ones.

        Raises:
            OffsetOutOfRange: the log does not contain `offset`.
            LogChanged: the topic was re-created, or the leader changed since `leader_epoch`.
            ErrorResponse: the broker responded with another error.
            KafkaUnavailable: the leader does not respond, or the partition has no leader.
        """

        def fetch_once(attempt: int) -> FetchSlice:
            self._refresh_metadata([topic_partition], refresh=attempt > 0)
            leader = self.leader(topic_partition)
            by_id = topic_id or self._metadata.topics[topic_partition.topic].topic_id
            fetch_slice = self.request(
                leader,
                lambda connection: fetch_batches(
                    connection,
                    topic_partition,
                    fetch_request(
                        connection,
                        topic_partition,
                        offset,
                        max_bytes,
                        by_id,
                        leader_epoch,
                        max_wait_ms,
                        read_committed=read_committed,
                    ),
                ),
            )
            if fetch_slice.throttle_ms:
                # The broker does not read from this connection in that time (KIP-219); a request would time out.
                self._throttled_until[leader] = self._clock() + min(fetch_slice.throttle_ms / 1000, THROTTLE_S_MAX)
            return fetch_slice

        return self._retry(fetch_once)

    def prefetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        topic_id: str = "",
        leader_epoch: int = -1,
        max_wait_ms: int = 500,
    ) -> None:
        """Sends the request of a later `fetch`, without waiting for the response. Only a `fetch` with the same
        arguments uses the response; any other request to the broker discards it.

        Does nothing if another request is already prefetched from the broker, if there is no connection to it, or if
        the request cannot be sent now.

        Args:
            offset: offset from which to fetch; the first batch may begin before it.
            max_bytes, topic_id, leader_epoch, max_wait_ms: as in `fetch`.
        """
        topic = self._metadata.topics.get(topic_partition.topic)
        with contextlib.suppress(KafkaError):
            connection = self._connections.get(self.leader(topic_partition))
            if connection is not None and topic is not None and not connection.is_over:
                by_id = topic_id or topic.topic_id
                connection.send_early(
                    fetch_request(connection, topic_partition, offset, max_bytes, by_id, leader_epoch, max_wait_ms)
                )

    def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, str]:
        """Commits offsets of a group without members, for tools that show consumer lag.

        Returns:
            The error name of each partition that the coordinator rejected.

        Raises:
            ErrorResponse: a broker rejected the request for the coordinator, or does not support a request.
            KafkaUnavailable: the coordinator does not respond.
        """
        if not offsets:
            return {}

        def commit_once(attempt: int) -> Mapping[TopicPartition, str]:
            coordinator = self._request_any_broker(lambda connection: find_coordinator(connection, group))
            return self.request(coordinator, lambda connection: commit_offsets(connection, group, offsets))

        return self._retry(commit_once)

    def coordinator(self, key: str, *, is_transaction: bool = False) -> Address:
        """Requests the address of the broker that coordinates a group, or a transactional id.

        Raises:
            ErrorResponse: a broker rejected the request, or does not support it.
            KafkaUnavailable: no broker responds, or there is no coordinator yet.
        """
        return self._request_any_broker(
            lambda connection: find_coordinator(connection, key, is_transaction=is_transaction)
        )

    def group_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """Returns the committed offsets of a group for all its topics; empty for an unknown group.

        Raises:
            ErrorResponse: a broker rejected the request for the coordinator or for the offsets, or does not support it.
            KafkaUnavailable: the coordinator does not respond.
        """

        def list_once(attempt: int) -> Mapping[TopicPartition, int]:
            coordinator = self._request_any_broker(lambda connection: find_coordinator(connection, group))
            return self.request(coordinator, lambda connection: fetch_committed(connection, group))

        return self._retry(list_once)

    def request_any(self, call: Callable[[BrokerConnection], T]) -> T:
        """Calls `call`, which sends a request that every broker can answer, with the connection to one broker after the
        other until one responds; returns the response.

        Raises:
            KafkaUnavailable: no broker responds.
            ErrorResponse: raised by `call`.
        """
        return self._request_any_broker(call)

    def request_all(self, call: Callable[[BrokerConnection], T]) -> tuple[dict[int, T], dict[int, str]]:
        """Calls `call`, which sends a request, with the connection to each broker that `metadata` found; returns the
        responses and the errors by node id."""
        responses: dict[int, T] = {}
        errors: dict[int, str] = {}
        for node_id, address in self._metadata.brokers.items():
            try:
                responses[node_id] = self.request(address, call)
            except AuthenticationFailed:
                raise
            except KafkaError as error:
                errors[node_id] = str(error)
        return responses, errors

    def _refresh_metadata(self, topic_partitions: Iterable[TopicPartition], *, refresh: bool) -> None:
        topics = sorted({tp.topic for tp in topic_partitions})
        missing = [topic for topic in topics if refresh or topic not in self._metadata.topics]
        if missing:
            unknown = self._expected_topics.difference(self._metadata.topics, missing)
            self.metadata([*missing, *sorted(unknown)])

    def leader(self, topic_partition: TopicPartition) -> Address:
        """Returns the address of the leader of a partition, as the last `metadata` of the topic had it.

        Raises:
            RetriableError: the topic has no metadata, or the partition has no leader.
        """
        topic = self._metadata.topics.get(topic_partition.topic)
        where = f"topic {topic_partition.topic} partition {topic_partition.partition}"
        if topic is None or topic.error:
            raise RetriableError(f"{where}: {topic.error if topic else 'the topic does not exist'}")
        partition = topic.partitions.get(topic_partition.partition)
        if partition is None or partition.leader not in self._metadata.brokers:
            raise RetriableError(f"{where} has no leader at present")
        return self._metadata.brokers[partition.leader]

    def request(self, address: Address, call: Callable[[BrokerConnection], T], *, proves_health: bool = True) -> T:
        """Calls `call`, which sends one request, with the connection to the broker at `address`, and returns its
        result. Records success or failure in the broker's circuit breaker; a response with an error code is a success.

        Args:
            proves_health: whether a response resets the circuit breaker. A request that a broker answers from memory
                does not, because its disk may hang nevertheless.

        Raises:
            BrokerSuspended: the circuit breaker rejects requests to the broker now.
            KafkaError: `call` failed.
        """
        breaker = self._breakers[address]
        breaker.check(self._clock())
        throttle_s = self._throttled_until.pop(address, 0.0) - self._clock()
        if throttle_s > 0:
            self._sleep(throttle_s)
        try:
            result = call(self._connection(address))
        except AuthenticationFailed as error:
            self._refused = error
            raise
        except KafkaError as error:
            if isinstance(error, KafkaUnavailable) and not isinstance(error, RetriableError):
                breaker.record_failure(str(error), self._clock())
                if breaker.failures == FAILURES_MAX:
                    logger.warning(
                        "broker_suspended consecutive_failures=%d suspended_s=%d reason=%s",
                        FAILURES_MAX,
                        COOL_DOWN_S,
                        error,
                    )
            elif proves_health:
                breaker.record_success()
            raise
        if proves_health:
            breaker.record_success()
        return result

    def _connection(self, address: Address) -> BrokerConnection:
        connection = self._connections.get(address)
        if connection is not None and connection.is_over:
            connection.close()
            connection = None
        if connection is None:
            if self._refused is not None:
                # Repeated failing logins would lock the account.
                raise AuthenticationFailed(str(self._refused)) from self._refused
            connection = self._connections[address] = BrokerConnection(
                *address, self._timeout_s, self._security, self._buffers
            )
        return connection

    def _request_any_broker(self, call: Callable[[BrokerConnection], T]) -> T:
        """Calls `call`, which sends one request, with the connection to one broker after the other until one responds.
        Returns the first result. Brokers without failures come first.

        Raises:
            KafkaUnavailable: no broker responds.
        """
        errors: list[KafkaUnavailable] = []
        addresses = dict.fromkeys(itertools.chain(self._metadata.brokers.values(), self._bootstrap))
        for address in sorted(addresses, key=lambda address: self._breakers[address].failures):
            try:
                return self.request(address, call, proves_health=False)
            except KafkaUnavailable as error:
                errors.append(error)
        reasons = "; ".join(map(str, errors))
        if all(isinstance(error, BrokerSuspended) for error in errors):
            raise BrokerSuspended(reasons)
        raise KafkaUnavailable(reasons)

    def _retry(self, send: Callable[[int], T]) -> T:
        for attempt in range(ATTEMPTS):
            try:
                return send(attempt)
            except BrokerSuspended:
                # Waiting does not help, but newer metadata may name another broker.
                if attempt:
                    raise
            except KafkaUnavailable:
                if attempt == ATTEMPTS - 1:
                    raise
                self._sleep(RETRY_WAIT_S * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _request_leader(
        self,
        address: Address,
        call: Callable[[BrokerConnection, Sequence[TopicPartition]], Mapping[TopicPartition, tuple[int, T]]],
        requested: Sequence[TopicPartition],
    ) -> Mapping[TopicPartition, tuple[int, T]]:
        return self.request(address, lambda connection: call(connection, requested))

    def _request_leaders_once(
        self,
        topic_partitions: Sequence[TopicPartition],
        call: Callable[[BrokerConnection, Sequence[TopicPartition]], Mapping[TopicPartition, tuple[int, T]]],
        found: dict[TopicPartition, T],
        errors: dict[TopicPartition, str],
    ) -> list[TopicPartition]:
        """Sends one request to each leader of the partitions in `topic_partitions`; returns the partitions to retry.

        Args:
            call: sends one request to one broker; returns an error code and a result for each partition.
            found, errors: receive the result or error of each partition.
        """
        by_broker: dict[Address, list[TopicPartition]] = defaultdict(list)
        to_retry: list[TopicPartition] = []
        for topic_partition in topic_partitions:
            try:
                by_broker[self.leader(topic_partition)].append(topic_partition)
            except KafkaUnavailable as error:
                errors[topic_partition] = str(error)
                to_retry.append(topic_partition)
        for address, requested in by_broker.items():
            try:
                responses = self._request_leader(address, call, requested)
            except AuthenticationFailed:
                raise
            except KafkaError as error:
                errors.update(dict.fromkeys(requested, str(error)))
                to_retry.extend(requested)
                continue
            for topic_partition in requested:
                if topic_partition not in responses:
                    errors[topic_partition] = f"broker {address[0]}:{address[1]}: its response lacks the partition"
                    continue
                code, result = responses[topic_partition]
                if code == NONE:
                    found[topic_partition] = result
                else:
                    errors[topic_partition] = f"broker {address[0]}:{address[1]}: {error_name(code)} (error {code})"
                    to_retry.extend([topic_partition] if code in RETRIABLE else [])
        return to_retry
