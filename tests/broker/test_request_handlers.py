"""Responses that clients depend on: long polls, error codes, topic creation, configuration, timestamps."""

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
from headrace.broker.coordinator.members import MemberProtocol
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
from headrace.broker.log.decoding import decode_records
from headrace.broker.log.time_search import TimestampOffset
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


async def fetch_records(
    node: BrokerNode,
    *offsets: int,
    bytes_min: int = 1,
    most: int = 1 << 30,
    each: int = 1 << 30,
    wait_ms: int = 20_000,
    committed: bool = False,
) -> list[bytes]:
    """Returns the records of each partition in the response of a fetch from the first partitions of topic t."""
    requested = tuple(FetchPartition(index, -1, offset, each) for index, offset in enumerate(offsets))
    request = FetchRequest(
        wait_ms, bytes_min, most, int(committed), 0, -1, (FetchTopic("t", uuid.UUID(int=0), requested),)
    )
    response = fetch.handle(context(node, 12), request)
    if not isinstance(response, fetch.FetchResult):
        response = await response
    return [bytes(partition.records) for partition in response.topics[0].partitions]


RAW = batch(b"v" * 100)


@pytest.mark.parametrize(
    ("fsync", "configs", "is_durable"),
    [
        (FsyncMode.NONE, {}, False),
        (FsyncMode.NONE, {"flush.ms": "3600000"}, True),
        (FsyncMode.INTERVAL, {"flush.ms": "1000"}, False),
        (FsyncMode.INTERVAL, {"flush.ms": "999"}, True),
        (FsyncMode.INTERVAL, {"flush.messages": str((1 << 63) - 1)}, False),
        (FsyncMode.INTERVAL, {"flush.messages": "10000"}, True),
        (FsyncMode.ALWAYS, {}, True),
    ],
)
def test_flush_configurations_delay_acknowledgement_until_fsync(
    tmp_path: Path, fsync: FsyncMode, configs: dict[str, str], is_durable: bool
) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, configs)
        topic = ProduceTopic("t", (ProducePartition(0, memoryview(RAW)),))
        response = produce.handle(context(node, 9), ProduceRequest(None, 1, 1, (topic,)))
        assert isinstance(response, Awaitable) == is_durable
        (produced,) = await response if isinstance(response, Awaitable) else response
        assert produced.partitions[0].error is ErrorCode.NONE
        assert node.log("t", 0).recovery_point == (1 if is_durable else 0)

    with_node(tmp_path, work, fsync=fsync)


@pytest.mark.parametrize("fsync", [FsyncMode.INTERVAL, FsyncMode.ALWAYS])
def test_long_poll_reads_again_only_when_enough_bytes_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: FsyncMode
) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 3, {"segment.bytes": "1024"})
        log = node.log("t", 1)
        append(log, RAW)
        await node.flusher.flush(log)
        reads: list[int] = []
        read = fetch._read
        monkeypatch.setattr(fetch, "_read", lambda *given: (reads.append(1), read(*given))[1])
        poll = asyncio.ensure_future(fetch_records(node, 0, 0, 0, bytes_min=20 * len(RAW)))
        for _ in range(30):
            await asyncio.sleep(0)
            assert not poll.done() or sum(log.log_end_offset for log in node.logs.values()) >= 20
            append(log, RAW)
            append(node.log("t", 2), RAW)
            if fsync is FsyncMode.ALWAYS:
                await asyncio.gather(*(node.flusher.flush(node.log("t", index)) for index in (1, 2)))
        found = await poll
        # A read ends at the end of a segment; the next segment is read by the next fetch.
        assert sum(map(len, found)) >= 7 * len(RAW)
        assert len(reads) == 2

    with_node(tmp_path, work, fsync=fsync)


