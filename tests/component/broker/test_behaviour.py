"""Behaviour that Kafka's protocol leaves to the broker, compared between the bundled broker and Apache Kafka.

Each row of the table is a request with Apache Kafka's response. Where the bundled broker differs, the row has its
response, and `docs/differences.md` gives the reason in a table with exactly these rows.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest
from crc32c import crc32c
from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterReplicaLogDirsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DescribeAclsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListGroupsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.sasl import SaslHandshakeRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from headrace.broker.coordinator.transaction import ProducerIdAndEpoch
from headrace.broker.log.decoding import decode_records
from headrace.broker.protocol.error_codes import ErrorCode as Code
from headrace.kafka_wire.messages import ConsumerGroupDescribeRequest
from headrace.kafka_wire.record_batch import CONTROL, NO_HEADERS, read_batch_header, split_batches
from support.broker.broker_samples import batch, keyed_batch, with_attributes
from support.broker.protocol_client import TIMEOUT_S, ProtocolClient, code_of, fresh, now_ms, until
from support.checkout import ROOT

SAME: Final = object()
HOUR_MS = 3_600_000
ABORT_KEY, COMMIT_KEY = b"\0\0\0\0", b"\0\0\0\1"
Request = Callable[[ProtocolClient], Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A row: `kafka` is the response of Apache Kafka, `bundled` that of the bundled broker if it differs."""

    name: str
    request_once: Request
    kafka: object
    bundled: object = SAME


def sample(*values: bytes, **more: Any) -> bytes:
    """Returns a batch of records with current timestamps."""
    return batch(*(values or (b"v",)), timestamp_ms=now_ms(), **more)


# Topics


def create_twice_in_one(talk: ProtocolClient) -> object:
    topic = {"name": fresh("twice"), "num_partitions": 1, "replication_factor": 1}
    response = talk.request_once(CreateTopicsRequest, 7, topics=[topic, topic], timeout_ms=10_000)
    return {code_of(one.error_code) for one in response.topics}


def create_existing(talk: ProtocolClient) -> object:
    return talk.create(talk.topic())


def create_name_that_differs_in_dot(talk: ProtocolClient) -> object:
    name = fresh("dots")
    assert talk.create(f"{name}.a") == 0
    return talk.create(f"{name}_a")


def message_of_success(talk: ProtocolClient) -> object:
    topic = {"name": fresh("new"), "num_partitions": 1, "replication_factor": 1}
    return talk.request_once(CreateTopicsRequest, 7, topics=[topic], timeout_ms=10_000).topics[0].error_message


def only_validate(talk: ProtocolClient) -> object:
    name = fresh("dry")
    topic = {"name": name, "num_partitions": 2, "replication_factor": 1}
    response = talk.request_once(CreateTopicsRequest, 7, topics=[topic], timeout_ms=10_000, validate_only=True)
    return code_of(response.topics[0].error_code), response.topics[0].num_partitions, talk.describe(name)[0]


def create_with_defaults(talk: ProtocolClient) -> object:
    topic = {"name": fresh("defaults"), "num_partitions": -1, "replication_factor": -1}
    (response,) = talk.request_once(CreateTopicsRequest, 7, topics=[topic], timeout_ms=10_000).topics
    return code_of(response.error_code), response.num_partitions, response.replication_factor


def assign_with_partition_count(talk: ProtocolClient) -> object:
    topic_partitions = [{"partition_index": 0, "broker_ids": [1]}]
    topic = {"name": fresh("assigned"), "num_partitions": 1, "replication_factor": 1, "assignments": topic_partitions}
    return code_of(talk.request_once(CreateTopicsRequest, 7, topics=[topic], timeout_ms=10_000).topics[0].error_code)


def grow(talk: ProtocolClient, name: str, count: int) -> object:
    requested = [{"name": name, "count": count, "assignments": None}]
    response = talk.request_once(CreatePartitionsRequest, 3, topics=requested, timeout_ms=10_000, validate_only=False)
    return code_of(response.results[0].error_code)


def deleted_topic(talk: ProtocolClient) -> object:
    name = talk.topic()
    code = talk.delete(name)
    until(lambda: talk.describe(name)[0], lambda response: response == Code.UNKNOWN_TOPIC_OR_PARTITION)
    return code, talk.produce(name, sample())[0], talk.fetch(name).error_code


def internal_topics(talk: ProtocolClient) -> object:
    talk.join_alone(fresh("g"))
    talk.init_producer_id(fresh("id"))
    found = talk.request_once(MetadataRequest, 9, topics=None).topics
    return sorted((one.name, one.is_internal) for one in found if one.name.startswith("__"))


def codes_of_configs(*configs: tuple[str, str]) -> Request:
    """Returns the configurations, of those given, that a topic may not have."""

    def request_once(talk: ProtocolClient) -> object:
        return [each for each in configs if code_of_config(talk, *each) != 0]

    return request_once


def code_of_config(talk: ProtocolClient, key: str, value: str) -> object:
    """Returns the error code of the creation of a topic with this configuration, which is only validated."""
    topic = {"num_partitions": 1, "replication_factor": 1, "configs": [{"name": key, "value": value}]}
    response = talk.request_once(
        CreateTopicsRequest, 7, topics=[{"name": fresh("t"), **topic}], timeout_ms=10_000, validate_only=True
    )
    return code_of(response.topics[0].error_code)


HARMLESS_CONFIGS = (
    *(("compression.type", codec) for codec in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
    *(("compression.gzip.level", "9"), ("compression.lz4.level", "17"), ("compression.zstd.level", "-131072")),
    *(("file.delete.delay.ms", "0"), ("flush.messages", "1"), ("flush.ms", "0"), ("index.interval.bytes", "0")),
    *(("segment.index.bytes", "4"), ("segment.jitter.ms", "1000"), ("preallocate", "TRUE")),
    *(("unclean.leader.election.enable", "true"), ("min.insync.replicas", "3"), ("remote.storage.enable", "false")),
    *(("remote.log.copy.disable", "false"), ("remote.log.delete.on.disable", "false")),
    *(("local.retention.ms", "-2"), ("local.retention.bytes", "-2"), ("cleanup.policy", "compact,compact")),
    *(("leader.replication.throttled.replicas", "*"), ("follower.replication.throttled.replicas", "0:1")),
)
IMPOSSIBLE_CONFIGS = (
    *(("compression.type", "none"), ("compression.type", "GZIP"), ("compression.gzip.level", "0")),
    *(("compression.lz4.level", "18"), ("compression.zstd.level", "23"), ("file.delete.delay.ms", "-1")),
    *(("flush.messages", "0"), ("flush.ms", "-1"), ("index.interval.bytes", "-1"), ("segment.index.bytes", "3")),
    *(("segment.jitter.ms", "-1"), ("preallocate", "yes"), ("min.insync.replicas", "0")),
    *(("remote.storage.enable", "true"), ("message.format.version", "3.0")),
)


def stored_codecs(talk: ProtocolClient) -> object:
    """Returns the codecs of batches that were sent uncompressed and with lz4 to a topic with gzip."""
    name = talk.topic(compression_type="gzip")
    for codec in (0, 3):
        assert talk.produce(name, sample(b"v" * 100, codec=codec))[0] == 0
    frames = split_batches(bytes(talk.fetch(name).records or b""), name)
    return [read_batch_header(frame.view).attributes for frame in frames]


def produced_with_flush(talk: ProtocolClient) -> object:
    name = talk.topic(flush_messages="1", min_insync_replicas="2", preallocate="true")
    return talk.produce(name, sample()), topic_configs(talk, name)


def documentation(talk: ProtocolClient) -> object:
    """Returns the configurations of a topic, a broker and a group that lack a documentation text."""
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        for kind, name in ((2, talk.topic()), (4, "1"), (32, fresh("g")))
    ]
    found = talk.request_once(
        DescribeConfigsRequest, 4, resources=resources, include_synonyms=False, include_documentation=True
    ).results
    assert [(one.error_code, len(one.configs) > 1) for one in found] == [(0, True)] * 3
    return [each.name for one in found for each in one.configs if not each.documentation]


def group_configs(talk: ProtocolClient) -> object:
    keys = ["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"]
    (found,) = describe(talk, fresh("g"), 32, keys)
    (unnamed,) = describe(talk, "", 32)
    return sorted((one.name, one.value) for one in found.configs), code_of(unnamed.error_code)


def code_of_description(kind: int, name: str) -> Request:
    return lambda talk: code_of(describe(talk, name, kind)[0].error_code)


def moved_replicas(talk: ProtocolClient) -> object:
    """Returns the error codes of moves to the log directory of a partition, to another one, and of an unknown
    partition."""
    topic = talk.topic()
    (own,) = talk.request_once(DescribeLogDirsRequest, 4, topics=[{"topic": topic, "partitions": [0]}]).results

    def move(path: str, index: int) -> object:
        directory = {"path": path, "topics": [{"name": topic, "partitions": [index]}]}
        response = talk.request_once(AlterReplicaLogDirsRequest, 2, dirs=[directory])
        return [code_of(one.error_code) for one in response.results[0].partitions]

    return [move(own.log_dir, 0), move("/elsewhere", 0), move(own.log_dir, 7)]


