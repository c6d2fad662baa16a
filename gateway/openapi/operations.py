"""Table of all operations: parameters, bodies, results and errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.gateway.errors import Kind
from headrace.gateway.rest_v2 import MEDIA_TYPE
from headrace.gateway.rest_v2_consumers import FORMATS, media_type
from headrace.gateway.sessions.chunk_body import FRAMED, LINES
from headrace.gateway.sessions.chunk_body import JSON as JSON_CHUNK

JSON: Final = ("application/json",)
V2: Final = (MEDIA_TYPE,)
RECORDS: Final = tuple(media_type(form) for form in FORMATS)
PRODUCED: Final = (*RECORDS, MEDIA_TYPE, "application/vnd.kafka+json", "application/octet-stream", *JSON)
METRICS: Final = ("text/plain", "application/openmetrics-text")


@dataclass(frozen=True, slots=True)
class GatewayOperation:
    """One method of one route.

    Attributes:
        method: the HTTP method.
        path: the path, with its parameters in braces.
        name: the unique name.
        summary: what it does.
        result: a row of `components.RESPONSES`; "" without a body, "Metrics" for the page of metrics.
        errors: additional errors; `document` adds the common ones.
        body: a row of `components.REQUESTS`, or "Chunk"; "" without a body.
        statuses: the statuses of success.
        produces: the media types of the result.
        consumes: the media types of the body.
        query: rows of `components.QUERY`. A required one ends with `!`.
        headers: rows of `components.HEADERS`.
        is_body_required: whether the body may be missing.
    """

    method: str
    path: str
    name: str
    summary: str
    result: str
    errors: tuple[Kind, ...] = ()
    body: str = ""
    statuses: tuple[int, ...] = (200,)
    produces: tuple[str, ...] = JSON
    consumes: tuple[str, ...] = JSON
    query: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    is_body_required: bool = True


BODY: Final = (Kind.BAD_REQUEST, Kind.BODY_TIMEOUT, Kind.BODY_TOO_LARGE, Kind.UNSUPPORTED_MEDIA_TYPE)
"""Errors of a body that is read as a whole."""
BROKERS: Final = (Kind.KAFKA_FAILED, Kind.KAFKA_RETRIABLE, Kind.KAFKA_UNAVAILABLE)
"""Errors of every request to the brokers."""
KAFKA: Final = (
    *BROKERS,
    *(Kind.TOPIC_NOT_FOUND, Kind.PARTITION_NOT_FOUND, Kind.MALFORMED, Kind.KAFKA_REFUSED, Kind.ILLEGAL_STATE),
)
"""Errors of requests about topics in version 2: the results of `kafka_problems.problem_of`."""
ADMIN: Final = (*BROKERS, Kind.NOT_FOUND, Kind.INSTANCE_OR_PARTITION_NOT_FOUND, Kind.KAFKA_REFUSED)
"""Errors of `kafka_problems.admin_problem_of`."""
SCHEMA: Final = (Kind.UNCONVERTIBLE, Kind.INVALID_SCHEMA, Kind.REGISTRY_UNAVAILABLE)
READ_V2: Final = (*KAFKA, Kind.NOT_ACCEPTABLE)
INSTANCE: Final = (*READ_V2, Kind.INSTANCE_OR_PARTITION_NOT_FOUND)
INSTANCE_BODY: Final = (*INSTANCE, *BODY)
RECORD_READ: Final = (*READ_V2, Kind.BAD_REQUEST, Kind.FORMAT_MISMATCH, Kind.REGISTRY_UNAVAILABLE)
PRODUCE_V2: Final = (
    *BODY,
    *SCHEMA,
    *BROKERS,
    Kind.MALFORMED,
    Kind.TOPIC_NOT_FOUND,
    Kind.KEY_SCHEMA_MISSING,
    Kind.VALUE_SCHEMA_MISSING,
)
SESSION: Final = (
    *(Kind.SESSION_UNKNOWN, Kind.SESSION_ENDED, Kind.KAFKA_FAILED, Kind.KAFKA_UNAVAILABLE),
    *(Kind.TOPIC_NOT_FOUND, Kind.NOT_OWNER),
)

TRANSACTION: Final = (*(*BODY, Kind.KAFKA_UNAVAILABLE, Kind.NOT_OWNER, Kind.TRANSACTION_TOO_OLD),)
TRANSACTION_STEP: Final = (*TRANSACTION, Kind.TRANSACTION_UNKNOWN, Kind.CHUNK_EXPIRED, Kind.CHUNK_DIFFERS)

_TOPIC: Final = "/topics/{topic}"
_PARTITION: Final = f"{_TOPIC}/partitions/{{partition}}"
_INSTANCE: Final = "/consumers/{group}/instances/{instance}"
_CLUSTER: Final = "/v3/clusters/{cluster}"
_TOPIC_V3: Final = f"{_CLUSTER}/topics/{{topic}}"
_PARTITION_V3: Final = f"{_TOPIC_V3}/partitions/{{partition}}"
_GROUP: Final = f"{_CLUSTER}/consumer-groups/{{group}}"
_CONSUMER: Final = f"{_GROUP}/consumers/{{consumer}}"


def _read_v2(
    path: str,
    name: str,
    summary: str,
    result: str,
    errors: tuple[Kind, ...] = READ_V2,
    produces: tuple[str, ...] = V2,
    query: tuple[str, ...] = (),
) -> GatewayOperation:
    return GatewayOperation("GET", path, name, summary, result, errors, produces=produces, query=query)


def _change(
    path: str,
    name: str,
    summary: str,
    body: str,
    result: str = "",
    more: tuple[Kind, ...] = (),
    *,
    required: bool = True,
) -> GatewayOperation:
    """A POST request of version 2 to a consumer instance."""
    statuses = (200,) if result else (204,)
    errors = (*INSTANCE_BODY, *more)
    return GatewayOperation(
        "POST", path, name, summary, result, errors, body, statuses, V2, (*V2, *JSON), is_body_required=required
    )


def _read_v3(path: str, name: str, summary: str, result: str, errors: tuple[Kind, ...] = ADMIN) -> GatewayOperation:
    return GatewayOperation("GET", path, name, summary, result, errors)


OPERATIONS: Final = (
    _read_v2("/", "root", "Empty object; shows that the interface is available", "Empty", (Kind.NOT_ACCEPTABLE,)),
    GatewayOperation("GET", "/healthz", "liveness", "Liveness of the process", "Liveness"),
    GatewayOperation(
        "GET", "/readyz", "readiness", "Whether a broker responds", "Readiness", (Kind.KAFKA_UNAVAILABLE,)
    ),
    GatewayOperation("GET", "/metrics", "metrics", "Metrics for Prometheus", "Metrics", produces=METRICS),
    GatewayOperation("GET", "/openapi.json", "openapi", "This document", "Document"),
    # Version 2
    _read_v2("/brokers", "listBrokerIds", "Ids of the brokers", "BrokerIds"),
    _read_v2("/topics", "listTopicNames", "Names of the topics", "Names"),
    _read_v2(_TOPIC, "describeTopic", "A topic with its configuration and partitions", "TopicDescription", INSTANCE),
    GatewayOperation(
        "POST",
        _TOPIC,
        "produce",
        "Stores records in a topic",
        "ProduceResult",
        PRODUCE_V2,
        "ProduceRequest",
        produces=V2,
        headers=("Idempotency-Key",),
        consumes=PRODUCED,
    ),
    _read_v2(f"{_TOPIC}/partitions", "describePartitions", "Partitions of a topic", "PartitionDescriptions"),
    _read_v2(_PARTITION, "describePartition", "A partition", "PartitionDescription"),
    GatewayOperation(
        "POST",
        _PARTITION,
        "produceToPartition",
        "Stores records in a partition",
        "ProduceResult",
        (*PRODUCE_V2, Kind.PARTITION_NOT_FOUND),
        "PartitionProduceRequest",
        produces=V2,
        headers=("Idempotency-Key",),
        consumes=PRODUCED,
    ),
    _read_v2(f"{_PARTITION}/offsets", "getPartitionOffsets", "First and end offset of a partition", "PartitionOffsets"),
    _read_v2(
        f"{_PARTITION}/records",
        "readPartition",
        "Records of a partition from an offset on",
        "ReadRecords",
        RECORD_READ,
        RECORDS,
        ("offset!", "timeout", "max_bytes"),
    ),
    GatewayOperation(
        "POST",
        "/consumers/{group}",
        "createInstance",
        "Creates a consumer instance",
        "Instance",
        (*READ_V2, *BODY, Kind.FETCH_MIN_BYTES, Kind.CONSUMER_CONFIG, Kind.INSTANCE_EXISTS),
        "InstanceRequest",
        produces=V2,
        consumes=(*V2, *JSON),
        is_body_required=False,
    ),
    GatewayOperation("DELETE", _INSTANCE, "deleteInstance", "Deletes an instance", "", INSTANCE, statuses=(204,)),
    _change(f"{_INSTANCE}/subscription", "subscribe", "Subscribes to topics or to a pattern", "SubscriptionRequest"),
    _read_v2(f"{_INSTANCE}/subscription", "getSubscription", "The topics of a subscription", "Subscription", INSTANCE),
    GatewayOperation(
        "DELETE", f"{_INSTANCE}/subscription", "unsubscribe", "Ends a subscription", "", INSTANCE, statuses=(204,)
    ),
    _change(f"{_INSTANCE}/assignments", "assign", "Assigns partitions", "Partitions"),
    _read_v2(f"{_INSTANCE}/assignments", "getAssignment", "The assigned partitions", "Assignment", INSTANCE),
    _change(f"{_INSTANCE}/positions", "seek", "Sets the next offsets", "PositionsRequest"),
    _change(f"{_INSTANCE}/positions/beginning", "seekToBeginning", "Sets positions to the first offsets", "Partitions"),
    _change(f"{_INSTANCE}/positions/end", "seekToEnd", "Sets positions to the end offsets", "Partitions"),
    _read_v2(
        f"{_INSTANCE}/records",
        "readInstance",
        "The next records",
        "ReadRecords",
        (*RECORD_READ, Kind.INSTANCE_OR_PARTITION_NOT_FOUND),
        RECORDS,
        ("timeout", "max_bytes"),
    ),
    _change(f"{_INSTANCE}/offsets", "commit", "Commits offsets", "CommitRequest", "Commits", required=False),
    GatewayOperation(
        "GET",
        f"{_INSTANCE}/offsets",
        "getCommitted",
        "Committed offsets of the partitions in the body or the query; without both, of the assigned ones",
        "CommittedOffsets",
        INSTANCE_BODY,
        "Partitions",
        produces=V2,
        consumes=(*V2, *JSON),
        query=("topic", "partition"),
        is_body_required=False,
    ),
    # Version 3
    GatewayOperation(
        "POST",
        f"{_TOPIC_V3}/records",
        "produceRecords",
        "Stores records: one object, or several one after the other. Errors after the headers of the response are "
        "results of records",
        "RecordResult",
        (*BROKERS, Kind.BAD_REQUEST, Kind.UNSUPPORTED_MEDIA_TYPE, Kind.TOPIC_NOT_FOUND),
        "Record",
    ),
    GatewayOperation(
        "POST",
        f"{_TOPIC_V3}/records:batch",
        "produceBatch",
        "Stores the records of a batch",
        "BatchResult",
        (*BROKERS, *BODY, Kind.MALFORMED, Kind.BATCH, Kind.TOPIC_NOT_FOUND),
        "BatchRequest",
        (207,),
        headers=("Idempotency-Key",),
    ),
    _read_v3("/v3/clusters", "listClusters", "The cluster, as a list", "ClusterList"),
    _read_v3(_CLUSTER, "getCluster", "The cluster", "Cluster"),
    _read_v3(f"{_CLUSTER}/brokers", "listBrokers", "Brokers", "BrokerList"),
    _read_v3(f"{_CLUSTER}/brokers/{{broker}}", "getBroker", "A broker", "Broker"),
    _read_v3(
        f"{_CLUSTER}/brokers/{{broker}}/partition-replicas", "listBrokerReplicas", "Replicas on a broker", "ReplicaList"
    ),
    _read_v3(f"{_CLUSTER}/topics", "listTopics", "Topics", "TopicList"),
    GatewayOperation(
        "POST",
        f"{_CLUSTER}/topics",
        "createTopic",
        "Creates a topic; with `validate_only` (200) only checks the request",
        "Topic",
        (*ADMIN, *BODY),
        "TopicRequest",
        (200, 201),
    ),
    _read_v3(_TOPIC_V3, "getTopic", "A topic", "Topic"),
    GatewayOperation("DELETE", _TOPIC_V3, "deleteTopic", "Deletes a topic", "", ADMIN, statuses=(204,)),
    GatewayOperation(
        "PATCH", _TOPIC_V3, "addPartitions", "Adds partitions", "Topic", (*ADMIN, *BODY), "PartitionsCount"
    ),
    _read_v3(f"{_TOPIC_V3}/partitions", "listPartitions", "Partitions", "PartitionList"),
    _read_v3(_PARTITION_V3, "getPartition", "A partition", "Partition", (*ADMIN, Kind.PARTITION_NOT_FOUND)),
    _read_v3(
        f"{_PARTITION_V3}/replicas",
        "listReplicas",
        "Replicas of a partition",
        "ReplicaList",
        (*ADMIN, Kind.PARTITION_NOT_FOUND),
    ),
    _read_v3(
        f"{_PARTITION_V3}/replicas/{{broker}}",
        "getReplica",
        "A replica of a partition",
        "Replica",
        (*ADMIN, Kind.PARTITION_NOT_FOUND),
    ),
    _read_v3(f"{_TOPIC_V3}/configs", "listConfigs", "Configurations of a topic", "TopicConfigList"),
    GatewayOperation(
        "POST",
        f"{_TOPIC_V3}/configs:alter",
        "alterConfigs",
        "Sets configurations, or resets them to their defaults",
        "",
        (*ADMIN, *BODY),
        "ConfigChanges",
        (204,),
    ),
    _read_v3(f"{_TOPIC_V3}/configs/{{config}}", "getConfig", "A configuration of a topic", "TopicConfig"),
    GatewayOperation(
        "PUT",
        f"{_TOPIC_V3}/configs/{{config}}",
        "setConfig",
        "Sets a configuration",
        "",
        (*ADMIN, *BODY),
        "ConfigValue",
        (204,),
    ),
    GatewayOperation(
        "DELETE",
        f"{_TOPIC_V3}/configs/{{config}}",
        "resetConfig",
        "Resets a configuration to its default",
        "",
        ADMIN,
        statuses=(204,),
    ),
    _read_v3(f"{_CLUSTER}/consumer-groups", "listGroups", "Consumer groups", "ConsumerGroupList"),
    _read_v3(_GROUP, "getGroup", "A consumer group", "ConsumerGroup"),
    _read_v3(f"{_GROUP}/consumers", "listConsumers", "Members of a group", "ConsumerList"),
    _read_v3(_CONSUMER, "getConsumer", "A member of a group", "Consumer"),
    _read_v3(f"{_CONSUMER}/assignments", "listAssignments", "Partitions of a member", "ConsumerAssignmentList"),
    _read_v3(
        f"{_CONSUMER}/assignments{_PARTITION.removeprefix('/topics')}",
        "getAssignedPartition",
        "A partition of a member",
        "ConsumerAssignment",
    ),
    _read_v3(
        f"{_GROUP}/lags", "listLags", "Lags of the partitions with committed offsets of a group", "ConsumerLagList"
    ),
    _read_v3(
        f"{_GROUP}/lags{_PARTITION.removeprefix('/topics')}", "getLag", "Lag of a group in a partition", "ConsumerLag"
    ),
    _read_v3(f"{_GROUP}/lag-summary", "getLagSummary", "The largest and the total lag", "ConsumerGroupLagSummary"),
    # Sessions
    GatewayOperation(
        "POST",
        "/v1/sessions",
        "openSession",
        "Opens a session of a source, and ends earlier ones",
        "Session",
        (*SESSION, *BODY, Kind.SESSION_CHANGED, Kind.INVALID_SCHEMA, Kind.REGISTRY_UNAVAILABLE),
        "SessionRequest",
    ),
    GatewayOperation(
        "POST",
        "/v1/sessions/{session}/chunks",
        "storeChunk",
        "Stores the records of a chunk that are not stored yet",
        "ChunkResult",
        (*SESSION, *BODY),
        "Chunk",
        consumes=(LINES, FRAMED, JSON_CHUNK),
        query=("begin",),
        headers=("Headrace-Checksum",),
    ),
    GatewayOperation(
        "DELETE", "/v1/sessions/{session}", "closeSession", "Closes a session", "", SESSION, statuses=(204,)
    ),
    # Transactions
    GatewayOperation(
        "POST",
        "/v1/store",
        "storeTransaction",
        "Stores the chunk of a transaction on the gateway's disk",
        "StoredChunk",
        (*TRANSACTION, Kind.TOPIC_NOT_FOUND, Kind.PARTITION_NOT_FOUND, Kind.DISK_FULL),
        "Chunk",
        consumes=(LINES, FRAMED),
        query=("store:topic", "store:partition", "transaction_id", "log_type", "host", "file", "format"),
        headers=("Headrace-Checksum",),
    ),
    GatewayOperation(
        "POST",
        "/v1/commit_request",
        "requestTransaction",
        "Compares the chunk with its length and checksum, and converts it",
        "StoredChunk",
        (
            *(*TRANSACTION_STEP, Kind.TOPIC_NOT_FOUND, Kind.DISK_FULL),
            *(Kind.RECORDS_REJECTED, Kind.INVALID_SCHEMA, Kind.REGISTRY_UNAVAILABLE),
        ),
        "TransactionRequest",
    ),
    GatewayOperation(
        "POST",
        "/v1/commit",
        "commitTransaction",
        "Writes the chunk, or returns the result of an earlier commit",
        "Committed",
        (*TRANSACTION_STEP, Kind.NOT_CONVERTED, Kind.KAFKA_FAILED, Kind.TOPIC_NOT_FOUND, Kind.PARTITION_NOT_FOUND),
        "TransactionCommit",
    ),
)

ERROR_TEXTS: Final[Mapping[Kind, str]] = {
    Kind.NOT_OWNER: "another gateway owns the source or the transaction",
    Kind.BAD_REQUEST: "the body is malformed, or a field or parameter is invalid",
    Kind.KAFKA_REFUSED: "the brokers refuse the request, or the offset is outside of the partition",
    Kind.NOT_AUTHENTICATED: "credentials are missing or wrong",
    Kind.NOT_AUTHORIZED: "a permission is missing",
    Kind.NOT_FOUND: "the path or the resource does not exist",
    Kind.TOPIC_NOT_FOUND: "the topic does not exist",
    Kind.PARTITION_NOT_FOUND: "the partition does not exist",
    Kind.INSTANCE_OR_PARTITION_NOT_FOUND: "the consumer instance, or in version 3 the topic, does not exist",
    Kind.SESSION_UNKNOWN: "the session is unknown; open it again",
    Kind.TRANSACTION_UNKNOWN: "this gateway has no chunk of the transaction; store it again",
    Kind.NOT_ACCEPTABLE: "the client does not accept JSON",
    Kind.FORMAT_MISMATCH: "the client accepts only other formats of records",
    Kind.BODY_TIMEOUT: "the body did not arrive in time",
    Kind.INSTANCE_EXISTS: "an instance has the name",
    Kind.ILLEGAL_STATE: "the instance consumes nothing, otherwise, or without being a member of its group",
    Kind.SESSION_ENDED: "a later session of the source exists",
    Kind.SESSION_CHANGED: "the newest session of the source is not the previous one of the request",
    Kind.CHUNK_DIFFERS: "the chunk, or the committed transaction, has other content",
    Kind.NOT_CONVERTED: "the commit was not requested",
    Kind.CHUNK_EXPIRED: "the chunk has expired; store it again",
    Kind.TRANSACTION_TOO_OLD: "the id is older than the ledger remembers",
    Kind.BODY_TOO_LARGE: "the body is too large",
    Kind.UNSUPPORTED_MEDIA_TYPE: "the media type or the content encoding is not supported",
    Kind.MALFORMED: "the request has another form",
    Kind.FETCH_MIN_BYTES: "fetch.min.bytes is invalid",
    Kind.KEY_SCHEMA_MISSING: "keys have no schema",
    Kind.VALUE_SCHEMA_MISSING: "values have no schema",
    Kind.UNCONVERTIBLE: "a key or value does not fit its format or schema",
    Kind.CONSUMER_CONFIG: "the configuration of the instance is invalid",
    Kind.INVALID_SCHEMA: "the schema does not exist or is refused",
    Kind.BATCH: "the batch has another form",
    Kind.RECORDS_REJECTED: "records do not fit the schema, or are too large; none is stored",
    Kind.TOO_MANY_REQUESTS: "too many requests, or too much memory for bodies",
    Kind.DEFECT: "the gateway has a defect",
    Kind.KAFKA_FAILED: "the brokers failed the request",
    Kind.KAFKA_RETRIABLE: "the brokers failed the request, which can be repeated",
    Kind.REGISTRY_UNAVAILABLE: "the registry does not respond",
    Kind.KAFKA_UNAVAILABLE: "no broker responds, or the lane is being taken over",
    Kind.DISK_FULL: "the gateway cannot write to its disk",
}
"""Descriptions of the errors that responses may have."""
