"""JSON schemas of requests, responses and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.gateway.encoding import Format
from headrace.gateway.first_results import KEY_LENGTH_MAX
from headrace.gateway.rest_v2 import PARTITION_MAX
from headrace.gateway.rest_v2_consumers import FETCH_MIN_BYTES_MAX, FORMATS
from headrace.gateway.rest_v3 import BATCH_ENTRIES_MAX, STRATEGIES
from headrace.gateway.rest_v3_cluster import PARTITIONS_MAX, REPLICAS_MAX
from headrace.gateway.sessions.chunk_body import SEQNO_MAX
from headrace.gateway.sessions.routes import FILE_BYTES_MAX, NAME_BYTES_MAX

Json = dict[str, Any]


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


def _object(required: str = "", /, **properties: Json) -> Json:
    """The schema of an object with these properties only. `required` are names, or "*" for all."""
    names = list(properties) if required == "*" else required.split()
    found: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": names} if names else found


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _or_digits(schema: Json, most: int) -> Json:
    """The schema of a number, which may also be a text of its digits."""
    return {"anyOf": [schema, {"type": "string", "pattern": f"^[0-9]{{1,{most}}}$"}]}


def _with(schema: Json, required: str = "", /, **properties: Json) -> Json:
    """An object's schema with more properties."""
    names = [*schema.get("required", ()), *required.split()]
    return {**schema, "properties": schema["properties"] | properties, **({"required": names} if names else {})}


TEXT: Final[Json] = {"type": "string"}
NAME: Final[Json] = {"type": "string", "minLength": 1}
OPTIONAL_TEXT: Final[Json] = {"type": ["string", "null"]}
FLAG: Final[Json] = {"type": "boolean"}
OPTIONAL_FLAG: Final[Json] = {"type": ["boolean", "null"]}
ANY: Final[Json] = {}
INT32: Final[Json] = {"type": "integer", "format": "int32"}
INT64: Final[Json] = {"type": "integer", "format": "int64"}
OPTIONAL_INT: Final[Json] = {"type": ["integer", "null"]}
PLAIN_NUMBER: Final[Json] = {**INT32, "minimum": 0, "maximum": PARTITION_MAX}
NUMBER: Final[Json] = _or_digits(PLAIN_NUMBER, 9)
OPTIONAL_NUMBER: Final[Json] = _or_null(NUMBER)
PLAIN_OFFSET: Final[Json] = {**INT64, "minimum": 0, "maximum": 2**63 - 2}
OFFSET: Final[Json] = _or_digits(PLAIN_OFFSET, 18)
SEQNO: Final[Json] = {**INT64, "minimum": 1, "maximum": SEQNO_MAX}
BASE64: Final[Json] = {"type": ["string", "null"], "contentEncoding": "base64"}
TOPIC: Final[Json] = {"type": "string", "pattern": "^[a-zA-Z0-9._-]{1,249}$"}
URL: Final[Json] = {"type": "string", "format": "uri"}
TRANSACTION_ID: Final[Json] = {"type": "string", "pattern": "^[0-9a-f]{12}-[0-9a-f]{16}$"}
LENGTH: Final[Json] = {**INT32, "minimum": 0}
CHECKSUM: Final[Json] = {"type": "string", "pattern": "^crc32=[0-9a-fA-F]{8}$"}

# Requests

TIME: Final[Json] = {
    "description": "milliseconds since 1970, or a time of ISO 8601 with its time zone",
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": 253_402_300_799_999},
        {"type": "string", "format": "date-time"},
        {"type": "null"},
    ],
}
RECORD_HEADERS: Final[Json] = {
    "anyOf": [_list(_object("name", name=TEXT, value=BASE64)), {"type": "null"}],
}
PLACE: Final[Json] = _object("*", topic=TOPIC, partition=NUMBER)
OFFSETS: Final[Json] = _list(_with(PLACE, "offset", offset=OFFSET, metadata=OPTIONAL_TEXT))
TIMES: Final[Json] = _list(_with(PLACE, "timestamp", timestamp=TIME))
CONFIG_VALUE: Final[Json] = {"type": ["string", "number", "boolean"]}
SESSION_NAME: Final[Json] = {"type": ["string", "null"], "maxLength": NAME_BYTES_MAX}


def _one_of(values: tuple[str, ...] | list[str]) -> Json:
    return {"enum": [*values, None]}


def _count(most: int) -> Json:
    return {
        "description": "-1 is the brokers' default",
        "anyOf": [{"const": -1}, {"type": "integer", "minimum": 1, "maximum": most}, {"type": "null"}],
    }