def altered(
    talk: ProtocolClient,
    *changes: tuple[str, int, str | None],
    name: str = "",
    kind: int = 2,
    validate_only: bool = False,
) -> object:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": kind, "resource_name": name or talk.topic(), "configs": configs}
    response = talk.request_once(IncrementalAlterConfigsRequest, 1, resources=[resource], validate_only=validate_only)
    return code_of(response.responses[0].error_code)


def replaced_configs(talk: ProtocolClient) -> object:
    """AlterConfigs removes the configurations that the request omits."""
    name = talk.topic(retention_ms="60000", segment_ms="70000")
    resource = {"resource_type": 2, "resource_name": name, "configs": [{"name": "segment.ms", "value": "80000"}]}
    talk.request_once(AlterConfigsRequest, 2, resources=[resource], validate_only=False)
    return until(
        lambda: topic_configs(talk, name), lambda response: response != {"retention.ms": "60000", "segment.ms": "70000"}
    )


def altered_twice(talk: ProtocolClient) -> object:
    name = talk.topic()
    change = {"name": "segment.ms", "config_operation": 0, "value": "80000"}
    twice = [{"resource_type": 2, "resource_name": name, "configs": [change]}] * 2
    response = talk.request_once(IncrementalAlterConfigsRequest, 1, resources=twice, validate_only=False)
    return [code_of(one.error_code) for one in response.responses], topic_configs(talk, name)


def deleted_group_twice(talk: ProtocolClient) -> object:
    group, name = fresh("g"), talk.topic()
    talk.commit(group, name)
    response = talk.request_once(DeleteGroupsRequest, 2, groups_names=[group, group])
    return [code_of(one.error_code) for one in response.results]


def sizes_of_a_topic_named_twice(talk: ProtocolClient) -> object:
    name = talk.topic(3)
    topics = [{"topic": name, "partitions": [index]} for index in (2, 0)]
    (directory,) = talk.request_once(DescribeLogDirsRequest, 4, topics=topics).results
    return [(topic.name == name, sorted(one.partition_index for one in topic.partitions)) for topic in directory.topics]


def topic_configs(talk: ProtocolClient, name: str) -> dict[str, str]:
    (response,) = describe(talk, name)
    return {one.name: one.value for one in response.configs if one.config_source == 1}


def describe(talk: ProtocolClient, name: str, kind: int = 2, keys: list[str] | None = None) -> Any:
    requested = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}]
    return talk.request_once(DescribeConfigsRequest, 4, resources=requested, include_synonyms=False).results


def appended_to_list(talk: ProtocolClient) -> object:
    name = talk.topic()
    altered(talk, ("cleanup.policy", 2, "compact"), name=name)
    return until(lambda: topic_configs(talk, name), bool)


def defaults_of(talk: ProtocolClient) -> object:
    (response,) = describe(talk, talk.topic())
    names = ("retention.ms", "retention.bytes", "segment.ms", "segment.bytes", "cleanup.policy", "max.message.bytes")
    more = ("delete.retention.ms", "min.cleanable.dirty.ratio", "message.timestamp.type", "compression.type")
    found = {one.name: one.value for one in response.configs}
    return {name: found[name] for name in (*names, *more)}


# Records


def bad_crc(talk: ProtocolClient) -> object:
    damaged = bytearray(sample(b"value"))
    damaged[-1] ^= 1
    return talk.produce(talk.topic(), bytes(damaged))


def wrong_count(talk: ProtocolClient) -> object:
    """The header counts two records, the batch has one."""
    raw = bytearray(sample())
    struct.pack_into(">i", raw, 57, 2)
    struct.pack_into(">I", raw, 17, crc32c(bytes(raw[21:])))
    return talk.produce(talk.topic(), bytes(raw))[0]


def two_batches(talk: ProtocolClient) -> object:
    return talk.produce(talk.topic(), sample() + sample())[0]


def old_magic(talk: ProtocolClient) -> object:
    raw = bytearray(sample())
    raw[16] = 1
    return talk.produce(talk.topic(), bytes(raw))[0]


def control_batch(talk: ProtocolClient) -> object:
    return talk.produce(talk.topic(), with_attributes(sample(), 0x20))[0]


def transactional_without_id(talk: ProtocolClient) -> object:
    _, user = talk.init_producer_id()
    records = sample(producer_id=user.producer_id, epoch=0, sequence=0, is_transactional=True)
    return talk.produce(talk.topic(), records)[0]


def unknown_codec(talk: ProtocolClient) -> object:
    return talk.produce(talk.topic(), with_attributes(sample(), 7))[0]


def without_keys(talk: ProtocolClient) -> object:
    return talk.produce(talk.topic(cleanup_policy="compact"), sample())[0]


def with_keys(talk: ProtocolClient) -> object:
    return talk.produce(talk.topic(cleanup_policy="compact"), keyed_batch((b"k", b"v"), timestamp_ms=now_ms()))[0]


def keyless_among_others(talk: ProtocolClient) -> object:
    records = keyed_batch((b"k", b"v"), (None, b"v"), (b"k", b"v"), (None, b"v"), timestamp_ms=now_ms())
    return refusal(talk, trimmed_topic(talk, cleanup_policy="compact,delete"), records)


def refusal(talk: ProtocolClient, topic: str, records: bytes) -> object:
    """Returns the error code of a refused batch, the indexes of its invalid records, and the log start offset."""
    one = talk.produced(topic, records)
    return code_of(one.error_code), [each.batch_index for each in one.record_errors], one.log_start_offset


def trimmed_topic(talk: ProtocolClient, **configs: str) -> str:
    """Returns a topic with the log start offset 2."""
    name = talk.topic(**configs)
    assert talk.produce(name, keyed_batch(*[(b"k", b"v")] * 3, timestamp_ms=now_ms()))[0] == 0
    assert trimmed(talk, name, 2) == (0, 2)
    return name


def some_out_of_range(talk: ProtocolClient) -> object:
    """Returns the refusals of records that are too far ahead, too old, and without timestamps."""
    now = now_ms()
    ahead = batch_at(now, now + 2 * HOUR_MS, now, now + 3 * HOUR_MS)
    old = batch_at(now, now - HOUR_MS, now, now - HOUR_MS)
    limited = {"message_timestamp_before_max_ms": "60000"}
    return [
        refusal(talk, trimmed_topic(talk), ahead),
        refusal(talk, trimmed_topic(talk, **limited), old),
        talk.produce(talk.topic(**limited), batch_at(-1, -1))[0],
        talk.produce(talk.topic(**limited), batch_at(now, now))[0],
    ]


def batch_at(*timestamps_ms: int) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for index, timestamp_ms in enumerate(timestamps_ms):
        builder.append(index, timestamp_ms, None, b"v", [])
    return bytes(builder.build())


def log_starts_of_refusals(talk: ProtocolClient) -> object:
    name = trimmed_topic(talk)
    damaged = bytearray(sample())
    damaged[-1] ^= 1
    raws = (bytes(damaged), sample(b"x" * 1_100_000), with_attributes(sample(), 0x20))
    return [refusal(talk, name, raw) for raw in raws]


def append_time_by_producer(topic_type: str) -> Request:
    """Returns the error code of a batch whose producer declares that the broker has set its timestamps."""
    return lambda talk: talk.produce(talk.topic(message_timestamp_type=topic_type), with_attributes(sample(), 8))[0]


def far_ahead(talk: ProtocolClient) -> object:
    return talk.produce(talk.topic(), batch(b"v", timestamp_ms=now_ms() + 2 * HOUR_MS))[0]


def offsets_run_on(talk: ProtocolClient) -> object:
    name = talk.topic()
    response = [talk.produce(name, sample(*[b"v"] * count)) for count in (3, 1, 2)]
    return [offset for _, offset in response], talk.batches(name), talk.batches(name, 4), talk.batches(name, 6)


def fetch_ends(talk: ProtocolClient) -> object:
    name = talk.topic()
    talk.produce(name, sample(b"1", b"2"))
    trimmed(talk, name, 1)
    found = [talk.fetch(name, offset) for offset in (0, 1, 2, 3)]
    return [(code_of(one.error_code), one.high_watermark, one.log_start_offset) for one in found]


def whole_first_batch(talk: ProtocolClient) -> object:
    name = talk.topic()
    raw = sample(b"x" * 5000)
    talk.produce(name, raw)
    return len(talk.fetch(name, partition_max_bytes=1).records) == len(raw)


def compacted_log(talk: ProtocolClient) -> object:
    """Compacts updates of three keys after a record of another key. Returns the offsets that a client then reads, and
    the number of responses without a record before the end of the log."""
    name = talk.topic(cleanup_policy="compact", segment_bytes="1100000", min_cleanable_dirty_ratio="0.01")
    talk.produce(name, keyed_batch((b"first", b"v"), timestamp_ms=now_ms()))
    for _ in range(6):  # each batch takes a segment of its own
        updates = [(b"k%d" % (number % 3), os.urandom(100_000)) for number in range(10)]
        assert talk.produce(name, keyed_batch(*updates, timestamp_ms=now_ms()))[0] == 0
    return until(partial(read_all, talk, name), lambda found: len(found[0]) <= 14)


