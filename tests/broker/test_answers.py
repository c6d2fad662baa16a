"""Answers that clients depend on: long polls that neither stall nor read in vain, errors they give up on, settings."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import (
    AlterConfigsRequest,
    CreateAclsRequest,
    CreateTopicsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
)
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from headrace.broker.config import BrokerConfig, FsyncMode
from headrace.broker.coordinator.members import Protocol
from headrace.broker.coordinator.messages import JoinRequest, JoinResult
from headrace.broker.coordinator.records import CommittedOffset
from headrace.broker.handlers import (
    acls,
    alter_configs,
    create_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    fetch,
    find_coordinator,
    metadata,
    offset_fetch,
    produce,
)
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log import files
from headrace.broker.log.by_time import FoundTimestamp
from headrace.broker.log.opened import opened
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.broker.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from headrace.broker.topic_config import check_config
from headrace.kafka_wire.record_batch import has_valid_crc, read_batch_header
from support.broker.broker_samples import NOW_MS, append, batch, find_timestamp


def with_node(directory: Path, work: Callable[[BrokerNode], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        node = BrokerNode(BrokerConfig(directory, **config), now_ms=lambda: NOW_MS)
        try:
            await asyncio.wait_for(work(node), 30)
        finally:
            await node.close()

    asyncio.run(main())


def context(node: BrokerNode, version: int) -> RequestContext:
    return RequestContext(node, version, "test", "127.0.0.1")


async def fetched(
    node: BrokerNode,
    *offsets: int,
    least: int = 1,
    most: int = 1 << 30,
    each: int = 1 << 30,
    wait_ms: int = 20_000,
    committed: bool = False,
) -> list[bytes]:
    """What a fetch from partitions 0 on of topic t brings of each."""
    wanted = tuple(FetchPartition(index, -1, offset, each) for index, offset in enumerate(offsets))
    request = FetchRequest(wait_ms, least, most, int(committed), 0, -1, (FetchTopic("t", uuid.UUID(int=0), wanted),))
    answer = fetch.handle(context(node, 12), request)
    if not isinstance(answer, fetch.FetchAnswer):
        answer = await answer
    return [bytes(partition.records) for partition in answer.topics[0].partitions]


RAW = batch(b"v" * 100)


@pytest.mark.parametrize("fsync", [FsyncMode.INTERVAL, FsyncMode.ALWAYS])
def test_a_long_poll_waits_for_its_bytes_and_reads_once_it_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: FsyncMode
) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 3, {"segment.bytes": "1024"})
        log = node.log("t", 1)
        append(log, RAW)
        await node.flusher.force(log)
        reads: list[int] = []
        read = fetch._read
        monkeypatch.setattr(fetch, "_read", lambda *given: (reads.append(1), read(*given))[1])
        poll = asyncio.ensure_future(fetched(node, 0, 0, 0, least=20 * len(RAW)))
        for _ in range(30):
            await asyncio.sleep(0)
            assert not poll.done() or sum(log.log_end_offset for log in node.logs.values()) >= 20
            append(log, RAW)
            append(node.log("t", 2), RAW)
            if fsync is FsyncMode.ALWAYS:
                await asyncio.gather(*(node.flusher.force(node.log("t", index)) for index in (1, 2)))
        found = await poll
        # A read ends with a segment; what is in the next one comes with the next fetch.
        assert sum(map(len, found)) >= 7 * len(RAW)
        assert len(reads) == 2

    with_node(tmp_path, work, fsync=fsync)


def test_bytes_that_never_come_are_waited_for_until_time_is_up(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        append(node.log("t", 0), RAW)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert await fetched(node, 0, least=len(RAW) + 1, wait_ms=50) == [node.log("t", 0).read(0, 1, whole_first=True)]
        assert loop.time() - began_s >= 0.05

    with_node(tmp_path, work)


@pytest.mark.parametrize(
    "limits", [{"most": 300}, {"each": 300}, {"most": 1 << 30}], ids=["answer", "partition", "broker"]
)
def test_a_client_that_asks_for_more_than_an_answer_holds_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    monkeypatch.setattr(fetch, "RESPONSE_BYTES_MAX", 1000)

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        for _ in range(10):
            append(node.log("t", 0), RAW)
        found = await fetched(node, 0, least=1 << 20, wait_ms=10**9, **limits)
        assert len(found[0]) == min(*limits.values(), 1000)

    with_node(tmp_path, work)


def test_what_is_read_into_memory_for_an_answer_has_a_bound_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "COPIED_BYTES_MAX", 2 * len(RAW) + 1)

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 6, {})
        for index in range(5):
            append(node.log("t", index), RAW)
        size = len(RAW)
        found = await fetched(node, *[0] * 6, least=1 << 20, wait_ms=10**9)
        assert [len(records) for records in found] == [size, size, size, 0, 0, 0]
        # What is sent from its file does not count.
        monkeypatch.setattr(files, "SLICE_BYTES_MIN", 1)
        found = await fetched(node, *[0] * 6, least=5 * size, wait_ms=10**9)
        assert [len(records) for records in found] == [size] * 5 + [0]

    with_node(tmp_path, work)


@pytest.mark.parametrize("committed", [False, True])
def test_a_batch_that_has_no_room_in_the_answer_is_not_waited_for(tmp_path: Path, committed: bool) -> None:
    """Only the first batch of an answer is sent whole whatever its size; the client asks for the next one by itself."""

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 2, {})
        append(node.log("t", 0), RAW)
        append(node.log("t", 1), batch(b"v" * 1000))
        limits = {"least": 1 << 20, "wait_ms": 10**9, "each": 2 * len(RAW)}
        assert [len(found) for found in await fetched(node, 0, 0, committed=committed, **limits)] == [len(RAW), 0]
        # Where no transaction has ended there is nothing yet for who reads what is committed.
        append(node.log("t", 1), batch(b"v" * 1000, producer_id=1, epoch=0, sequence=0, is_transactional=True))
        poll = asyncio.ensure_future(fetched(node, 0, 1, committed=committed, **limits))
        for _ in range(5):
            await asyncio.sleep(0)
        assert poll.done() is not committed
        poll.cancel()

    with_node(tmp_path, work)


def test_a_read_that_ends_with_its_segment_does_not_wait_either(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"segment.bytes": "1024"})
        for _ in range(10):
            append(node.log("t", 0), RAW)
        assert len((await fetched(node, 0, least=1 << 20, wait_ms=10**9))[0]) < 1024

    with_node(tmp_path, work)


def test_who_waits_for_a_topic_is_told_when_it_is_deleted(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        topic = node.changes.create_topic("t", 1, {})
        poll = asyncio.ensure_future(fetched(node, 0, wait_ms=10**9))
        await asyncio.sleep(0)
        await node.changes.delete_topic(topic)
        assert await poll == [b""]

    with_node(tmp_path, work)


def stored(node: BrokerNode, raw: bytes) -> Any:
    request = ProduceRequest(None, -1, 1000, (ProduceTopic("t", (ProducePartition(0, memoryview(raw)),)),))
    return produce.handle(context(node, 9), request)


def test_a_message_does_not_bring_a_deleted_topic_back(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        assert stored(node, RAW)[0].partitions[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert node.topics.get("t") is None
        node.changes.create_topic("t", 1, {})
        assert stored(node, RAW)[0].partitions[0].error is ErrorCode.NONE

    with_node(tmp_path, work)


def test_what_was_stored_long_before_is_on_disk_when_it_is_said_to_be(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        log = node.log(node.changes.create_topic("t", 1, {}).name, 0)
        for sequence in range(9):
            append(log, batch(b"v", producer_id=7, epoch=0, sequence=sequence))
        answer = await stored(node, batch(b"v", producer_id=7, epoch=0, sequence=1))
        assert answer[0].partitions[0].error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        assert log.high_watermark == 9

    with_node(tmp_path, work, fsync=FsyncMode.ALWAYS)


@pytest.mark.parametrize("creates", [True, False])
def test_topics_are_created_by_asking_for_them_where_that_is_wanted(tmp_path: Path, creates: bool) -> None:
    async def work(node: BrokerNode) -> None:
        asked = MetadataRequest.MetadataRequestTopic(version=12, name="t", topic_id=uuid.UUID(int=0))
        request = MetadataRequest(version=12, topics=[asked], allow_auto_topic_creation=True)
        result = metadata.handle(context(node, 12), request)
        answer = await result if creates else result
        code = ErrorCode.NONE if creates else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (answer.topics[0].error_code, node.topics.get("t") is not None) == (code, creates)

    with_node(tmp_path, work, creates_topics=creates)


@pytest.mark.parametrize("name", [None, "", "other"])
def test_a_topic_that_is_asked_for_by_id_is_found_whatever_stands_for_its_name(
    tmp_path: Path, name: str | None
) -> None:
    """Kafka's own admin client sends an empty name, and takes an answer without an id for none."""

    async def work(node: BrokerNode) -> None:
        topic_id = node.changes.create_topic("t", 1, {}).topic_id
        for wanted, told in (
            (topic_id, (ErrorCode.NONE, "t", topic_id)),
            (uuid.UUID(int=7), (ErrorCode.UNKNOWN_TOPIC_ID, None, uuid.UUID(int=7))),
        ):
            asked = MetadataRequest.MetadataRequestTopic(version=12, name=name, topic_id=wanted)
            answer = metadata.handle(context(node, 12), MetadataRequest(version=12, topics=[asked]))
            assert [(each.error_code, each.name, each.topic_id) for each in answer.topics] == [told]
            assert [(each.partition_count, each.is_internal) for each in answer.topics] == [
                (int(wanted == topic_id), False)
            ]
        assert node.topics.get("other") is None

    with_node(tmp_path, work)