def test_long_poll_without_enough_bytes_ends_at_max_wait(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        append(node.log("t", 0), RAW)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert await fetch_records(node, 0, bytes_min=len(RAW) + 1, wait_ms=50) == [
            node.log("t", 0).read(0, 1, min_one_batch=True)
        ]
        assert loop.time() - began_s >= 0.05

    with_node(tmp_path, work)


@pytest.mark.parametrize(
    "limits", [{"most": 300}, {"each": 300}, {"most": 1 << 30}], ids=["answer", "partition", "broker"]
)
def test_min_bytes_above_response_limit_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    monkeypatch.setattr(fetch, "RESPONSE_BYTES_MAX", 1000)

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        for _ in range(10):
            append(node.log("t", 0), RAW)
        found = await fetch_records(node, 0, bytes_min=1 << 20, wait_ms=10**9, **limits)
        assert len(found[0]) == min(*limits.values(), 1000)

    with_node(tmp_path, work)


def test_copied_record_bytes_per_response_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "COPIED_BYTES_MAX", 2 * len(RAW) + 1)

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 6, {})
        for index in range(5):
            append(node.log("t", index), RAW)
        size = len(RAW)
        found = await fetch_records(node, *[0] * 6, bytes_min=1 << 20, wait_ms=10**9)
        assert [len(records) for records in found] == [size, size, size, 0, 0, 0]
        # Records sent from their file do not count.
        monkeypatch.setattr(files, "SLICE_BYTES_MIN", 1)
        found = await fetch_records(node, *[0] * 6, bytes_min=5 * size, wait_ms=10**9)
        assert [len(records) for records in found] == [size] * 5 + [0]

    with_node(tmp_path, work)


@pytest.mark.parametrize("committed", [False, True])
def test_batch_above_remaining_bytes_does_not_make_fetch_wait(tmp_path: Path, committed: bool) -> None:
    """Only the first batch of a response may exceed the limit; the client then fetches the next batch."""

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 2, {})
        append(node.log("t", 0), RAW)
        append(node.log("t", 1), batch(b"v" * 1000))
        limits = {"bytes_min": 1 << 20, "wait_ms": 10**9, "each": 2 * len(RAW)}
        assert [len(found) for found in await fetch_records(node, 0, 0, committed=committed, **limits)] == [len(RAW), 0]
        # Without a completed transaction, a read-committed consumer sees nothing yet.
        append(node.log("t", 1), batch(b"v" * 1000, producer_id=1, epoch=0, sequence=0, is_transactional=True))
        poll = asyncio.ensure_future(fetch_records(node, 0, 1, committed=committed, **limits))
        for _ in range(5):
            await asyncio.sleep(0)
        assert poll.done() is not committed
        poll.cancel()

    with_node(tmp_path, work)


def test_read_ending_at_segment_end_does_not_wait(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {"segment.bytes": "1024"})
        for _ in range(10):
            append(node.log("t", 0), RAW)
        assert len((await fetch_records(node, 0, bytes_min=1 << 20, wait_ms=10**9))[0]) < 1024

    with_node(tmp_path, work)


