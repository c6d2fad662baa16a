"""The log of each partition of a topic around a position, from one Fetch request per broker: its offsets, and the time
of the first batch from the position on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafka.protocol.consumer import FetchRequest, FetchResponse

from headrace.kafka_wire import fetch_response
from headrace.kafka_wire.connection import NONE, BrokerConnection, error_name
from headrace.kafka_wire.errors import ErrorResponse
from headrace.kafka_wire.record_batch import HEADER_BYTES, MAGIC, read_batch_header
from headrace.kafka_wire.requests import FETCH_BY_ID_FROM, OFFSET_OUT_OF_RANGE, READ_COMMITTED
from headrace.kafka_wire.topic_partition import TopicPartition

BYTES_MAX: Final = 4 * 1024 * 1024
"""Limit of a response, which its partitions share."""
PARTITION_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogHead:
    """A partition's log from a position on.

    `last_stable_offset` and `high_watermark` are its ends for readers of committed transactions and for others.
    `first_ms` is the newest time in the first batch from the position on, in milliseconds since 1970. It is None
    without such a batch, and if the batch is larger than the partition's share of the response.
    """

    last_stable_offset: int
    high_watermark: int
    first_ms: int | None


def log_heads(
    connection: BrokerConnection,
    requested: Sequence[TopicPartition],
    positions: Mapping[TopicPartition, int],
) -> dict[TopicPartition, tuple[int, LogHead | None]]:
    """Requests the logs of partitions of one topic from a position on; returns an error code and a log for each, None
    for a position that is not in the log.

    Args:
        connection: a connection to the leader of the partitions.
        positions: the offset by partition.

    Raises:
        ErrorResponse: the broker rejected the request.
    """
    # By name: the newer versions require the topic's id.
    version = connection.version(FetchRequest, FETCH_BY_ID_FROM - 1, oldest=fetch_response.OLDEST)
    topic = FetchRequest.FetchTopic
    share = min(PARTITION_BYTES_MAX, BYTES_MAX // max(1, len(requested)))
    partitions = [
        topic.FetchPartition(
            version=version, partition=tp.partition, fetch_offset=positions[tp], partition_max_bytes=share
        )
        for tp in requested
    ]
    name = requested[0].topic
    request = FetchRequest(
        version=version,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=BYTES_MAX,
        isolation_level=READ_COMMITTED,
        topics=[topic(version=version, topic=name, partitions=partitions)],
    )
    response = connection.call(request, FetchResponse, version, decode=fetch_response.read_fetch_response)
    if response.error_code != NONE:
        code = response.error_code
        raise ErrorResponse(connection.name, f"a fetch of topic {name}", code, error_name(code))
    return {TopicPartition(name, one.partition): _head(one) for one in response.partitions}


def _head(found: fetch_response.PartitionRecords) -> tuple[int, LogHead | None]:
    if found.error_code == OFFSET_OUT_OF_RANGE:
        return NONE, None
    first_ms = None
    if len(found.records) >= HEADER_BYTES:
        header = read_batch_header(found.records)
        first_ms = header.max_timestamp if header.magic == MAGIC and header.max_timestamp >= 0 else None
    return found.error_code, LogHead(found.last_stable_offset, found.high_watermark, first_ms)