def test_who_asks_what_may_be_done_is_told(tmp_path: Path) -> None:
    topic, group, cluster = {3, 4, 5, 6, 7, 8, 10, 11}, {3, 6, 8}, {5, 7, 8, 9, 10, 11, 12}

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        for asked in (True, False):
            flags = {"include_cluster_authorized_operations": asked, "include_topic_authorized_operations": asked}
            answer = metadata.handle(context(node, 9), MetadataRequest(version=9, topics=None, **flags))
            assert answer.authorized_operations == (cluster if asked else None)
            assert [each.authorized_operations for each in answer.topics] == [topic if asked else None] * 2
            question = DescribeClusterRequest(version=0, include_cluster_authorized_operations=asked)
            told = describe_cluster.handle(context(node, 0), question)
            assert told.authorized_operations == (cluster if asked else None)
            groups = DescribeGroupsRequest(version=5, groups=["g"], include_authorized_operations=asked)
            found = describe_groups.handle(context(node, 5), groups).groups
            assert [each.authorized_operations for each in found] == [group if asked else None]

    with_node(tmp_path, work)


def test_no_error_has_no_message(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        topic = CreateTopicsRequest.CreatableTopic(
            version=7, name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        request = CreateTopicsRequest(version=7, topics=[topic], timeout_ms=1, validate_only=False)
        assert (await create_topics.handle(context(node, 7), request)).topics[0].error_message is None

    with_node(tmp_path, work)


@pytest.mark.parametrize("version", [1, 4, 6])
def test_this_node_coordinates_groups_and_transactions_and_nothing_else(tmp_path: Path, version: int) -> None:
    async def work(node: BrokerNode) -> None:
        keys: dict[str, Any] = {"coordinator_keys": ["x"]} if version >= 4 else {"key": "x"}
        for key_type, code in ((2, 30), (1, 0), (0, 0)):
            request = FindCoordinatorRequest(version=version, key_type=key_type, **keys)
            answer = find_coordinator.handle(context(node, version), request)
            told = answer.coordinators[0] if version >= 4 else answer
            assert (told.error_code, told.node_id) == (code, 5)

    with_node(tmp_path, work, node_id=5)


@pytest.mark.parametrize(("users", "scheme"), [("", "PLAINTEXT"), ("users", "SASL_PLAINTEXT")])
def test_the_brokers_configuration_says_where_it_is_reached(tmp_path: Path, users: str, scheme: str) -> None:
    async def work(node: BrokerNode) -> None:
        node.address = ("broker.example", 1234)
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            version=4, resource_type=4, resource_name="5", configuration_keys=None
        )
        request = DescribeConfigsRequest(version=4, resources=[resource])
        answer = await describe_configs.handle(context(node, 4), request)
        rows = {row.name: row.value for row in answer.results[0].configs}
        assert rows["advertised.listeners"] == f"{scheme}://broker.example:1234"
        assert rows["auto.create.topics.enable"] == "false"
        assert (rows["node.id"], rows["group.min.session.timeout.ms"]) == ("5", "100")
        assert rows["group.initial.rebalance.delay.ms"] == "3000"

    settings = {"creates_topics": False, "session_timeout_ms_min": 100, "rebalance_delay_ms": 3000}
    with_node(tmp_path, work, node_id=5, users=users, **settings)


def test_an_empty_list_of_keys_asks_for_all_of_them_as_null_does(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        told = []
        for keys in (None, [], ["retention.ms"]):
            resource = DescribeConfigsRequest.DescribeConfigsResource(
                version=4, resource_type=2, resource_name="t", configuration_keys=keys
            )
            request = DescribeConfigsRequest(version=4, resources=[resource])
            answer = await describe_configs.handle(context(node, 4), request)
            told.append([row.name for row in answer.results[0].configs])
        assert told[0] == told[1] and len(told[0]) > 10
        assert told[2] == ["retention.ms"]

    with_node(tmp_path, work)


def test_an_answer_names_each_partition_once_however_often_it_was_asked_for(tmp_path: Path) -> None:
    """Or a request of a megabyte would be answered with thousands of times as much."""

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        await node.groups.commits.store("g", {("t", 0): CommittedOffset(5, 0, "m" * 4000, NOW_MS)})
        for version, topics_of in ((7, lambda answer: answer.topics), (9, lambda answer: answer.groups[0].topics)):
            plain, grouped = OffsetFetchRequest.OffsetFetchRequestTopic, OffsetFetchRequest.OffsetFetchRequestGroup
            if version < 8:
                topics = [plain(version=version, name="t", partition_indexes=[0] * 1000)] * 2
                request = OffsetFetchRequest(version=version, group_id="g", topics=topics)
            else:
                topics = [grouped.OffsetFetchRequestTopics(version=version, name="t", partition_indexes=[0] * 1000)] * 2
                group = grouped(version=version, group_id="g", member_id=None, member_epoch=-1, topics=topics)
                request = OffsetFetchRequest(version=version, groups=[group] * 2)
            (topic,) = topics_of(offset_fetch.handle(context(node, version), request))
            assert [(one.partition_index, one.committed_offset) for one in topic.partitions] == [(0, 5)]
        wanted = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0] * 1000)
        answer = describe_producers.handle(context(node, 0), DescribeProducersRequest(topics=[wanted] * 2))
        assert [one.partition_index for topic in answer.topics for one in topic.partitions] == [0]

    with_node(tmp_path, work)


