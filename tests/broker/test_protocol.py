"""Codecs and dispatch: hand-written codecs agree with kafka-python's, and every advertised version is served."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import struct
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol import admin, consumer, metadata, producer, sasl

from headrace.broker.config import BrokerConfig
from headrace.broker.errors import FrameRefused, ProtocolError, RecordError
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.dispatch import HANDLERS
from headrace.broker.node import BrokerNode
from headrace.broker.protocol import fetch, produce
from headrace.broker.protocol.api_versions import BY_KEY, ROWS
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.framing import FRAME_BYTES_MAX, read_frame_length, read_header, response_header
from headrace.broker.protocol.list_groups import ListedGroup, ListGroupsResult
from headrace.broker.protocol.list_groups import encode as encode_groups
from headrace.broker.protocol.metadata import DescribedTopic, MetadataResult
from headrace.broker.protocol.metadata import encode as encode_metadata
from headrace.kafka_wire import messages
from headrace.kafka_wire.errors import MalformedMessage
from headrace.kafka_wire.primitives import Reader, Writer
from support.broker.broker_samples import batch
from support.cases import all_cases
from support.examples import examples

CLASSES: dict[tuple[int, str], Any] = {
    (cls.API_KEY, cls.type): cls
    for module in (admin, consumer, messages, metadata, producer, sasl)
    for name in dir(module)
    if name.endswith(("Request", "Response"))
    for cls in [getattr(module, name)]
    if hasattr(cls, "API_KEY")
}
VERSIONS = [(row.key, version) for row in ROWS for version in range(row.lowest, row.highest + 1) if row.serves(version)]


def request_class(key: int) -> Any:
    return CLASSES[key, "request"]


TOPICS = st.builds(
    DescribedTopic,
    st.sampled_from([ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID]),
    st.text(max_size=200),
    st.uuids(),
    st.booleans(),
    st.sampled_from([0, 1, 3, 200]),
    st.none() | st.frozensets(st.integers(0, 30)),
)


@given(st.integers(0, 12), st.lists(TOPICS, max_size=4), st.none() | st.frozensets(st.integers(0, 30)), st.booleans())
@settings(max_examples=examples(3))
def test_metadata_encoder_agrees_with_generated_codec(
    version: int, topics: list[DescribedTopic], operations: frozenset[int] | None, is_nameless: bool
) -> None:
    if is_nameless and version >= 12:
        topics = [topic._replace(name=None) for topic in topics]
    response, node_id, leader_epoch = metadata.MetadataResponse, 7, 12
    topic_class = response.MetadataResponseTopic
    expected = response(
        version=version,
        brokers=[response.MetadataResponseBroker(version=version, node_id=node_id, host="b.example", port=9092)],
        cluster_id="cluster",
        controller_id=node_id,
        topics=[
            topic_class(
                version=version,
                error_code=topic.error_code,
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=[
                    topic_class.MetadataResponsePartition(
                        version=version,
                        error_code=0,
                        partition_index=index,
                        leader_id=node_id,
                        leader_epoch=leader_epoch,
                        replica_nodes=[node_id],
                        isr_nodes=[node_id],
                        offline_replicas=[],
                    )
                    for index in range(topic.partition_count)
                ],
                **({"authorized_operations": topic.authorized_operations} if version >= 8 else {}),
            )
            for topic in topics
        ],
        **({"authorized_operations": operations} if 8 <= version <= 10 else {}),
    )
    response = MetadataResult(node_id, "b.example", 9092, "cluster", leader_epoch, topics, operations)
    assert encode_metadata(response, version) == expected.encode()


@given(
    st.integers(0, 5),
    st.lists(
        st.builds(
            ListedGroup,
            st.text(max_size=200),
            st.sampled_from(["", "consumer", "connect"]),
            st.sampled_from(["Stable", "Empty"]),
            st.sampled_from(["classic", "consumer"]),
        ),
        max_size=6,
    ),
)
@settings(max_examples=examples(3))
def test_list_groups_encoder_agrees_with_generated_codec(version: int, groups: list[ListedGroup]) -> None:
    response = admin.ListGroupsResponse
    expected = response(
        version=version, error_code=0, groups=[response.ListedGroup(version=version, **one._asdict()) for one in groups]
    )
    assert encode_groups(ListGroupsResult(groups), version) == expected.encode()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerNode]:
    node = BrokerNode(BrokerConfig(tmp_path_factory.mktemp("broker")))
    yield node
    asyncio.run(node.close())


def respond(node: BrokerNode, key: int, version: int, body: bytes) -> bytes:
    """Returns the broker's response to a request body, without the response header."""

    async def handled() -> bytes:
        handler = HANDLERS[key]
        request = handler.decode(memoryview(body), 0, version)
        result = handler.handle(RequestContext(node, version, "test", "127.0.0.1"), request)
        if inspect.isawaitable(result):
            result = await result
        return b"".join(handler.encode(result, version))

    return asyncio.run(handled())