def read_all(talk: ProtocolClient, name: str) -> tuple[list[int], int]:
    offsets: list[int] = []
    without_records = position = 0
    while position < talk.offset(name, -1)[1]:
        records = bytes(talk.fetch(name, position).records or b"")
        read = [offset for frame in split_batches(records, name) for offset, *_ in decode_records(bytes(frame.view))]
        without_records += not read
        offsets += read
        position = talk.batches(name, position)[-1][1] + 1
    return offsets, without_records


def leader_epochs(talk: ProtocolClient) -> object:
    name = talk.topic()
    epoch = talk.request_once(MetadataRequest, 9, topics=[{"name": name}]).topics[0].partitions[0].leader_epoch
    # Apache Kafka's epochs begin with 0 for each topic.
    return [
        code_of(talk.fetch(name, current_leader_epoch=each).error_code) for each in (epoch, epoch + 1)
    ], talk.offset(name, -1, epoch=epoch + 1)


def trimmed(talk: ProtocolClient, name: str, offset: int, partition: int = 0) -> object:
    requested = [{"name": name, "partitions": [{"partition_index": partition, "offset": offset}]}]
    (one,) = talk.request_once(DeleteRecordsRequest, 2, topics=requested, timeout_ms=10_000).topics[0].partitions
    return code_of(one.error_code), one.low_watermark


def trim(*offsets: int) -> Request:
    def request_once(talk: ProtocolClient) -> object:
        name = talk.topic()
        talk.produce(name, sample(b"1", b"2", b"3"))
        return [trimmed(talk, name, offset) for offset in offsets]

    return request_once


def by_time(talk: ProtocolClient) -> object:
    name, begin = talk.topic(), now_ms() - 10_000
    for offset in (0, 3):
        talk.produce(name, batch(b"1", b"2", b"3", timestamp_ms=begin + offset * 1000))
    requested = (begin - 1, begin + 1, begin + 2, begin + 3, begin + 3002, begin + 3003, -1, -2, -3)
    return [talk.offset(name, each) for each in requested]


