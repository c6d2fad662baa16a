"""Sends single requests of Kafka's protocol to any broker and returns the responses as plain values.

Used by tests that run against the bundled broker and Apache Kafka: transient errors, such as those during a leader
election or while a coordinator loads, are retried.
"""

from __future__ import annotations

import importlib
import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest
from kafka.protocol.consumer import (
    FetchRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

from headrace.broker.coordinator.transaction import ProducerIdAndEpoch
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.connection import BrokerConnection, ReceiveBuffers
from headrace.kafka_wire.messages import ConsumerGroupHeartbeatRequest
from headrace.kafka_wire.record_batch import read_batch_header, split_batches
from headrace.kafka_wire.security import UNSECURED
from support.broker.broker_samples import batch

TIMEOUT_S = 60
RETRIABLE_CODES = {
    5,  # LEADER_NOT_AVAILABLE
    6,  # NOT_LEADER_OR_FOLLOWER
    14,  # COORDINATOR_LOAD_IN_PROGRESS
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    16,  # NOT_COORDINATOR
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
NO_PRODUCER = ProducerIdAndEpoch(-1, -1)
Message = Any


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def fresh(name: str) -> str:
    """Returns a name with this prefix that no earlier call returned."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def code_of(number: int) -> ErrorCode | int:
    """Returns the error code as an enum member if the bundled broker has it."""
    return ErrorCode(number) if number in ErrorCode._value2member_map_ else number


def until(fetch: Callable[[], Any], is_accepted: Callable[[Any], bool]) -> Any:
    """Repeats the call of `fetch` until `is_accepted` accepts its result, and returns the result. Fails after
    `TIMEOUT_S`."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        response = fetch()
        if is_accepted(response):
            return response
        assert time.monotonic() < deadline, response
        time.sleep(0.02)


class ProtocolClient:
    """A client with one connection to a broker; use it in a `with` statement. Error codes are returned, not raised."""

    def __init__(self, address: str) -> None:
        self.address = address
        host, port = address.rsplit(":", 1)
        self._connection = BrokerConnection(host, int(port), TIMEOUT_S, UNSECURED, ReceiveBuffers())
        self._numbers = itertools.count()

    def __enter__(self) -> ProtocolClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def request_once(self, request: Message, version: int, **fields: object) -> Message:
        """Sends a request once and returns the response.

        Args:
            version: API version of the request.
            fields: fields of the request. Structures are mappings with the protocol's field names.
        """
        filled = {name: as_field(request.fields[name], value, version) for name, value in fields.items()}
        module = importlib.import_module(request.__module__)
        response = getattr(module, request.__name__.replace("Request", "Response"))
        return self._connection.call(request(version=version, **filled), response, version)

    # Topics

    def create(self, name: str, partitions: int = 1, replicas: int = 1, **configs: str | None) -> ErrorCode | int:
        """Creates a topic. An underscore in a configuration's name stands for a dot."""
        requested = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": replicas, "configs": requested}
        response = self.request_once(
            CreateTopicsRequest, 7, topics=[topic], timeout_ms=TIMEOUT_S * 1000, validate_only=False
        )
        return code_of(response.topics[0].error_code)

    def topic(self, partitions: int = 1, **configs: str | None) -> str:
        """Creates a topic with a new name and waits until the broker serves all its partitions. Returns the name."""
        name = fresh("t")
        assert self.create(name, partitions, **configs) == 0
        until(lambda: self.describe(name), lambda response: response[0] == 0 and len(response[1]) == partitions)
        for index in range(partitions):
            until(partial(self.offset, name, -1, partition=index), lambda response: response[0] == 0)
        return name

    def describe(self, name: str, *, creates: bool = False) -> tuple[ErrorCode | int, list[int]]:
        """Returns the error code of a topic and the numbers of its partitions that have a leader.

        Args:
            creates: whether the request permits the broker to create the topic.
        """
        response = self.request_once(MetadataRequest, 9, topics=[{"name": name}], allow_auto_topic_creation=creates)
        (topic,) = response.topics
        return code_of(topic.error_code), [one.partition_index for one in topic.partitions if one.leader_id >= 0]

    def delete(self, name: str) -> ErrorCode | int:
        response = self.request_once(DeleteTopicsRequest, 4, topic_names=[name], timeout_ms=TIMEOUT_S * 1000)
        return code_of(response.responses[0].error_code)

    # Records

    def produce(
        self,
        topic: str,
        records: bytes | None,
        partition: int = 0,
        *,
        acks: int = -1,
        transactional_id: str | None = None,
        version: int = 11,
    ) -> tuple[ErrorCode | int, int]:
        """Sends a record batch. Returns the error code and the offset of its first record."""
        one = self.produced(topic, records, partition, acks=acks, transactional_id=transactional_id, version=version)
        return code_of(one.error_code), one.base_offset

    def produced(
        self,
        topic: str,
        records: bytes | None,
        partition: int = 0,
        *,
        acks: int = -1,
        transactional_id: str | None = None,
        version: int = 11,
    ) -> Any:
        """Sends a record batch. Returns the partition of the response."""
        data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
        response = self.request_once(
            ProduceRequest,
            version,
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=TIMEOUT_S * 1000,
            topic_data=data,
        )
        (one,) = response.responses[0].partition_responses
        return one

    def fetch(self, topic: str, offset: int = 0, partition: int = 0, *, committed: bool = False, **more: int) -> Any:
        """Returns the partition of a fetch response.

        Args:
            committed: whether to read committed messages only.
            more: other fields of the request's partition.
        """
        requested = {
            "partition": partition,
            "fetch_offset": offset,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            **more,
        }
        response = self.request_once(
            FetchRequest,
            11,
            replica_id=-1,
            max_wait_ms=200,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": topic, "partitions": [requested]}],
            forgotten_topics_data=[],
            rack_id="",
        )
        return response.responses[0].partitions[0]

    def batches(self, topic: str, offset: int = 0, *, committed: bool = False) -> list[tuple[int, int]]:
        """Returns the first and last offset of each batch from an offset on, including control batches, as a consumer
        receives them."""
        records = bytes(self.fetch(topic, offset, committed=committed).records or b"")
        headers = [read_batch_header(frame.view) for frame in split_batches(records, topic)]
        return [(header.base_offset, header.last_offset) for header in headers]

    def offset(
        self, topic: str, timestamp: int, *, committed: bool = False, partition: int = 0, epoch: int = -1
    ) -> tuple[ErrorCode | int, int]:
        """Sends a ListOffsets request. Returns the error code and the offset found.

        Args:
            timestamp: milliseconds since 1970, or a special value of the protocol: -1 is the log end, -2 the log start.
            committed: whether to consider committed messages only.
            epoch: the leader epoch that the client knows; -1 for none.
        """
        one = {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}
        response = self.request_once(
            ListOffsetsRequest,
            7,
            replica_id=-1,
            isolation_level=int(committed),
            topics=[{"name": topic, "partitions": [one]}],
        )
        (found,) = response.topics[0].partitions
        return code_of(found.error_code), found.offset

    # Producers

    def init_producer_id(
        self, transactional_id: str | None = None, timeout_ms: int = 60_000, claimed: ProducerIdAndEpoch = NO_PRODUCER
    ) -> tuple[ErrorCode | int, ProducerIdAndEpoch]:
        def send() -> Any:
            return self.request_once(
                InitProducerIdRequest,
                4,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=claimed.producer_id,
                producer_epoch=claimed.epoch,
            )

        response = until(send, _is_settled)
        return code_of(response.error_code), ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    def produce_as(
        self, topic: str, user: ProducerIdAndEpoch, sequence: int, count: int = 1, transactional_id: str | None = None
    ) -> tuple[ErrorCode | int, int]:
        """Produces a batch as an idempotent or transactional producer. Returns the error code and the offset of its
        first record.

        Args:
            user: the producer id and epoch.
            sequence: sequence number of the first record.
            count: number of records.
        """
        records = batch(
            *(b"v" for _ in range(count)),
            timestamp_ms=now_ms(),
            producer_id=user.producer_id,
            epoch=user.epoch,
            sequence=sequence,
            is_transactional=transactional_id is not None,
        )
        return self.produce(topic, records, transactional_id=transactional_id)

    def add_partitions(self, transactional_id: str, user: ProducerIdAndEpoch, *topics: str) -> list[ErrorCode | int]:
        def send() -> list[ErrorCode | int]:
            response = self.request_once(
                AddPartitionsToTxnRequest,
                3,
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=user.producer_id,
                v3_and_below_producer_epoch=user.epoch,
                v3_and_below_topics=[{"name": topic, "partitions": [0]} for topic in topics],
            )
            by_name = {one.name: one.results_by_partition for one in response.results_by_topic_v3_and_below}
            return [code_of(by_name[topic][0].partition_error_code) for topic in topics]

        response: list[ErrorCode | int] = until(send, lambda codes: not RETRIABLE_CODES.intersection(codes))
        return response

    def end_transaction(self, transactional_id: str, user: ProducerIdAndEpoch, *, commit: bool) -> ErrorCode | int:
        return self._until_settled(EndTxnRequest, transactional_id, user, committed=commit)

    def add_offsets(self, transactional_id: str, user: ProducerIdAndEpoch, group: str) -> ErrorCode | int:
        return self._until_settled(AddOffsetsToTxnRequest, transactional_id, user, group_id=group)

    def _until_settled(
        self, request: Any, transactional_id: str, user: ProducerIdAndEpoch, **fields: object
    ) -> ErrorCode | int:
        """Sends a version 3 request of a transactional producer. Repeats it while the broker still completes the
        producer's previous transaction. Returns the error code."""

        def send() -> Any:
            return self.request_once(
                request,
                3,
                transactional_id=transactional_id,
                producer_id=user.producer_id,
                producer_epoch=user.epoch,
                **fields,
            )

        return code_of(until(send, _is_settled).error_code)

    def commit_in_transaction(
        self, transactional_id: str, user: ProducerIdAndEpoch, group: str, topic: str, offset: int, **member: object
    ) -> ErrorCode | int:
        """Commits the offset of a group in partition 0 as part of a transaction. Returns the error code.

        Args:
            member: fields of the request that identify a group member.
        """
        topic_partition = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}

        def send() -> ErrorCode | int:
            response = self.request_once(
                TxnOffsetCommitRequest,
                3,
                transactional_id=transactional_id,
                group_id=group,
                producer_id=user.producer_id,
                producer_epoch=user.epoch,
                topics=[{"name": topic, "partitions": [{**topic_partition, "committed_metadata": None}]}],
                **{"generation_id": -1, "member_id": "", "group_instance_id": None, **member},
            )
            return code_of(response.topics[0].partitions[0].error_code)

        found: ErrorCode | int = until(send, lambda code: code not in RETRIABLE_CODES)
        return found

    # Groups

    def join(
        self,
        group: str,
        member_id: str = "",
        protocols: Sequence[str] = ("range",),
        *,
        kind: str = "consumer",
        session_ms: int = 10_000,
        instance_id: str | None = None,
        version: int = 7,
    ) -> Any:
        def send() -> Any:
            return self.request_once(
                JoinGroupRequest,
                version,
                group_id=group,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=10_000,
                member_id=member_id,
                group_instance_id=instance_id,
                protocol_type=kind,
                protocols=[{"name": name, "metadata": b"\0\0\0\0\0\0\0\0\0\0"} for name in protocols],
            )

        return until(send, _is_settled)

    def join_alone(self, group: str) -> tuple[str, int]:
        """Joins a group as its only member and takes all partitions. Returns the member id and the generation."""
        response = self.join(group, self.join(group).member_id)
        assert self.sync(group, response.member_id, response.generation_id, leads=True) == 0
        return response.member_id, response.generation_id

    def heartbeat(self, group: str, member_id: str, epoch: int, **fields: object) -> Any:
        """Sends a heartbeat of the consumer protocol (KIP-848) and returns the response."""

        def send() -> Any:
            requested_fields = {"group_id": group, "member_id": member_id, "member_epoch": epoch, **fields}
            return self.request_once(ConsumerGroupHeartbeatRequest, 1, **requested_fields)

        return until(send, _is_settled)

    def join_consumer_group(self, group: str, member_id: str, *topics: str, **fields: object) -> Any:
        """Joins a group with the consumer protocol (KIP-848) and returns the response.

        Args:
            fields: fields that override or extend the request.
        """
        joining = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": list(topics), "topic_partitions": []}
        return self.heartbeat(group, member_id, 0, **{**joining, **fields})

    def join_with_partitions(self, group: str, topic: str, **fields: object) -> tuple[str, int]:
        """Joins an empty group with the consumer protocol and waits until all partitions of the topic are assigned.
        Returns the member id and epoch."""
        member_id = fresh("m")
        response = self.join_consumer_group(group, member_id, topic, **fields)
        complete = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": [topic], "topic_partitions": [], **fields}

        def heartbeat_if_unassigned() -> Any:
            nonlocal response
            if not response.assignment.topic_partitions:
                response = self.heartbeat(group, member_id, response.member_epoch, **complete)
            return response

        return member_id, until(
            heartbeat_if_unassigned, lambda response: response.assignment.topic_partitions
        ).member_epoch

    def sync(self, group: str, member_id: str, generation: int, *, leads: bool = False) -> ErrorCode | int:
        response = self.request_once(
            SyncGroupRequest,
            5,
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": member_id, "assignment": b"mine"}] if leads else [],
        )
        return code_of(response.error_code)

    def leave(self, group: str, member_id: str) -> ErrorCode | int:
        response = self.request_once(
            LeaveGroupRequest, 4, group_id=group, members=[{"member_id": member_id, "group_instance_id": None}]
        )
        return code_of(response.error_code or response.members[0].error_code)

    def commit(
        self,
        group: str,
        topic: str,
        offset: int = 5,
        *,
        member_id: str = "",
        generation: int = -1,
        metadata: str = "",
        partition: int = 0,
    ) -> ErrorCode | int:
        topic_partition = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1}

        def send() -> ErrorCode | int:
            response = self.request_once(
                OffsetCommitRequest,
                7,
                group_id=group,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                group_instance_id=None,
                topics=[{"name": topic, "partitions": [{**topic_partition, "committed_metadata": metadata}]}],
            )
            return code_of(response.topics[0].partitions[0].error_code)

        found: ErrorCode | int = until(send, lambda code: code not in RETRIABLE_CODES)
        return found

    def committed(self, group: str, topic: str, *, stable: bool = False) -> tuple[ErrorCode | int, int]:
        response = self.request_once(
            OffsetFetchRequest,
            7,
            group_id=group,
            topics=[{"name": topic, "partition_indexes": [0]}],
            require_stable=stable,
        )
        (one,) = response.topics[0].partitions
        return code_of(response.error_code or one.error_code), one.committed_offset


def _is_settled(response: Any) -> bool:
    return response.error_code not in RETRIABLE_CODES


def as_field(field: Any, value: Any, version: int) -> Any:
    """Returns the value of a request field for the protocol library: mappings become objects of the library's
    classes."""
    if field.is_struct_array() and value is not None:
        return [_structure(field, one, version) for one in value]
    return _structure(field, value, version) if field.is_struct() and value is not None else value


def _structure(field: Any, values: Any, version: int) -> Any:
    filled = {name: as_field(field.fields[name], one, version) for name, one in values.items()}
    return field.data_class(version=version, **filled)
