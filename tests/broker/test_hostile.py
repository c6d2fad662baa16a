"""Broken and malicious clients: their requests are refused or their connections closed, at bounded cost to others."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import snappy
import zstandard
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.schemas.fields.array import ArrayField
from kafka.protocol.schemas.fields.struct import StructField
from kafka.protocol.schemas.fields.struct_array import StructArrayField

from headrace.broker import connection
from headrace.broker.config import BrokerConfig
from headrace.broker.connection import IDLE_TIMEOUT_S, ClientConnections
from headrace.broker.coordinator import group_store as group_store_module
from headrace.broker.coordinator.group import REBALANCE_TIMEOUT_MS_MIN
from headrace.broker.coordinator.members import MemberProtocol
from headrace.broker.coordinator.messages import JoinRequest
from headrace.broker.errors import ProtocolError, RequestRefused
from headrace.broker.handlers import produce as produce_module
from headrace.broker.handlers.context import RequestContext, ResultWithFrame
from headrace.broker.handlers.dispatch import HANDLERS, unsupported_version_pieces
from headrace.broker.log.files import FileSlice
from headrace.broker.log.produce_validation import validate_batch
from headrace.broker.log.time_search import TimestampOffset
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.api_versions import (
    BY_KEY,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
    ROWS,
    ApiVersions,
)
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.framing import CONTROL_FRAME_BYTES_MAX, REQUEST_ITEMS_MAX, read_header
from headrace.broker.protocol.large_requests import decode_yielding
from headrace.broker.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from headrace.broker.request_counts import RequestCounts
from headrace.broker.server import BrokerServer
from headrace.kafka_wire import messages
from headrace.kafka_wire.errors import MalformedMessage
from headrace.kafka_wire.record_batch import HEADER_BYTES
from support.broker.broker_samples import (
    NOW_MS,
    append,
    batch,
    contents,
    find_timestamp,
    keyed_batch,
    open_sample_log,
    with_attributes,
)
from support.cases import all_cases
from support.examples import examples
from support.logs import logged

REQUESTS: dict[int, Any] = {
    cls.API_KEY: cls
    for module in (admin, consumer, messages, metadata, producer, sasl)
    for name in dir(module)
    if name.endswith("Request")
    for cls in [getattr(module, name)]
    if hasattr(cls, "API_KEY")
}
GENERATED = [row for row in ROWS if row.key not in (PRODUCE, FETCH)]
TEXTS = ("", "t", "g", "..", "../t", "ü" * 16_000, "consumer", "0", "retention.ms", "__consumer_offsets")


def uvarint(value: int) -> bytes:
    raw = bytearray()
    while value > 0x7F:
        raw.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(raw) + bytes([value])


def sized(raw: bytes | None, size_format: str, is_flexible: bool) -> bytes:
    size = -1 if raw is None else len(raw)
    return (uvarint(size + 1) if is_flexible else struct.pack(size_format, size)) + (raw or b"")


def field_bytes(data: st.DataObject, field: Any, version: int, is_flexible: bool) -> bytes:
    """Generates an extreme value of the field's type: null, empty, minimum, maximum."""
    if isinstance(field, (ArrayField, StructArrayField)):
        count = data.draw(st.sampled_from((None, 0, 1, 2)))
        items = [field_bytes(data, field.array_of, version, is_flexible) for _ in range(count or 0)]
        start = -1 if count is None else count
        return (uvarint(start + 1) if is_flexible else struct.pack(">i", start)) + b"".join(items)
    if isinstance(field, StructField):
        inner = (field_bytes(data, each, version, is_flexible) for each in field.untagged_fields(version))
        presence = b""
        if field.nullable_for_version_q(version):
            presence = data.draw(st.sampled_from((b"\xff", b"\1")))
        return presence + (b"" if presence == b"\xff" else b"".join(inner) + (b"\0" if is_flexible else b""))
    kind = getattr(field._type, "__name__", type(field._type).__name__)
    if kind == "String":
        text = data.draw(st.sampled_from((None, *TEXTS)))
        return sized(None if text is None else text.encode(), ">h", is_flexible)
    if kind == "Bytes":
        return sized(data.draw(st.sampled_from((None, b"", b"\0\1\0\0"))), ">i", is_flexible)
    if kind == "UUID":
        return bytes(16)
    bits = int(field._type.size) * 8
    number = 1 if kind == "Boolean" else data.draw(st.sampled_from((0, -1, 1, 3, 1 << bits - 1, (1 << bits - 1) - 1)))
    return (number % (1 << bits)).to_bytes(bits // 8, "big")


def body(data: st.DataObject, key: int, version: int) -> bytes:
    cls = REQUESTS[key]
    return field_bytes(data, cls._struct, version, cls.flexible_version_q(version))


def with_node(directory: Path, work: Callable[[BrokerNode], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        node = BrokerNode(BrokerConfig(directory, **config), now_ms=lambda: NOW_MS)
        try:
            await work(node)
        finally:
            await node.close()

    asyncio.run(main())


async def respond(node: BrokerNode, key: int, version: int, raw: bytes, *, timeout_s: float = 0.01) -> bytes:
    """Returns the response body; b"" if none arrives within the timeout."""
    handler = HANDLERS[key]
    request = handler.decode(memoryview(raw), 0, version)
    result = handler.handle(RequestContext(node, version, "c" * 30_000, "127.0.0.1"), request)
    if inspect.isawaitable(result):
        task = asyncio.ensure_future(result)
        await asyncio.wait([task], timeout=timeout_s)
        if not task.done():
            task.cancel()
            return b""
        result = task.result()
    return b"".join(handler.encode(result, version))


@given(st.permutations(GENERATED), st.data())
@settings(max_examples=examples(0.25))
def test_null_and_extreme_requests_get_response_or_refusal(
    tmp_path_factory: pytest.TempPathFactory, rows: list[ApiVersions], data: st.DataObject
) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 2, {})
        for each in rows:
            version = data.draw(st.integers(each.lowest, each.highest))
            with suppress(ProtocolError, MalformedMessage):
                await respond(node, each.key, version, body(data, each.key, version))

    with_node(tmp_path_factory.mktemp("broker"), work)


@pytest.mark.parametrize(
    ("key", "version", "raw"),
    [
        (PRODUCE, 3, struct.pack(">hhiI", -1, 1, 1, 0x7FFFFFFF)),
        (PRODUCE, 9, b"\0" + struct.pack(">hi", 1, 1) + b"\1" + b"\xff\xff\xff\xff\x07" + b"\0\0" * 1_000_000),
        (PRODUCE, 3, struct.pack(">hhii", -1, 1, 1, 60_000) + (struct.pack(">hii", 0, 1, 0) + b"\xff" * 4) * 60_000),
    ],
    ids=["endless-array", "endless-tags", "many-small-arrays"],
)
def test_request_that_is_slow_to_decode_is_refused(key: int, version: int, raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        HANDLERS[key].decode(memoryview(raw), 0, version)


@pytest.mark.parametrize(
    ("key", "version", "raw"),
    [
        (METADATA, 12, b"\xff" * (CONTROL_FRAME_BYTES_MAX - 100)),
        (METADATA, 9, uvarint(250_000) + b"\0\1\x64\0" * 249_998),
        (METADATA, 9, uvarint(2) + b"\2t" + uvarint(250_000) + b"\1\0" * 249_998),
        (METADATA, 9, uvarint(2) + b"\2t\1\x63" + uvarint(200_000)),
        (METADATA, 0, struct.pack(">i", 30_000) + b"\0\1t" * 30_000),
        (OFFSET_FETCH, 1, struct.pack(">hcihci", 1, b"g", 1, 1, b"t", 30_000) + bytes(120_000)),
        (METADATA, 0, struct.pack(">i", 20_000) + b"\0\1t" * 19_999),
    ],
    ids=[
        "endless-varint",
        "many-tagged-structs",
        "many-tags",
        "tag-cut-off",
        "many-names",
        "many-partitions",
        "names-cut-off",
    ],
)
def test_large_request_that_is_slow_to_decode_is_refused(key: int, version: int, raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        asyncio.run(decode_yielding(REQUESTS[key], raw, 0, version))


def test_request_items_limit_is_inclusive() -> None:
    def metadata_request(count: int) -> bytes:
        return struct.pack(">i", count) + b"\0\1t" * count

    read = asyncio.run(decode_yielding(REQUESTS[METADATA], metadata_request(REQUEST_ITEMS_MAX), 0, 0))
    assert len(read.topics) == REQUEST_ITEMS_MAX
    with pytest.raises(MalformedMessage, match=f"{REQUEST_ITEMS_MAX}"):
        asyncio.run(decode_yielding(REQUESTS[METADATA], metadata_request(REQUEST_ITEMS_MAX + 1), 0, 0))


@given(st.sampled_from(GENERATED), st.data())
@settings(max_examples=examples(5))
def test_yielding_decoder_agrees_with_compiled_decoder(row: ApiVersions, data: st.DataObject) -> None:
    version = data.draw(st.integers(row.lowest, row.highest))
    cls, raw = REQUESTS[row.key], body(data, row.key, version)
    at_once = HANDLERS[row.key].decode(memoryview(raw), 0, version)
    assert vars_of(asyncio.run(decode_yielding(cls, b"head" + raw, 4, version))) == vars_of(at_once)


def vars_of(message: Any) -> Any:
    """Converts a message to plain values."""
    return message.to_dict() if message is not None else None


def tagged_names(field: Any, version: int) -> list[str]:
    inner = (each.array_of if each.is_array() else each for each in field.untagged_fields(version))
    own = [each.name for each in field.fields.values() if each.for_version_q(version) and each.tagged_field_q(version)]
    return own + [name for each in inner if each.is_struct() for name in tagged_names(each, version)]


def test_served_requests_define_no_tagged_fields() -> None:
    """The yielding decoder skips tagged fields and relies on this."""
    found = {
        (row.name, version): tagged_names(REQUESTS[row.key]._struct, version)
        for row in GENERATED
        for version in range(row.lowest, row.highest + 1)
    }
    assert {request: metadata_request for request, metadata_request in found.items() if metadata_request} == {}


def test_event_loop_runs_while_large_request_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.loop_yielder.BURST_S", 0)
    rounds = 0

    async def main() -> None:
        nonlocal rounds
        raw = struct.pack(">i", 5_000) + b"\0\1t" * 5_000
        reading = asyncio.ensure_future(decode_yielding(REQUESTS[METADATA], raw, 0, 0))
        while not reading.done():
            rounds += 1
            await asyncio.sleep(0)
        assert len(reading.result().topics) == 5_000

    asyncio.run(main())
    assert rounds >= 5_000


@pytest.mark.parametrize(
    ("key", "array", "item"),
    [
        (CREATE_TOPICS, "topics", {"name": "", "num_partitions": 1, "replication_factor": 1}),
        (DESCRIBE_CONFIGS, "resources", {"resource_type": 2, "resource_name": ""}),
        (INCREMENTAL_ALTER_CONFIGS, "resources", {"resource_type": 2, "resource_name": ""}),
    ],
    ids=["CreateTopics", "DescribeConfigs", "IncrementalAlterConfigs"],
)
def test_event_loop_runs_while_expensive_requests_are_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: int, array: str, item: dict[str, Any]
) -> None:
    monkeypatch.setattr("headrace.broker.loop_yielder.BURST_S", 0)

    async def work(node: BrokerNode) -> None:
        cls = REQUESTS[key]
        field = cls._struct.fields[array]
        items = [
            field(version=1, **{name: f"no {at}" if value == "" else value for name, value in item.items()})
            for at in range(200)
        ]
        result = HANDLERS[key].handle(RequestContext(node, 1, "c", "127.0.0.1"), cls(version=1, **{array: items}))
        assert inspect.isawaitable(result)
        answering, rounds = asyncio.ensure_future(result), 0
        while not answering.done():
            rounds += 1
            await asyncio.sleep(0)
        assert rounds >= 200

    with_node(tmp_path, work)


def test_old_produce_request_with_too_many_partitions_is_refused() -> None:
    """A produce frame may be a hundred times as long as one of another API."""
    start = struct.pack(">hhihhiihci", PRODUCE, 2, 7, -1, -1, 1000, 1, 1, b"t", 30_000)
    frame = memoryview(start + struct.pack(">ii", 0, -1) * 30_000)
    with pytest.raises(MalformedMessage, match="30000"):
        unsupported_version_pieces(frame, read_header(frame))


def test_repeated_topic_in_metadata_request_is_returned_once(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 100, {})
        cls = REQUESTS[METADATA]
        topics = [cls.MetadataRequestTopic(version=9, name="t") for _ in range(1000)]
        request = cls(version=9, topics=topics, allow_auto_topic_creation=True)
        assert len(await respond(node, METADATA, 9, bytes(request.encode()))) < 10_000

    with_node(tmp_path, work)


def test_total_partitions_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.topic_changes.PARTITIONS_TOTAL_MAX", 10)

    async def work(node: BrokerNode) -> None:
        refusals = await node.changes.ensure_topics(f"t{number}" for number in range(5))
        assert {name: refused.code for name, refused in refusals.items()} == {
            f"t{number}": ErrorCode.POLICY_VIOLATION for number in (2, 3, 4)
        }
        assert len(node.logs) == 1 + 2 * node.config.partitions
        first = node.topic("t0")
        with pytest.raises(RequestRefused) as refused:
            node.changes.create_topic("one", 4, {})
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        with pytest.raises(RequestRefused) as refused:
            await node.changes.add_partitions("t0", 8)
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        assert node.topic("t0") is first and not (tmp_path / "one-0").exists() and not (tmp_path / "t0-4").exists()

    with_node(tmp_path, work)


def test_automatic_topic_creation_is_limited_per_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topics left out are unknown, so clients request them again."""
    monkeypatch.setattr("headrace.broker.topic_changes.AUTO_CREATED_TOPICS_MAX", 2)

    async def work(node: BrokerNode) -> None:
        cls = REQUESTS[METADATA]
        metadata_request = ("a", "b", "c")
        topics = [cls.MetadataRequestTopic(version=4, name=name) for name in metadata_request]
        request = cls(version=4, topics=topics, allow_auto_topic_creation=True)
        for expected in ([0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], [0, 0, 0]):
            raw = await respond(node, METADATA, 4, bytes(request.encode()), timeout_s=30)
            found = metadata.MetadataResponse.decode(raw, version=4).topics
            assert {topic.name: topic.error_code for topic in found} == dict(
                zip(metadata_request, expected, strict=True)
            )

    with_node(tmp_path, work)


def join(member_id: str = "", *, protocol: str = "range", requires_known_member_id: bool = True) -> JoinRequest:
    protocols = (MemberProtocol(protocol, b""),)
    return JoinRequest(
        member_id, None, "c" * 30_000, "h", 10_000, 10_000, "consumer", protocols, requires_known_member_id
    )


def test_group_count_and_name_length_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_store_module, "GROUPS_MAX", 2)

    async def work(node: BrokerNode) -> None:
        groups = node.groups
        assert (await groups.join("x" * 40_000, join())).error is ErrorCode.INVALID_GROUP_ID
        assert (await groups.join("g1", join(protocol="x" * 40_000))).error is ErrorCode.INVALID_REQUEST
        response = await groups.join("g1", join())
        assert response.error is ErrorCode.MEMBER_ID_REQUIRED and len(response.member_id) < 300
        assert (await groups.join("g2", join(requires_known_member_id=False))).error is ErrorCode.NONE
        assert (await groups.join("g3", join())).error is ErrorCode.POLICY_VIOLATION

    with_node(tmp_path, work)


def test_never_joined_group_is_removed(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        await node.groups.join("refused", join(protocol="x" * 40_000))
        await node.groups.join("promised", join())
        await node.groups.run_housekeeping()
        assert set(node.groups.groups) == {"promised"}

    with_node(tmp_path, work)


def test_rebalance_timeout_has_minimum(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        cls = REQUESTS[11]
        protocol = cls.JoinGroupRequestProtocol(version=1, name="range", metadata=b"")
        request = cls(
            version=1,
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=-(1 << 31),
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        await respond(node, 11, 1, bytes(request.encode()))
        [member] = node.groups.groups["g"].members.values()
        assert member.rebalance_timeout_ms == REBALANCE_TIMEOUT_MS_MIN

    with_node(tmp_path, work)


COMPRESSORS: dict[int, Callable[[bytes], bytes]] = {
    1: gzip.compress,
    2: snappy.compress,
    3: lz4.frame.compress,
    4: lambda content: zstandard.ZstdCompressor().compress(content),
}


def compressed(codec: int, *values: bytes) -> bytes:
    plain = batch(*values)
    content = COMPRESSORS[codec](plain[HEADER_BYTES:])
    header = bytearray(plain[:HEADER_BYTES])
    struct.pack_into(">i", header, 8, HEADER_BYTES - 12 + len(content))
    return with_attributes(bytes(header) + content, codec)


@pytest.mark.parametrize("codec", COMPRESSORS)
def test_batch_with_excessive_decompressed_size_is_not_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: int
) -> None:
    """A timestamp search that would need its records returns the batch's base offset."""
    log = open_sample_log(tmp_path).log
    for _ in range(2):
        append(log, compressed(codec, b"x" * 1000, b"y" * 1000))
    assert find_timestamp(log, NOW_MS + 1) == TimestampOffset(NOW_MS + 1, 1)
    monkeypatch.setattr("headrace.broker.log.decoding.DECODED_BYTES_MAX", 1500)
    assert find_timestamp(log, NOW_MS + 1) == TimestampOffset(NOW_MS + 1, 0)


def test_record_count_above_byte_count_is_refused() -> None:
    raw = bytearray(batch(b"x"))
    count = (1 << 31) - 1
    struct.pack_into(">i", raw, 23, count - 1)
    struct.pack_into(">i", raw, 57, count)
    struct.pack_into(">I", raw, 17, crc32c(bytes(raw[21:])))
    with pytest.raises(RequestRefused) as refused:
        validate_batch(memoryview(raw), 1000)
    assert refused.value.code is ErrorCode.INVALID_RECORD


# Over sockets, in this process


def with_server(directory: Path, work: Callable[[BrokerServer, str, int], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        server = BrokerServer(BrokerConfig(directory, port=0, **config))
        host, port = await server.start()
        serving = asyncio.create_task(server.wait())
        try:
            await work(server, host, port)
        finally:
            server.stop()
            await serving

    asyncio.run(main())


def request_bytes(key: int, version: int, raw: bytes = b"") -> bytes:
    return struct.pack(">ihhih", 10 + len(raw), key, version, 7, -1) + raw


def fetch_bytes(topic: bytes, wait_ms: int) -> bytes:
    raw = struct.pack(">iiiibih", -1, wait_ms, 1, 60_000_000, 0, 1, len(topic)) + topic
    return request_bytes(FETCH, 4, raw + struct.pack(">iiqi", 1, 0, 0, 60_000_000))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("partitions", "is_refused"), [((0, 1), False), ((0, 7), True)], ids=["stored", "one of them refused"]
)
def test_refused_acks_zero_request_closes_connection_after_earlier_responses(
    tmp_path: Path, partitions: tuple[int, int], is_refused: bool
) -> None:
    """The client then refreshes its metadata, as after an error response."""

    async def work(server: BrokerServer, host: str, port: int) -> None:
        server.node.changes.create_topic("t", 2, {})
        counts = server.connections.counts = RequestCounts(lambda _: "")
        raw = batch(b"v")
        parts = b"".join(struct.pack(">ii", index, len(raw)) + raw for index in partitions)
        produced = struct.pack(">hhiihc", -1, 0, 1000, 1, 1, b"t") + struct.pack(">i", len(partitions)) + parts
        reader, writer = await asyncio.open_connection(host, port)
        requested = [request_bytes(METADATA, 1, struct.pack(">i", 0)), request_bytes(PRODUCE, 3, produced)]
        writer.write(b"".join(requested) + requested[0])
        response_count = 1 if is_refused else 2
        for _ in range(response_count):
            await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        if is_refused:
            assert await reader.read() == b""
        assert server.node.log("t", 0).log_end_offset == 1
        assert dict(counts.errors) == ({(PRODUCE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): 1} if is_refused else {})
        writer.close()

    with_server(tmp_path, work)


def test_refused_acks_zero_request_leaves_earlier_response_complete(tmp_path: Path) -> None:
    """The client reads so slowly that the response is not sent yet when the request is refused."""

    async def work(server: BrokerServer, host: str, port: int) -> None:
        server.node.changes.create_topic("t", 1, {})
        log = server.node.log("t", 0)
        append(log, batch(bytes(1_000_000)))
        stored = bytes(log.read(0, 60_000_000, min_one_batch=True))
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((host, port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1)
        await until(lambda: bool(server.connections.open))
        [client] = server.connections.open
        assert client._transport is not None
        client._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        counts = server.connections.counts = RequestCounts(lambda _: "")
        writer.write(fetch_bytes(b"t", 0) + produce_bytes({9: batch(b"v")}, acks=0))
        await until(lambda: bool(counts.errors))
        received = await reader.read(-1)
        assert received.endswith(stored) and len(received) == 4 + struct.unpack_from(">i", received)[0]
        writer.close()

    with_server(tmp_path, work)


def produce_bytes(batches: dict[int, bytes], acks: int = 1) -> bytes:
    """Returns a Produce request with these batches for the partitions of topic t."""
    parts = b"".join(struct.pack(">ii", index, len(raw)) + raw for index, raw in batches.items())
    raw = struct.pack(">hhiihci", -1, acks, 1000, 1, 1, b"t", len(batches)) + parts
    return request_bytes(PRODUCE, 3, raw)


@pytest.fixture
def always_yields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_module, "SYNC_WORK_S", -1)
    monkeypatch.setattr("headrace.broker.loop_yielder.BURST_S", 0)


def test_event_loop_runs_while_large_produce_request_is_handled(tmp_path: Path, always_yields: None) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 50, {"cleanup.policy": "compact"})
        raw = memoryview(keyed_batch((b"k", b"v")))
        topic = ProduceTopic("t", tuple(ProducePartition(index, raw) for index in range(50)))
        result = HANDLERS[PRODUCE].handle(RequestContext(node, 9, "c", ""), ProduceRequest(None, 1, 1, (topic,)))
        assert isinstance(result, ResultWithFrame)
        answering, rounds = asyncio.ensure_future(as_coroutine(result)), 0
        while not answering.done():
            rounds += 1
            await asyncio.sleep(0)
        (produced,) = answering.result()
        assert rounds >= 49 and [one.error for one in produced.partitions] == [ErrorCode.NONE] * 50

    with_node(tmp_path, work)


async def as_coroutine(result: Awaitable[Any]) -> Any:
    return await result


def test_pipelined_requests_after_large_produce_request_are_appended_in_order(
    tmp_path: Path, always_yields: None
) -> None:
    """Also if the second request is in the same read and would overwrite the first one in the receive buffer."""

    async def work(server: BrokerServer, host: str, port: int) -> None:
        server.node.changes.create_topic("t", 300, {})
        reader, writer = await asyncio.open_connection(host, port)
        for round_ in range(3):
            writer.write(produce_bytes({index: batch(b"%d first" % round_) for index in range(300)}))
            writer.write(produce_bytes({index: batch(b"%d second" % round_) for index in (299, 298)}))
            writer.write(request_bytes(18, 0))
        for _ in range(9):
            await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        values = [b"%d %s" % (round_, name) for round_ in range(3) for name in (b"first", b"second")]
        assert [value for _, value in contents(server.node.log("t", 299))] == values
        assert [value for _, value in contents(server.node.log("t", 7))] == values[::2]
        writer.close()

    with_server(tmp_path, work)


def test_concurrent_large_produce_requests_do_not_overwrite_each_other(tmp_path: Path, always_yields: None) -> None:
    """Their receive buffers come from one pool."""

    async def work(server: BrokerServer, host: str, port: int) -> None:
        server.node.changes.create_topic("t", 100, {})

        async def send(value: bytes) -> None:
            reader, writer = await asyncio.open_connection(host, port)
            for _ in range(3):
                writer.write(produce_bytes({index: batch(value * 10_000) for index in range(100)}))
                response = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
                assert struct.unpack_from(">h", response, 19)[0] == ErrorCode.NONE
            writer.close()

        names = [b"a", b"b", b"c"]
        await asyncio.gather(*map(send, names))
        for index in range(100):
            found = sorted(value or b"" for _, value in contents(server.node.log("t", index)))
            assert found == [name * 10_000 for name in names for _ in range(3)]

    with_server(tmp_path, work)


def test_large_produce_request_is_completed_after_its_connection_is_lost(tmp_path: Path, always_yields: None) -> None:
    async def work(server: BrokerServer, host: str, port: int) -> None:
        server.node.changes.create_topic("t", 300, {})
        _, writer = await asyncio.open_connection(host, port)
        writer.write(produce_bytes({index: batch(b"v") for index in range(300)}, acks=0))
        while not server.node.log("t", 0).log_end_offset:
            await asyncio.sleep(0)
        assert not server.node.log("t", 299).log_end_offset
        [client] = server.connections.open
        client.abort("its user was deleted")
        await until(lambda: server.node.log("t", 299).log_end_offset == 1 and not server.connections.open)
        assert [contents(server.node.log("t", index)) for index in range(300)] == [[(0, b"v")]] * 300

    with_server(tmp_path, work)


def test_control_requests_have_lower_frame_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = [key for key in BY_KEY if key != PRODUCE]

    async def work(server: BrokerServer, host: str, port: int) -> None:
        with all_cases() as case:
            for key in keys:
                with case(BY_KEY[key].name):
                    reader, writer = await asyncio.open_connection(host, port)
                    writer.write(struct.pack(">ih", CONTROL_FRAME_BYTES_MAX + 1, key))
                    assert await reader.read() == b""
                    writer.close()

    with_server(tmp_path, work)
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert records == logged(caplog, "broker.connection", "127.0.0.1:") and len(records) == len(keys)


def test_idle_connections_are_closed_unless_waiting_for_response(tmp_path: Path) -> None:
    async def work(server: BrokerServer, host: str, port: int) -> None:
        server.node.changes.create_topic("t", 1, {})
        silent, incomplete = [await asyncio.open_connection(host, port) for _ in range(2)]
        incomplete[1].write(request_bytes(METADATA, 1)[:7])
        waiting_reader, waiting = await asyncio.open_connection(host, port)
        waiting.write(fetch_bytes(b"t", 250_000))
        await until(lambda: any(each.has_pending for each in server.connections.open))
        now_s = asyncio.get_running_loop().time()
        server.connections.close_idle(now_s + IDLE_TIMEOUT_S - 1)
        assert len(server.connections.open) == 3
        server.connections.close_idle(now_s + IDLE_TIMEOUT_S + 60)
        assert [await reader.read() for reader, _ in (silent, incomplete)] == [b"", b""]
        log = server.node.log("t", 0)
        append(log, batch(b"x"))
        assert struct.unpack(">i", await waiting_reader.readexactly(4))[0] > 60
        for writer in (silent[1], incomplete[1], waiting):
            writer.close()

    with_server(tmp_path, work)


def test_client_that_read_least_recently_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.connection.UNREAD_BYTES_TOTAL_MAX", 10_000_000)
    monkeypatch.setattr("headrace.broker.log.files.SLICE_BYTES_MIN", 100_000_000)  # all of it in memory

    async def work(server: BrokerServer, host: str, port: int) -> None:
        server.node.changes.create_topic("t", 1, {})
        for _ in range(10):
            append(server.node.log("t", 0), batch(b"x" * 1_000_000))
        lazy = []
        for count in range(1, 4):
            lazy.append(await asyncio.open_connection(host, port, limit=1))
            lazy[-1][1].write(fetch_bytes(b"t", 0) * 5)
            if count == 1:
                await until(lambda: len(server.connections.slow_readers) == 1)
                first = next(iter(server.connections.slow_readers))
        await until(lambda: first not in server.connections.open)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request_bytes(18, 0))
        assert len(await reader.readexactly(4)) == 4
        for other in (writer, *(each for _, each in lazy)):
            other.transport.abort()

    with_server(tmp_path, work)


def test_unread_bytes_are_updated_as_clients_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.connection.UNREAD_BYTES_TOTAL_MAX", 100)

    class Client:
        def __init__(self, unread_bytes: int) -> None:
            self.unread_bytes, self.abort_reason = unread_bytes, ""

        def abort(self, reason: str) -> None:
            self.abort_reason = reason

    connections: Any = ClientConnections()
    has_read, slow, reads, new = Client(60), Client(40), Client(60), Client(5)
    for each in (has_read, slow):
        connections.track_unread(each)
    has_read.unread_bytes = 0
    connections.track_unread(reads)  # 160 as last measured, 100 now
    assert list(connections.slow_readers.items()) == [(slow, 40), (reads, 60)]
    reads.unread_bytes = 50
    connections.track_unread(reads)
    connections.track_unread(new)
    new.unread_bytes = 15
    connections.track_unread(new)
    assert list(connections.slow_readers.items()) == [(reads, 50), (new, 15)]
    assert [each.abort_reason for each in (has_read, reads, new)] == ["", "", ""]
    assert "105" in slow.abort_reason
    connections.untrack_unread(reads)
    connections.untrack_unread(slow)
    connections.track_unread(last := Client(86))
    assert list(connections.slow_readers.items()) == [(last, 86)]
    connections.remove(last, "")
    assert not connections.slow_readers


def test_total_size_of_incomplete_requests_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.frame_receiver.EXTRA_BYTES_MAX", 4_000_000)

    async def work(server: BrokerServer, host: str, port: int) -> None:
        clients = [await asyncio.open_connection(host, port) for _ in range(3)]
        for _, writer in clients:
            writer.write(struct.pack(">ihhih", 50_000_000, PRODUCE, 3, 7, -1) + bytes(3_000_000))
        await until(lambda: len(server.connections.open) < 3)
        for _, writer in clients:
            writer.transport.abort()
        await until(lambda: not server.connections.open)
        assert server.connections.buffer_pool.extra_bytes == 0

    with_server(tmp_path, work)


def test_burst_of_requests_gets_all_responses(tmp_path: Path) -> None:
    async def work(server: BrokerServer, host: str, port: int) -> None:
        burst_reader, burst = await asyncio.open_connection(host, port)
        count = 2000
        burst.write(request_bytes(18, 0) * count)
        one = await burst_reader.readexactly(4)
        size = struct.unpack(">i", one)[0]
        assert len(await burst_reader.readexactly(count * (4 + size) - 4)) == count * (4 + size) - 4
        burst.close()

    with_server(tmp_path, work)


def test_flood_of_requests_is_not_buffered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that must wait stay in the client's socket."""
    monkeypatch.setattr(connection, "FRAMES_BEFORE_YIELD", 16)
    count, extra_bytes_max = 5_000, 0

    async def work(server: BrokerServer, host: str, port: int) -> None:
        nonlocal extra_bytes_max
        reader, writer = await asyncio.open_connection(host, port)
        writer.write((struct.pack(">ihhih", 210, 18, 0, 7, 200) + b"c" * 200) * count)
        responses = asyncio.create_task(reader.readexactly(4))
        size = struct.unpack(">i", await responses)[0]
        responses = asyncio.create_task(reader.readexactly(count * (4 + size) - 4))
        while not responses.done():
            extra_bytes_max = max(extra_bytes_max, server.connections.buffer_pool.extra_bytes)
            await asyncio.sleep(0)
        writer.close()

    with_server(tmp_path, work)
    assert extra_bytes_max == 0


def test_large_request_keeps_response_order_and_oversized_one_closes_connection(tmp_path: Path) -> None:
    def metadata_request(count: int) -> bytes:
        return request_bytes(METADATA, 1, struct.pack(">i", count) + b"".join(b"\0\5%05d" % at for at in range(count)))

    async def work(server: BrokerServer, host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(metadata_request(10_000) + request_bytes(18, 0) + metadata_request(30_000) + request_bytes(18, 0))
        sizes = []
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                sizes.append(struct.unpack(">i", await reader.readexactly(4))[0])
                await reader.readexactly(sizes[-1])
        assert len(sizes) == 2 and sizes[0] > 100_000 > sizes[1]
        writer.close()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request_bytes(18, 0))
        assert struct.unpack(">i", await reader.readexactly(4))[0] == sizes[1]
        writer.close()

    with_server(tmp_path, work, auto_create_topics=False)


def test_disconnect_during_large_request_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headrace.broker.loop_yielder.BURST_S", 0)

    async def work(server: BrokerServer, host: str, port: int) -> None:
        _, writer = await asyncio.open_connection(host, port)
        writer.write(request_bytes(METADATA, 1, struct.pack(">i", 20_000) + b"\0\1t" * 20_000))
        await until(lambda: any(each.has_pending for each in server.connections.open))
        writer.transport.abort()
        await until(lambda: not server.connections.open)

    with_server(tmp_path, work, auto_create_topics=False)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_requests_before_malformed_one_get_responses(tmp_path: Path) -> None:
    async def work(server: BrokerServer, host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request_bytes(18, 0) * 3 + struct.pack(">i", 1))
        responses = await reader.read()
        size = 4 + struct.unpack(">i", responses[:4])[0]
        assert len(responses) == 3 * size
        writer.close()

    with_server(tmp_path, work)


def test_response_encoding_error_closes_only_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also for a response that had to wait for earlier ones."""

    def broken(result: Any, version: int) -> Any:
        raise ValueError("no such answer")

    async def work(server: BrokerServer, host: str, port: int) -> None:
        other_reader, other = await asyncio.open_connection(host, port)
        monkeypatch.setitem(HANDLERS, 42, replace(HANDLERS[42], encode=broken))  # type: ignore[arg-type]
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request_bytes(42, 0, bytes(4)))
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        other.write(request_bytes(18, 0))
        assert await other_reader.readexactly(4)
        other.close()

    with_server(tmp_path, work)
    assert "no such answer" in caplog.text


def test_slow_client_gets_all_data_and_further_requests_served(tmp_path: Path) -> None:
    async def work(server: BrokerServer, host: str, port: int) -> None:
        server.node.changes.create_topic("t", 1, {})
        log = server.node.log("t", 0)
        for number in range(7):
            append(log, batch(bytes([number]) * 1_000_000))
        stored = bytes(log.read(0, 60_000_000, min_one_batch=True))
        reader, writer = await asyncio.open_connection(host, port, limit=1)
        writer.write(fetch_bytes(b"t", 0) * 3 + request_bytes(18, 0))
        await until(lambda: len(server.connections.slow_readers) == 1)
        for _ in range(3):
            size = struct.unpack(">i", await reader.readexactly(4))[0]
            respond = b""
            while len(respond) < size:
                respond += await reader.read(min(100_000, size - len(respond)))
            assert respond.endswith(stored)
        assert struct.unpack(">i", await reader.readexactly(4))[0] < 10_000
        await until(lambda: not server.connections.slow_readers)
        writer.close()

    with_server(tmp_path, work)


@pytest.mark.parametrize("succeeds", [0, 1], ids=["first", "later"])
def test_disk_error_while_sending_closes_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, succeeds: int
) -> None:
    really, calls = FileSlice.send, []

    def send(each: FileSlice, socket_fd: int, byte_count: int) -> int:
        calls.append(each)
        if len(calls) > succeeds:
            raise OSError(5, "Input/output error")
        return really(each, socket_fd, byte_count)

    async def work(server: BrokerServer, host: str, port: int) -> None:
        server.node.changes.create_topic("t", 1, {})
        for _ in range(8):
            append(server.node.log("t", 0), batch(b"x" * 1_000_000))
        other_reader, other = await asyncio.open_connection(host, port)
        monkeypatch.setattr(FileSlice, "send", send)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(fetch_bytes(b"t", 0))
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 20)
        writer.close()
        other.write(request_bytes(18, 0))
        assert await other_reader.readexactly(4)
        await until(lambda: len(server.connections.open) == 1)
        other.close()

    with_server(tmp_path, work)
    [line] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "Input/output error" in line.getMessage() and not line.exc_info


def test_connection_above_limit_is_closed(tmp_path: Path) -> None:
    async def work(server: BrokerServer, host: str, port: int) -> None:
        server.connections.count_max = 1
        _, first_writer = await asyncio.open_connection(host, port)
        await until(lambda: len(server.connections.open) == 1)
        reader, writer = await asyncio.open_connection(host, port)
        assert await reader.read() == b""
        writer.close()
        first_writer.close()

    with_server(tmp_path, work)