def offsets_of_one_twice(talk: ProtocolClient) -> object:
    name = talk.topic(2)
    partitions = [
        {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
        for index, timestamp in ((0, -1), (1, -1), (0, -2))
    ]
    topics = [{"name": name, "partitions": partitions}]
    response = talk.request_once(ListOffsetsRequest, 7, replica_id=-1, isolation_level=0, topics=topics)
    found = [one for topic in response.topics for one in topic.partitions]
    return sorted((one.partition_index, code_of(one.error_code), one.offset) for one in found)


def times_of_empty_request(talk: ProtocolClient) -> object:
    name = talk.topic()
    return [talk.offset(name, each) for each in (0, -1, -2, -3)]


def epoch_ends(talk: ProtocolClient) -> object:
    name = talk.topic()
    talk.produce(name, sample(b"1", b"2"))
    epoch = talk.request_once(MetadataRequest, 9, topics=[{"name": name}]).topics[0].partitions[0].leader_epoch
    found = []
    for requested_fields in (epoch, epoch + 5):
        topic_partition = {"partition": 0, "current_leader_epoch": epoch, "leader_epoch": requested_fields}
        response = talk.request_once(
            OffsetForLeaderEpochRequest, 4, replica_id=-1, topics=[{"topic": name, "partitions": [topic_partition]}]
        )
        (one,) = response.topics[0].partitions
        found.append((code_of(one.error_code), one.leader_epoch == epoch, one.end_offset))
    return found


def fetch_session(talk: ProtocolClient, session_id: int, epoch: int) -> object:
    response = talk.request_once(
        FetchRequest,
        11,
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1000,
        isolation_level=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[],
        forgotten_topics_data=[],
        rack_id="",
    )
    return code_of(response.error_code)


# Idempotent producers


def repeated(talk: ProtocolClient) -> object:
    name, (_, user) = talk.topic(), talk.init_producer_id()
    response = [talk.produce_as(name, user, sequence) for sequence in range(7)]
    assert [offset for _, offset in response] == list(range(7))
    return [talk.produce_as(name, user, sequence)[0] for sequence in (6, 2, 1)], talk.produce_as(name, user, 6)[1]


def with_a_gap(talk: ProtocolClient) -> object:
    name, (_, user) = talk.topic(), talk.init_producer_id()
    return [talk.produce_as(name, user, sequence)[0] for sequence in (0, 2, 1)]


def beginning_in_the_middle(talk: ProtocolClient) -> object:
    _, user = talk.init_producer_id()
    return talk.produce_as(talk.topic(), user, 5)[0]


def epochs_of_a_producer(talk: ProtocolClient) -> object:
    name, (_, user) = talk.topic(), talk.init_producer_id()
    newer = user._replace(epoch=3)
    return [
        talk.produce_as(name, user, 0)[0],
        talk.produce_as(name, newer, 5)[0],
        talk.produce_as(name, newer, 0)[0],
        talk.produce_as(name, user, 1)[0],
    ]


# Groups


def needs_a_member_id(talk: ProtocolClient) -> object:
    group = fresh("g")
    response = talk.join(group)
    return (
        code_of(response.error_code),
        bool(response.member_id),
        code_of(talk.join(group, response.member_id).error_code),
    )


def second_protocol(talk: ProtocolClient) -> object:
    group = fresh("g")
    talk.join_alone(group)
    return code_of(talk.join(group, protocols=["other"], version=3).error_code)


def second_kind(talk: ProtocolClient) -> object:
    group = fresh("g")
    talk.join_alone(group)
    return code_of(talk.join(group, kind="connect", version=3).error_code)


def generations(talk: ProtocolClient) -> object:
    group = fresh("g")
    member_id, generation = talk.join_alone(group)
    name = talk.topic()
    return {
        "heartbeat": [heartbeat(talk, group, member_id, generation + more) for more in (0, 1)],
        "sync": [talk.sync(group, member_id, generation + more) for more in (0, 1)],
        "commit": [talk.commit(group, name, member_id=member_id, generation=generation + more) for more in (0, 1)],
        "stranger": [heartbeat(talk, group, "nobody", generation), talk.sync(group, "nobody", generation)],
        "commit of a stranger": talk.commit(group, name, member_id="nobody", generation=generation),
        "commit without a member": talk.commit(group, name),
        "leave": [talk.leave(group, "nobody"), talk.leave(group, member_id)],
    }


def heartbeat(talk: ProtocolClient, group: str, member_id: str, generation: int) -> object:
    response = talk.request_once(
        HeartbeatRequest, 4, group_id=group, generation_id=generation, member_id=member_id, group_instance_id=None
    )
    return code_of(response.error_code)


def unknown_group(talk: ProtocolClient) -> object:
    group, name = fresh("g"), talk.topic()
    return {
        "heartbeat": heartbeat(talk, group, "m", 1),
        "sync": talk.sync(group, "m", 1),
        "leave": talk.leave(group, "m"),
        "join": code_of(talk.join(group, "m").error_code),
        "commit": talk.commit(group, name, member_id="m", generation=1),
        "offset": talk.committed(group, name),
        "delete": delete_group(talk, group),
        "state": [(code_of(one.error_code), one.group_state) for one in groups(talk, group)],
    }


def groups(talk: ProtocolClient, group: str) -> Any:
    return talk.request_once(DescribeGroupsRequest, 5, groups=[group]).groups


def delete_group(talk: ProtocolClient, group: str) -> object:
    return code_of(talk.request_once(DeleteGroupsRequest, 2, groups_names=[group]).results[0].error_code)


def group_with_members(talk: ProtocolClient) -> object:
    group = fresh("g")
    member_id, _ = talk.join_alone(group)
    before = delete_group(talk, group), [one.group_state for one in groups(talk, group)]
    talk.leave(group, member_id)
    return before, [one.group_state for one in groups(talk, group)], delete_group(talk, group)


def static_member(talk: ProtocolClient) -> object:
    """A static member that rejoins under its instance id fences the previous member."""
    group = fresh("g")
    first = talk.join(group, instance_id="i-1")
    assert talk.sync(group, first.member_id, first.generation_id, leads=True) == 0
    second = talk.join(group, instance_id="i-1")
    response = talk.request_once(
        HeartbeatRequest,
        4,
        group_id=group,
        generation_id=first.generation_id,
        member_id=first.member_id,
        group_instance_id="i-1",
    )
    return code_of(second.error_code), second.generation_id - first.generation_id, code_of(response.error_code)


def offsets(talk: ProtocolClient) -> object:
    group, name = fresh("g"), talk.topic()
    return [
        talk.committed(group, name),
        talk.commit(group, name, 7),
        talk.committed(group, name),
        talk.commit(group, name, partition=9),
        talk.commit(group, fresh("none")),
        talk.commit(group, name, metadata="x" * 4097),
        talk.committed(group, name),
    ]


def listed_group(talk: ProtocolClient) -> object:
    group = fresh("g")
    talk.join_alone(group)
    found = talk.request_once(ListGroupsRequest, 4, states_filter=["Stable"]).groups
    none = talk.request_once(ListGroupsRequest, 4, states_filter=["Dead"]).groups
    return [(one.protocol_type, one.group_state) for one in found if one.group_id == group], list(none)


def coordinator(kind: int) -> Request:
    def request_once(talk: ProtocolClient) -> object:
        response = talk.request_once(FindCoordinatorRequest, 2, key=fresh("key"), key_type=kind)
        return code_of(response.error_code)

    return request_once


# Transactions


class Transaction:
    """A new transactional id with its producer, and a topic added to its transaction."""

    def __init__(self, talk: ProtocolClient, timeout_ms: int = 60_000) -> None:
        self.talk, self.name, self.topic = talk, fresh("id"), talk.topic()
        code, self.user = talk.init_producer_id(self.name, timeout_ms)
        assert code == 0 and talk.add_partitions(self.name, self.user, self.topic) == [0]

    def send(self, sequence: int = 0) -> object:
        return self.talk.produce_as(self.topic, self.user, sequence, transactional_id=self.name)[0]

    def end_transaction(self, *, commit: bool) -> Code | int:
        return self.talk.end_transaction(self.name, self.user, commit=commit)


def what_readers_see(talk: ProtocolClient) -> object:
    """Returns (last stable offset, high watermark, records read committed, aborted transactions) before and after an
    abort."""
    one = Transaction(talk)
    one.send()
    before = stable(talk, one.topic)
    one.end_transaction(commit=False)
    until(lambda: talk.offset(one.topic, -1, committed=True), lambda response: response[1] == 2)
    return before, stable(talk, one.topic)


def stable(talk: ProtocolClient, name: str) -> object:
    found = talk.fetch(name, committed=True)
    aborted = [(one.first_offset) for one in found.aborted_transactions or ()]
    return found.last_stable_offset, found.high_watermark, talk.batches(name, committed=True), aborted


def ends(*commits: bool) -> Request:
    def request_once(talk: ProtocolClient) -> object:
        one = Transaction(talk)
        one.send()
        return [one.end_transaction(commit=commit) for commit in commits]

    return request_once


def markers(talk: ProtocolClient, topic: str) -> list[Any]:
    """Returns the records of all transaction markers of a topic: offset, key, value and raw headers."""
    raw = bytes(talk.fetch(topic).records or b"")
    controls = [frame.view for frame in split_batches(raw, topic) if read_batch_header(frame.view).attributes & CONTROL]
    records = (record for view in controls for record in decode_records(bytes(view)))
    return [(offset, key, value, headers) for offset, _, key, value, headers in records]


def markers_of(*, is_commit: bool, count: int) -> Request:
    """Returns the markers of a transaction that has written `count` records: offset, key and headers, and the length of
    the value."""

    def request_once(talk: ProtocolClient) -> object:
        one = Transaction(talk)
        for sequence in range(count):
            assert one.send(sequence) == 0
        assert one.end_transaction(commit=is_commit) == 0
        until(lambda: talk.offset(one.topic, -1, committed=True), lambda response: response[1] > count)
        found = talk.fetch(one.topic, committed=True)
        aborted = [each.first_offset for each in found.aborted_transactions or ()]
        return [(offset, key, headers) for offset, key, _, headers in markers(talk, one.topic)], aborted

    return request_once


def value_of_marker(talk: ProtocolClient) -> object:
    one = Transaction(talk)
    one.send()
    one.end_transaction(commit=True)
    ((_, _, value, _),) = until(lambda: markers(talk, one.topic), bool)
    return value[:6], len(value)


def fenced_before_the_first_record(talk: ProtocolClient) -> object:
    """A record of the fenced producer, outside of its transaction, which no coordinator checks."""
    one = Transaction(talk)
    code, _ = talk.init_producer_id(one.name)
    until(lambda: talk.offset(one.topic, -1), lambda response: response[1] == 1)
    return code, talk.produce_as(one.topic, one.user, 0)[0]


def listed_by_duration(talk: ProtocolClient) -> object:
    """Returns the states of transactions that ListTransactions returns, by the smallest duration in ms."""
    ids = {status: fresh("id") for status in ("Empty", "CompleteCommit")}
    talk.init_producer_id(ids["Empty"])
    one, done = Transaction(talk), Transaction(talk)
    done.send()
    done.end_transaction(commit=True)
    ids = {one.name: "open", done.name: "ended", ids["Empty"]: "new"}

    def states(longer_than_ms: int) -> list[str]:
        response = talk.request_once(
            ListTransactionsRequest, 1, state_filters=[], producer_id_filters=[], duration_filter=longer_than_ms
        )
        return sorted(
            ids[each.transactional_id] for each in response.transaction_states if each.transactional_id in ids
        )

    return until(lambda: states(10), lambda found: len(found) == 3), states(HOUR_MS), states(-1)


def end_without_transaction(talk: ProtocolClient) -> object:
    name = fresh("id")
    _, user = talk.init_producer_id(name)
    return talk.end_transaction(name, user, commit=True)


def requests_of_unknown_members(talk: ProtocolClient) -> object:
    one = Transaction(talk)
    other = ProducerIdAndEpoch(one.user.producer_id + 1000, 0)
    return {
        "another producer adds": talk.add_partitions(one.name, other, one.topic),
        "another producer ends": talk.end_transaction(one.name, other, commit=True),
        "of an unknown id": talk.end_transaction(fresh("id"), one.user, commit=True),
        "a newer epoch": talk.end_transaction(one.name, one.user._replace(epoch=one.user.epoch + 1), commit=True),
    }


def fenced(talk: ProtocolClient) -> object:
    one = Transaction(talk)
    one.send()
    code, newer = talk.init_producer_id(one.name)
    return {
        "new": (code, newer.producer_id == one.user.producer_id, newer.epoch > one.user.epoch),
        "add": talk.add_partitions(one.name, one.user, one.topic),
        "send": one.send(1),
        "end": one.end_transaction(commit=True),
        "claim": talk.init_producer_id(one.name, claimed=one.user)[0],
        "aborted transactions": len(until(lambda: talk.fetch(one.topic, committed=True).aborted_transactions, bool)),
    }


def claim_without_a_name(talk: ProtocolClient) -> object:
    one = Transaction(talk)
    code, other = talk.init_producer_id(claimed=one.user)
    return code, other.producer_id != one.user.producer_id, other.epoch


def partition_of_none(talk: ProtocolClient) -> object:
    one = Transaction(talk)
    return talk.produce_as(talk.topic(), one.user, 0, transactional_id=one.name)[0]


def unknown_with_known(talk: ProtocolClient) -> object:
    one = Transaction(talk)
    return talk.add_partitions(one.name, one.user, talk.topic(), fresh("none"))


def offsets_with_it(talk: ProtocolClient) -> object:
    one, group = Transaction(talk), fresh("g")
    codes = [
        talk.add_offsets(one.name, one.user, group),
        talk.commit_in_transaction(one.name, one.user, group, one.topic, 5),
    ]
    pending = talk.committed(group, one.topic), talk.committed(group, one.topic, stable=True)
    codes.append(one.end_transaction(commit=True))
    return codes, pending, until(lambda: talk.committed(group, one.topic), lambda response: response[1] >= 0)


def offsets_of_two(talk: ProtocolClient) -> object:
    """Returns the committed offsets, by which of two transactions ends first."""

    def request_once(first: int) -> object:
        both, group = (Transaction(talk), Transaction(talk)), fresh("g")
        topic = both[0].topic
        for one, offset in zip(both, (5, 7), strict=True):
            talk.add_offsets(one.name, one.user, group)
            talk.commit_in_transaction(one.name, one.user, group, topic, offset)
        for one in (both[first], both[1 - first]):
            one.end_transaction(commit=True)
        until(lambda: talk.committed(group, topic, stable=True), lambda response: response[0] == 0)
        return talk.committed(group, topic)

    return [request_once(0), request_once(1)]


def offsets_of_another_generation(talk: ProtocolClient) -> object:
    one, group = Transaction(talk), fresh("g")
    member_id, generation = talk.join_alone(group)
    talk.add_offsets(one.name, one.user, group)
    return [
        talk.commit_in_transaction(
            one.name, one.user, group, one.topic, 5, member_id=member_id, generation_id=generation + more
        )
        for more in (0, 1)
    ]


def offsets_unannounced(talk: ProtocolClient) -> object:
    one = Transaction(talk)
    return talk.commit_in_transaction(one.name, one.user, fresh("g"), one.topic, 5)


def timed_out(talk: ProtocolClient) -> object:
    """The broker aborts the transaction and fences its producer."""
    one = Transaction(talk, timeout_ms=200)
    one.send()
    until(lambda: talk.fetch(one.topic, committed=True).aborted_transactions, bool)
    return one.end_transaction(commit=True)


def transactions_described(talk: ProtocolClient) -> object:
    one = Transaction(talk)
    one.send()
    response = talk.request_once(DescribeTransactionsRequest, 0, transactional_ids=[one.name, fresh("id")])
    listed = talk.request_once(
        ListTransactionsRequest, 0, state_filters=["Ongoing"], producer_id_filters=[]
    ).transaction_states
    topic_partitions = [{"name": one.topic, "partition_indexes": [0]}]
    (producers,) = talk.request_once(DescribeProducersRequest, 0, topics=topic_partitions).topics[0].partitions
    (active,) = producers.active_producers
    return {
        "described": [(code_of(each.error_code), each.transaction_state) for each in response.transaction_states],
        "listed": one.name in {each.transactional_id for each in listed},
        "producer": (active.producer_id == one.user.producer_id, active.last_sequence, active.current_txn_start_offset),
    }


# Groups of the consumer protocol (KIP-848)


def indexes(response: Any) -> list[int] | None:
    if response.assignment is None:
        return None
    return [index for topic in response.assignment.topic_partitions for index in topic.partitions]


def consumer_alone(talk: ProtocolClient) -> object:
    topic, group = talk.topic(2), fresh("g")
    member_id, epoch = talk.join_with_partitions(group, topic)
    minimal = talk.heartbeat(group, member_id, epoch)
    complete = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": [topic], "topic_partitions": []}
    full = talk.heartbeat(group, member_id, epoch, **complete)
    rejoined = talk.join_consumer_group(group, member_id, topic)
    left = talk.heartbeat(group, member_id, -1)
    found = [
        (code_of(response.error_code), response.member_epoch - epoch, indexes(response))
        for response in (minimal, full, rejoined)
    ]
    return [*found, (left.error_code, left.member_epoch, left.heartbeat_interval_ms)]


def refused_heartbeats(talk: ProtocolClient) -> object:
    topic, group = talk.topic(), fresh("g")
    member_id, epoch = talk.join_with_partitions(group, topic)
    response = {
        "a later epoch": talk.heartbeat(group, member_id, epoch + 1),
        "a stranger": talk.heartbeat(group, "stranger", epoch),
        "a stranger leaves": talk.heartbeat(group, "stranger", -1),
        "no such epoch": talk.heartbeat(group, member_id, -3),
        "leaving without an instance id": talk.heartbeat(group, member_id, -2),
        "no member id": talk.join_consumer_group(group, "", topic),
        "no group": talk.join_consumer_group("", "other", topic),
        "no subscription": talk.join_consumer_group(group, "other", subscribed_topic_names=None),
        "no timeout": talk.join_consumer_group(group, "other", topic, rebalance_timeout_ms=-1),
        "owning unassigned partitions": talk.join_consumer_group(group, "other", topic, topic_partitions=None),
        "an empty instance id": talk.join_consumer_group(group, "other", topic, instance_id=""),
        "no such assignor": talk.join_consumer_group(group, "other", topic, server_assignor="sticky"),
        "a bad pattern": talk.join_consumer_group(
            group, "other", subscribed_topic_names=None, subscribed_topic_regex="("
        ),
        "an unknown instance": talk.heartbeat(group, member_id, epoch, instance_id="i"),
    }
    return {name: code_of(one.error_code) for name, one in response.items()}


def consumers_that_share(talk: ProtocolClient) -> object:
    """A partition goes to the second member only after the first has confirmed its revocation."""
    topic, group = talk.topic(4), fresh("g")
    first, _ = talk.join_with_partitions(group, topic)
    complete = until(
        lambda: talk.join_consumer_group(group, first, topic), lambda response: len(indexes(response) or ()) == 4
    )
    topic_id, epoch = complete.assignment.topic_partitions[0].topic_id, complete.member_epoch
    joined = talk.join_consumer_group(group, "second", topic)
    less = until(lambda: talk.heartbeat(group, first, epoch), lambda response: indexes(response) is not None)
    waiting = until(
        lambda: talk.join_consumer_group(group, "second", topic), lambda response: response.member_epoch > epoch
    )
    remaining = indexes(less) or []
    owned = [{"topic_id": topic_id, "partitions": remaining}]
    ahead = talk.heartbeat(group, first, epoch, topic_partitions=owned)
    more = until(
        lambda: talk.heartbeat(group, "second", waiting.member_epoch), lambda response: indexes(response) is not None
    )
    return {
        "asked to revoke": (joined.error_code, less.member_epoch - epoch, len(remaining)),
        "waiting": indexes(waiting),
        "given up": ahead.member_epoch > epoch,
        "in the end": sorted([*remaining, *(indexes(more) or [])]),
    }


def epochs_of_commits(talk: ProtocolClient) -> object:
    topic, group = talk.topic(), fresh("g")
    member_id, epoch = talk.join_with_partitions(group, topic)
    topic_partition = {
        "partition_index": 0,
        "committed_offset": 5,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }

    def commit(member_id: str, epoch: int) -> object:
        response = talk.request_once(
            OffsetCommitRequest,
            9,
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            group_instance_id=None,
            topics=[{"name": topic, "partitions": [topic_partition]}],
        )
        return code_of(response.topics[0].partitions[0].error_code)

    def fetch(member_id: str | None, epoch: int) -> object:
        topics = [{"name": topic, "partition_indexes": [0]}]
        requested = {"group_id": group, "member_id": member_id, "member_epoch": epoch, "topics": topics}
        return code_of(
            talk.request_once(OffsetFetchRequest, 9, groups=[requested], require_stable=False).groups[0].error_code
        )

    return {
        "commit": [commit(member_id, epoch), commit(member_id, epoch + 1), commit("stranger", epoch), commit("", -1)],
        "by an older version": talk.commit(group, topic, member_id=member_id, generation=epoch),
        "fetch": [fetch(member_id, epoch), fetch(member_id, epoch + 1), fetch("stranger", epoch), fetch(None, -1)],
    }


def static_consumer(talk: ProtocolClient) -> object:
    topic, group = talk.topic(2), fresh("g")
    first, epoch = talk.join_with_partitions(group, topic, instance_id="i")
    unreleased = talk.join_consumer_group(group, "second", topic, instance_id="i")
    temporary_leave = talk.heartbeat(group, first, -2, instance_id="i")
    back = talk.join_consumer_group(group, "second", topic, instance_id="i")
    fenced = [talk.heartbeat(group, first, each, instance_id="i") for each in (epoch, -1)]
    return (
        code_of(unreleased.error_code),
        temporary_leave.member_epoch,
        (back.member_epoch - epoch, indexes(back)),
        [code_of(response.error_code) for response in fenced],
    )


def consumers_described(talk: ProtocolClient) -> object:
    topic, group = talk.topic(2), fresh("g")
    member_id, epoch = talk.join_with_partitions(group, topic)
    found, missing = talk.request_once(
        ConsumerGroupDescribeRequest, 1, group_ids=[group, fresh("g")], include_authorized_operations=False
    ).groups
    (only_member,) = found.members
    (old,) = talk.request_once(DescribeGroupsRequest, 5, groups=[group], include_authorized_operations=False).groups
    listed = talk.request_once(ListGroupsRequest, 5, states_filter=["Stable"], types_filter=["consumer"]).groups
    deleted = [
        code_of(one.error_code) for one in talk.request_once(DeleteGroupsRequest, 2, groups_names=[group]).results
    ]
    talk.heartbeat(group, member_id, -1)
    deleted += [
        code_of(one.error_code) for one in talk.request_once(DeleteGroupsRequest, 2, groups_names=[group]).results
    ]
    return {
        "described": (found.group_state, found.group_epoch - epoch, found.assignment_epoch - epoch),
        "assignor": found.assignor_name,
        "member": (only_member.member_epoch - epoch, only_member.subscribed_topic_regex, only_member.member_type),
        "assigned": [
            [(one.topic_name == topic, one.partitions) for one in each.topic_partitions]
            for each in (only_member.assignment, only_member.target_assignment)
        ],
        "missing": code_of(missing.error_code),
        "as a classic one": (old.error_code, old.group_state),
        "listed": [(one.protocol_type, one.group_type) for one in listed if one.group_id == group],
        "deleted": deleted,
    }


def empty_groups_change(talk: ProtocolClient) -> object:
    """An empty group takes the protocol of the next member."""
    topic, group = talk.topic(), fresh("g")

    def kind() -> list[str]:
        groups = talk.request_once(ListGroupsRequest, 5, states_filter=[], types_filter=[]).groups
        return [one.group_type for one in groups if one.group_id == group]

    member_id, _ = talk.join_with_partitions(group, topic)
    found = [kind()]
    talk.heartbeat(group, member_id, -1)
    classic, _ = talk.join_alone(group)
    found.append(kind())
    talk.leave(group, classic)
    talk.join_with_partitions(group, topic)
    return [*found, kind()]


def classic_with_consumers(talk: ProtocolClient) -> object:
    topic, group = talk.topic(), fresh("g")
    talk.join_with_partitions(group, topic)
    return code_of(talk.join(group).error_code)


def broker_topics_by_pattern(talk: ProtocolClient) -> object:
    """Returns how many topics are assigned for a pattern that matches an internal topic and another one."""
    group, topic = fresh("g"), talk.topic()
    talk.join_with_partitions(fresh("g"), topic)  # makes the coordinator load the topic
    complete = {"subscribed_topic_names": None, "subscribed_topic_regex": f"__consumer_offsets|{topic}"}
    return len(until(lambda: talk.join_consumer_group(group, "one", **complete).assignment.topic_partitions, bool))


# The connection


def bytes_after(*frames: bytes) -> Request:
    """Returns the bytes received before the broker closes the connection."""

    def request_once(talk: ProtocolClient) -> object:
        host, port = talk.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
            connection.sendall(b"".join(frames))
            try:
                return connection.recv(100)
            except ConnectionResetError:
                return b""

    return request_once


def produce_without_acks(topic: str) -> bytes:
    """A produce request of version 3 with acks=0."""
    records, name = sample(), topic.encode()
    body = struct.pack(">hhiih", -1, 0, 10_000, 1, len(name)) + name
    body += struct.pack(">iii", 1, 0, len(records)) + records
    return struct.pack(">ihhih", 10 + len(body), 0, 3, 1, -1) + body


VERSIONS = struct.pack(">ihhih", 10, 18, 0, 77, -1)


def stays_open(talk: ProtocolClient) -> object:
    """The response has the correlation id of the next request."""
    return bytes_after(produce_without_acks(talk.topic()), VERSIONS)(talk)[4:8]


def too_new(talk: ProtocolClient) -> object:
    host, port = talk.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">ihhihb", 11, 18, 99, 5, -1, 0))
        response = connection.recv(10_000)
    return struct.unpack_from(">ih", response, 4)


