"""Maps errors of Kafka to the gateway's errors."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from headrace.clients.kafka_client import error_text
from headrace.gateway.errors import GatewayError, Kind

_KINDS: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: Kind.TOPIC_NOT_FOUND,
    KafkaError._UNKNOWN_TOPIC: Kind.TOPIC_NOT_FOUND,
    KafkaError._UNKNOWN_PARTITION: Kind.PARTITION_NOT_FOUND,
    KafkaError.TOPIC_EXCEPTION: Kind.TOPIC_NOT_FOUND,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Kind.NOT_AUTHORIZED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Kind.NOT_AUTHORIZED,
    KafkaError.MSG_SIZE_TOO_LARGE: Kind.KAFKA_FAILED,
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
    return GatewayError(kind, error_text(error))
