"""Reads a broker's stored batches with Headrace's own wire code, so that a client whose reader and writer share a
mistake is detected."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.record_batch import (
    CODEC_MASK,
    CONTROL,
    TRANSACTIONAL,
    Batch,
    parse_headers,
    read_batch,
    split_batches,
)
from headrace.kafka_wire.topic_partition import TopicPartition

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FETCH_BYTES = 1 << 20
BATCH_BYTES_MAX = 1 << 24


def stored_batches(address: str, topic: str, partition: int = 0) -> list[Batch]:
    """Returns all batches of a partition, including transaction markers and batches of aborted transactions."""
    topic_partition = TopicPartition(topic, partition)
    batches: list[Batch] = []
    offset = 0
    with KafkaCluster(address) as cluster:
        end = cluster.offsets([topic_partition], "latest")[topic_partition]
        while offset < end:
            fetched = cluster.fetch(topic_partition, offset, FETCH_BYTES)
            for frame in split_batches(fetched.records, topic):
                batch = read_batch(frame, topic, BATCH_BYTES_MAX)
                assert batch.base_offset >= offset, f"{topic}-{partition}: {batch.base_offset} comes after {offset}"
                batches.append(batch)
                offset = batch.next_offset
    return batches


def codecs(batches: list[Batch]) -> set[str]:
    """Returns the names of the compression codecs of all batches except transaction markers, which the broker
    writes."""
    return {CODECS[batch.attributes & CODEC_MASK] for batch in batches if not batch.attributes & CONTROL}


def is_idempotent(batches: list[Batch]) -> bool:
    return bool(batches) and all(batch.producer_id >= 0 for batch in batches)


def is_transactional(batches: list[Batch]) -> bool:
    return bool(batches) and all(batch.attributes & TRANSACTIONAL for batch in batches)


def values(batches: list[Batch]) -> dict[int, bytes | None]:
    """Returns the values of all messages by offset."""
    return {
        offset: value for batch in batches if not batch.attributes & CONTROL for offset, _, _, value, _ in batch.records
    }


def messages(batches: list[Batch]) -> list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    """Returns timestamp, key, value and headers of each message, without transaction markers."""
    return [
        (time_ms, key, value, parse_headers(headers))
        for batch in batches
        if not batch.attributes & CONTROL
        for _, time_ms, key, value, headers in batch.records
    ]


def check_written_once(address: str, topic: str, acknowledged: Mapping[int, tuple[int, int]]) -> None:
    """Checks that the acknowledged messages of an idempotent producer, and no others, are stored once each, at their
    acknowledged partitions and offsets, and in the order in which they were sent."""
    for partition in sorted({partition for partition, _ in acknowledged.values()}):
        batches = stored_batches(address, topic, partition)
        assert is_idempotent(batches)
        found = {offset: int(value or b"") for offset, value in values(batches).items()}
        assert list(found) == list(range(len(found)))
        assert list(found.values()) == sorted(
            number for number, topic_partition in acknowledged.items() if topic_partition[0] == partition
        )
        # If an acknowledgement was lost with the broker, the retry may be acknowledged without an offset, as -1.
        result = {offset: number for number, (of, offset) in acknowledged.items() if of == partition and offset >= 0}
        assert result == {offset: found[offset] for offset in result}
