"""Maps errors of Kafka to the gateway's errors."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from headrace.clients.kafka_client import error_text
from headrace.gateway.errors import RETRY_AFTER_S, GatewayError, Kind

_KINDS: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: Kind.TOPIC_NOT_FOUND,
    KafkaError._UNKNOWN_TOPIC: Kind.TOPIC_NOT_FOUND,
    KafkaError._UNKNOWN_PARTITION: Kind.PARTITION_NOT_FOUND,
    KafkaError._NOENT: Kind.PARTITION_NOT_FOUND,  # of a query of offsets
    KafkaError.TOPIC_EXCEPTION: Kind.TOPIC_NOT_FOUND,
    KafkaError._INVALID_ARG: Kind.MALFORMED,
    KafkaError.OFFSET_OUT_OF_RANGE: Kind.KAFKA_REFUSED,
    KafkaError._AUTO_OFFSET_RESET: Kind.KAFKA_REFUSED,
    KafkaError.INVALID_GROUP_ID: Kind.KAFKA_REFUSED,
    KafkaError.OFFSET_METADATA_TOO_LARGE: Kind.KAFKA_REFUSED,
    KafkaError.UNKNOWN_MEMBER_ID: Kind.ILLEGAL_STATE,
    KafkaError.ILLEGAL_GENERATION: Kind.ILLEGAL_STATE,
    KafkaError.REBALANCE_IN_PROGRESS: Kind.KAFKA_RETRIABLE,
    KafkaError.GROUP_AUTHORIZATION_FAILED: Kind.NOT_AUTHORIZED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Kind.NOT_AUTHORIZED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Kind.NOT_AUTHORIZED,
    KafkaError.MSG_SIZE_TOO_LARGE: Kind.KAFKA_FAILED,
    KafkaError._ALL_BROKERS_DOWN: Kind.KAFKA_UNAVAILABLE,
    KafkaError._TRANSPORT: Kind.KAFKA_UNAVAILABLE,
    KafkaError._TIMED_OUT: Kind.KAFKA_UNAVAILABLE,
    KafkaError._MSG_TIMED_OUT: Kind.KAFKA_RETRIABLE,
    KafkaError._FATAL: Kind.KAFKA_RETRIABLE,
    KafkaError._QUEUE_FULL: Kind.KAFKA_RETRIABLE,
    KafkaError._PURGE_QUEUE: Kind.KAFKA_RETRIABLE,
    KafkaError._PURGE_INFLIGHT: Kind.KAFKA_RETRIABLE,
}


def problem_of(error: KafkaError) -> GatewayError:
    """Returns the gateway's error for an error of the Kafka client."""
    kind = _KINDS.get(error.code())
    if kind is None:
        kind = Kind.KAFKA_RETRIABLE if error.retriable() else Kind.KAFKA_FAILED
    retry_after_s = RETRY_AFTER_S if kind is Kind.KAFKA_UNAVAILABLE else None
    return GatewayError(kind, error_text(error), retry_after_s=retry_after_s)


_OF_ADMIN: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: Kind.INSTANCE_OR_PARTITION_NOT_FOUND,
    KafkaError._UNKNOWN_TOPIC: Kind.INSTANCE_OR_PARTITION_NOT_FOUND,
    KafkaError.GROUP_ID_NOT_FOUND: Kind.NOT_FOUND,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Kind.NOT_AUTHORIZED,
    KafkaError.GROUP_AUTHORIZATION_FAILED: Kind.NOT_AUTHORIZED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Kind.NOT_AUTHORIZED,
    KafkaError._TIMED_OUT: Kind.KAFKA_UNAVAILABLE,
    KafkaError._TRANSPORT: Kind.KAFKA_UNAVAILABLE,
}
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_ALREADY_EXISTS,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_REPLICA_ASSIGNMENT,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_REQUEST,
        KafkaError.POLICY_VIOLATION,
        KafkaError._INVALID_ARG,
    }
)
"""Errors of a request that will fail again."""


def admin_problem_of(error: KafkaError) -> GatewayError:
    """Returns the gateway's error for an error of an admin request."""
    kind = Kind.KAFKA_REFUSED if error.code() in _REFUSED else _OF_ADMIN.get(error.code())
    if kind is None:
        kind = Kind.KAFKA_RETRIABLE if error.retriable() else Kind.KAFKA_FAILED
    retry_after_s = RETRY_AFTER_S if kind is Kind.KAFKA_UNAVAILABLE else None
    return GatewayError(kind, error_text(error), retry_after_s=retry_after_s)
