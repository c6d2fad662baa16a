"""Requests of Kafka's protocol to any broker over one connection, and what is told as plain values.

Made for tests that hold of the bundled broker and of an Apache Kafka alike: what one of them answers for a moment only,
while it elects, loads or spreads what it knows, is asked again.
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
from headrace.kafka_wire.connection import Connection
from headrace.kafka_wire.messages import ConsumerGroupHeartbeatRequest
from headrace.kafka_wire.receive_room import ReceiveRoom
from headrace.kafka_wire.record_batch import frames, read_batch_header
from headrace.kafka_wire.security import UNSECURED
from support.broker.broker_samples import batch

PATIENCE_S = 60
NOT_NOW = {
    5,  # LEADER_NOT_AVAILABLE
    6,  # NOT_LEADER_OR_FOLLOWER
    14,  # COORDINATOR_LOAD_IN_PROGRESS
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    16,  # NOT_COORDINATOR
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
NOBODY = ProducerIdAndEpoch(-1, -1)
Message = Any


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def fresh(name: str) -> str:
    """A name that was never used."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def code_of(number: int) -> ErrorCode | int:
    """By name where the bundled broker has it too."""
    return ErrorCode(number) if number in ErrorCode._value2member_map_ else number


def until(ask: Callable[[], Any], is_enough: Callable[[Any], bool]) -> Any:
    """What is told once it is enough."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        told = ask()
        if is_enough(told):
            return told
        assert time.monotonic() < deadline, told
        time.sleep(0.02)


class Talk:
    """Each `with` is one connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        host, port = address.rsplit(":", 1)
        self._connection = Connection(host, int(port), PATIENCE_S, UNSECURED, ReceiveRoom())
        self._numbers = itertools.count()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, request: Message, version: int, **fields: object) -> Message:
        """Asks once; structures in `fields` are mappings by the names of the protocol."""
        filled = {name: as_field(request.fields[name], value, version) for name, value in fields.items()}
        module = importlib.import_module(request.__module__)
        response = getattr(module, request.__name__.replace("Request", "Response"))
        return self._connection.ask(request(version=version, **filled), response, version)

    # Topics

    def create(self, name: str, partitions: int = 1, replicas: int = 1, **configs: str | None) -> ErrorCode | int:
        """`_` in the name of a configuration stands for a dot."""
        wanted = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": replicas, "configs": wanted}
        told = self.ask(CreateTopicsRequest, 7, topics=[topic], timeout_ms=PATIENCE_S * 1000, validate_only=False)
        return code_of(told.topics[0].error_code)

    def topic(self, partitions: int = 1, **configs: str | None) -> str:
        """A new topic, which the broker knows everywhere, and serves."""
        name = fresh("t")
        assert self.create(name, partitions, **configs) == 0
        until(lambda: self.described(name), lambda told: told[0] == 0 and len(told[1]) == partitions)
        for index in range(partitions):
            until(partial(self.offset, name, -1, partition=index), lambda told: told[0] == 0)
        return name

    def described(self, name: str, *, creates: bool = False) -> tuple[ErrorCode | int, list[int]]:
        """The error and the partitions whose leader is known."""
        told = self.ask(MetadataRequest, 9, topics=[{"name": name}], allow_auto_topic_creation=creates)
        (topic,) = told.topics
        return code_of(topic.error_code), [one.partition_index for one in topic.partitions if one.leader_id >= 0]

    def delete(self, name: str) -> ErrorCode | int:
        told = self.ask(DeleteTopicsRequest, 4, topic_names=[name], timeout_ms=PATIENCE_S * 1000)
        return code_of(told.responses[0].error_code)

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
        """The error and the first offset."""
        data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
        told = self.ask(
            ProduceRequest,
            version,
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=PATIENCE_S * 1000,
            topic_data=data,
        )
        (one,) = told.responses[0].partition_responses
        return code_of(one.error_code), one.base_offset

    def fetched(self, topic: str, offset: int = 0, partition: int = 0, *, committed: bool = False, **more: int) -> Any:
        """The answer's partition; `more` are other fields of the request's partition."""
        wanted = {
            "partition": partition,
            "fetch_offset": offset,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            **more,
        }
        told = self.ask(
            FetchRequest,
            11,
            replica_id=-1,
            max_wait_ms=200,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": topic, "partitions": [wanted]}],
            forgotten_topics_data=[],
            rack_id="",
        )
        return told.responses[0].partitions[0]

    def batches(self, topic: str, offset: int = 0, *, committed: bool = False) -> list[tuple[int, int]]:
        """The first and last offset of each batch that a reader gets, control batches too."""
        records = bytes(self.fetched(topic, offset, committed=committed).records or b"")
        headers = [read_batch_header(frame.view) for frame in frames(records, topic)]
        return [(header.base_offset, header.last_offset) for header in headers]

    def offset(
        self, topic: str, timestamp: int, *, committed: bool = False, partition: int = 0, epoch: int = -1
    ) -> tuple[ErrorCode | int, int]:
        """The error and the offset of a time, or of what the negative ones stand for."""
        one = {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}
        told = self.ask(
            ListOffsetsRequest,
            7,
            replica_id=-1,
            isolation_level=int(committed),
            topics=[{"name": topic, "partitions": [one]}],
        )
        (found,) = told.topics[0].partitions
        return code_of(found.error_code), found.offset

    # Producers

    def identity(
        self, transactional_id: str | None = None, timeout_ms: int = 60_000, claimed: ProducerIdAndEpoch = NOBODY
    ) -> tuple[ErrorCode | int, ProducerIdAndEpoch]:
        def ask() -> Any:
            return self.ask(
                InitProducerIdRequest,
                4,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=claimed.producer_id,
                producer_epoch=claimed.epoch,
            )

        told = until(ask, _is_settled)
        return code_of(told.error_code), ProducerIdAndEpoch(told.producer_id, told.producer_epoch)

    def sent(
        self, topic: str, user: ProducerIdAndEpoch, sequence: int, count: int = 1, transactional_id: str | None = None
    ) -> tuple[ErrorCode | int, int]:
        """Produces a batch of an idempotent producer, or in its transaction."""
        records = batch(
            *(b"v" for _ in range(count)),
            timestamp_ms=now_ms(),
            producer_id=user.producer_id,
            epoch=user.epoch,
            sequence=sequence,
            is_transactional=transactional_id is not None,
        )
        return self.produce(topic, records, transactional_id=transactional_id)

    def add(self, transactional_id: str, user: ProducerIdAndEpoch, *topics: str) -> list[ErrorCode | int]:
        def ask() -> list[ErrorCode | int]:
            told = self.ask(
                AddPartitionsToTxnRequest,
                3,
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=user.producer_id,
                v3_and_below_producer_epoch=user.epoch,
                v3_and_below_topics=[{"name": topic, "partitions": [0]} for topic in topics],
            )
            by_name = {one.name: one.results_by_partition for one in told.results_by_topic_v3_and_below}
            return [code_of(by_name[topic][0].partition_error_code) for topic in topics]

        told: list[ErrorCode | int] = until(ask, lambda codes: not NOT_NOW.intersection(codes))
        return told

    def end(self, transactional_id: str, user: ProducerIdAndEpoch, *, commit: bool) -> ErrorCode | int:
        return self._until_settled(EndTxnRequest, transactional_id, user, committed=commit)

    def add_offsets(self, transactional_id: str, user: ProducerIdAndEpoch, group: str) -> ErrorCode | int:
        return self._until_settled(AddOffsetsToTxnRequest, transactional_id, user, group_id=group)

    def _until_settled(
        self, request: Any, transactional_id: str, user: ProducerIdAndEpoch, **fields: object
    ) -> ErrorCode | int:
        """The code of an answer of version 3, asked for until what went before is settled."""

        def ask() -> Any:
            return self.ask(
                request,
                3,
                transactional_id=transactional_id,
                producer_id=user.producer_id,
                producer_epoch=user.epoch,
                **fields,
            )

        return code_of(until(ask, _is_settled).error_code)

    def commit_later(
        self, transactional_id: str, user: ProducerIdAndEpoch, group: str, topic: str, offset: int, **member: object
    ) -> ErrorCode | int:
        """Offsets of a group that count with a transaction."""
        place = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}

        def ask() -> ErrorCode | int:
            told = self.ask(
                TxnOffsetCommitRequest,
                3,
                transactional_id=transactional_id,
                group_id=group,
                producer_id=user.producer_id,
                producer_epoch=user.epoch,
                topics=[{"name": topic, "partitions": [{**place, "committed_metadata": None}]}],
                **{"generation_id": -1, "member_id": "", "group_instance_id": None, **member},
            )
            return code_of(told.topics[0].partitions[0].error_code)

        found: ErrorCode | int = until(ask, lambda code: code not in NOT_NOW)
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
        def ask() -> Any:
            return self.ask(
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

        return until(ask, _is_settled)

    def member(self, group: str) -> tuple[str, int]:
        """Joins as the only member and takes everything; its id and generation."""
        told = self.join(group, self.join(group).member_id)
        assert self.sync(group, told.member_id, told.generation_id, leads=True) == 0
        return told.member_id, told.generation_id

    def beat(self, group: str, member_id: str, epoch: int, **fields: object) -> Any:
        """A heartbeat of the consumer protocol (KIP-848)."""

        def ask() -> Any:
            asked = {"group_id": group, "member_id": member_id, "member_epoch": epoch, **fields}
            return self.ask(ConsumerGroupHeartbeatRequest, 1, **asked)

        return until(ask, _is_settled)

    def enter(self, group: str, member_id: str, *topics: str, **fields: object) -> Any:
        """Joins by the consumer protocol; `fields` as they are instead, or besides."""
        joining = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": list(topics), "topic_partitions": []}
        return self.beat(group, member_id, 0, **{**joining, **fields})

    def consumer(self, group: str, topic: str, **fields: object) -> tuple[str, int]:
        """Joins a group that is empty and waits for its partitions; the member's id and epoch."""
        member_id = fresh("m")
        told = self.enter(group, member_id, topic, **fields)
        whole = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": [topic], "topic_partitions": [], **fields}

        def again() -> Any:
            nonlocal told
            if not told.assignment.topic_partitions:
                told = self.beat(group, member_id, told.member_epoch, **whole)
            return told

        return member_id, until(again, lambda told: told.assignment.topic_partitions).member_epoch

    def sync(self, group: str, member_id: str, generation: int, *, leads: bool = False) -> ErrorCode | int:
        told = self.ask(
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
        return code_of(told.error_code)

    def leave(self, group: str, member_id: str) -> ErrorCode | int:
        told = self.ask(
            LeaveGroupRequest, 4, group_id=group, members=[{"member_id": member_id, "group_instance_id": None}]
        )
        return code_of(told.error_code or told.members[0].error_code)

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
        place = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1}

        def ask() -> ErrorCode | int:
            told = self.ask(
                OffsetCommitRequest,
                7,
                group_id=group,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                group_instance_id=None,
                topics=[{"name": topic, "partitions": [{**place, "committed_metadata": metadata}]}],
            )
            return code_of(told.topics[0].partitions[0].error_code)

        found: ErrorCode | int = until(ask, lambda code: code not in NOT_NOW)
        return found

    def committed(self, group: str, topic: str, *, stable: bool = False) -> tuple[ErrorCode | int, int]:
        told = self.ask(
            OffsetFetchRequest,
            7,
            group_id=group,
            topics=[{"name": topic, "partition_indexes": [0]}],
            require_stable=stable,
        )
        (one,) = told.topics[0].partitions
        return code_of(told.error_code or one.error_code), one.committed_offset


def _is_settled(told: Any) -> bool:
    return told.error_code not in NOT_NOW


def as_field(field: Any, value: Any, version: int) -> Any:
    """Mappings as the classes of the protocol."""
    if field.is_struct_array() and value is not None:
        return [_structure(field, one, version) for one in value]
    return _structure(field, value, version) if field.is_struct() and value is not None else value


def _structure(field: Any, values: Any, version: int) -> Any:
    filled = {name: as_field(field.fields[name], one, version) for name, one in values.items()}
    return field.data_class(version=version, **filled)
