"""Handler table: one row per API key, with decoder, handler and encoder.

Produce, Fetch and the responses to Metadata and ListGroups have hand-written codecs. The other APIs use codecs that
kafka-python generates from Kafka's message definitions; `kafka_wire.messages` has the definitions of two APIs that
kafka-python lacks.
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
    alter_replica_log_dirs,
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
from headrace.broker.protocol.large_requests import DECODE_ERRORS, decode_yielding
from headrace.kafka_wire import messages
from headrace.kafka_wire.errors import MalformedMessage

HandlerResult = Any
YieldingDecode = Callable[[bytes, int, int], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Handler:
    """Decoder, handler and encoder of one API.

    `handle` returns the result, or an awaitable of it; the result is None if the client expects no response. The frame
    is overwritten while `handle` awaits, so before its first await it must copy everything that it needs from the
    frame, or return a `ResultWithFrame`. `decode_yielding`, if set, decodes frames of more than SYNC_DECODE_BYTES_MAX.
    """

    decode: Callable[[memoryview, int, int], Any]
    handle: Callable[[RequestContext, Any], HandlerResult | Awaitable[HandlerResult]]
    encode: Callable[[Any, int], Pieces]
    decode_yielding: YieldingDecode | None = None


def _encode(response: Any, version: int) -> Pieces:
    return [response.encode()]


def _generated_handler(
    request_class: Any,
    handle: Callable[[RequestContext, Any], HandlerResult],
    encode: Callable[[Any, int], Pieces] = _encode,
) -> Handler:
    def decode(frame: memoryview, body_at: int, version: int) -> Any:
        # The class's own `decode` does not return where it stopped, and so does not detect a string truncated at the
        # end.
        flexible = request_class.flexible_version_q(version)
        encoding = {"compact": flexible, "tagged": flexible, "data_class": request_class[None]}
        try:
            request, end = request_class._struct.compiled_decode_from(version, **encoding)(frame, body_at)
        except DECODE_ERRORS as error:
            raise MalformedMessage(f"the request cannot be decoded: {type(error).__name__}: {error}") from error
        if end > len(frame):
            raise MalformedMessage(f"the request is {end - len(frame)} bytes shorter than its fields")
        return request

    return Handler(decode, handle, encode, partial(decode_yielding, request_class))


def _encode_fetch(result: fetch.FetchResult, version: int) -> Pieces:
    return fetch_codec.encode(result.topics, result.error, version, result.session_id)


HANDLERS: Mapping[int, Handler] = {
    api.PRODUCE: Handler(
        produce_codec.decode, produce.handle, lambda result, version: [produce_codec.encode(result, version)]
    ),
    api.FETCH: Handler(fetch_codec.decode, fetch.handle, _encode_fetch),
    api.LIST_OFFSETS: _generated_handler(consumer.ListOffsetsRequest, list_offsets.handle),
    api.METADATA: _generated_handler(
        cluster.MetadataRequest, metadata.handle, lambda result, version: [metadata_codec.encode(result, version)]
    ),
    api.OFFSET_COMMIT: _generated_handler(consumer.OffsetCommitRequest, offset_commit.handle),
    api.OFFSET_FETCH: _generated_handler(consumer.OffsetFetchRequest, offset_fetch.handle),
    api.FIND_COORDINATOR: _generated_handler(cluster.FindCoordinatorRequest, find_coordinator.handle),
    api.JOIN_GROUP: _generated_handler(consumer.JoinGroupRequest, join_group.handle),
    api.HEARTBEAT: _generated_handler(consumer.HeartbeatRequest, heartbeat.handle),
    api.LEAVE_GROUP: _generated_handler(consumer.LeaveGroupRequest, leave_group.handle),
    api.SYNC_GROUP: _generated_handler(consumer.SyncGroupRequest, sync_group.handle),
    api.DESCRIBE_GROUPS: _generated_handler(admin.DescribeGroupsRequest, describe_groups.handle),
    api.LIST_GROUPS: _generated_handler(
        admin.ListGroupsRequest,
        list_groups.handle,
        lambda result, version: [list_groups_codec.encode(result, version)],
    ),
    api.SASL_HANDSHAKE: _generated_handler(sasl.SaslHandshakeRequest, login.handshake),
    api.SASL_AUTHENTICATE: _generated_handler(sasl.SaslAuthenticateRequest, login.authenticate),
    api.API_VERSIONS: _generated_handler(cluster.ApiVersionsRequest, api_versions.handle),
    api.CREATE_TOPICS: _generated_handler(admin.CreateTopicsRequest, create_topics.handle),
    api.DELETE_TOPICS: _generated_handler(admin.DeleteTopicsRequest, delete_topics.handle),
    api.DELETE_RECORDS: _generated_handler(admin.DeleteRecordsRequest, delete_records.handle),
    api.INIT_PRODUCER_ID: _generated_handler(producer.InitProducerIdRequest, init_producer_id.handle),
    api.OFFSET_FOR_LEADER_EPOCH: _generated_handler(
        consumer.OffsetForLeaderEpochRequest, offset_for_leader_epoch.handle
    ),
    api.DESCRIBE_ACLS: _generated_handler(admin.DescribeAclsRequest, acls.describe),
    api.CREATE_ACLS: _generated_handler(admin.CreateAclsRequest, acls.create),
    api.DELETE_ACLS: _generated_handler(admin.DeleteAclsRequest, acls.delete),
    api.ALTER_CONFIGS: _generated_handler(admin.AlterConfigsRequest, alter_configs.handle),
    api.ALTER_REPLICA_LOG_DIRS: _generated_handler(admin.AlterReplicaLogDirsRequest, alter_replica_log_dirs.handle),
    api.DESCRIBE_LOG_DIRS: _generated_handler(admin.DescribeLogDirsRequest, describe_log_dirs.handle),
    api.DESCRIBE_CONFIGS: _generated_handler(admin.DescribeConfigsRequest, describe_configs.handle),
    api.CREATE_PARTITIONS: _generated_handler(admin.CreatePartitionsRequest, create_partitions.handle),
    api.DELETE_GROUPS: _generated_handler(admin.DeleteGroupsRequest, delete_groups.handle),
    api.INCREMENTAL_ALTER_CONFIGS: _generated_handler(
        admin.IncrementalAlterConfigsRequest, incremental_alter_configs.handle
    ),
    api.ELECT_LEADERS: _generated_handler(admin.ElectLeadersRequest, elect_leaders.handle),
    api.DESCRIBE_TOPIC_PARTITIONS: _generated_handler(
        admin.DescribeTopicPartitionsRequest, describe_topic_partitions.handle
    ),
    api.OFFSET_DELETE: _generated_handler(consumer.OffsetDeleteRequest, offset_delete.handle),
    api.DESCRIBE_CLUSTER: _generated_handler(admin.DescribeClusterRequest, describe_cluster.handle),
    api.ADD_PARTITIONS_TO_TXN: _generated_handler(producer.AddPartitionsToTxnRequest, add_partitions_to_txn.handle),
    api.ADD_OFFSETS_TO_TXN: _generated_handler(producer.AddOffsetsToTxnRequest, add_offsets_to_txn.handle),
    api.END_TXN: _generated_handler(producer.EndTxnRequest, end_txn.handle),
    api.TXN_OFFSET_COMMIT: _generated_handler(producer.TxnOffsetCommitRequest, txn_offset_commit.handle),
    api.CONSUMER_GROUP_HEARTBEAT: _generated_handler(
        messages.ConsumerGroupHeartbeatRequest, consumer_group_heartbeat.handle
    ),
    api.CONSUMER_GROUP_DESCRIBE: _generated_handler(
        messages.ConsumerGroupDescribeRequest, consumer_group_describe.handle
    ),
    api.DESCRIBE_PRODUCERS: _generated_handler(admin.DescribeProducersRequest, describe_producers.handle),
    api.DESCRIBE_TRANSACTIONS: _generated_handler(admin.DescribeTransactionsRequest, describe_transactions.handle),
    api.LIST_TRANSACTIONS: _generated_handler(admin.ListTransactionsRequest, list_transactions.handle),
}


def unsupported_version_pieces(frame: memoryview, header: RequestHeader) -> Pieces | None:
    """Encodes the response to a request of an unsupported version, as a list of byte strings. Returns [] if the client
    expects no response, and None if no response exists that the client could read.

    A client that first requests which versions are served gets here only with ApiVersions requests of newer versions,
    and with the old Produce versions that are advertised only for librdkafka.

    Args:
        frame: the whole request.
        header: the header of `frame`, already parsed.
    """
    version = header.api_version
    if header.api_key == api.API_VERSIONS:
        return [api_versions.unsupported_version().encode()]
    if header.api_key == api.PRODUCE and 0 <= version < api.BY_KEY[api.PRODUCE].served_from:
        request = produce_codec.decode_general(frame, header.body_at, version)
        return [produce.unsupported_version_response(request, version).encode()] if request.acks else []
    return None
