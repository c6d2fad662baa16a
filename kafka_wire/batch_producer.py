"""A blocking producer of whole record batches, under a transactional id, inside and outside of transactions.

A start gives the producer the next epoch of its transactional id. The first batch of a newer epoch in a partition makes
the broker reject every later batch of an older epoch there, also outside of transactions (KIP-98): the producer fences
its predecessors partition by partition. Clients that decode records cannot do that: librdkafka and the Java client
write outside of transactions only without a transactional id.

One request per broker is in flight, so batches cannot overtake each other. Each partition counts its records from
sequence number 0 of an epoch, and the number grows only with an acknowledgement. After an error response that may pass,
such as that of an election, a batch is sent again with its number, so that a broker which has it does not store it
again. If no response tells whether a batch is stored, the epoch ends: the caller starts again, which fences the lost
request, and reads the log.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

from headrace.kafka_wire.cluster import Address, KafkaCluster
from headrace.kafka_wire.connection import NONE, BrokerConnection, error_name
from headrace.kafka_wire.errors import BrokerSuspended, ErrorResponse, KafkaError, KafkaUnavailable
from headrace.kafka_wire.record_batch import NO_HEADERS, batch_of_records, claim_batch, read_batch_header
from headrace.kafka_wire.requests import COORDINATOR_RETRIABLE, RETRIABLE, RetriableError
from headrace.kafka_wire.topic_partition import TopicPartition

PRODUCE_VERSION: Final = 7
PRODUCE_OLDEST: Final = 3
"""The first version with record batches and a transactional id."""
INIT_VERSION: Final = 1
ADD_PARTITIONS_VERSION: Final = 2
END_VERSION: Final = 1
ALL_REPLICAS: Final = -1

OUT_OF_ORDER_SEQUENCE: Final = 45
DUPLICATE_SEQUENCE: Final = 46
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
CONCURRENT_TRANSACTIONS: Final = 51
OPERATION_NOT_ATTEMPTED: Final = 55
UNKNOWN_PRODUCER_ID: Final = 59
PRODUCER_FENCED: Final = 90
FENCED: Final = frozenset({INVALID_PRODUCER_EPOCH, PRODUCER_FENCED})
SEQUENCE_LOST: Final = frozenset({OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID})
UNKNOWN_OUTCOME: Final = RETRIABLE | {7, 14, 15, 16, 19, 20, -1, INVALID_TXN_STATE, CONCURRENT_TRANSACTIONS}
"""Codes after which a batch may be stored, or accepted later: those of `RETRIABLE`, timed out, the coordinator's, not
enough replicas before or after the append, unknown server error; and those of a transaction that has ended, but whose
marker is not in the partition yet: Apache Kafka responds before it writes the markers."""
RETRY_WAITS_S: Final = (0.02, 0.1, 0.5, 1.0)
"""Waits before the next attempts; together they cover one leader election."""

COORDINATOR_WAIT_S: Final = 30.0
FIRST_PAUSE_S: Final = 0.005
PAUSE_S_MAX: Final = 0.25

T = TypeVar("T")


class ProducerFenced(KafkaError):
    """Another producer has a newer epoch of the transactional id."""


class SequenceLost(KafkaError):
    """The broker expects another sequence number: a batch of the epoch was lost, or the broker has forgotten it. Only a
    new epoch can continue."""


class ProducerEpoch(NamedTuple):
    """The identity of a producer in batches."""

    producer_id: int
    epoch: int


class BatchProducer:
    """A producer with one transactional id. Not thread-safe.

    Args:
        cluster: the client whose connections are used.
        transaction_timeout_ms: after this time the broker aborts an open transaction.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        transactional_id: str,
        *,
        transaction_timeout_ms: int = 10_000,
        produce_timeout_ms: int = 10_000,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._produce_timeout_ms = produce_timeout_ms
        self._sleep = sleep
        self._coordinator: Address | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._in_transaction = False
        self.identity = ProducerEpoch(-1, -1)

    def start(self) -> ProducerEpoch:
        """Gets the next epoch of the transactional id, and aborts a transaction of an earlier one.

        Raises:
            KafkaError: the coordinator does not respond, or refuses the request.
        """

        def init(connection: BrokerConnection) -> tuple[int, ProducerEpoch]:
            version = connection.version(InitProducerIdRequest, INIT_VERSION)
            request = InitProducerIdRequest(
                version=version,
                transactional_id=self._transactional_id,
                transaction_timeout_ms=self._transaction_timeout_ms,
            )
            response = connection.call(request, InitProducerIdResponse, version)
            return response.error_code, ProducerEpoch(response.producer_id, response.producer_epoch)

        self.identity = self._coordinate("InitProducerId", init)
        self._sequences.clear()
        self._in_transaction = False
        return self.identity

    def produce(self, batches: Mapping[TopicPartition, bytes]) -> dict[TopicPartition, int | ErrorResponse]:
        """Writes one batch to each partition, and waits until all replicas in sync have them.

        Returns:
            The base offset of each batch, -1 for one that was stored before, or the error of a refused batch, which is
            not stored.

        Raises:
            ProducerFenced: another producer has a newer epoch.
            SequenceLost: the epoch is unusable.
            KafkaError: it is unknown which batches are stored. The epoch is unusable; start again.
        """
        found = produce_as(
            self._cluster,
            self.identity,
            {tp: (batch, self._sequences.get(tp, 0)) for tp, batch in batches.items()},
            self._transactional_id if self._in_transaction else None,
            self._produce_timeout_ms,
            self._sleep,
        )
        for topic_partition, result in found.items():
            if isinstance(result, int):
                count = read_batch_header(batches[topic_partition]).record_count
                self._sequences[topic_partition] = (self._sequences.get(topic_partition, 0) + count) % 2**31
        return found

    def begin(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Begins a transaction that writes to partitions, or adds partitions to it.

        Raises:
            ProducerFenced: another producer has a newer epoch.
            KafkaError: the coordinator does not respond, or refuses a partition.
        """
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic_partition in topic_partitions:
            by_topic[topic_partition.topic].append(topic_partition.partition)

        def add(connection: BrokerConnection) -> tuple[int, None]:
            version = connection.version(AddPartitionsToTxnRequest, ADD_PARTITIONS_VERSION)
            topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
            request = AddPartitionsToTxnRequest(
                version=version,
                v3_and_below_transactional_id=self._transactional_id,
                v3_and_below_producer_id=self.identity.producer_id,
                v3_and_below_producer_epoch=self.identity.epoch,
                v3_and_below_topics=[
                    topic(version=version, name=name, partitions=numbers) for name, numbers in by_topic.items()
                ],
            )
            response = connection.call(request, AddPartitionsToTxnResponse, version)
            codes = [
                one.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            ]
            failed = [code for code in codes if code not in (NONE, OPERATION_NOT_ATTEMPTED)]
            return (failed or codes or [NONE])[0], None

        self._coordinate("AddPartitionsToTxn", add)
        self._in_transaction = True

    def end(self, *, is_commit: bool) -> None:
        """Commits or aborts the transaction. After a lost response the epoch is unusable, and the request is not sent
        again: a late first one could end the next transaction of the epoch before it is complete.

        Raises:
            ProducerFenced: another producer has a newer epoch.
            KafkaError: the coordinator does not respond, or refuses the request.
        """

        def end(connection: BrokerConnection) -> tuple[int, None]:
            version = connection.version(EndTxnRequest, END_VERSION)
            request = EndTxnRequest(
                version=version,
                transactional_id=self._transactional_id,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.epoch,
                committed=is_commit,
            )
            return connection.call(request, EndTxnResponse, version).error_code, None

        self._coordinate("EndTxn", end)
        self._in_transaction = False

    def fence(self, topic_partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """Makes the brokers reject batches of older epochs in partitions: writes a record to each in a transaction and
        aborts it, so that consumers with `read_committed` never see the record.

        A record is necessary: the bundled broker writes no markers for an aborted transaction without records.

        Returns:
            The offset of the record by partition: every batch of an older epoch is before it.

        Raises:
            ErrorResponse: a broker refused the record.
            KafkaError: as in `produce`.
        """
        partitions = tuple(topic_partitions)
        if not partitions:
            return {}
        record = _fence_batch(timestamp_ms)
        self.begin(partitions)
        offsets: dict[TopicPartition, int] = {}
        for topic_partition, result in self.produce(dict.fromkeys(partitions, record)).items():
            if isinstance(result, ErrorResponse):
                raise result
            offsets[topic_partition] = result
        self.end(is_commit=False)
        return offsets

    def _coordinate(self, name: str, call: Callable[[BrokerConnection], tuple[int, T]]) -> T:
        """Sends a request to the coordinator of the transactional id, again after errors that pass.

        Args:
            call: sends one request, returns the error code and the result.
        """
        deadline, pause_s = time.monotonic() + COORDINATOR_WAIT_S, FIRST_PAUSE_S
        while True:
            code = NONE
            if self._coordinator is None:
                self._coordinator = self._find_coordinator(deadline)
            try:
                code, result = self._cluster.request(self._coordinator, call)
                if code == NONE:
                    return result
            except RetriableError:
                if time.monotonic() > deadline:
                    raise
            if code in FENCED:
                raise ProducerFenced(f"transactional id {self._transactional_id}: another producer has a newer epoch")
            if code in COORDINATOR_RETRIABLE or code == NONE:
                self._coordinator = None
            elif code not in RETRIABLE and code != CONCURRENT_TRANSACTIONS:
                raise ErrorResponse(str(self._coordinator), name, code, error_name(code))
            if time.monotonic() > deadline:
                raise RetriableError(f"transactional id {self._transactional_id}: {name}: {error_name(code)}")
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _find_coordinator(self, deadline: float) -> Address:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return self._cluster.coordinator(self._transactional_id, is_transaction=True)
            except BrokerSuspended:
                raise
            except KafkaUnavailable:  # Kafka creates the topic of the coordinator with the first transactional id
                if time.monotonic() > deadline:
                    raise
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)


FENCE_KEY: Final = b"hr.fence"


def _fence_batch(timestamp_ms: int) -> bytes:
    """Returns the batch that `fence` writes. The record has a key, because compacted topics take no other."""
    return batch_of_records([(FENCE_KEY, b"", NO_HEADERS)], timestamp_ms)


def produce_as(
    cluster: KafkaCluster,
    identity: ProducerEpoch,
    batches: Mapping[TopicPartition, tuple[bytes, int]],
    transactional_id: str | None,
    timeout_ms: int,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[TopicPartition, int | ErrorResponse]:
    """Writes one batch to each partition with an explicit identity.

    Args:
        batches: by partition, the batch and its sequence number.
        transactional_id: the id of the transaction; None writes outside of transactions.

    Returns, raises: as `BatchProducer.produce`.
    """
    found: dict[TopicPartition, int | ErrorResponse] = {}
    waiting = {
        topic_partition: claim_batch(batch, *identity, sequence, is_transactional=transactional_id is not None)
        for topic_partition, (batch, sequence) in batches.items()
    }
    for wait_s in (0.0, *RETRY_WAITS_S):
        if wait_s:
            sleep(wait_s)
            cluster.metadata(sorted({topic_partition.topic for topic_partition in waiting}))
        unknown = _produce_once(cluster, waiting, transactional_id, timeout_ms, found)
        waiting = {topic_partition: waiting[topic_partition] for topic_partition in unknown}
        if not waiting:
            return found
    raise RetriableError("; ".join(unknown.values()))


def _produce_once(
    cluster: KafkaCluster,
    batches: Mapping[TopicPartition, bytes],
    transactional_id: str | None,
    timeout_ms: int,
    found: dict[TopicPartition, int | ErrorResponse],
) -> dict[TopicPartition, str]:
    """Sends each batch once and adds the results to `found`. Returns the reason by partition for batches to send
    again."""
    by_leader: dict[Address, dict[TopicPartition, bytes]] = defaultdict(dict)
    unknown: dict[TopicPartition, str] = {}
    for topic_partition, batch in batches.items():
        try:
            by_leader[_leader(cluster, topic_partition)][topic_partition] = batch
        except RetriableError as error:
            unknown[topic_partition] = str(error)
    for address, own in by_leader.items():
        results = cluster.request(address, partial(_produce, own, transactional_id, timeout_ms))
        for topic_partition, result in results.items():
            if isinstance(result, str):
                unknown[topic_partition] = result
            else:
                found[topic_partition] = result
    return unknown


def _leader(cluster: KafkaCluster, topic_partition: TopicPartition) -> Address:
    try:
        return cluster.leader(topic_partition)
    except RetriableError:
        cluster.metadata([topic_partition.topic])
        return cluster.leader(topic_partition)


def _produce(
    batches: Mapping[TopicPartition, bytes],
    transactional_id: str | None,
    timeout_ms: int,
    connection: BrokerConnection,
) -> dict[TopicPartition, int | ErrorResponse | str]:
    """Sends one request. A result is a text if the batch is to be sent again."""
    version = connection.version(ProduceRequest, PRODUCE_VERSION, oldest=PRODUCE_OLDEST)
    topic = ProduceRequest.TopicProduceData
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for topic_partition, batch in batches.items():
        by_topic[topic_partition.topic].append(
            topic.PartitionProduceData(version=version, index=topic_partition.partition, records=batch)
        )
    request = ProduceRequest(
        version=version,
        transactional_id=transactional_id,
        acks=ALL_REPLICAS,
        timeout_ms=timeout_ms,
        topic_data=[topic(version=version, name=name, partition_data=data) for name, data in by_topic.items()],
    )
    response = connection.call(request, ProduceResponse, version, extra_wait_s=timeout_ms / 1000)
    results = {
        TopicPartition(topic.name, one.index): (one.error_code, one.base_offset)
        for topic in response.responses
        for one in topic.partition_responses
    }
    return {
        topic_partition: _result(connection, topic_partition, *results.get(topic_partition, (-1, -1)))
        for topic_partition in batches
    }


def _result(
    connection: BrokerConnection, topic_partition: TopicPartition, code: int, offset: int
) -> int | ErrorResponse | str:
    where = f"topic {topic_partition.topic} partition {topic_partition.partition}"
    reason = f"broker {connection.name}, {where}: {error_name(code)} (error {code})"
    if code == NONE:
        return offset
    if code == DUPLICATE_SEQUENCE:
        return -1
    if code in FENCED:
        raise ProducerFenced(reason)
    if code in SEQUENCE_LOST:
        raise SequenceLost(reason)
    if code in UNKNOWN_OUTCOME:
        return reason
    return ErrorResponse(connection.name, f"a batch for {where}", code, error_name(code))
