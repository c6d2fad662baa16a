"""Unmodified aiokafka against a running broker, including one that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from support.broker.broker_restarts import serve, shutdowns, start_again
from support.broker.protocol_client import fresh
from support.broker.stored_batches import (
    CODECS,
    check_written_once,
    codecs,
    is_idempotent,
    is_transactional,
    messages,
    stored_batches,
    values,
)
from support.free_ports import free_port

pytestmark = pytest.mark.servers

TIMEOUT_S = 60
BACKOFF = {"retry_backoff_ms": 50}


def run(test: Awaitable[None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await test

    asyncio.run(in_time())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@asynccontextmanager
async def producing(address: str, **settings: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=address, **BACKOFF, **settings)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def consuming(address: str, *topics: str, **settings: Any) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        *topics,
        bootstrap_servers=address,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        **BACKOFF,
        **settings,
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


@asynccontextmanager
async def administering(address: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def create(address: str, topic: str, partitions: int = 1) -> None:
    async with administering(address) as admin:
        created = await admin.create_topics([NewTopic(topic, partitions, 1)])
        assert created.to_object()["topic_errors"] == [{"topic": topic, "error_code": 0, "error_message": None}]


async def read_to(consumer: AIOKafkaConsumer, topic_partition: TopicPartition, end: int) -> list[bytes | None]:
    """Reads from the current position up to `end`, exclusive; with `read_committed`, up to the last stable offset."""
    found: list[bytes | None] = []
    while await consumer.position(topic_partition) < end:
        for records in (await consumer.getmany(topic_partition, timeout_ms=100)).values():
            found += [record.value for record in records]
    return found


@pytest.mark.parametrize("is_idempotent_one", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_written_and_read(keeping_broker_address: str, codec: str, is_idempotent_one: bool) -> None:
    async def test() -> None:
        topic = fresh(codec)
        await create(keeping_broker_address, topic, 2)
        sent = [
            (1_700_000_000_000 + number, b"key %d" % number, b"value %d" % number, [("n", b"%d" % number)])
            for number in range(2000)
        ]
        compression = None if codec == "none" else codec
        async with producing(
            keeping_broker_address, compression_type=compression, enable_idempotence=is_idempotent_one, linger_ms=5
        ) as producer:
            futures = [
                await producer.send(topic, value, key, number % 2, timestamp_ms, headers)
                for number, (timestamp_ms, key, value, headers) in enumerate(sent)
            ]
            result = [await future for future in futures]
        assert [(each.partition, each.offset) for each in result] == [
            (number % 2, number // 2) for number in range(2000)
        ]
        async with consuming(keeping_broker_address) as consumer:
            for partition in range(2):
                batches = stored_batches(keeping_broker_address, topic, partition)
                assert codecs(batches) == {codec}
                assert is_idempotent(batches) is is_idempotent_one
                assert messages(batches) == sent[partition::2]
                topic_partition = TopicPartition(topic, partition)
                consumer.assign([topic_partition])
                found = []
                while len(found) < 1000:
                    found += [await consumer.getone()]
                assert [(each.timestamp, each.key, each.value, list(each.headers)) for each in found] == sent[
                    partition::2
                ]
                assert [each.offset for each in found] == list(range(1000))

    run(test())


def test_a_consumer_seeks(keeping_broker_address: str) -> None:
    async def test() -> None:
        topic, group = fresh("seek"), fresh("g")
        topic_partition = TopicPartition(topic, 0)
        await create(keeping_broker_address, topic)
        async with producing(keeping_broker_address) as producer:
            for number in range(100):
                await producer.send_and_wait(
                    topic, b"%d" % number, partition=0, timestamp_ms=1_700_000_000_000 + number
                )
        async with consuming(keeping_broker_address, group_id=group) as consumer:
            consumer.assign([topic_partition])
            assert (await consumer.getone()).offset == 0
            consumer.seek(topic_partition, 70)
            assert (await consumer.getone()).value == b"70"
            await consumer.commit({topic_partition: OffsetAndMetadata(30, "thirty")})
            assert await consumer.seek_to_committed() == {topic_partition: 30}
            assert (await consumer.getone()).value == b"30"
            await consumer.seek_to_end()
            assert await consumer.position(topic_partition) == 100
            await consumer.seek_to_beginning()
            assert await consumer.position(topic_partition) == 0
            assert (
                await consumer.beginning_offsets([topic_partition]),
                await consumer.end_offsets([topic_partition]),
            ) == (
                {topic_partition: 0},
                {topic_partition: 100},
            )
            found = await consumer.offsets_for_times({topic_partition: 1_700_000_000_042})
            assert (found[topic_partition].offset, found[topic_partition].timestamp) == (42, 1_700_000_000_042)
            assert await consumer.offsets_for_times({topic_partition: 1_700_000_000_100}) == {topic_partition: None}
            # Beyond the end: the broker responds with an error, and the client uses its reset policy.
            consumer.seek(topic_partition, 5000)
            assert (await consumer.getone()).offset == 0

    run(test())


def test_transactions_are_visible_after_commit(broker_address: str) -> None:
    async def test() -> None:
        topic, group = fresh("txn"), fresh("g")
        topic_partition = TopicPartition(topic, 0)
        await create(broker_address, topic)
        async with (
            producing(broker_address, transactional_id=fresh("id"), compression_type="zstd") as producer,
            consuming(broker_address, isolation_level="read_committed") as committed,
            consuming(broker_address, isolation_level="read_uncommitted") as uncommitted,
            consuming(broker_address, group_id=group) as member,
        ):
            committed.assign([topic_partition])
            uncommitted.assign([topic_partition])
            for number in range(6):
                await producer.begin_transaction()
                for part in range(5):
                    await producer.send(topic, b"%d-%d" % (number, part), partition=0)
                await producer.send_offsets_to_transaction({topic_partition: OffsetAndMetadata(number, "in it")}, group)
                if number % 3 == 1:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                assert await member.committed(topic_partition) == (number - 1 if number % 3 == 1 else number)
            expected = [b"%d-%d" % (number, part) for number in (0, 2, 3, 5) for part in range(5)]
            # Six times five records and a marker each.
            assert await read_to(committed, topic_partition, 36) == expected
            assert len(await read_to(uncommitted, topic_partition, 36)) == 30
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"open", partition=0)
            assert await uncommitted.end_offsets([topic_partition]) == {topic_partition: 37}
            assert [
                record.value
                for record in (await uncommitted.getmany(topic_partition, timeout_ms=5000))[topic_partition]
            ] == [b"open"]
            assert await committed.getmany(topic_partition, timeout_ms=500) == {}
            await producer.commit_transaction()
            assert (await committed.getone()).value == b"open"
        batches = stored_batches(broker_address, topic)
        assert is_transactional(batches) and codecs(batches) == {"zstd"}

    run(test())


def test_the_second_producer_of_an_id_fences_the_first(broker_address: str) -> None:
    async def test() -> None:
        topic, name = fresh("fenced"), fresh("id")
        await create(broker_address, topic)
        async with producing(broker_address, transactional_id=name) as first:
            await first.begin_transaction()
            await first.send_and_wait(topic, b"of the first", partition=0)
            async with producing(broker_address, transactional_id=name) as second:
                with pytest.raises(ProducerFenced):
                    await first.commit_transaction()
                async with second.transaction():
                    await second.send_and_wait(topic, b"of the second", partition=0)
        async with consuming(broker_address, isolation_level="read_committed") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            assert (await consumer.getone()).value == b"of the second"

    run(test())


class Member:
    """A member of a group: reads, commits, and continues after a restart of the broker.

    `seen` and `committed` are shared by all members: an offset is read only after all earlier ones, and not again after
    a later commit was acknowledged.
    """

    def __init__(self, address: str, topic: str, group: str, seen: list[list[int]], committed: list[int]) -> None:
        self.assigned: set[int] = set()
        self._settings = {
            "bootstrap_servers": address,
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 200,
            "max_poll_records": 20,
            **BACKOFF,
        }
        self._topic, self._seen, self._committed = topic, seen, committed
        self._is_stopping = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        consumer = AIOKafkaConsumer(self._topic, **self._settings)
        await consumer.start()
        uncommitted: dict[TopicPartition, int] = {}
        try:
            while not self._is_stopping:
                found = await consumer.getmany(timeout_ms=100)
                self.assigned = {topic_partition.partition for topic_partition in consumer.assignment()}
                for topic_partition, records in found.items():
                    for record in records:
                        self._take(topic_partition.partition, record.offset, record.value)
                    uncommitted[topic_partition] = records[-1].offset + 1
                await self._commit(consumer, uncommitted)
        finally:
            await consumer.stop()

    def _take(self, partition: int, offset: int, value: bytes) -> None:
        seen = self._seen[partition]
        assert self._committed[partition] <= offset <= len(seen)
        if offset == len(seen):
            seen.append(int(value))

    async def _commit(self, consumer: AIOKafkaConsumer, uncommitted: dict[TopicPartition, int]) -> None:
        try:
            if uncommitted:
                await consumer.commit(uncommitted)
        except (CommitFailedError, IllegalStateError):
            uncommitted.clear()  # another member has the partitions now, and continues from the committed offsets
        except KafkaError:
            return  # the broker is down
        for topic_partition, offset in uncommitted.items():
            self._committed[topic_partition.partition] = max(self._committed[topic_partition.partition], offset)
        uncommitted.clear()

    async def stop(self) -> None:
        self._is_stopping = True
        await self._task


def test_two_members_share_partitions_and_take_over_from_each_other(broker_address: str) -> None:
    async def test() -> None:
        topic, group = fresh("shared"), fresh("g")
        await create(broker_address, topic, 4)
        seen: list[list[int]] = [[] for _ in range(4)]
        committed = [0] * 4
        async with producing(broker_address) as producer, administering(broker_address) as admin:

            async def send(numbers: range) -> None:
                for number in numbers:
                    await producer.send(topic, b"%d" % number, partition=number % 4)
                await producer.flush()

            await send(range(400))
            first = Member(broker_address, topic, group, seen, committed)
            await until(lambda: first.assigned == {0, 1, 2, 3})
            second = Member(broker_address, topic, group, seen, committed)
            await until(lambda: (len(first.assigned), len(second.assigned)) == (2, 2))
            assert first.assigned | second.assigned == {0, 1, 2, 3}
            described = (await admin.describe_consumer_groups([group]))[0].to_object()["groups"][0]
            assert (described["state"], described["protocol"], len(described["members"])) == ("Stable", "roundrobin", 2)
            await send(range(400, 800))
            await until(lambda: sum(map(len, seen)) == 800)
            await first.stop()
            await until(lambda: second.assigned == {0, 1, 2, 3})
            await send(range(800, 1200))
            await until(lambda: sum(committed) == 1200)
            await second.stop()
            assert seen == [list(range(partition, 1200, 4)) for partition in range(4)]
            offsets = await admin.list_consumer_group_offsets(group)
            assert {
                topic_partition.partition: found.offset for topic_partition, found in offsets.items()
            } == dict.fromkeys(range(4), 300)
            described = (await admin.describe_consumer_groups([group]))[0].to_object()["groups"][0]
            assert (described["state"], described["members"]) == ("Empty", [])
            await send(range(1200, 1204))
            third = Member(broker_address, topic, group, seen, committed)
            await until(lambda: sum(committed) == 1204)
            await third.stop()
        assert seen == [list(range(partition, 1204, 4)) for partition in range(4)]

    run(test())


def test_topics_and_groups_are_administered(broker_address: str) -> None:
    async def test() -> None:
        topic, group = fresh("administered"), fresh("g")
        topic_partition = TopicPartition(topic, 0)
        await create(broker_address, topic)
        async with (
            administering(broker_address) as admin,
            producing(broker_address) as producer,
            consuming(broker_address, group_id=group) as consumer,
        ):
            recreated = await admin.create_topics([NewTopic(topic, 1, 1)])
            assert recreated.to_object()["topic_errors"][0]["error_code"] == 36
            for number in range(10):
                await producer.send_and_wait(topic, b"%d" % number, partition=0)
            await admin.create_partitions({topic: NewPartitions(3)})
            (described,) = await admin.describe_topics([topic])
            assert (described["topic"], described["error_code"], len(described["partitions"])) == (topic, 0, 3)
            cluster = await admin.describe_cluster()
            host, port = broker_address.split(":")
            assert [(each["host"], each["port"]) for each in cluster["brokers"]] == [(host, int(port))]
            assert cluster["controller_id"] == cluster["brokers"][0]["node_id"]
            # The client can only replace the complete configuration of a topic.
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "60000"})])
            (configs,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {})])
            rows = {
                row["config_names"]: row["config_value"]
                for row in configs.to_object()["resources"][0]["config_entries"]
            }
            assert (rows["retention.ms"], rows["cleanup.policy"]) == ("60000", "delete")
            consumer.assign([topic_partition])
            await consumer.commit({topic_partition: OffsetAndMetadata(7, "why")})
            assert (group, "") in await admin.list_consumer_groups()
            assert await admin.list_consumer_group_offsets(group) == {topic_partition: OffsetAndMetadata(7, "why")}
            assert await admin.delete_records({topic_partition: RecordsToDelete(4)}) == {topic_partition: 4}
            assert await consumer.beginning_offsets([topic_partition]) == {topic_partition: 4}
        # The clients are closed: a metadata request of theirs would create the topic again.
        async with administering(broker_address) as admin:
            await admin.delete_topics([topic])
            assert topic not in await admin.list_topics()

    run(test())


@pytest.mark.fault
def test_idempotent_producer_survives_kills_and_stops(tmp_path: Path, start_service: Any) -> None:
    port, settings = free_port(), {"segment_bytes_max": "1100000"}
    address = f"127.0.0.1:{port}"
    service = serve(start_service, tmp_path, port, **settings)
    acknowledged: dict[int, tuple[int, int]] = {}

    async def test() -> None:
        nonlocal service
        await create(address, "t", 4)
        is_stopping = False
        sent: list[tuple[int, asyncio.Future[Any]]] = []

        async def write(producer: AIOKafkaProducer) -> None:
            while not is_stopping:
                number = len(sent)
                future = await producer.send("t", b"%d" % number, partition=number % 4)
                future.add_done_callback(lambda done: done.exception() or acknowledge(number_of[done], done.result()))
                number_of[future] = number
                sent.append((number, future))
                if number % 50 == 0:
                    await asyncio.sleep(0.005)

        number_of: dict[Any, int] = {}

        def acknowledge(number: int, result: Any) -> None:
            acknowledged[number] = (result.partition, result.offset)

        async with producing(address, enable_idempotence=True, linger_ms=2) as producer:
            writing = asyncio.create_task(write(producer))
            for round_number, end in enumerate(shutdowns(2)):
                count_min = len(acknowledged) + 500 + round_number % 17
                await until(lambda: writing.done() or len(acknowledged) >= count_min)  # noqa: B023
                assert not writing.done()
                service = await asyncio.to_thread(start_again, service, end, start_service, tmp_path, port, **settings)
            count_min = len(acknowledged) + 500
            await until(lambda: writing.done() or len(acknowledged) >= count_min)
            is_stopping = True
            await writing
            for _, future in sent:
                await future
        assert len(acknowledged) == len(sent)

    run(test())
    check_written_once(address, "t", acknowledged)


@pytest.mark.fault
def test_group_survives_kills_and_stops(tmp_path: Path, start_service: Any) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    service = serve(start_service, tmp_path, port)
    seen: list[list[int]] = [[] for _ in range(4)]
    committed = [0] * 4

    async def test() -> None:
        nonlocal service
        await create(address, "t", 4)
        sent = 0
        members = [Member(address, "t", "g", seen, committed) for _ in range(2)]
        async with producing(address, enable_idempotence=True) as producer:
            for end in shutdowns(2):
                for _ in range(2000):
                    await producer.send("t", b"%d" % sent, partition=sent % 4)
                    sent += 1
                await producer.flush()
                # Part of the messages has been read and committed.
                await until(lambda: sum(committed) > sent - 1500)  # noqa: B023
                service = await asyncio.to_thread(start_again, service, end, start_service, tmp_path, port)
            await until(lambda: sum(committed) == sent)
            await until(lambda: sorted(len(member.assigned) for member in members) == [2, 2])
            for member in members:
                await member.stop()
        assert seen == [list(range(partition, sent, 4)) for partition in range(4)]
        async with consuming(address, group_id="g") as consumer:
            for partition in range(4):
                assert await consumer.committed(TopicPartition("t", partition)) == sent / 4

    run(test())
    assert [list(values(stored_batches(address, "t", partition)).values()) for partition in range(4)] == [
        [b"%d" % number for number in each] for each in seen
    ]
