"""What a broker holds of a partition, read by nothing but our own wire code, so that a client that reads as wrongly as
it writes is found out."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.record_batch import CODEC_MASK, CONTROL, TRANSACTIONAL, Batch, frames, headers_of, read_batch
from headrace.kafka_wire.topic_partition import TopicPartition

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FETCH_BYTES = 1 << 20
BATCH_BYTES_MAX = 1 << 24


def held(address: str, topic: str, partition: int = 0) -> list[Batch]:
    """All batches, also those of transactions that were aborted, and their markers."""
    place = TopicPartition(topic, partition)
    batches: list[Batch] = []
    offset = 0
    with KafkaCluster(address) as cluster:
        end = cluster.offsets([place], "latest")[place]
        while offset < end:
            piece = cluster.fetch(place, offset, FETCH_BYTES)
            for frame in frames(piece.records, topic):
                batch = read_batch(frame, topic, BATCH_BYTES_MAX)
                assert batch.base_offset >= offset, f"{topic}-{partition}: {batch.base_offset} comes after {offset}"
                batches.append(batch)
                offset = batch.next_offset
    return batches


def codecs(batches: list[Batch]) -> set[str]:
    """Those of the batches of clients; markers are the broker's."""
    return {CODECS[batch.attributes & CODEC_MASK] for batch in batches if not batch.attributes & CONTROL}


def is_idempotent(batches: list[Batch]) -> bool:
    return bool(batches) and all(batch.producer_id >= 0 for batch in batches)


def is_transactional(batches: list[Batch]) -> bool:
    return bool(batches) and all(batch.attributes & TRANSACTIONAL for batch in batches)


def values(batches: list[Batch]) -> dict[int, bytes | None]:
    """By offset."""
    return {
        offset: value for batch in batches if not batch.attributes & CONTROL for offset, _, _, value, _ in batch.records
    }


def messages(batches: list[Batch]) -> list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    """Time, key, value and headers of each."""
    return [
        (time_ms, key, value, headers_of(headers))
        for batch in batches
        if not batch.attributes & CONTROL
        for _, time_ms, key, value, headers in batch.records
    ]


def check_written_once(address: str, topic: str, acknowledged: Mapping[int, tuple[int, int]]) -> None:
    """The numbers that an idempotent producer was told are at these partitions and offsets are there, once each, in the
    order in which they were sent, and nothing else is."""
    for partition in sorted({partition for partition, _ in acknowledged.values()}):
        batches = held(address, topic, partition)
        assert is_idempotent(batches)
        found = {offset: int(value or b"") for offset, value in values(batches).items()}
        assert list(found) == list(range(len(found)))
        assert list(found.values()) == sorted(number for number, place in acknowledged.items() if place[0] == partition)
        # An acknowledgement that was lost with its broker may have come again without the offset, which is then -1.
        told = {offset: number for number, (of, offset) in acknowledged.items() if of == partition and offset >= 0}
        assert told == {offset: found[offset] for offset in told}
