"""From a request's bytes to its answer's: one row per API key, each with its handler module.

Produce and Fetch have codecs of their own; the control APIs use those that kafka-python generates from Kafka's
message definitions, of which `kafka_wire.messages` has two more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka.protocol import admin, consumer, producer, sasl
from kafka.protocol import metadata as cluster

from headrace.broker.handlers import (
    acls,
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
)
from headrace.broker.handlers import sasl as login
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol import api_versions as api
from headrace.broker.protocol import fetch as fetch_codec
from headrace.broker.protocol import list_groups as list_groups_codec
from headrace.broker.protocol import metadata as metadata_codec
from headrace.broker.protocol import produce as produce_codec
from headrace.broker.protocol.framing import Pieces, RequestHeader
from headrace.broker.protocol.large_requests import WRONG_BYTES, read_in_turns
from headrace.kafka_wire import messages
from headrace.kafka_wire.errors import MalformedMessage

Result = Any
ReadInTurns = Callable[[bytes, int, int], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Handler:
    """How requests of one API key are read, answered and written.

    `handle` returns the answer, an awaitable of it, or None where the client wants none. It must take all it needs
    from the frame before it waits. `read_in_turns` is for frames of more than AT_ONCE_BYTES, where there is one.
    """

    decode: Callable[[memoryview, int, int], Any]
    handle: Callable[[RequestContext, Any], Result | Awaitable[Result]]
    encode: Callable[[Any, int], Pieces]
    read_in_turns: ReadInTurns | None = None


def _encode(response: Any, version: int) -> Pieces:
    return [response.encode()]


def _generated(
    request_class: Any,
    handle: Callable[[RequestContext, Any], Result],
    encode: Callable[[Any, int], Pieces] = _encode,
) -> Handler:
    def decode(frame: memoryview, body_at: int, version: int) -> Any:
        # The class's own `decode` does not tell how far it read, and strings cut off at the end pass unnoticed.
        flexible = request_class.flexible_version_q(version)
        encoding = {"compact": flexible, "tagged": flexible, "data_class": request_class[None]}
        try:
            request, end = request_class._struct.compiled_decode_from(version, **encoding)(frame, body_at)
        except WRONG_BYTES as error:
            raise MalformedMessage(f"{type(error).__name__}: {error}") from error
        if end > len(frame):
            raise MalformedMessage(f"the frame ends {end - len(frame)} bytes early")
        return request

    return Handler(decode, handle, encode, partial(read_in_turns, request_class))


def _encode_fetch(answer: fetch.FetchAnswer, version: int) -> Pieces:
    return fetch_codec.encode(answer.topics, answer.error, version, answer.session_id)


HANDLERS: Mapping[int, Handler] = {
    api.PRODUCE: Handler(
        produce_codec.decode, produce.handle, lambda answer, version: [produce_codec.encode(answer, version)]
    ),
    api.FETCH: Handler(fetch_codec.decode, fetch.handle, _encode_fetch),
    api.LIST_OFFSETS: _generated(consumer.ListOffsetsRequest, list_offsets.handle),
    api.METADATA: _generated(
        cluster.MetadataRequest, metadata.handle, lambda answer, version: [metadata_codec.encode(answer, version)]
    ),
    api.OFFSET_COMMIT: _generated(consumer.OffsetCommitRequest, offset_commit.handle),
    api.OFFSET_FETCH: _generated(consumer.OffsetFetchRequest, offset_fetch.handle),
    api.FIND_COORDINATOR: _generated(cluster.FindCoordinatorRequest, find_coordinator.handle),
    api.JOIN_GROUP: _generated(consumer.JoinGroupRequest, join_group.handle),
    api.HEARTBEAT: _generated(consumer.HeartbeatRequest, heartbeat.handle),
    api.LEAVE_GROUP: _generated(consumer.LeaveGroupRequest, leave_group.handle),
    api.SYNC_GROUP: _generated(consumer.SyncGroupRequest, sync_group.handle),
    api.DESCRIBE_GROUPS: _generated(admin.DescribeGroupsRequest, describe_groups.handle),
    api.LIST_GROUPS: _generated(
        admin.ListGroupsRequest,
        list_groups.handle,
        lambda answer, version: [list_groups_codec.encode(answer, version)],
    ),
    api.SASL_HANDSHAKE: _generated(sasl.SaslHandshakeRequest, login.handshake),
    api.SASL_AUTHENTICATE: _generated(sasl.SaslAuthenticateRequest, login.authenticate),
    api.API_VERSIONS: _generated(cluster.ApiVersionsRequest, api_versions.handle),
    api.CREATE_TOPICS: _generated(admin.CreateTopicsRequest, create_topics.handle),
    api.DELETE_TOPICS: _generated(admin.DeleteTopicsRequest, delete_topics.handle),
    api.DELETE_RECORDS: _generated(admin.DeleteRecordsRequest, delete_records.handle),
    api.INIT_PRODUCER_ID: _generated(producer.InitProducerIdRequest, init_producer_id.handle),
    api.OFFSET_FOR_LEADER_EPOCH: _generated(consumer.OffsetForLeaderEpochRequest, offset_for_leader_epoch.handle),
    api.DESCRIBE_ACLS: _generated(admin.DescribeAclsRequest, acls.describe),
    api.CREATE_ACLS: _generated(admin.CreateAclsRequest, acls.create),
    api.DELETE_ACLS: _generated(admin.DeleteAclsRequest, acls.delete),
    api.ALTER_CONFIGS: _generated(admin.AlterConfigsRequest, alter_configs.handle),
    api.DESCRIBE_LOG_DIRS: _generated(admin.DescribeLogDirsRequest, describe_log_dirs.handle),
    api.DESCRIBE_CONFIGS: _generated(admin.DescribeConfigsRequest, describe_configs.handle),
    api.CREATE_PARTITIONS: _generated(admin.CreatePartitionsRequest, create_partitions.handle),
    api.DELETE_GROUPS: _generated(admin.DeleteGroupsRequest, delete_groups.handle),
    api.INCREMENTAL_ALTER_CONFIGS: _generated(admin.IncrementalAlterConfigsRequest, incremental_alter_configs.handle),
    api.ELECT_LEADERS: _generated(admin.ElectLeadersRequest, elect_leaders.handle),
    api.DESCRIBE_TOPIC_PARTITIONS: _generated(admin.DescribeTopicPartitionsRequest, describe_topic_partitions.handle),
    api.OFFSET_DELETE: _generated(consumer.OffsetDeleteRequest, offset_delete.handle),
    api.DESCRIBE_CLUSTER: _generated(admin.DescribeClusterRequest, describe_cluster.handle),
    api.ADD_PARTITIONS_TO_TXN: _generated(producer.AddPartitionsToTxnRequest, add_partitions_to_txn.handle),
    api.ADD_OFFSETS_TO_TXN: _generated(producer.AddOffsetsToTxnRequest, add_offsets_to_txn.handle),
    api.END_TXN: _generated(producer.EndTxnRequest, end_txn.handle),
    api.TXN_OFFSET_COMMIT: _generated(producer.TxnOffsetCommitRequest, txn_offset_commit.handle),
    api.CONSUMER_GROUP_HEARTBEAT: _generated(messages.ConsumerGroupHeartbeatRequest, consumer_group_heartbeat.handle),
    api.CONSUMER_GROUP_DESCRIBE: _generated(messages.ConsumerGroupDescribeRequest, consumer_group_describe.handle),
    api.DESCRIBE_PRODUCERS: _generated(admin.DescribeProducersRequest, describe_producers.handle),
    api.DESCRIBE_TRANSACTIONS: _generated(admin.DescribeTransactionsRequest, describe_transactions.handle),
    api.LIST_TRANSACTIONS: _generated(admin.ListTransactionsRequest, list_transactions.handle),
}


def refuse_version(frame: memoryview, header: RequestHeader) -> Pieces | None:
    """The answer to a version that is not served; None where its client could not read one.

    Clients learn first what is served, so this is for those that ask for a newer ApiVersions, and for the old produce
    versions that are advertised only for librdkafka's sake.
    """
    version = header.api_version
    if header.api_key == api.API_VERSIONS:
        return [api_versions.unsupported_version().encode()]
    if header.api_key == api.PRODUCE and 0 <= version < api.BY_KEY[api.PRODUCE].served_from:
        request = produce_codec.decode_any(frame, header.body_at, version)
        return [produce.old_version_refusal(request, version).encode()] if request.acks else []
    return None