def missing(request: Any, *path: str, version: int, **fields: object) -> Request:
    """Returns the error code at the end of a path of field names, each a list with one element."""

    def request_once(talk: ProtocolClient) -> object:
        found = talk.request_once(request, version, **fields)
        for name in path:
            (found,) = getattr(found, name)
        return code_of(found.error_code)

    return request_once


ROWS = (
    Row("topic name with a space", lambda talk: talk.create("a b"), Code.INVALID_TOPIC),
    Row("topic name of 250 characters", lambda talk: talk.create("x" * 250), Code.INVALID_TOPIC),
    Row("topic name of dots", lambda talk: talk.create(".."), Code.INVALID_TOPIC),
    Row("empty topic name", lambda talk: talk.create(""), Code.INVALID_TOPIC),
    Row("a topic name that differs only in a dot", create_name_that_differs_in_dot, Code.INVALID_TOPIC, bundled=0),
    Row("creating an existing topic", create_existing, Code.TOPIC_ALREADY_EXISTS),
    Row("creating a topic twice in one request", create_twice_in_one, {Code.INVALID_REQUEST}),
    Row("no partitions", lambda talk: talk.create(fresh("t"), 0), Code.INVALID_PARTITIONS),
    Row("two replicas", lambda talk: talk.create(fresh("t"), 1, 2), Code.INVALID_REPLICATION_FACTOR),
    Row("creating a topic with the defaults", create_with_defaults, (0, 4, 1)),
    Row("assignment combined with counts", assign_with_partition_count, Code.INVALID_REQUEST),
    Row("an unknown configuration", lambda talk: talk.create(fresh("t"), no_such="1"), Code.INVALID_CONFIG),
    Row("a word for a number", lambda talk: talk.create(fresh("t"), retention_ms="week"), Code.INVALID_CONFIG),
    Row(
        "configuration value below the minimum",
        lambda talk: talk.create(fresh("t"), segment_ms="0"),
        Code.INVALID_CONFIG,
    ),
    Row("unknown cleanup policy", lambda talk: talk.create(fresh("t"), cleanup_policy="x"), Code.INVALID_CONFIG),
    Row("configurations without effect on one node", codes_of_configs(*HARMLESS_CONFIGS), []),
    Row("impossible configurations", codes_of_configs(*IMPOSSIBLE_CONFIGS), list(IMPOSSIBLE_CONFIGS)),
    Row(
        "producing to a topic with such configurations",
        produced_with_flush,
        ((0, 0), {"flush.messages": "1", "min.insync.replicas": "2", "preallocate": "true"}),
    ),
    Row("`compression.type` of a topic", stored_codecs, [1, 1], bundled=[0, 3]),
    Row(
        "`segment.bytes` below 1 MiB",
        lambda talk: code_of_config(talk, "segment.bytes", "1024"),
        Code.INVALID_CONFIG,
        bundled=0,
    ),
    Row(
        "`max.message.bytes` above 64 MiB",
        lambda talk: code_of_config(talk, "max.message.bytes", "100000000"),
        0,
        bundled=Code.INVALID_CONFIG,
    ),
    Row(
        "an empty `cleanup.policy`",
        lambda talk: code_of_config(talk, "cleanup.policy", ""),
        0,
        bundled=Code.INVALID_CONFIG,
    ),
    Row("error message of a success", message_of_success, None),
    Row("creating a topic with validate_only", only_validate, (0, 2, Code.UNKNOWN_TOPIC_OR_PARTITION)),
    Row("partitions added", lambda talk: grow(talk, talk.topic(2), 3), 0),
    Row("as many partitions as before", lambda talk: grow(talk, talk.topic(2), 2), Code.INVALID_PARTITIONS),
    Row("fewer partitions", lambda talk: grow(talk, talk.topic(2), 1), Code.INVALID_PARTITIONS),
    Row("partitions of an unknown topic", lambda talk: grow(talk, fresh("t"), 2), Code.UNKNOWN_TOPIC_OR_PARTITION),
    Row("deleting an unknown topic", lambda talk: talk.delete(fresh("t")), Code.UNKNOWN_TOPIC_OR_PARTITION),
    Row("a deleted topic", deleted_topic, (0, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_OR_PARTITION)),
    Row("internal topics", internal_topics, [("__consumer_offsets", True), ("__transaction_state", True)]),
    Row("a topic asked for", lambda talk: talk.describe(fresh("t")), (Code.UNKNOWN_TOPIC_OR_PARTITION, [])),
    Row("metadata of an invalid topic name", lambda talk: talk.describe("a b", creates=True), (Code.INVALID_TOPIC, [])),
    Row("a configuration set", lambda talk: altered(talk, ("retention.ms", 0, "1000")), 0),
    Row(
        "configuration of an unknown topic",
        lambda talk: altered(talk, name=fresh("t")),
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    Row("setting an unknown configuration", lambda talk: altered(talk, ("no.such", 0, "1")), Code.INVALID_CONFIG),
    Row("a bad value set", lambda talk: altered(talk, ("retention.ms", 0, "x")), Code.INVALID_CONFIG),
    Row(
        "appending to a configuration that is no list",
        lambda talk: altered(talk, ("retention.ms", 2, "1")),
        Code.INVALID_CONFIG,
    ),
    Row(
        "altering a broker's configuration",
        lambda talk: altered(talk, ("log.retention.ms", 0, "1000000"), name="1", kind=4, validate_only=True),
        0,
        bundled=Code.INVALID_REQUEST,
    ),
    Row(
        "altering a group's configuration",
        lambda talk: altered(talk, ("consumer.session.timeout.ms", 0, "50000"), name=fresh("g"), kind=32),
        0,
        bundled=Code.INVALID_REQUEST,
    ),
    Row("loggers of a broker", code_of_description(8, "1"), 0, bundled=Code.INVALID_REQUEST),
    Row("configuration of client metrics", code_of_description(16, "x"), 0, bundled=Code.INVALID_REQUEST),
    Row("configuration of an unknown resource type", code_of_description(99, "x"), Code.INVALID_REQUEST),
    Row(
        "configuration of a group",
        group_configs,
        (
            [("consumer.heartbeat.interval.ms", "5000"), ("consumer.session.timeout.ms", "45000")],
            Code.INVALID_REQUEST,
        ),
    ),
    Row("configurations without documentation", documentation, []),
    Row("moving a replica", moved_replicas, [[0], [Code.LOG_DIR_NOT_FOUND], [Code.UNKNOWN_TOPIC_OR_PARTITION]]),
    Row("one key twice", lambda talk: altered(talk, *[("retention.ms", 0, "9")] * 2), Code.INVALID_REQUEST),
    Row("appending to a list", appended_to_list, {"cleanup.policy": "delete,compact"}),
    Row("AlterConfigs", replaced_configs, {"segment.ms": "80000"}),
    Row("altering a topic twice in one request", altered_twice, ([Code.INVALID_REQUEST] * 2, {})),
    Row("deleting a group twice in one request", deleted_group_twice, [Code.NONE]),
    Row("log size of a topic named twice", sizes_of_a_topic_named_twice, [(True, [0, 2])]),
    Row("configurations of an unknown topic", lambda talk: code_of(describe(talk, fresh("t"))[0].error_code), 3),
    Row(
        "defaults of a topic",
        defaults_of,
        {
            "retention.ms": "604800000",
            "retention.bytes": "-1",
            "segment.ms": "604800000",
            "segment.bytes": "1073741824",
            "cleanup.policy": "delete",
            "max.message.bytes": "1048588",
            "delete.retention.ms": "86400000",
            "min.cleanable.dirty.ratio": "0.5",
            "message.timestamp.type": "CreateTime",
            "compression.type": "producer",
        },
    ),
    # Records
    Row("offsets run on", offsets_run_on, ([0, 3, 4], [(0, 2), (3, 3), (4, 5)], [(4, 5)], [])),
    Row(
        "producing to an unknown topic",
        lambda talk: talk.produce(fresh("t"), sample())[0],
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    Row("producing to an unknown partition", lambda talk: talk.produce(talk.topic(), sample(), 7)[0], 3),
    Row("a corrupt batch", bad_crc, (Code.CORRUPT_MESSAGE, -1)),
    Row("a batch with a wrong record count", wrong_count, Code.INVALID_RECORD),
    Row("two batches for one partition", two_batches, Code.INVALID_RECORD),
    Row("a batch of an old format", old_magic, Code.INVALID_RECORD, bundled=Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    Row("a batch of control", control_batch, Code.INVALID_RECORD),
    Row(
        "a batch with an unknown codec",
        unknown_codec,
        Code.UNKNOWN_SERVER_ERROR,
        bundled=Code.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    Row("acks of two", lambda talk: talk.produce(talk.topic(), sample(), acks=2)[0], Code.INVALID_REQUIRED_ACKS),
    Row("too large", lambda talk: talk.produce(talk.topic(), sample(b"x" * 1_100_000))[0], Code.MESSAGE_TOO_LARGE),
    Row(
        "a topic's own limit", lambda talk: talk.produce(talk.topic(max_message_bytes="100"), sample(b"x" * 90))[0], 10
    ),
    Row("compacted, without a key", without_keys, Code.INVALID_RECORD),
    Row("compacted, with a key", with_keys, 0),
    Row(
        "producing to an internal topic",
        lambda talk: talk.produce("__consumer_offsets", sample())[0],
        Code.INVALID_TOPIC,
    ),
    Row("a timestamp two hours ahead", far_ahead, Code.INVALID_TIMESTAMP),
    Row("records without a key among others", keyless_among_others, (Code.INVALID_RECORD, [1, 3], 2)),
    Row(
        "timestamps out of range among others",
        some_out_of_range,
        [(Code.INVALID_TIMESTAMP, [1, 3], 2), (Code.INVALID_TIMESTAMP, [1, 3], 2), 0, 0],
    ),
    Row(
        "log start offsets of rejected batches",
        log_starts_of_refusals,
        [
            (Code.CORRUPT_MESSAGE, [], -1),
            (Code.MESSAGE_TOO_LARGE, [], -1),
            (Code.INVALID_RECORD, [], 2),
        ],
    ),
    Row(
        "a producer's LogAppendTime in a topic with LogAppendTime",
        append_time_by_producer("LogAppendTime"),
        Code.INVALID_TIMESTAMP,
    ),
    Row(
        "a producer's LogAppendTime in a topic with CreateTime",
        append_time_by_producer("CreateTime"),
        0,
        bundled=Code.INVALID_TIMESTAMP,
    ),
    Row("a transactional batch without an id", transactional_without_id, 53),
    Row(
        "log start and end offsets",
        fetch_ends,
        [(1, -1, -1), (0, 2, 1), (0, 2, 1), (1, -1, -1)],
    ),
    Row("a batch larger than the fetch size", whole_first_batch, True),
    Row("reading a compacted log", compacted_log, ([0, 48, 49, 50, *range(51, 61)], 0)),
    Row("fetching an unknown topic", lambda talk: talk.fetch(fresh("t")).error_code, Code.UNKNOWN_TOPIC_OR_PARTITION),
    Row("fetching a negative offset", lambda talk: talk.fetch(talk.topic(), -1).error_code, Code.OFFSET_OUT_OF_RANGE),
    Row(
        "leader epochs",
        leader_epochs,
        ([0, Code.UNKNOWN_LEADER_EPOCH], (Code.UNKNOWN_LEADER_EPOCH, -1)),
    ),
    Row("where epochs end", epoch_ends, [(0, True, 2), (0, False, -1)]),
    Row("an unknown fetch session", lambda talk: fetch_session(talk, 77, 3), Code.FETCH_SESSION_ID_NOT_FOUND),
    Row("records deleted", trim(2, 1, -1, 4), [(0, 2), (0, 2), (0, 3), (Code.OFFSET_OUT_OF_RANGE, -1)]),
    Row(
        "deleting records of an unknown topic",
        lambda talk: trimmed(talk, fresh("t"), 1),
        (Code.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ),
    Row(
        "deleting records of an internal topic",
        lambda talk: trimmed(talk, "__consumer_offsets", 0)[0],
        Code.INVALID_TOPIC,
    ),
    Row(
        "offsets by time",
        by_time,
        [(0, 0), (0, 1), (0, 2), (0, 3), (0, 5), (0, -1), (0, 6), (0, 0), (0, 5)],
    ),
    Row("offsets by time in an empty partition", times_of_empty_request, [(0, -1), (0, 0), (0, 0), (0, -1)]),
    Row("offsets of a partition named twice", offsets_of_one_twice, [(0, Code.INVALID_REQUEST, -1), (1, 0, 0)]),
    Row("offsets of an unknown topic", lambda talk: talk.offset(fresh("t"), -1), (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)),
    # Idempotent producers
    Row(
        "late retries of batches",
        repeated,
        ([0, 0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER], 6),
        bundled=([0, 0, Code.DUPLICATE_SEQUENCE_NUMBER], 6),
    ),
    Row("a gap in the sequence", with_a_gap, [0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, 0]),
    Row("a producer nobody knows", beginning_in_the_middle, 0),
    Row(
        "epochs of a producer",
        epochs_of_a_producer,
        [0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, Code.INVALID_PRODUCER_EPOCH],
    ),
    # Groups
    Row("joining without a member id", needs_a_member_id, (Code.MEMBER_ID_REQUIRED, True, 0)),
    Row("a session timeout of one second", lambda talk: code_of(talk.join(fresh("g"), session_ms=1000).error_code), 26),
    Row("a session timeout of an hour", lambda talk: code_of(talk.join(fresh("g"), session_ms=HOUR_MS).error_code), 26),
    Row("a group without a name", lambda talk: code_of(talk.join("").error_code), Code.INVALID_GROUP_ID),
    Row("no protocols", lambda talk: code_of(talk.join(fresh("g"), protocols=[]).error_code), 23),
    Row("no common assignor", second_protocol, Code.INCONSISTENT_GROUP_PROTOCOL),
    Row("another protocol type", second_kind, Code.INCONSISTENT_GROUP_PROTOCOL),
    Row(
        "generations",
        generations,
        {
            "heartbeat": [0, Code.ILLEGAL_GENERATION],
            "sync": [0, Code.ILLEGAL_GENERATION],
            "commit": [0, Code.ILLEGAL_GENERATION],
            "stranger": [Code.UNKNOWN_MEMBER_ID] * 2,
            "commit of a stranger": Code.UNKNOWN_MEMBER_ID,
            "commit without a member": Code.UNKNOWN_MEMBER_ID,
            "leave": [Code.UNKNOWN_MEMBER_ID, 0],
        },
    ),
    Row(
        "a group nobody knows",
        unknown_group,
        {
            "heartbeat": Code.UNKNOWN_MEMBER_ID,
            "sync": Code.UNKNOWN_MEMBER_ID,
            "leave": Code.UNKNOWN_MEMBER_ID,
            "join": Code.UNKNOWN_MEMBER_ID,
            "commit": Code.ILLEGAL_GENERATION,
            "offset": (0, -1),
            "delete": Code.GROUP_ID_NOT_FOUND,
            "state": [(0, "Dead")],
        },
    ),
    Row("a group with members", group_with_members, ((Code.NON_EMPTY_GROUP, ["Stable"]), ["Empty"], 0)),
    Row("a static member that rejoins", static_member, (0, 0, Code.FENCED_INSTANCE_ID)),
    Row(
        "committed offsets",
        offsets,
        [(0, -1), 0, (0, 7), Code.UNKNOWN_TOPIC_OR_PARTITION, 3, Code.OFFSET_METADATA_TOO_LARGE, (0, 7)],
    ),
    Row("listing groups by state", listed_group, ([("consumer", "Stable")], [])),
    Row("coordinator of a group", coordinator(0), 0),
    Row("coordinator of transactions", coordinator(1), 0),
    Row(
        "coordinator of another type",
        coordinator(9),
        Code.INVALID_REQUEST,
        bundled=Code.GROUP_AUTHORIZATION_FAILED,
    ),
    # Groups of the consumer protocol
    Row("a consumer alone", consumer_alone, [(0, 0, None), (0, 0, [0, 1]), (0, 0, [0, 1]), (0, -1, 0)]),
    Row(
        "rejected heartbeats",
        refused_heartbeats,
        {
            "a later epoch": Code.FENCED_MEMBER_EPOCH,
            "a stranger": Code.UNKNOWN_MEMBER_ID,
            "a stranger leaves": Code.UNKNOWN_MEMBER_ID,
            "no such epoch": Code.INVALID_REQUEST,
            "leaving without an instance id": Code.INVALID_REQUEST,
            "no member id": Code.INVALID_REQUEST,
            "no group": Code.INVALID_REQUEST,
            "no subscription": Code.INVALID_REQUEST,
            "no timeout": Code.INVALID_REQUEST,
            "owning unassigned partitions": Code.INVALID_REQUEST,
            "an empty instance id": Code.INVALID_REQUEST,
            "no such assignor": Code.UNSUPPORTED_ASSIGNOR,
            "a bad pattern": Code.INVALID_REGULAR_EXPRESSION,
            "an unknown instance": Code.UNKNOWN_MEMBER_ID,
        },
    ),
    Row(
        "consumers that share",
        consumers_that_share,
        {"asked to revoke": (0, 0, 2), "waiting": [], "given up": True, "in the end": [0, 1, 2, 3]},
    ),
    Row(
        "epochs of commits",
        epochs_of_commits,
        {
            "commit": [0, Code.STALE_MEMBER_EPOCH, Code.UNKNOWN_MEMBER_ID, Code.UNKNOWN_MEMBER_ID],
            "by an older version": Code.UNSUPPORTED_VERSION,
            "fetch": [0, Code.STALE_MEMBER_EPOCH, Code.UNKNOWN_MEMBER_ID, 0],
        },
    ),
    Row(
        "a static consumer",
        static_consumer,
        (Code.UNRELEASED_INSTANCE_ID, -2, (0, [0, 1]), [Code.FENCED_INSTANCE_ID, Code.FENCED_INSTANCE_ID]),
    ),
    Row(
        "consumers described",
        consumers_described,
        {
            "described": ("Stable", 0, 0),
            "assignor": "uniform",
            "member": (0, "", 1),
            "assigned": [[(True, [0, 1])], [(True, [0, 1])]],
            "missing": Code.GROUP_ID_NOT_FOUND,
            "as a classic one": (0, "Dead"),
            "listed": [("consumer", "consumer")],
            "deleted": [Code.NON_EMPTY_GROUP, 0],
        },
    ),
    Row("empty groups of both protocols", empty_groups_change, [["consumer"], ["classic"], ["consumer"]]),
    Row(
        "a heartbeat to an unknown group",
        lambda talk: code_of(talk.heartbeat(fresh("g"), "member", 5).error_code),
        Code.GROUP_ID_NOT_FOUND,
        bundled=Code.UNKNOWN_MEMBER_ID,
    ),
    Row(
        "a classic member in a consumer group",
        classic_with_consumers,
        Code.MEMBER_ID_REQUIRED,
        bundled=Code.INCONSISTENT_GROUP_PROTOCOL,
    ),
    Row("internal topics in a pattern subscription", broker_topics_by_pattern, 2, bundled=1),
    # Transactions
    Row("what readers see", what_readers_see, ((0, 1, [], []), (2, 2, [(0, 0), (1, 1)], [0]))),
    Row("committing twice", ends(True, True), [0, 0]),
    Row("aborting twice", ends(False, False), [0, 0]),
    Row("aborting a committed transaction", ends(True, False), [0, Code.INVALID_TXN_STATE]),
    Row("marker of a commit", markers_of(is_commit=True, count=1), ([(1, COMMIT_KEY, NO_HEADERS)], [])),
    Row("marker of an abort", markers_of(is_commit=False, count=1), ([(1, ABORT_KEY, NO_HEADERS)], [0])),
    Row("marker of a commit without records", markers_of(is_commit=True, count=0), ([(0, COMMIT_KEY, NO_HEADERS)], [])),
    Row("marker of an abort without records", markers_of(is_commit=False, count=0), ([(0, ABORT_KEY, NO_HEADERS)], [])),
    Row("value of a transaction marker", value_of_marker, (bytes(6), 6), bundled=(bytes(6), 22)),
    Row("a producer fenced before its first record", fenced_before_the_first_record, (0, Code.INVALID_PRODUCER_EPOCH)),
    Row(
        "transactions listed by duration",
        listed_by_duration,
        (["ended", "new", "open"], ["new"], ["ended", "new", "open"]),
    ),
    Row("ending an empty transaction", end_without_transaction, Code.INVALID_TXN_STATE),
    Row("a transaction timeout of an hour", lambda talk: talk.init_producer_id(fresh("id"), HOUR_MS)[0], 50),
    Row("a transaction timeout of zero", lambda talk: talk.init_producer_id(fresh("id"), 0)[0], 50),
    Row("an empty transactional id", lambda talk: talk.init_producer_id("")[0], Code.INVALID_REQUEST),
    Row(
        "producers of another",
        requests_of_unknown_members,
        {
            "another producer adds": [Code.INVALID_PRODUCER_ID_MAPPING],
            "another producer ends": Code.INVALID_PRODUCER_ID_MAPPING,
            "of an unknown id": Code.INVALID_PRODUCER_ID_MAPPING,
            "a newer epoch": Code.PRODUCER_FENCED,
        },
    ),
    Row(
        "two producers with one transactional id",
        fenced,
        {
            "new": (0, True, True),
            "add": [Code.PRODUCER_FENCED],
            "send": Code.INVALID_PRODUCER_EPOCH,
            "end": Code.PRODUCER_FENCED,
            "claim": Code.PRODUCER_FENCED,
            "aborted transactions": 1,
        },
    ),
    Row("a claimed producer id without a transactional id", claim_without_a_name, (0, True, 0)),
    Row("a partition that was not added", partition_of_none, Code.TRANSACTION_ABORTABLE),
    Row("adding an unknown partition", unknown_with_known, [Code.OPERATION_NOT_ATTEMPTED, 3]),
    Row(
        "offsets of a transaction",
        offsets_with_it,
        ([0, 0, 0], ((0, -1), (Code.UNSTABLE_OFFSET_COMMIT, -1)), (0, 5)),
    ),
    Row("one offset in two transactions", offsets_of_two, [(0, 7), (0, 7)]),
    Row("offsets of another generation", offsets_of_another_generation, [0, Code.ILLEGAL_GENERATION]),
    Row("offsets that were not announced", offsets_unannounced, Code.INVALID_TXN_STATE),
    Row("a transaction that exceeds its timeout", timed_out, Code.PRODUCER_FENCED),
    Row(
        "transactions described",
        transactions_described,
        {
            "described": [(0, "Ongoing"), (Code.TRANSACTIONAL_ID_NOT_FOUND, "")],
            "listed": True,
            "producer": (True, 0, 0),
        },
    ),
    # The connection, and what is not served
    Row("an unknown API key", bytes_after(struct.pack(">ihhih", 10, 999, 0, 1, -1)), b""),
    Row("an HTTP request", bytes_after(b"GET / HTTP/1.1\r\n\r\n"), b""),
    Row("no answer wanted", stays_open, struct.pack(">i", 77)),
    Row("acks=0 to an unknown topic", lambda talk: bytes_after(produce_without_acks(fresh("t")))(talk), b""),
    Row("a frame of two gigabytes", bytes_after(struct.pack(">i", 2_000_000_000)), b""),
    Row("a version nobody knows", too_new, (5, 35)),
    Row("SASL without configured users", missing(SaslHandshakeRequest, version=1, mechanism="PLAIN"), 34),
    Row(
        "access control lists",
        missing(
            DescribeAclsRequest,
            version=2,
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        ),
        Code.SECURITY_DISABLED,
    ),
    Row(
        "an election",
        lambda talk: [
            code_of(one.error_code)
            for one in talk.request_once(
                ElectLeadersRequest,
                2,
                election_type=0,
                topic_partitions=[{"topic": talk.topic(), "partitions": [0]}],
                timeout_ms=10_000,
            )
            .replica_election_results[0]
            .partition_result
        ],
        [Code.ELECTION_NOT_NEEDED],
    ),
)


@pytest.fixture(scope="module")
def settled_broker(each_broker: str) -> str:
    """Requests the coordinators once, since Apache Kafka then creates their topics."""
    with ProtocolClient(each_broker) as talk:
        for kind in (0, 1):
            until(partial(coordinator(kind), talk), lambda code: code == 0)
    return each_broker


@pytest.fixture
def talk(settled_broker: str) -> Iterator[ProtocolClient]:
    with ProtocolClient(settled_broker) as talk:
        yield talk


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_response_is_kafkas_or_the_documented_one(talk: ProtocolClient, broker_kind: str, row: Row) -> None:
    expected = row.bundled if broker_kind == "bundled" and row.bundled is not SAME else row.kafka
    assert row.request_once(talk) == expected


def test_documented_differences_match_the_table() -> None:
    page = (ROOT / "docs/differences.md").read_text(encoding="utf-8")
    _, _, section = page.partition("\n## Apache Kafka\n")
    section, _, _ = section.partition("\n## ")
    listed = re.findall(r"^\| (?!what )([\w`].*?) \|", section, re.MULTILINE)
    assert listed == [row.name for row in ROWS if row.bundled is not SAME]