def test_waiting_fetch_ends_when_topic_is_deleted(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        topic = node.changes.create_topic("t", 1, {})
        poll = asyncio.ensure_future(fetch_records(node, 0, wait_ms=10**9))
        await asyncio.sleep(0)
        await node.changes.delete_topic(topic)
        assert await poll == [b""]

    with_node(tmp_path, work)


def produce_batch(node: BrokerNode, raw: bytes) -> Any:
    request = ProduceRequest(None, -1, 1000, (ProduceTopic("t", (ProducePartition(0, memoryview(raw)),)),))
    return produce.handle(context(node, 9), request)


def test_produce_does_not_recreate_deleted_topic(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        assert produce_batch(node, RAW)[0].partitions[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert node.topics.get("t") is None
        node.changes.create_topic("t", 1, {})
        assert produce_batch(node, RAW)[0].partitions[0].error is ErrorCode.NONE

    with_node(tmp_path, work)


def test_duplicate_batch_response_waits_for_disk(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        log = node.log(node.changes.create_topic("t", 1, {}).name, 0)
        for sequence in range(9):
            append(log, batch(b"v", producer_id=7, epoch=0, sequence=sequence))
        response = await produce_batch(node, batch(b"v", producer_id=7, epoch=0, sequence=1))
        assert response[0].partitions[0].error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        assert log.high_watermark == 9

    with_node(tmp_path, work, fsync=FsyncMode.ALWAYS)


@pytest.mark.parametrize("creates", [True, False])
def test_metadata_creates_topics_if_enabled(tmp_path: Path, creates: bool) -> None:
    async def work(node: BrokerNode) -> None:
        requested = MetadataRequest.MetadataRequestTopic(version=12, name="t", topic_id=uuid.UUID(int=0))
        request = MetadataRequest(version=12, topics=[requested], allow_auto_topic_creation=True)
        result = metadata.handle(context(node, 12), request)
        response = await result if creates else result
        code = ErrorCode.NONE if creates else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (response.topics[0].error_code, node.topics.get("t") is not None) == (code, creates)

    with_node(tmp_path, work, auto_create_topics=creates)


@pytest.mark.parametrize("name", [None, "", "other"])
def test_metadata_finds_topic_by_id_with_empty_or_null_name(tmp_path: Path, name: str | None) -> None:
    """Kafka's admin client sends an empty name and expects the id in the response."""

    async def work(node: BrokerNode) -> None:
        topic_id = node.changes.create_topic("t", 1, {}).topic_id
        for requested_id, expected in (
            (topic_id, (ErrorCode.NONE, "t", topic_id)),
            (uuid.UUID(int=7), (ErrorCode.UNKNOWN_TOPIC_ID, None, uuid.UUID(int=7))),
        ):
            requested = MetadataRequest.MetadataRequestTopic(version=12, name=name, topic_id=requested_id)
            response = metadata.handle(context(node, 12), MetadataRequest(version=12, topics=[requested]))
            assert [(each.error_code, each.name, each.topic_id) for each in response.topics] == [expected]
            assert [(each.partition_count, each.is_internal) for each in response.topics] == [
                (int(requested_id == topic_id), False)
            ]
        assert node.topics.get("other") is None

    with_node(tmp_path, work)


def test_authorized_operations_are_returned_on_request(tmp_path: Path) -> None:
    topic, group, cluster = {3, 4, 5, 6, 7, 8, 10, 11}, {3, 6, 8}, {5, 7, 8, 9, 10, 11, 12}

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        for requested in (True, False):
            flags = {
                "include_cluster_authorized_operations": requested,
                "include_topic_authorized_operations": requested,
            }
            response = metadata.handle(context(node, 9), MetadataRequest(version=9, topics=None, **flags))
            assert response.authorized_operations == (cluster if requested else None)
            assert [each.authorized_operations for each in response.topics] == [topic if requested else None] * 2
            request = DescribeClusterRequest(version=0, include_cluster_authorized_operations=requested)
            response = describe_cluster.handle(context(node, 0), request)
            assert response.authorized_operations == (cluster if requested else None)
            groups = DescribeGroupsRequest(version=5, groups=["g"], include_authorized_operations=requested)
            found = describe_groups.handle(context(node, 5), groups).groups
            assert [each.authorized_operations for each in found] == [group if requested else None]

    with_node(tmp_path, work)


def test_success_has_null_error_message(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        topic = CreateTopicsRequest.CreatableTopic(
            version=7, name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        request = CreateTopicsRequest(version=7, topics=[topic], timeout_ms=1, validate_only=False)
        assert (await create_topics.handle(context(node, 7), request)).topics[0].error_message is None

    with_node(tmp_path, work)


@pytest.mark.parametrize("version", [1, 4, 6])
def test_find_coordinator_supports_groups_and_transactions_only(tmp_path: Path, version: int) -> None:
    async def work(node: BrokerNode) -> None:
        keys: dict[str, Any] = {"coordinator_keys": ["x"]} if version >= 4 else {"key": "x"}
        for key_type, code in ((2, 30), (1, 0), (0, 0)):
            request = FindCoordinatorRequest(version=version, key_type=key_type, **keys)
            response = find_coordinator.handle(context(node, version), request)
            coordinator = response.coordinators[0] if version >= 4 else response
            assert (coordinator.error_code, coordinator.node_id) == (code, 5)

    with_node(tmp_path, work, node_id=5)


@pytest.mark.parametrize(("users", "scheme"), [("", "PLAINTEXT"), ("users", "SASL_PLAINTEXT")])
def test_broker_config_contains_advertised_listeners(tmp_path: Path, users: str, scheme: str) -> None:
    async def work(node: BrokerNode) -> None:
        node.address = ("broker.example", 1234)
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            version=4, resource_type=4, resource_name="5", configuration_keys=None
        )
        request = DescribeConfigsRequest(version=4, resources=[resource])
        response = await describe_configs.handle(context(node, 4), request)
        rows = {row.name: row.value for row in response.results[0].configs}
        assert rows["advertised.listeners"] == f"{scheme}://broker.example:1234"
        assert rows["auto.create.topics.enable"] == "false"
        assert (rows["node.id"], rows["group.min.session.timeout.ms"]) == ("5", "100")
        assert rows["group.initial.rebalance.delay.ms"] == "3000"

    settings = {"auto_create_topics": False, "session_timeout_ms_min": 100, "rebalance_delay_ms": 3000}
    with_node(tmp_path, work, node_id=5, users=users, **settings)


def test_empty_config_key_list_means_all_keys(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        names_by_case = []
        for keys in (None, [], ["retention.ms"]):
            resource = DescribeConfigsRequest.DescribeConfigsResource(
                version=4, resource_type=2, resource_name="t", configuration_keys=keys
            )
            request = DescribeConfigsRequest(version=4, resources=[resource])
            response = await describe_configs.handle(context(node, 4), request)
            names_by_case.append([row.name for row in response.results[0].configs])
        assert names_by_case[0] == names_by_case[1] and len(names_by_case[0]) > 10
        assert names_by_case[2] == ["retention.ms"]

    with_node(tmp_path, work)


def test_duplicate_partitions_in_request_are_returned_once(tmp_path: Path) -> None:
    """Otherwise a request of a megabyte could get a response thousands of times as large."""

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        await node.groups.commits.store("g", {("t", 0): CommittedOffset(5, 0, "m" * 4000, NOW_MS)})
        for version, topics_of in (
            (7, lambda response: response.topics),
            (9, lambda response: response.groups[0].topics),
        ):
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
        requested = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0] * 1000)
        response = describe_producers.handle(context(node, 0), DescribeProducersRequest(topics=[requested] * 2))
        assert [one.partition_index for topic in response.topics for one in topic.partitions] == [0]

    with_node(tmp_path, work)


def join(client: str, session_ms: int = 10_000) -> JoinRequest:
    return JoinRequest("", None, client, "host", session_ms, 10_000, "consumer", (MemberProtocol("range", b""),), False)


def test_members_joining_together_rebalance_once(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.start()
        joins = [asyncio.ensure_future(node.groups.join("g", join("a")))]
        await asyncio.sleep(0.05)
        joins.append(asyncio.ensure_future(node.groups.join("g", join("b"))))
        results: list[JoinResult] = list(await asyncio.gather(*joins))
        assert [result.generation for result in results] == [1, 1]
        assert sorted(len(result.members) for result in results) == [0, 2]

    with_node(tmp_path, work, rebalance_delay_ms=300)


def test_session_timeout_minimum_is_configurable(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        assert (await node.groups.join("g", join("a", 200))).error is ErrorCode.NONE
        assert (await node.groups.join("h", join("a", 199))).error is ErrorCode.INVALID_SESSION_TIMEOUT

    with_node(tmp_path, work, session_timeout_ms_min=200)


def test_alter_configs_replaces_topic_config(tmp_path: Path) -> None:
    async def alter(node: BrokerNode, name: str, configs: dict[str, str], *, only_check: bool = False) -> ErrorCode:
        resource = AlterConfigsRequest.AlterConfigsResource
        rows = [resource.AlterableConfig(version=1, name=key, value=value) for key, value in configs.items()]
        requested = resource(version=1, resource_type=2, resource_name=name, configs=rows)
        request = AlterConfigsRequest(version=1, resources=[requested], validate_only=only_check)
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


def test_describe_log_dirs_returns_partition_sizes(tmp_path: Path) -> None:
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
        requested = [topic(version=1, topic="t", partitions=[1, 7]), topic(version=1, topic="none", partitions=[0])]
        some = describe_log_dirs.handle(context(node, 1), DescribeLogDirsRequest(version=1, topics=requested))
        assert [each.partition_index for each in some.results[0].topics[0].partitions] == [1]
        assert len(some.results[0].topics) == 1

    with_node(tmp_path, work)


def test_acl_requests_return_security_disabled(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        requested = context(node, 2)
        assert acls.describe(requested, DescribeAclsRequest(version=2)).error_code == 54
        row, one = CreateAclsRequest.AclCreation, DeleteAclsRequest.DeleteAclsFilter
        created = acls.create(requested, CreateAclsRequest(version=2, creations=[row(version=2), row(version=2)]))
        assert [each.error_code for each in created.results] == [54, 54]
        deleted = acls.delete(requested, DeleteAclsRequest(version=2, filters=[one(version=2)]))
        assert [each.error_code for each in deleted.filter_results] == [54]

    with_node(tmp_path, work)


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_log_append_time_topic_stores_append_time(tmp_path: Path, codec: int) -> None:
    raw = batch(b"a" * 300, b"b", timestamp_ms=NOW_MS - 90_000, producer_id=7, epoch=0, sequence=0, codec=codec)

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("orders", 1, {"message.timestamp.type": "LogAppendTime"})
        log = node.logs["orders", 0]
        requested = ProduceRequest(None, 1, 1000, (ProduceTopic("orders", (ProducePartition(0, memoryview(raw)),)),))
        first, again = (produce.handle(context(node, 9), requested) for _ in range(2))
        assert isinstance(first, tuple) and isinstance(again, tuple)
        response, repeated = first[0].partitions[0], again[0].partitions[0]
        assert (response.error, response.base_offset, response.append_time_ms) == (ErrorCode.NONE, 0, NOW_MS)
        assert (repeated.error, repeated.base_offset, repeated.append_time_ms) == (ErrorCode.NONE, 0, -1)
        stored = log.read(0, 1 << 20, min_one_batch=True)
        header = read_batch_header(stored)
        assert has_valid_crc(memoryview(stored), header)
        assert (header.attributes, header.max_timestamp) == (codec | 8, NOW_MS)
        assert (header.base_timestamp, header.producer_id) == (NOW_MS - 90_000, 7)
        assert stored[61:] == raw[61:]
        assert [(offset, time_ms, value) for offset, time_ms, _, value, _ in decode_records(stored)] == [
            (0, NOW_MS, b"a" * 300),
            (1, NOW_MS, b"b"),
        ]
        assert find_timestamp(log, NOW_MS - 1) == TimestampOffset(NOW_MS, 0)
        assert find_timestamp(log, NOW_MS + 1) is None

    with_node(tmp_path, work)


def test_changed_timestamp_type_applies_to_next_batch(tmp_path: Path) -> None:
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
        headers = [located.header for located, _ in log.batches(0)]
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
def test_records_outside_timestamp_bounds_are_refused(
    tmp_path: Path, configs: dict[str, str], times: tuple[int, ...], word: str
) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for delta, time_ms in enumerate(times):
        builder.append(delta, time_ms, None, b"v", [])
    raw = bytes(builder.build())

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 2, {name: check_config(name, value) for name, value in configs.items()})
        parts = tuple(ProducePartition(index, memoryview(each)) for index, each in enumerate((raw, batch(b"now"))))
        response = produce.handle(context(node, 9), ProduceRequest(None, 1, 1000, (ProduceTopic("t", parts),)))
        assert isinstance(response, tuple)
        refused, other = response[0].partitions
        assert other.error is ErrorCode.NONE, "each partition has its own answer"
        if not word:
            assert refused.error is ErrorCode.NONE
            return
        assert (refused.error, node.log("t", 0).log_end_offset) == (ErrorCode.INVALID_TIMESTAMP, 0)
        limit = configs.get(f"message.timestamp.{word}.max.ms", str(HOUR_MS))
        time_ms = max(times) if word == "after" else times[0]
        for part in (f"message.timestamp.{word}.max.ms", limit, str(time_ms), f"{abs(time_ms - NOW_MS)} ms"):
            assert part in str(refused.error_message)

    with_node(tmp_path, work)
