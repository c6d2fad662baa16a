"""A small blocking Kafka client for planning and reading: metadata, offsets, raw batches, group offsets.

It keeps one connection per broker and no thread. Fetches are sessionless and return the record batches as the log
holds them. From Fetch 13 on a topic is named by its id, so that a re-created topic is refused by the broker
itself; before that the caller compares topic ids. A client is made after a fork, never before.

A broker that fails is tried a few times over all requests, not in each of them (`breaker`), and one that throttles us
is left alone for as long as it says.
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

from headrace.kafka_wire.breaker import FAILURES_MAX, Breaker
from headrace.kafka_wire.connection import NONE, Connection, close_all, error_name, parse_bootstrap_servers
from headrace.kafka_wire.errors import AuthenticationRefused, BrokerPutOff, KafkaError, KafkaUnavailable
from headrace.kafka_wire.receive_room import ReceiveRoom
from headrace.kafka_wire.requests import (
    EARLIEST,
    LATEST,
    MOVED,
    AbortedTransaction,
    ClusterMetadata,
    EpochEnd,
    EpochQuestion,
    FetchSlice,
    Moved,
    PartitionMetadata,
    TopicMetadata,
    ask_metadata,
    cluster_metadata,
    commit_offsets,
    epoch_ends,
    fetch_batches,
    fetch_committed,
    fetch_request,
    find_coordinator,
    list_offsets,
)
from headrace.kafka_wire.security import UNSECURED, KafkaSecurity
from headrace.kafka_wire.topic_partition import TopicPartition

__all__ = [
    "AbortedTransaction",
    "ClusterMetadata",
    "EpochAnswers",
    "EpochEnd",
    "EpochQuestion",
    "FetchSlice",
    "KafkaCluster",
    "OffsetAnswers",
    "PartitionMetadata",
    "TopicMetadata",
]

logger = logging.getLogger(__name__)

ATTEMPTS = 4  # of a request whose broker moved or broke off: enough for one leader election
RETRY_WAIT_S = 0.25  # before the second attempt, doubled each time
THROTTLE_S_MAX = 600.0  # a broker that wants more than this is asked all the same; quotas count over seconds

T = TypeVar("T")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class OffsetAnswers:
    """`offsets` of the partitions that answered, and for each other one why it did not."""

    offsets: Mapping[TopicPartition, int]
    errors: Mapping[TopicPartition, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EpochAnswers:
    """What was answered by partition, and for each other one why it was not.

    None is the answer of a broker that does not serve this question, to anybody or to us.
    """

    ends: Mapping[TopicPartition, EpochEnd | None]
    errors: Mapping[TopicPartition, str] = field(default_factory=dict)


class KafkaCluster:
    """A cluster as one client sees it. Not for sharing between threads or across a fork.

    Args:
        bootstrap_servers: `host:port,…`.
        timeout_s: of connecting and of each answer.
        security: how to connect.
        clock: monotonic, in seconds.
        sleep: waits for so many seconds.

    Raises:
        ValueError: `bootstrap_servers` holds no server.
        AuthenticationRefused: by every method, where a connection has to be made; it is never tried again, by none of
            them and with no broker. What is connected already goes on.
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
            raise ValueError("expected at least one host:port")
        self._timeout_s = timeout_s
        self._security = security
        self._clock = clock
        self._sleep = sleep
        self._connections: dict[Address, Connection] = {}
        self._room = ReceiveRoom()
        self._breakers: dict[Address, Breaker] = defaultdict(Breaker)
        self._quiet_until: dict[Address, float] = {}
        self._known: ClusterMetadata = ClusterMetadata("", {}, {})
        self._expected: frozenset[str] = frozenset()
        self._refused: AuthenticationRefused | None = None

    def __enter__(self) -> KafkaCluster:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        close_all(self._connections.values())
        self._connections.clear()

    def expect(self, topics: Iterable[str]) -> None:
        """Tells which topics will be asked about, so that one request learns where all their partitions are."""
        self._expected = frozenset(topics)

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        """Asks for `topics`, or for all; never creates one. A topic that does not exist has an `error`.

        Raises:
            KafkaUnavailable: no broker answers.
        """
        response = self._with_any_broker(lambda connection: ask_metadata(connection, topics))
        metadata = cluster_metadata(response)
        kept = {} if topics is None else {**self._known.topics}
        self._known = ClusterMetadata(metadata.cluster_id, metadata.brokers, {**kept, **metadata.topics})
        return metadata

    def offsets(
        self,
        topic_partitions: Iterable[TopicPartition],
        which: Literal["earliest", "latest"],
        read_committed: bool = True,
    ) -> Mapping[TopicPartition, int]:
        """Start or end offsets; with `read_committed` the end is the last stable offset.

        A partition that cannot be asked now is absent and logged; `offset_answers` says why.
        """
        answers = self.offset_answers(topic_partitions, which, read_committed)
        for topic_partition, reason in answers.errors.items():
            logger.warning(
                "offset not known topic=%s partition=%d reason=%s",
                topic_partition.topic,
                topic_partition.partition,
                reason,
            )
        return answers.offsets

    def offset_answers(
        self,
        topic_partitions: Iterable[TopicPartition],
        which: Literal["earliest", "latest"],
        read_committed: bool = True,
    ) -> OffsetAnswers:
        """Like `offsets`, with a reason for each partition that did not answer. One request per broker."""
        timestamp = EARLIEST if which == "earliest" else LATEST
        ask = partial(list_offsets, timestamp=timestamp, read_committed=read_committed)
        return OffsetAnswers(*self._answers_of_leaders(topic_partitions, ask))

    def epoch_answers(self, questions: Mapping[TopicPartition, EpochQuestion]) -> EpochAnswers:
        """Where leader epochs ended (OffsetForLeaderEpoch, KIP-320): one request per broker.

        A broker that is asked with another leader epoch than its own does not answer.
        """
        return EpochAnswers(*self._answers_of_leaders(questions, partial(epoch_ends, questions=questions)))

    def _answers_of_leaders(
        self,
        topic_partitions: Iterable[TopicPartition],
        ask: Callable[[Connection, Sequence[TopicPartition]], Mapping[TopicPartition, tuple[int, T]]],
    ) -> tuple[dict[TopicPartition, T], dict[TopicPartition, str]]:
        """Asks each partition's leader, again where it has moved: what was answered, and why the rest was not.

        Args:
            ask: one request to one broker; an error code and an answer for each partition.
        """
        waiting = list(dict.fromkeys(topic_partitions))
        found: dict[TopicPartition, T] = {}
        errors: dict[TopicPartition, str] = {}
        for attempt in range(ATTEMPTS):
            if not waiting:
                break
            if attempt:
                self._sleep(RETRY_WAIT_S * 2 ** (attempt - 1))
            self._learn(waiting, refresh=attempt > 0)
            waiting = self._ask_leaders(waiting, ask, found, errors)
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
    ) -> FetchSlice:
        """Raw committed batches from `offset` on; the first batch may begin before it.

        Args:
            max_bytes: bound of the answer, but for a first batch that is longer.
            topic_id: the incarnation of the topic that is meant, "" for whatever has the name now.
            leader_epoch: refused by the broker when its epoch is newer, -1 to not compare.

        Raises:
            OffsetOutOfRange: the log does not hold `offset`.
            LogChanged: the topic was re-created, or the leader changed since `leader_epoch`.
            RequestRefused: the broker answered with another error.
            KafkaUnavailable: the leader does not answer.
        """

        def once(attempt: int) -> FetchSlice:
            self._learn([topic_partition], refresh=attempt > 0)
            leader = self._leader(topic_partition)
            by_id = topic_id or self._known.topics[topic_partition.topic].topic_id
            piece = self._ask(
                leader,
                lambda connection: fetch_batches(
                    connection,
                    topic_partition,
                    fetch_request(connection, topic_partition, offset, max_bytes, by_id, leader_epoch, max_wait_ms),
                ),
            )
            if piece.throttle_ms:
                # The broker reads nothing from this connection for so long (KIP-219), and we would call that a failure.
                self._quiet_until[leader] = self._clock() + min(piece.throttle_ms / 1000, THROTTLE_S_MAX)
            return piece

        return self._retried(once)

    def fetch_ahead(
        self,
        topic_partition: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        topic_id: str = "",
        leader_epoch: int = -1,
        max_wait_ms: int = 500,
    ) -> None:
        """Asks for what `fetch` with the same arguments is going to return, without waiting for it.

        A broker has one such question at a time; where it cannot be asked now, nothing happens.
        """
        topic = self._known.topics.get(topic_partition.topic)
        with contextlib.suppress(KafkaError):
            connection = self._connections.get(self._leader(topic_partition))
            if connection is not None and topic is not None and not connection.is_over:
                by_id = topic_id or topic.topic_id
                connection.send_ahead(
                    fetch_request(connection, topic_partition, offset, max_bytes, by_id, leader_epoch, max_wait_ms)
                )

    def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, str]:
        """Commits offsets of a group without members, which lag tools then show.

        Returns:
            The error's name for each partition that the coordinator refused.

        Raises:
            KafkaUnavailable: it does not answer.
        """
        if not offsets:
            return {}

        def once(attempt: int) -> Mapping[TopicPartition, str]:
            coordinator = self._with_any_broker(lambda connection: find_coordinator(connection, group))
            return self._ask(coordinator, lambda connection: commit_offsets(connection, group, offsets))

        return self._retried(once)

    def group_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """What a group has committed, of all its topics; nothing for a group that is not known.

        Raises:
            RequestRefused: the coordinator refused.
            KafkaUnavailable: it does not answer.
        """

        def once(attempt: int) -> Mapping[TopicPartition, int]:
            coordinator = self._with_any_broker(lambda connection: find_coordinator(connection, group))
            return self._ask(coordinator, lambda connection: fetch_committed(connection, group))

        return self._retried(once)

    def ask_any(self, ask: Callable[[Connection], T]) -> T:
        """What the first broker that answers says to a question that all of them know the answer of.

        Raises:
            KafkaUnavailable: no broker answers.
            RequestRefused: see `ask`.
        """
        return self._with_any_broker(ask)

    def ask_all(self, ask: Callable[[Connection], T]) -> tuple[dict[int, T], dict[int, str]]:
        """By node what each known broker says (`metadata` finds them), and of the others why they do not."""
        answers: dict[int, T] = {}
        errors: dict[int, str] = {}
        for node_id, address in self._known.brokers.items():
            try:
                answers[node_id] = self._ask(address, ask)
            except AuthenticationRefused:
                raise
            except KafkaError as error:
                errors[node_id] = str(error)
        return answers, errors

    def _learn(self, topic_partitions: Iterable[TopicPartition], *, refresh: bool) -> None:
        topics = sorted({tp.topic for tp in topic_partitions})
        missing = [topic for topic in topics if refresh or topic not in self._known.topics]
        if missing:
            unknown = self._expected.difference(self._known.topics, missing)
            self.metadata([*missing, *sorted(unknown)])

    def _leader(self, topic_partition: TopicPartition) -> Address:
        topic = self._known.topics.get(topic_partition.topic)
        where = f"topic {topic_partition.topic} partition {topic_partition.partition}"
        if topic is None or topic.error:
            raise Moved(f"{where}: {topic.error if topic else 'the topic does not exist'}")
        partition = topic.partitions.get(topic_partition.partition)
        if partition is None or partition.leader not in self._known.brokers:
            raise Moved(f"{where} has no leader now")
        return self._known.brokers[partition.leader]

    def _ask(self, address: Address, ask: Callable[[Connection], T], *, proves_health: bool = True) -> T:
        """One request to one broker, and a note of whether it answered at all; an error code is an answer.

        Args:
            proves_health: whether an answer makes up for failures; what a broker answers from memory does not, since
                it may do so while its disk hangs.
        """
        breaker = self._breakers[address]
        breaker.check(self._clock())
        quiet_s = self._quiet_until.pop(address, 0.0) - self._clock()
        if quiet_s > 0:
            self._sleep(quiet_s)
        try:
            answer = ask(self._connection(address))
        except AuthenticationRefused as error:
            self._refused = error
            raise
        except KafkaError as error:
            if isinstance(error, KafkaUnavailable) and not isinstance(error, Moved):
                breaker.failed(str(error), self._clock())
                if breaker.failures == FAILURES_MAX:
                    logger.warning("broker_left_alone failures_in_a_row=%d reason=%s", FAILURES_MAX, error)
            elif proves_health:
                breaker.answered()
            raise
        if proves_health:
            breaker.answered()
        return answer

    def _connection(self, address: Address) -> Connection:
        connection = self._connections.get(address)
        if connection is not None and connection.is_over:
            connection.close()
            connection = None
        if connection is None:
            if self._refused is not None:
                # A login for each question would lock the account out.
                raise AuthenticationRefused(str(self._refused)) from self._refused
            connection = self._connections[address] = Connection(*address, self._timeout_s, self._security, self._room)
        return connection

    def _with_any_broker(self, ask: Callable[[Connection], T]) -> T:
        """Asks the brokers in turn until one answers: first those that did not fail last, then those known by now."""
        errors: list[KafkaUnavailable] = []
        addresses = dict.fromkeys(itertools.chain(self._known.brokers.values(), self._bootstrap))
        for address in sorted(addresses, key=lambda address: self._breakers[address].failures):
            try:
                return self._ask(address, ask, proves_health=False)
            except KafkaUnavailable as error:
                errors.append(error)
        reasons = "; ".join(map(str, errors))
        if all(isinstance(error, BrokerPutOff) for error in errors):
            raise BrokerPutOff(reasons)
        raise KafkaUnavailable(reasons)

    def _retried(self, once: Callable[[int], T]) -> T:
        for attempt in range(ATTEMPTS):
            try:
                return once(attempt)
            except BrokerPutOff:
                # Nothing will have changed in a moment, but a newer metadata may name another broker.
                if attempt:
                    raise
            except KafkaUnavailable:
                if attempt == ATTEMPTS - 1:
                    raise
                self._sleep(RETRY_WAIT_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _ask_leader(
        self,
        address: Address,
        ask: Callable[[Connection, Sequence[TopicPartition]], Mapping[TopicPartition, tuple[int, T]]],
        asked: Sequence[TopicPartition],
    ) -> Mapping[TopicPartition, tuple[int, T]]:
        return self._ask(address, lambda connection: ask(connection, asked))

    def _ask_leaders(
        self,
        waiting: Sequence[TopicPartition],
        ask: Callable[[Connection, Sequence[TopicPartition]], Mapping[TopicPartition, tuple[int, T]]],
        found: dict[TopicPartition, T],
        errors: dict[TopicPartition, str],
    ) -> list[TopicPartition]:
        """One round: fills `found` and `errors` and returns what is worth asking again."""
        by_broker: dict[Address, list[TopicPartition]] = defaultdict(list)
        again: list[TopicPartition] = []
        for topic_partition in waiting:
            try:
                by_broker[self._leader(topic_partition)].append(topic_partition)
            except KafkaUnavailable as error:
                errors[topic_partition] = str(error)
                again.append(topic_partition)
        for address, asked in by_broker.items():
            try:
                answered = self._ask_leader(address, ask, asked)
            except AuthenticationRefused:
                raise
            except KafkaError as error:
                errors.update(dict.fromkeys(asked, str(error)))
                again.extend(asked)
                continue
            for topic_partition, (code, answer) in answered.items():
                if code == NONE:
                    found[topic_partition] = answer
                else:
                    errors[topic_partition] = f"broker {address[0]}:{address[1]}: {error_name(code)} (error {code})"
                    again.extend([topic_partition] if code in MOVED else [])
        return again