def _produce_request(record: str) -> Json:
    return _object(
        "records",
        records=_list(ref(record), minItems=1),
        key_schema=OPTIONAL_TEXT,
        key_schema_id=OPTIONAL_NUMBER,
        value_schema=OPTIONAL_TEXT,
        value_schema_id=OPTIONAL_NUMBER,
        key_format={"enum": [str(one) for one in Format]},
    )


PARTITION_RECORD: Final[Json] = _object(key=ANY, value=ANY, headers=RECORD_HEADERS, timestamp=TIME)
REQUESTS: Final[Mapping[str, Json]] = {
    "ProduceRequest": _produce_request("ProduceRecord"),
    "ProduceRecord": _with(PARTITION_RECORD, partition=OPTIONAL_NUMBER),
    "PartitionProduceRequest": _produce_request("PartitionProduceRecord"),
    "PartitionProduceRecord": PARTITION_RECORD,
    "InstanceRequest": _object(
        **{
            "id": OPTIONAL_TEXT,
            "name": OPTIONAL_TEXT,
            "format": _one_of([str(one) for one in FORMATS]),
            "key_format": _one_of([str(one) for one in Format]),
            "auto.offset.reset": _one_of(["earliest", "latest", "none"]),
            "auto.commit.enable": {"enum": ["true", "false", True, False, None]},
            "fetch.min.bytes": _or_null({**INT32, "minimum": -1, "maximum": FETCH_MIN_BYTES_MAX}),
            "consumer.request.timeout.ms": _or_null(NUMBER),
        }
    ),
    "SubscriptionRequest": {
        "type": "object",
        "properties": {
            "topics": _list(TOPIC, minItems=1),
            "topic_pattern": {"type": "string", "minLength": 1, "description": "a POSIX expression for whole names"},
        },
        "minProperties": 1,
        "maxProperties": 1,
    },
    "Partitions": {"type": "object", "properties": {"partitions": _list(PLACE)}, "required": ["partitions"]},
    "PositionsRequest": {
        "type": "object",
        "properties": {"offsets": OFFSETS, "timestamps": TIMES},
        "minProperties": 1,
    },
    "CommitRequest": {
        "type": "object",
        "properties": {"offsets": OFFSETS},
        "required": ["offsets"],
        "description": "offsets of the last processed records; without a body, commits all delivered records",
    },
    "Record": _object(
        partition_id=OPTIONAL_NUMBER,
        headers=RECORD_HEADERS,
        key=_or_null(ref("Data")),
        value=_or_null(ref("Data")),
        timestamp=TIME,
    ),
    "Data": {
        "description": "a key or value; without a type, in Avro by the subject's latest schema, an id or a version",
        "anyOf": [ref("PlainData"), ref("DataWithSchema"), ref("DataOfRegisteredSchema")],
    },
    "PlainData": _object("type", type={"enum": ["BINARY", "JSON", "STRING"]}, data=ANY),
    "DataWithSchema": _object(
        "type schema",
        type={"const": "AVRO"},
        schema=TEXT,
        subject=OPTIONAL_TEXT,
        subject_name_strategy=_one_of(STRATEGIES),
        data=ANY,
    ),
    "DataOfRegisteredSchema": _object(
        type={"type": "null"},
        subject=OPTIONAL_TEXT,
        subject_name_strategy=_one_of(STRATEGIES),
        schema_id=OPTIONAL_NUMBER,
        schema_version=OPTIONAL_NUMBER,
        schema=OPTIONAL_TEXT,
        data=ANY,
    ),
    "BatchRequest": _object("*", entries=_list(ref("BatchEntry"), minItems=1, maxItems=BATCH_ENTRIES_MAX)),
    "BatchEntry": _object(
        "id",
        id=NAME,
        partition_id=OPTIONAL_NUMBER,
        headers=RECORD_HEADERS,
        key=_or_null(ref("Data")),
        value=_or_null(ref("Data")),
        timestamp=TIME,
    ),
    "TopicRequest": _object(
        "topic_name",
        topic_name=TOPIC,
        partitions_count=_count(PARTITIONS_MAX),
        replication_factor=_count(REPLICAS_MAX),
        configs=_or_null(_list(_object("*", name=NAME, value=CONFIG_VALUE))),
        validate_only=OPTIONAL_FLAG,
    ),
    "PartitionsCount": _object("*", partitions_count={**INT32, "minimum": 1, "maximum": PARTITIONS_MAX}),
    "ConfigValue": _object("*", value=CONFIG_VALUE),
    "ConfigChanges": _object(
        "data",
        data=_list(
            {
                "anyOf": [
                    _object("name value", name=NAME, value=CONFIG_VALUE, operation=_one_of(["SET"])),
                    _object("name operation", name=NAME, value=OPTIONAL_TEXT, operation={"const": "DELETE"}),
                ]
            },
            minItems=1,
        ),
        validate_only=OPTIONAL_FLAG,
    ),
    "SessionRequest": {
        **_object(
            "source_id",
            topic=TOPIC,
            source_id={"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX},
            log_type=SESSION_NAME,
            host=SESSION_NAME,
            file={"type": ["string", "null"], "maxLength": FILE_BYTES_MAX},
            format=_one_of(["lines", "json", "binary"]),
            previous={"type": ["integer", "null"], "minimum": 0},
        ),
        "anyOf": [{"required": ["topic"]}, {"required": ["log_type"]}],
    },
    "TransactionRequest": _object("*", transaction_id=TRANSACTION_ID, length=LENGTH, checksum=CHECKSUM),
    "TransactionCommit": _object("*", transaction_id=TRANSACTION_ID),
    "JsonChunk": _object(
        "*",
        records=_list(
            _object("seqno value", seqno=SEQNO, value=ANY, time={"type": ["integer", "string", "null"]}),
        ),
    ),
}
"""JSON schemas of request bodies, and of objects in them."""

# Responses

STORED: Final[Json] = _object(
    "error_code cluster_id topic_name partition_id offset timestamp",
    error_code={"const": 200},
    cluster_id=TEXT,
    topic_name=TEXT,
    partition_id=INT32,
    offset=INT64,
    timestamp={"type": "string", "format": "date-time"},
    key=ref("DataResult"),
    value=ref("DataResult"),
)
STORED_ENTRY: Final[Json] = {
    **STORED,
    "properties": {"id": TEXT, **{name: one for name, one in STORED["properties"].items() if name != "error_code"}},
    "required": ["id", *STORED["required"][1:]],
}


def _resource(kind: str, /, **fields: Json) -> tuple[tuple[str, Json], tuple[str, Json]]:
    """The components of a kind of resources in version 3: of one, and of a list of them."""
    metadata = _object("*", self=URL, resource_name=TEXT)
    one = _object("*", kind={"const": f"Kafka{kind}"}, metadata=metadata, cluster_id=TEXT, **fields)
    several = _object(
        "*",
        kind={"const": f"Kafka{kind}List"},
        metadata=_object("*", self=URL, next={"type": "null"}),
        data=_list(ref(kind)),
    )
    return (kind, one), (f"{kind}List", several)


RELATED: Final = ref("Related")
RESOURCES: Final[Mapping[str, Json]] = dict(
    component
    for pair in (
        _resource(
            "Cluster",
            controller=_or_null(RELATED),
            acls=RELATED,
            brokers=RELATED,
            broker_configs=RELATED,
            consumer_groups=RELATED,
            topics=RELATED,
            partition_reassignments=RELATED,
        ),
        _resource(
            "Broker",
            broker_id=INT32,
            host=TEXT,
            port=INT32,
            rack=OPTIONAL_TEXT,
            configs=RELATED,
            partition_replicas=RELATED,
        ),
        _resource(
            "Topic",
            topic_name=TEXT,
            is_internal=FLAG,
            replication_factor=INT32,
            partitions_count=INT32,
            partitions=RELATED,
            configs=RELATED,
            partition_reassignments=RELATED,
            authorized_operations=_list(TEXT, maxItems=0),
        ),
        _resource(
            "Partition",
            topic_name=TEXT,
            partition_id=INT32,
            leader=_or_null(RELATED),
            replicas=RELATED,
            reassignment=RELATED,
        ),
        _resource(
            "Replica",
            topic_name=TEXT,
            partition_id=INT32,
            broker_id=INT32,
            is_leader=FLAG,
            is_in_sync=FLAG,
            broker=RELATED,
        ),
        _resource(
            "TopicConfig",
            topic_name=TEXT,
            name=TEXT,
            value=OPTIONAL_TEXT,
            is_default=FLAG,
            is_read_only=FLAG,
            is_sensitive=FLAG,
            source=TEXT,
            synonyms=_list(_object("*", name=TEXT, value=OPTIONAL_TEXT, source=TEXT)),
        ),
        _resource(
            "ConsumerGroup",
            consumer_group_id=TEXT,
            is_simple=FLAG,
            partition_assignor=TEXT,
            state=TEXT,
            coordinator=_or_null(RELATED),
            consumers=RELATED,
            lag_summary=RELATED,
        ),
        _resource(
            "Consumer",
            consumer_group_id=TEXT,
            consumer_id=TEXT,
            instance_id=OPTIONAL_TEXT,
            client_id=TEXT,
            assignments=RELATED,
        ),
        _resource(
            "ConsumerAssignment",
            consumer_group_id=TEXT,
            consumer_id=TEXT,
            topic_name=TEXT,
            partition_id=INT32,
            partition=RELATED,
            lag=RELATED,
        ),
        _resource(
            "ConsumerLag",
            consumer_group_id=TEXT,
            topic_name=TEXT,
            partition_id=INT32,
            consumer_id=TEXT,
            instance_id=OPTIONAL_TEXT,
            client_id=TEXT,
            current_offset=INT64,
            log_end_offset=INT64,
            lag={**INT64, "minimum": 0},
        ),
        _resource(
            "ConsumerGroupLagSummary",
            consumer_group_id=TEXT,
            max_lag_consumer_id=TEXT,
            max_lag_consumer=RELATED,
            max_lag_instance_id=OPTIONAL_TEXT,
            max_lag_client_id=TEXT,
            max_lag_topic_name=TEXT,
            max_lag_partition_id=INT32,
            max_lag={**INT64, "minimum": 0},
            total_lag={**INT64, "minimum": 0},
            max_lag_partition=RELATED,
        )[:1],
    )
    for component in pair
)
"""JSON schemas of the resources of version 3, and of lists of them."""

RESPONSES: Final[Mapping[str, Json]] = {
    "Error": _object("*", error_code={"type": "integer"}, message=TEXT),
    "Empty": _object(),
    "Document": {"type": "object"},
    "Liveness": _object("*", status={"const": "ok"}, responses=INT64, server_errors=INT64),
    "Readiness": _object("*", status={"const": "ready"}),
    "Names": _list(TEXT),
    "BrokerIds": _object("*", brokers=_list(INT32)),
    "TopicDescription": _object(
        "*",
        name=TEXT,
        configs={"type": "object", "additionalProperties": OPTIONAL_TEXT},
        partitions=_list(ref("PartitionDescription")),
    ),
    "PartitionDescription": _object(
        "*",
        partition=INT32,
        leader=INT32,
        replicas=_list(_object("*", broker=INT32, leader=FLAG, in_sync=FLAG)),
    ),
    "PartitionDescriptions": _list(ref("PartitionDescription")),
    "PartitionOffsets": _object("*", beginning_offset=INT64, end_offset=INT64),
    "ProduceResult": _object(
        "*",
        offsets=_list(
            _object("*", partition=OPTIONAL_INT, offset=OPTIONAL_INT, error_code=OPTIONAL_INT, error=OPTIONAL_TEXT)
        ),
        key_schema_id=OPTIONAL_INT,
        value_schema_id=OPTIONAL_INT,
    ),
    "Instance": _object("*", instance_id=TEXT, base_uri=URL),
    "Subscription": _object("*", topics=_list(TEXT)),
    "Assignment": _object("*", partitions=_list(_object("*", topic=TEXT, partition=INT32))),
    "CommittedOffsets": _object(
        "*", offsets=_list(_object("*", topic=TEXT, partition=INT32, offset=INT64, metadata=TEXT))
    ),
    "Commits": _list(ANY, maxItems=0),
    "ReadRecords": _list(ref("ReadRecord")),
    "ReadRecord": _object(
        "topic key value partition offset timestamp",
        topic=TEXT,
        key=ANY,
        value=ANY,
        partition=INT32,
        offset=INT64,
        timestamp=INT64,
        headers=_list(_object("*", name=TEXT, value=BASE64)),
        error_code={"const": 42207},
        error={"type": "string", "description": "the key or the value is not in the format of the read"},
        base64=_list({"enum": ["key", "value"]}),
    ),
    "RecordResult": {
        "description": "one for each record, in their order, separated by CR LF",
        "anyOf": [ref("StoredRecord"), ref("Error")],
    },
    "StoredRecord": STORED,
    "DataResult": _object(
        "type size",
        type={"enum": list(Format.__members__)},
        size=INT32,
        subject=TEXT,
        schema_id=INT32,
        schema_version=OPTIONAL_INT,
    ),
    "BatchResult": _object("*", successes=_list(ref("StoredEntry")), failures=_list(ref("FailedEntry"))),
    "StoredEntry": STORED_ENTRY,
    "FailedEntry": _object("*", id=TEXT, error_code={"type": "integer"}, message=TEXT),
    "Related": _object("*", related=URL),
    **RESOURCES,
    "Session": _object(
        "*",
        session=TEXT,
        session_number=INT64,
        topic=TEXT,
        partition=INT32,
        last_seqno=INT64,
        max_chunk_bytes=INT32,
        lease_seconds=INT32,
        url=URL,
    ),
    "ChunkResult": _object(
        "last_seqno written skipped rejected",
        last_seqno=INT64,
        written=INT32,
        skipped=INT32,
        rejected=_list(_object("*", seqno=INT64, error_code={"const": 42203}, message=TEXT)),
        conflict={"const": True, "description": "the last stored record had other content"},
    ),
    "ChangedSession": _object("*", error_code={"type": "integer"}, message=TEXT, session_number=INT64),
    "StoredChunk": _object(
        "*",
        transaction_id=TRANSACTION_ID,
        topic=TEXT,
        length=LENGTH,
        checksum=CHECKSUM,
        records=OPTIONAL_INT,
        expires={"type": "string", "format": "date-time"},
        url=URL,
    ),
    "Committed": _object(
        "*",
        transaction_id=TRANSACTION_ID,
        topic=TEXT,
        offsets=_list(_object("*", partition=INT32, start=INT64, end=INT64)),
        records=INT32,
        length=LENGTH,
        checksum=CHECKSUM,
    ),
    "RejectedRecords": _object(
        "error_code message",
        error_code={"type": "integer"},
        message=TEXT,
        rejected_count=INT32,
        rejected=_list(_object("*", record=INT32, message=TEXT)),
    ),
    "EndedSession": _object(
        "*",
        error_code={"type": "integer"},
        message=TEXT,
        host=TEXT,
        opened_at={"type": "string", "format": "date-time"},
    ),
}
"""JSON schemas of responses, and of objects in them."""

SCHEMAS: Final[Mapping[str, Json]] = {**RESPONSES, **REQUESTS}

# Parameters

PATH_PARAMETERS: Final[Mapping[str, tuple[Json, str]]] = {
    "topic": (TOPIC, "a topic"),
    "partition": (PLAIN_NUMBER, "a partition"),
    "group": (NAME, "a consumer group"),
    "instance": (NAME, "a consumer instance"),
    "cluster": (NAME, "the id of the cluster; only its own resource compares it"),
    "broker": (PLAIN_NUMBER, "a broker"),
    "config": (NAME, "the name of a configuration"),
    "consumer": (NAME, "the id of a member of the group"),
    "session": ({"type": "string", "minLength": 1, "examples": ["fcdff7f6dfb69f22337d19a33071cff0-1"]}, "a session"),
}
"""JSON schema and description of each path parameter."""

MILLISECONDS: Final[Json] = {**INT64, "minimum": -(10**18), "maximum": 10**18}
QUERY: Final[Mapping[str, tuple[Json, str]]] = {
    "timeout": (MILLISECONDS, "longest wait for records in milliseconds, at most 60,000; negative for the default"),
    "max_bytes": (MILLISECONDS, "size of the records above which the read ends; it has one at least"),
    "offset": (PLAIN_OFFSET, "the offset of the first record"),
    "topic": (_list(TOPIC), "the topic of the n-th partition"),
    "partition": (_list(PLAIN_NUMBER), "the n-th partition"),
    "store:topic": (TOPIC, "the topic"),
    "store:partition": (PLAIN_NUMBER, "the partition; by default one that the transaction determines"),
    "transaction_id": (TRANSACTION_ID, "the id of a transaction whose chunk is stored again"),
    "log_type": (TEXT, "the log type, from which the topic follows; becomes a header of the records"),
    "host": (TEXT, "the host of the records"),
    "file": (TEXT, "the file of the records"),
    "format": ({"enum": ["lines", "json", "binary"]}, "the format of the records"),
    "begin": ({**INT64, "minimum": 0, "maximum": SEQNO_MAX}, "the number before the first line; for text/plain only"),
}
"""JSON schema and description of each parameter of the query; `OPERATION:` precedes a name that has several."""

HEADERS: Final[Mapping[str, tuple[Json, str]]] = {
    "Headrace-Checksum": (
        {"type": "string", "pattern": "^crc32=[0-9a-fA-F]{1,8}$"},
        "CRC-32 of the decompressed body, which is compared",
    ),
    "Idempotency-Key": (
        {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH_MAX},
        "Unique text. A repeated request with it and the same body gets the first response, and stores nothing",
    ),
}
"""JSON schema and description of each header of requests."""