def call(node: BrokerNode, request: Any) -> Any:
    version = request.version
    raw = respond(node, request.API_KEY, version, bytes(request.encode()))
    return CLASSES[request.API_KEY, "response"].decode(raw, version=version)


def test_advertised_apis_are_exactly_those_with_handlers() -> None:
    assert set(HANDLERS) == set(BY_KEY)
    assert len(ROWS) == len(BY_KEY)


def test_api_version_rows_match_message_definitions() -> None:
    with all_cases() as case:
        for row in ROWS:
            with case(row.name):
                cls = request_class(row.key)
                assert row.name + "Request" == cls.name
                assert row.highest <= cls.max_version
                for version in range(row.lowest, row.highest + 1):
                    assert row.is_flexible(version) == cls.flexible_version_q(version), version


def test_every_advertised_version_responds_to_default_request(node: BrokerNode) -> None:
    with all_cases() as case:
        for key, version in VERSIONS:
            with case(f"{BY_KEY[key].name} {version}"):
                request = request_class(key)(version=version)
                if key == 0:
                    request.acks = 1
                assert call(node, request).encode() is not None


def sample_requests(version_of: Any) -> Iterator[Any]:
    """Yields one request with content for each API that has fields."""
    v = version_of
    make = request_class
    topic = "t"
    cls = make(3)
    yield cls(version=v(3), topics=[cls.MetadataRequestTopic(version=v(3), name=topic)], allow_auto_topic_creation=True)
    cls = make(2)
    part = cls.ListOffsetsTopic.ListOffsetsPartition
    for timestamp in (-1, -2, -3, 0, 5):
        yield cls(
            version=v(2),
            topics=[
                cls.ListOffsetsTopic(
                    version=v(2), name=topic, partitions=[part(version=v(2), partition_index=0, timestamp=timestamp)]
                )
            ],
        )
    cls = make(10)
    if v(10) < 4:
        yield cls(version=v(10), key="g", key_type=0)
    else:
        yield cls(version=v(10), key_type=0, coordinator_keys=["g", "h"])
    cls = make(19)
    config = cls.CreatableTopic.CreatableTopicConfig
    yield cls(
        version=v(19),
        topics=[
            cls.CreatableTopic(
                version=v(19),
                name=f"new-{v(19)}",
                num_partitions=2,
                replication_factor=1,
                configs=[config(version=v(19), name="retention.ms", value="1000")],
            ),
            cls.CreatableTopic(version=v(19), name="bad name", num_partitions=2, replication_factor=1),
        ],
    )
    cls = make(37)
    yield cls(version=v(37), topics=[cls.CreatePartitionsTopic(version=v(37), name=f"new-{v(19)}", count=5)])
    cls = make(32)
    for kind, name in ((2, topic), (2, "absent"), (4, "1"), (8, "x")):
        resource = cls.DescribeConfigsResource(
            version=v(32), resource_type=kind, resource_name=name, configuration_keys=None
        )
        yield cls(version=v(32), resources=[resource], include_synonyms=True)
    cls = make(44)
    alter = cls.AlterConfigsResource.AlterableConfig
    for operation, value in ((0, "5000"), (0, "no number"), (1, None)):
        change = alter(version=v(44), name="retention.ms", config_operation=operation, value=value)
        yield cls(
            version=v(44),
            resources=[cls.AlterConfigsResource(version=v(44), resource_type=2, resource_name=topic, configs=[change])],
        )
    cls = make(8)
    part = cls.OffsetCommitRequestTopic.OffsetCommitRequestPartition
    committed = [part(version=v(8), partition_index=0, committed_offset=7, committed_metadata="m")]
    yield cls(
        version=v(8),
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[cls.OffsetCommitRequestTopic(version=v(8), name=topic, partitions=committed)],
    )
    cls = make(9)
    if v(9) < 8:
        requested = [cls.OffsetFetchRequestTopic(version=v(9), name=topic, partition_indexes=[0, 1])]
        yield cls(version=v(9), group_id="g", topics=requested)
    else:
        inner = cls.OffsetFetchRequestGroup
        requested = [inner.OffsetFetchRequestTopics(version=v(9), name=topic, partition_indexes=[0, 1])]
        yield cls(version=v(9), groups=[inner(version=v(9), group_id="g", topics=requested)])
    cls = make(11)
    protocol = cls.JoinGroupRequestProtocol(version=v(11), name="range", metadata=b"m")
    yield cls(
        version=v(11),
        group_id=f"joined-{v(11)}",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    yield make(14)(version=v(14), group_id="g", generation_id=1, member_id="m", assignments=[])
    yield make(12)(version=v(12), group_id="g", generation_id=1, member_id="m")
    cls = make(13)
    if v(13) < 3:
        yield cls(version=v(13), group_id="g", member_id="m")
    else:
        yield cls(version=v(13), group_id="g", members=[cls.MemberIdentity(version=v(13), member_id="m")])
    yield make(15)(version=v(15), groups=["g", f"joined-{v(11)}", "absent"])
    yield make(16)(version=v(16))
    cls = make(23)
    part = cls.OffsetForLeaderTopic.OffsetForLeaderPartition(
        version=v(23), partition=0, current_leader_epoch=0, leader_epoch=0
    )
    yield cls(version=v(23), topics=[cls.OffsetForLeaderTopic(version=v(23), topic=topic, partitions=[part])])
    cls = make(21)
    part = cls.DeleteRecordsTopic.DeleteRecordsPartition(version=v(21), partition_index=0, offset=-1)
    yield cls(version=v(21), topics=[cls.DeleteRecordsTopic(version=v(21), name=topic, partitions=[part])])
    cls = make(47)
    part = cls.OffsetDeleteRequestTopic.OffsetDeleteRequestPartition(version=0, partition_index=0)
    yield cls(version=0, group_id="g", topics=[cls.OffsetDeleteRequestTopic(version=0, name=topic, partitions=[part])])
    yield make(42)(version=v(42), groups_names=["g", "absent"])
    cls = make(20)
    if v(20) < 6:
        yield cls(version=v(20), topic_names=[f"new-{v(19)}", "absent"])
    else:
        yield cls(version=v(20), topics=[cls.DeleteTopicState(version=v(20), name=f"new-{v(19)}")])
    yield make(60)(version=v(60))


def test_sample_requests_get_response_in_every_version(node: BrokerNode) -> None:
    """Step n sends each API's n-th version, or its last one."""
    with all_cases() as case:
        for step in range(10):

            def version_of(key: int, step: int = step) -> int:
                row = BY_KEY[key]
                return min(max(row.lowest, row.served_from) + step, row.highest)

            for request in sample_requests(version_of):
                with case(f"{request.name} {request.version}"):
                    assert call(node, request).encode() is not None


def produce_request(
    version: int, names: Sequence[str], partitions: int, raw: bytes | None, transactional_id: str | None = None
) -> bytes:
    cls = request_class(0)
    part = cls.TopicProduceData.PartitionProduceData
    request = cls(
        version=version,
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1500,
        topic_data=[
            cls.TopicProduceData(
                version=version,
                name=name,
                partition_data=[part(version=version, index=index, records=raw) for index in range(partitions)],
            )
            for name in names
        ],
    )
    return bytes(request.encode())


def test_produce_decoder_agrees_with_kafka_python() -> None:
    raws = (b"", b"x" * 126, b"x" * 127, batch(b"x" * 20_000))
    all_names = (("büx",), ("a" * 126,), ("a" * 127,), ("a", "büx"))
    with all_cases() as case:
        for version, raw, names, partitions, transactional_id in itertools.product(
            range(3, 13), raws, all_names, (1, 3), (None, "mine")
        ):
            with case((version, len(raw), names, partitions, transactional_id)):
                body = produce_request(version, names, partitions, raw, transactional_id)
                decoded = produce.decode(memoryview(b"before" + body), len(b"before"), version)
                assert (decoded.transactional_id, decoded.acks, decoded.timeout_ms) == (transactional_id, -1, 1500)
                assert [topic.name for topic in decoded.topics] == list(names)
                assert [[(part.partition, part.records) for part in topic.partitions] for topic in decoded.topics] == [
                    [(index, raw) for index in range(partitions)]
                ] * len(names)


@pytest.mark.parametrize("raw", [b"x" * 5, b"x" * 200, None])
def test_single_partition_produce_decoder_agrees_with_general_one(raw: bytes | None) -> None:
    body = produce_request(produce.FLEXIBLE_FROM, ["topic"], 1, raw)
    changed = [body, body + b"\0", *(body[:cut] for cut in range(len(body)))]
    changed += [body[:at] + bytes([byte]) + body[at + 1 :] for at in range(len(body)) for byte in range(256)]
    for each in changed:
        outcomes = []
        for decode in (produce.decode, produce.decode_general):
            try:
                outcomes.append(decode(memoryview(each), 0, produce.FLEXIBLE_FROM))
            except MalformedMessage:
                outcomes.append(None)
        assert outcomes[0] == outcomes[1], each


def test_produce_encoder_agrees_with_kafka_python() -> None:
    with all_cases() as case:
        for version in range(3, 13):
            with case(version):
                topics = (
                    produce.ProducedTopic(
                        "topic",
                        (
                            produce.ProducedPartition(0, base_offset=42, log_start_offset=7),
                            produce.ProducedPartition(
                                1,
                                ErrorCode.MESSAGE_TOO_LARGE,
                                error_message="too large",
                                record_errors=[RecordError(3, "one"), RecordError(200, "two")],
                            ),
                            produce.ProducedPartition(2, ErrorCode.NONE, 43, 8, append_time_ms=44),
                        ),
                    ),
                )
                response = CLASSES[0, "response"].decode(bytes(produce.encode(topics, version)), version=version)
                good, bad, timed = response.responses[0].partition_responses
                assert (good.error_code, good.base_offset, bad.error_code, bad.base_offset) == (0, 42, 10, -1)
                assert (good.index, bad.index, timed.index) == (0, 1, 2)
                assert (good.log_append_time_ms, timed.base_offset, timed.log_append_time_ms) == (-1, 43, 44)
                if version >= 5:
                    assert (good.log_start_offset, bad.log_start_offset, timed.log_start_offset) == (7, -1, 8)
                if version >= 8:
                    assert bad.error_message == "too large"
                    found = [(each.batch_index, each.batch_index_error_message) for each in bad.record_errors]
                    assert found == [(3, "one"), (200, "two")]


def test_fetch_decoder_agrees_with_kafka_python() -> None:
    with all_cases() as case:
        for version in range(4, 18):
            with case(version):
                cls = request_class(1)
                topic_id = uuid.uuid4()
                named = {"topic_id": topic_id} if version >= 13 else {"topic": "topic"}
                part = cls.FetchTopic.FetchPartition(
                    version=version, partition=3, fetch_offset=99, partition_max_bytes=1000
                )
                request = cls(
                    version=version,
                    max_wait_ms=500,
                    min_bytes=1,
                    max_bytes=5000,
                    isolation_level=1,
                    topics=[cls.FetchTopic(version=version, partitions=[part], **named)],
                )
                decoded = fetch.decode(memoryview(bytes(request.encode())), 0, version)
                assert (decoded.wait_ms_max, decoded.bytes_min, decoded.bytes_max, decoded.isolation_level) == (
                    500,
                    1,
                    5000,
                    1,
                )
                [topic] = decoded.topics
                assert (topic.topic_id == topic_id) if version >= 13 else (topic.name == "topic")
                assert [(part.partition, part.offset, part.bytes_max) for part in topic.partitions] == [(3, 99, 1000)]


def test_fetch_encoder_agrees_with_kafka_python() -> None:
    with all_cases() as case:
        for version in range(4, 18):
            with case(version):
                raw = batch(b"one") * 200
                topic_id = uuid.uuid4()
                partitions = (
                    fetch.FetchedPartition(0, ErrorCode.NONE, 10, 10, 2, raw),
                    fetch.FetchedPartition(1, ErrorCode.OFFSET_OUT_OF_RANGE, 5, 5, 1, b""),
                )
                pieces = fetch.encode((fetch.FetchedTopic("topic", topic_id, partitions),), ErrorCode.NONE, version)
                response = CLASSES[1, "response"].decode(b"".join(pieces), version=version)
                [topic] = response.responses
                good, bad = topic.partitions
                assert (topic.topic_id == topic_id) if version >= 13 else (topic.topic == "topic")
                assert (bytes(good.records), good.high_watermark, good.last_stable_offset) == (raw, 10, 10)
                assert (bad.error_code, bad.high_watermark) == (1, 5)


def test_headers_agree_with_kafka_python() -> None:
    with all_cases() as case:
        for key, version in VERSIONS:
            with case(f"{BY_KEY[key].name} {version}"):
                request = request_class(key)(version=version)
                request.with_header(correlation_id=77, client_id="me")
                framed = bytes(request.encode(header=True, framed=True))
                assert read_frame_length(memoryview(framed), 0, len(framed)) == len(framed) - 4
                header = read_header(memoryview(framed)[4:])
                assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (
                    key,
                    version,
                    77,
                    "me",
                )
                assert framed[4 + header.body_at :] == bytes(request.encode())
                response = CLASSES[key, "response"](version=version)
                response.with_header(correlation_id=77)
                expected = bytes(response.encode(header=True, framed=True))
                body = bytes(response.encode())
                assert response_header(header, len(body)) + body == expected


def test_tagged_fields_of_headers_are_skipped() -> None:
    all_tags = (b"\0", b"\1\5\3abc", b"\2\x85\1\0\x86\1\2ab")
    with all_cases() as case:
        for tags, client_id in itertools.product(all_tags, (None, "", "me")):
            with case((tags, client_id)):
                name = (client_id or "").encode()
                length = -1 if client_id is None else len(name)
                start = struct.pack(">hhih", 3, BY_KEY[3].flexible_from, 77, length) + name
                header = read_header(memoryview(start + tags + b"body"))
                assert (header.client_id, header.body_at) == (client_id or "", len(start + tags))
                for cut in range(len(start + tags)):
                    with pytest.raises(MalformedMessage):
                        read_header(memoryview((start + tags)[:cut]))


@pytest.mark.parametrize("length", [-1, 0, 9, FRAME_BYTES_MAX + 1, 0x47455420])
def test_frame_lengths_outside_the_limits_are_refused(length: int) -> None:
    with pytest.raises(FrameRefused):
        read_frame_length(memoryview(struct.pack(">i", length)), 0, 4)


@given(st.sampled_from(VERSIONS), st.binary(max_size=80))
@settings(max_examples=examples(5))
def test_arbitrary_bytes_are_decoded_or_refused(version: tuple[int, int], body: bytes) -> None:
    key, number = version
    with contextlib.suppress(ProtocolError, MalformedMessage):
        HANDLERS[key].decode(memoryview(body), 0, number)


@given(st.sampled_from([each for each in VERSIONS if each[0] not in (0, 1)]), st.data())
@settings(max_examples=examples(5))
def test_truncated_requests_are_refused(version: tuple[int, int], data: st.DataObject) -> None:
    key, number = version
    raw = bytes(request_class(key)(version=number).encode())
    if raw:
        cut = data.draw(st.integers(0, len(raw) - 1))
        with pytest.raises(MalformedMessage):
            HANDLERS[key].decode(memoryview(raw[:cut]), 0, number)


@given(
    st.booleans(), st.text(max_size=200), st.none() | st.text(max_size=5), st.integers(0, 2**28), st.integers(-128, 127)
)
def test_primitive_writer_and_reader_round_trip(
    flexible: bool, text: str, maybe: str | None, number: int, small: int
) -> None:
    writer = Writer(flexible=flexible)
    writer.string(text)
    writer.nullable_string(maybe)
    writer.uvarint(number)
    writer.i8(small)
    writer.tags()
    reader = Reader(memoryview(writer.buffer), 0, flexible=flexible)
    assert (reader.string(), reader.nullable_string(), reader.uvarint(), reader.i8()) == (text, maybe, number, small)
    reader.tags()
    assert reader.pos == len(writer.buffer)


def test_error_codes_match_kafka() -> None:
    from kafka import errors

    numbers = (getattr(each, "errno", None) for each in vars(errors).values() if isinstance(each, type))
    known = {number for number in numbers if isinstance(number, int)}
    # kafka-python has no name for one code of consumer groups (KIP-848).
    assert {code.value for code in ErrorCode} - known == {ErrorCode.INVALID_REGULAR_EXPRESSION}


def test_internal_topics_cannot_be_written_or_deleted(node: BrokerNode, tmp_path: Path) -> None:
    request = produce.ProduceRequest(
        None,
        -1,
        1000,
        (produce.ProduceTopic("__consumer_offsets", (produce.ProducePartition(0, memoryview(batch(b"x"))),)),),
    )
    from headrace.broker.handlers.produce import handle

    [topic] = handle(RequestContext(node, 9, "test", "127.0.0.1"), request)  # type: ignore[misc]
    assert topic.partitions[0].error is ErrorCode.INVALID_TOPIC
    cls = request_class(20)
    response = call(node, cls(version=4, topic_names=["__consumer_offsets"], timeout_ms=1))
    assert response.responses[0].error_code == ErrorCode.INVALID_REQUEST