def join(client: str, session_ms: int = 10_000) -> JoinRequest:
    return JoinRequest("", None, client, "host", session_ms, 10_000, "consumer", (Protocol("range", b""),), False)


def test_members_that_come_together_are_assigned_once(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.start()
        joins = [asyncio.ensure_future(node.groups.join("g", join("a")))]
        await asyncio.sleep(0.05)
        joins.append(asyncio.ensure_future(node.groups.join("g", join("b"))))
        results: list[JoinResult] = list(await asyncio.gather(*joins))
        assert [result.generation for result in results] == [1, 1]
        assert sorted(len(result.members) for result in results) == [0, 2]

    with_node(tmp_path, work, rebalance_delay_ms=300)


def test_short_sessions_are_a_setting(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        assert (await node.groups.join("g", join("a", 200))).error is ErrorCode.NONE
        assert (await node.groups.join("h", join("a", 199))).error is ErrorCode.INVALID_SESSION_TIMEOUT

    with_node(tmp_path, work, session_timeout_ms_min=200)


def test_old_tools_alter_a_topic_as_a_whole(tmp_path: Path) -> None:
    async def alter(node: BrokerNode, name: str, configs: dict[str, str], *, only_check: bool = False) -> ErrorCode:
        resource = AlterConfigsRequest.AlterConfigsResource
        rows = [resource.AlterableConfig(version=1, name=key, value=value) for key, value in configs.items()]
        wanted = resource(version=1, resource_type=2, resource_name=name, configs=rows)
        request = AlterConfigsRequest(version=1, resources=[wanted], validate_only=only_check)
        return ErrorCode((await alter_configs.handle(context(node, 1), request)).responses[0].error_code)

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"retention.ms": "1000", "segment.bytes": "2000"})
        assert await alter(node, "t", {"retention.ms": "5000"}, only_check=True) is ErrorCode.NONE
        assert dict(node.topic("t").configs) == {"retention.ms": "1000", "segment.bytes": "2000"}
        assert await alter(node, "t", {"retention.ms": "5000"}) is ErrorCode.NONE
        assert dict(node.topic("t").configs) == {"retention.ms": "5000"}
        assert await alter(node, "t", {"retention.ms": "soon"}) is ErrorCode.INVALID_CONFIG
        assert await alter(node, "none", {}) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await alter(node, "__consumer_offsets", {}) is ErrorCode.INVALID_REQUEST
        assert dict(node.topic("t").configs) == {"retention.ms": "5000"}

    with_node(tmp_path, work)


