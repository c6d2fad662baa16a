"""Runs a broker for days of virtual time, with test clocks and without sockets, and models its clients.

The model does not know how the broker works. It knows the time of each record and the members of each group, and checks
which of them must exist or must be deleted. The broker's background work (upkeep, compaction, fsyncs) runs once after
every step of the clock.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
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

from headrace.broker.config import BrokerConfig
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.dispatch import HANDLERS
from headrace.broker.log.decoding import decode_records
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.messages import ConsumerGroupHeartbeatRequest
from headrace.kafka_wire.record_batch import CONTROL, read_batch_header, split_batches
from support.broker.broker_samples import NOW_MS
from support.broker.protocol_client import as_field
from support.simulation.broker_history import abandon

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
SESSION_MS = HOUR_MS // 2
Record = tuple[int, bytes | None, bytes | None]
"""Offset, key and value of a record."""


@dataclass
class Clock:
    """The clocks of a simulated machine. The wall clock can be set; the monotonic clock only advances."""

    wall_ms: int = NOW_MS
    monotonic_ms: int = 1_000_000

    def advance(self, ms: int) -> None:
        self.wall_ms += ms
        self.monotonic_ms += ms


class VirtualBroker:
    """Runs brokers on a directory, one after another, as the same broker is restarted."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory, self.clock = directory, clock
        self.node: BrokerNode
        self.killed_at_ms = 0
        self.start()

    def start(self) -> None:
        config = BrokerConfig(self.directory, partitions=2, consumer_session_timeout_ms=SESSION_MS)
        self.node = BrokerNode(
            config, now_ms=lambda: self.clock.wall_ms, monotonic_ms=lambda: self.clock.monotonic_ms, files_max=40
        )

    async def stop(self) -> None:
        await self.node.close()

    def kill(self) -> None:
        self.killed_at_ms = self.clock.wall_ms
        abandon(self.node)

    async def look(self) -> None:
        """Runs the broker's background work once."""
        node = self.node
        await node.groups.run_due(self.clock.monotonic_ms)
        await node.transactions.run_maintenance()
        await node.flusher.flush_dirty()
        await node.maintenance.clean()
        await node.flusher.flush_dirty()
        await node.maintenance.run_housekeeping()

    # Requests

    async def request_broker(self, request: Any, version: int, **fields: object) -> Any:
        """Handles a request as if a client had sent it, and returns the response. Structures in `fields` are mappings
        with the protocol's field names."""
        filled = {name: as_field(request.fields[name], value, version) for name, value in fields.items()}
        body = bytes(request(version=version, **filled).encode())
        handler = HANDLERS[request.API_KEY]
        context = RequestContext(self.node, version, "client", "127.0.0.1")
        result = handler.handle(context, handler.decode(memoryview(body), 0, version))
        if inspect.isawaitable(result):
            result = await result
        raw = b"".join(bytes(piece) for piece in handler.encode(result, version))
        module = importlib.import_module(request.__module__)
        response = getattr(module, request.__name__.replace("Request", "Response"))
        return response.decode(raw, version=version)

    async def create(self, name: str, partitions: int = 1, **configs: str) -> int:
        config_entries = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": config_entries}
        response = await self.request_broker(
            CreateTopicsRequest, 7, topics=[topic], timeout_ms=1000, validate_only=False
        )
        return int(response.topics[0].error_code)

    async def create_by_metadata(self, name: str) -> int:
        """Requests the metadata of a topic, with which the broker creates it, and returns its number of partitions."""
        response = await self.request_broker(
            MetadataRequest, 9, topics=[{"name": name}], allow_auto_topic_creation=True
        )
        assert response.topics[0].error_code == 0
        return len(response.topics[0].partitions)

    async def delete(self, name: str) -> int:
        response = await self.request_broker(DeleteTopicsRequest, 4, topic_names=[name], timeout_ms=1000)
        return int(response.responses[0].error_code)

    async def produce(
        self, topic: str, records: bytes, partition: int = 0, transactional_id: str | None = None
    ) -> tuple[int, int]:
        """Appends a batch. Returns the error code and the offset of the first record."""
        response = await self.request_broker(
            ProduceRequest,
            9,
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=1000,
            topic_data=[{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
        )
        (one,) = response.responses[0].partition_responses
        return int(one.error_code), int(one.base_offset)

    async def offset(self, topic: str, time: int, partition: int = 0, *, is_committed: bool = False) -> int:
        one = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": time}
        response = await self.request_broker(
            ListOffsetsRequest,
            7,
            replica_id=-1,
            isolation_level=int(is_committed),
            topics=[{"name": topic, "partitions": [one]}],
        )
        (found,) = response.topics[0].partitions
        assert found.error_code == 0
        return int(found.offset)

    async def read(self, topic: str, partition: int = 0, *, is_committed: bool = False) -> list[Record]:
        """Returns every record of a partition from the log start on, as a consumer receives them."""
        at, found = await self.offset(topic, -2, partition), []
        while True:
            response = await self._fetch(topic, partition, at, is_committed)
            batches = [frame.view for frame in split_batches(bytes(response.records or b""), topic)]
            if not batches:
                return found
            aborted_ranges = sorted((one.first_offset, one.producer_id) for one in response.aborted_transactions or ())
            aborted: set[int] = set()
            for view in batches:
                header = read_batch_header(view)
                while aborted_ranges and aborted_ranges[0][0] <= header.last_offset:
                    aborted.add(aborted_ranges.pop(0)[1])
                if header.attributes & CONTROL:
                    aborted.discard(header.producer_id)
                elif not (is_committed and header.producer_id in aborted):
                    found += [
                        (offset, key, value) for offset, _, key, value, _ in decode_records(bytes(view)) if offset >= at
                    ]
                at = header.last_offset + 1

    async def _fetch(self, topic: str, partition: int, offset: int, is_committed: bool) -> Any:
        partition_request = {
            "partition": partition,
            "fetch_offset": offset,
            "partition_max_bytes": 1 << 16,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
        }
        response = await self.request_broker(
            FetchRequest,
            11,
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=int(is_committed),
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": topic, "partitions": [partition_request]}],
            forgotten_topics_data=[],
            rack_id="",
        )
        found = response.responses[0].partitions[0]
        assert found.error_code == 0
        return found

    async def producer(self, transactional_id: str | None = None, timeout_ms: int = MINUTE_MS) -> tuple[int, int]:
        """Requests and returns the id and epoch of a producer."""
        response = await self.request_broker(
            InitProducerIdRequest,
            4,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert response.error_code == 0
        return response.producer_id, response.producer_epoch

    async def add(self, transactional_id: str, user: tuple[int, int], topic: str) -> int:
        response = await self.request_broker(
            AddPartitionsToTxnRequest,
            3,
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=user[0],
            v3_and_below_producer_epoch=user[1],
            v3_and_below_topics=[{"name": topic, "partitions": [0]}],
        )
        return int(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    async def commit_in_transaction(
        self, transactional_id: str, user: tuple[int, int], group: str, topic: str, offset: int
    ) -> None:
        common = {"transactional_id": transactional_id, "group_id": group, "producer_id": user[0]}
        response = await self.request_broker(AddOffsetsToTxnRequest, 3, producer_epoch=user[1], **common)
        assert response.error_code == 0
        partition_offset = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
        response = await self.request_broker(
            TxnOffsetCommitRequest,
            3,
            producer_epoch=user[1],
            topics=[{"name": topic, "partitions": [{**partition_offset, "committed_metadata": None}]}],
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            **common,
        )
        assert response.topics[0].partitions[0].error_code == 0

    async def end(self, transactional_id: str, user: tuple[int, int], *, is_commit: bool) -> int:
        response = await self.request_broker(
            EndTxnRequest,
            3,
            transactional_id=transactional_id,
            producer_id=user[0],
            producer_epoch=user[1],
            committed=is_commit,
        )
        return int(response.error_code)

    async def commit(
        self, group: str, topic: str, offset: int, partition: int = 0, member_id: str = "", generation: int = -1
    ) -> int:
        partition_offset = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1}
        response = await self.request_broker(
            OffsetCommitRequest,
            7,
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=None,
            topics=[{"name": topic, "partitions": [{**partition_offset, "committed_metadata": ""}]}],
        )
        return int(response.topics[0].partitions[0].error_code)

    async def committed(self, group: str, topic: str, partition: int = 0) -> int:
        response = await self.request_broker(
            OffsetFetchRequest,
            7,
            group_id=group,
            topics=[{"name": topic, "partition_indexes": [partition]}],
            require_stable=False,
        )
        assert response.error_code == 0
        return int(response.topics[0].partitions[0].committed_offset)

    # Sizes that must not grow

    def sizes(self) -> dict[str, int]:
        """Returns the number of files, bytes and entries in the broker's state, by name, to detect what grows without
        limit."""
        node, groups = self.node, self.node.groups
        logs = node.logs.values()
        return {
            "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
            "files": sum(1 for path in self.directory.rglob("*") if path.is_file()),
            "bytes on disk": sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file()),
            "bytes of logs": sum(log.size for log in logs),
            "logs": len(node.logs),
            "segments": sum(len(log.closed) for log in logs),
            "unforced": sum(len(log._dirty_files.paths) for log in logs),
            "waiters": sum(len(log.waiters) for log in logs),
            "epochs": sum(len(list(log.epochs)) for log in logs),
            "producers": sum(len(log.producers) for log in logs),
            "open transactions": sum(len(log.producers.open) for log in logs),
            "dirty": len(node.flusher._dirty),
            "changes": len(node.changes._running),
            "rows of checkpoints": len(node.cleaner.clean_to),
            "pending offsets": len(groups.offsets.all_pending()),
            "deadlines": len(groups._deadlines_ms),
            "joining": len(groups._waiting),
            "locks": len(node.transactions._locks),
        }


@dataclass
class Partition:
    """A partition as its clients know it: the written records, and which of them retention may have deleted or must
    have deleted.

    Attributes:
        retention_ms: age at which a record may be deleted.
        records: time and value of each record, by offset.
    """

    topic: str
    index: int
    retention_ms: int
    latest_ms: int
    """Age at which a record must be deleted, since its segment has been closed by then."""
    records: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    may_be_deleted: set[int] = field(default_factory=set)
    must_be_deleted: set[int] = field(default_factory=set)

    def wrote(self, offset: int, at_ms: int, *values: bytes) -> None:
        assert not self.records or offset > max(self.records), f"offset {offset} is given again"
        self.records.update({offset + delta: (at_ms, value) for delta, value in enumerate(values)})

    def looked_at(self, now_ms: int) -> None:
        """Notes that the broker has applied retention at this time."""
        for offset, (at_ms, _) in self.records.items():
            if now_ms - at_ms > self.retention_ms:
                self.may_be_deleted.add(offset)
            if now_ms - at_ms > self.latest_ms:
                self.must_be_deleted.add(offset)

    def check(self, found: list[Record]) -> None:
        offsets = [offset for offset, _, _ in found]
        expected = {offset: value for offset, (_, value) in self.records.items()}
        assert {offset: value for offset, _, value in found}.items() <= expected.items()
        assert offsets == sorted(set(offsets))
        first = offsets[0] if offsets else max(expected, default=-1) + 1
        missing = {offset for offset in expected if offset >= first} - set(offsets)
        assert not missing, f"{self.topic} has holes at {missing}"
        lost = {offset for offset in expected if offset < first} - self.may_be_deleted
        assert not lost, f"{self.topic}-{self.index} lost {sorted(lost)}"
        overdue = set(offsets) & self.must_be_deleted
        assert not overdue, f"{self.topic}-{self.index} still has {sorted(overdue)}"
        for offset in self.must_be_deleted:
            del self.records[offset]
        self.may_be_deleted &= self.records.keys()
        self.must_be_deleted.clear()


@dataclass(eq=False)
class Member:
    """A member of a group of the classic protocol.

    Attributes:
        owned: the partitions assigned to it.
        joining: its unfinished request to join; None if it waits for no response.
    """

    member_id: str = ""
    generation: int = -1
    owned: tuple[int, ...] = ()
    joining: asyncio.Task[None] | None = None


class Classic:
    """The members of a group of the classic protocol, which share the partitions of a topic."""

    def __init__(self, group: str, topic: str, partitions: int, count: int) -> None:
        self.group, self.topic, self.partitions = group, topic, partitions
        self.members = [Member() for _ in range(count)]
        self.committed: dict[int, int] = {}
        self.stable_steps = 0

    def remove_member(self, chance: random.Random) -> None:
        removed = self.members.pop(chance.randrange(len(self.members)))
        if removed.joining is not None:
            removed.joining.cancel()
        self.stable_steps = 0

    def add_member(self) -> None:
        self.members.append(Member())
        self.stable_steps = 0

    async def broker_ended(self) -> None:
        """The broker has ended: members that waited for a response lose their connection and will repeat the
        request."""
        for member in self.members:
            if member.joining is not None:
                member.joining.cancel()
                await asyncio.gather(member.joining, return_exceptions=True)
                member.joining, member.generation = None, -1
        self.stable_steps = 0

    async def step(self, broker: VirtualBroker) -> None:
        is_stable = True
        for member in self.members:
            if member.joining is not None and member.joining.done():
                member.joining.result()
                member.joining = None
            if member.joining is not None:
                is_stable = False
            elif await self._beat(broker, member) != 0:
                is_stable, member.owned = False, ()
                member.joining = asyncio.ensure_future(self._join(broker, member))
        self.stable_steps = self.stable_steps + 1 if is_stable else 0

    async def _beat(self, broker: VirtualBroker, member: Member) -> int:
        if member.generation < 0:
            return -1
        response = await broker.request_broker(
            HeartbeatRequest, 3, group_id=self.group, generation_id=member.generation, member_id=member.member_id,
            group_instance_id=None,
        )  # fmt: skip
        if response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            member.member_id, member.generation = "", -1
        return int(response.error_code)

    async def _join(self, broker: VirtualBroker, member: Member) -> None:
        response = await broker.request_broker(
            JoinGroupRequest,
            3,
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=MINUTE_MS,
            member_id=member.member_id,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        )
        member.generation = -1
        if response.error_code:
            member.member_id = ""
            return
        member.member_id = response.member_id
        others = [one.member_id for one in response.members or ()]
        shares = {each: bytes(range(at, self.partitions, len(others))) for at, each in enumerate(others)}
        synced = await broker.request_broker(
            SyncGroupRequest,
            3,
            group_id=self.group,
            generation_id=response.generation_id,
            member_id=member.member_id,
            group_instance_id=None,
            assignments=[{"member_id": each, "assignment": share} for each, share in shares.items()],
        )
        if synced.error_code == 0:
            member.generation, member.owned = response.generation_id, tuple(bytes(synced.assignment))

    async def commit(self, broker: VirtualBroker, offset: int) -> None:
        """Lets each member commit an offset for its own partitions. The commit of a removed member must be rejected."""
        for member in self.members:
            for partition in member.owned if member.joining is None else ():
                code = await broker.commit(
                    self.group, self.topic, offset, partition, member.member_id, member.generation
                )
                if code == 0:
                    self.committed[partition] = offset

    def check(self, broker: VirtualBroker) -> None:
        if self.stable_steps > 5:
            owned = sorted(partition for member in self.members for partition in member.owned)
            assert owned == (list(range(self.partitions)) if self.members else [])
            group = broker.node.groups.groups.get(self.group)
            assert len(group.members if group is not None else ()) == len(self.members)


@dataclass(eq=False)
class Reader:
    """A member of a consumer group (KIP-848)."""

    member_id: str
    epoch: int = 0
    owned: list[tuple[Any, tuple[int, ...]]] = field(default_factory=list)


class Consumers:
    """The members of a group of the consumer protocol (KIP-848), which share the partitions of a topic."""

    def __init__(self, group: str, topic: str, partitions: int, count: int) -> None:
        self.group, self.topic, self.partitions = group, topic, partitions
        self._numbers = iter(range(10**6))
        self.readers = [Reader(f"reader-{next(self._numbers)}") for _ in range(count)]
        self.stable_steps = 0

    def remove_member(self, chance: random.Random) -> None:
        self.readers.pop(chance.randrange(len(self.readers)))
        self.stable_steps = 0

    def add_member(self) -> None:
        self.readers.append(Reader(f"reader-{next(self._numbers)}"))
        self.stable_steps = 0

    async def step(self, broker: VirtualBroker) -> None:
        for _ in range(3):
            for reader in self.readers:
                await self._beat(broker, reader)
        self.stable_steps += 1

    async def _beat(self, broker: VirtualBroker, reader: Reader) -> None:
        owned = [{"topic_id": topic_id, "partitions": list(indexes)} for topic_id, indexes in reader.owned]
        response = await broker.request_broker(
            ConsumerGroupHeartbeatRequest,
            1,
            group_id=self.group,
            member_id=reader.member_id,
            member_epoch=reader.epoch,
            rebalance_timeout_ms=MINUTE_MS,
            subscribed_topic_names=[self.topic],
            topic_partitions=owned if reader.epoch else [],
        )
        if response.error_code:
            assert response.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH), response
            reader.epoch, reader.owned = 0, []
            self.stable_steps = -1
            return
        reader.epoch = response.member_epoch
        if response.assignment is not None:
            reader.owned = [(one.topic_id, tuple(one.partitions)) for one in response.assignment.topic_partitions]

    def check(self, broker: VirtualBroker) -> None:
        if self.stable_steps > 6:
            owned = sorted(index for reader in self.readers for _, indexes in reader.owned for index in indexes)
            assert owned == (list(range(self.partitions)) if self.readers else [])
            group = broker.node.groups.groups.get(self.group)
            assert len(group.members if group is not None else ()) == len(self.readers)


def folded(found: list[Record]) -> dict[bytes, bytes]:
    """Returns the newest value of each key, without deleted keys, as a reader of a whole compacted log gets them."""
    table: dict[bytes, bytes] = {}
    for _, key, value in found:
        assert key is not None
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


def grown(before: Mapping[str, int], after: Mapping[str, int], most: Callable[[int], float]) -> Iterator[str]:
    """Yields a text for each size that is larger than allowed.

    Args:
        most: returns the largest size allowed now, from the earlier size.
    """
    for name, size in after.items():
        if size > most(before[name]):
            yield f"{name} grew from {before[name]} to {size}"