def test_admin_tools_are_told_how_much_each_partition_takes(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        for name in ("t", "u"):
            node.changes.create_topic(name, 2, {})
        append(node.log("t", 1), RAW)
        everything = describe_log_dirs.handle(context(node, 4), DescribeLogDirsRequest(version=4, topics=None))
        found = {
            (topic.name, each.partition_index): each.partition_size
            for topic in everything.results[0].topics
            for each in topic.partitions
        }
        empty = dict.fromkeys([("t", 0), ("u", 0), ("u", 1), ("__consumer_offsets", 0)], 0)
        assert found == {("t", 1): len(RAW), **empty}
        assert everything.results[0].total_bytes >= everything.results[0].usable_bytes > 0
        topic = DescribeLogDirsRequest.DescribableLogDirTopic
        wanted = [topic(version=1, topic="t", partitions=[1, 7]), topic(version=1, topic="none", partitions=[0])]
        some = describe_log_dirs.handle(context(node, 1), DescribeLogDirsRequest(version=1, topics=wanted))
        assert [each.partition_index for each in some.results[0].topics[0].partitions] == [1]
        assert len(some.results[0].topics) == 1

    with_node(tmp_path, work)


def test_there_are_no_access_control_lists(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        asked = context(node, 2)
        assert acls.describe(asked, DescribeAclsRequest(version=2)).error_code == 54
        row, one = CreateAclsRequest.AclCreation, DeleteAclsRequest.DeleteAclsFilter
        created = acls.create(asked, CreateAclsRequest(version=2, creations=[row(version=2), row(version=2)]))
        assert [each.error_code for each in created.results] == [54, 54]
        deleted = acls.delete(asked, DeleteAclsRequest(version=2, filters=[one(version=2)]))
        assert [each.error_code for each in deleted.filter_results] == [54]

    with_node(tmp_path, work)


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_a_topic_of_log_append_time_stores_when_the_broker_took_it(tmp_path: Path, codec: int) -> None:
    raw = batch(b"a" * 300, b"b", timestamp_ms=NOW_MS - 90_000, producer_id=7, epoch=0, sequence=0, codec=codec)

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("orders", 1, {"message.timestamp.type": "LogAppendTime"})
        log = node.logs["orders", 0]
        wanted = ProduceRequest(None, 1, 1000, (ProduceTopic("orders", (ProducePartition(0, memoryview(raw)),)),))
        first, again = (produce.handle(context(node, 9), wanted) for _ in range(2))
        assert isinstance(first, tuple) and isinstance(again, tuple)
        answer, repeated = first[0].partitions[0], again[0].partitions[0]
        assert (answer.error, answer.base_offset, answer.append_time_ms) == (ErrorCode.NONE, 0, NOW_MS)
        assert (repeated.error, repeated.base_offset, repeated.append_time_ms) == (ErrorCode.NONE, 0, -1)
        stored = log.read(0, 1 << 20, whole_first=True)
        header = read_batch_header(stored)
        assert has_valid_crc(memoryview(stored), header)
        assert (header.attributes, header.max_timestamp) == (codec | 8, NOW_MS)
        assert (header.base_timestamp, header.producer_id) == (NOW_MS - 90_000, 7)
        assert stored[61:] == raw[61:]
        assert [(offset, time_ms, value) for offset, time_ms, _, value, _ in opened(stored)] == [
            (0, NOW_MS, b"a" * 300),
            (1, NOW_MS, b"b"),
        ]
        assert find_timestamp(log, NOW_MS - 1) == FoundTimestamp(NOW_MS, 0)
        assert find_timestamp(log, NOW_MS + 1) is None

    with_node(tmp_path, work)


def test_altering_the_kind_of_timestamps_counts_from_the_next_batch_on(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("orders", 1, {})
        for kind in ("LogAppendTime", "CreateTime"):
            await node.changes.alter_topic("orders", lambda _, kind=kind: {"message.timestamp.type": kind})
            raw = batch(b"a", timestamp_ms=5)
            produce.handle(
                context(node, 9),
                ProduceRequest(None, 1, 1000, (ProduceTopic("orders", (ProducePartition(0, memoryview(raw)),)),)),
            )
        log = node.logs["orders", 0]
        headers = [placed.header for placed, _ in log.batches(0)]
        assert [(header.attributes, header.max_timestamp) for header in headers] == [(8, NOW_MS), (0, 5)]

    with_node(tmp_path, work)


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("configs", "times", "word"),
    [
        ({}, (NOW_MS + HOUR_MS,), ""),
        ({}, (NOW_MS + HOUR_MS + 1,), "after"),
        ({}, (NOW_MS * 1000,), "after"),
        ({}, (NOW_MS, NOW_MS + HOUR_MS + 1), "after"),
        ({}, (5,), ""),
        ({}, (-1,), ""),
        ({"message.timestamp.after.max.ms": "0"}, (NOW_MS,), ""),
        ({"message.timestamp.after.max.ms": "0"}, (NOW_MS + 1,), "after"),
        ({"message.timestamp.before.max.ms": "10"}, (NOW_MS - 10,), ""),
        ({"message.timestamp.before.max.ms": "10"}, (NOW_MS - 11, NOW_MS), "before"),
        ({"message.timestamp.before.max.ms": "10"}, (-1,), ""),
        ({"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": "10"}, (5,), ""),
        ({"message.timestamp.type": "LogAppendTime"}, (NOW_MS * 1000,), ""),
    ],
)
def test_records_of_times_too_far_from_the_brokers_are_refused(
    tmp_path: Path, configs: dict[str, str], times: tuple[int, ...], word: str
) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for delta, time_ms in enumerate(times):
        builder.append(delta, time_ms, None, b"v", [])
    raw = bytes(builder.build())

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 2, {name: check_config(name, value) for name, value in configs.items()})
        parts = tuple(ProducePartition(index, memoryview(each)) for index, each in enumerate((raw, batch(b"now"))))
        answer = produce.handle(context(node, 9), ProduceRequest(None, 1, 1000, (ProduceTopic("t", parts),)))
        assert isinstance(answer, tuple)
        told, other = answer[0].partitions
        assert other.error is ErrorCode.NONE, "each partition has its own answer"
        if not word:
            assert told.error is ErrorCode.NONE
            return
        assert (told.error, node.log("t", 0).log_end_offset) == (ErrorCode.INVALID_TIMESTAMP, 0)
        limit = configs.get(f"message.timestamp.{word}.max.ms", str(HOUR_MS))
        time_ms = max(times) if word == "after" else times[0]
        for part in (f"message.timestamp.{word}.max.ms", limit, str(time_ms), f"{abs(time_ms - NOW_MS)} ms"):
            assert part in str(told.error_message)

    with_node(tmp_path, work)
