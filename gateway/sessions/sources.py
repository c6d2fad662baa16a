"""The state of a lane: its sources, and how far its partitions are reflected in them.

The state topic is compacted and has one partition for each lane. Its records are JSON:

| key | value |
|---|---|
| `["source", topic, source_id]` | partition, last sequence number, offset and checksum of that record, session |
| `["partition", topic, partition]` | offset: the sources reflect all records of the lane before it |
| `["producer", producer_id]` | the newest epoch that fenced the partition of the state topic with this id |
| `["owner"]` | the producer id of the last gateway that served the lane |

Records of sources precede those of their partitions, so a checkpoint that is written in part is an older one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NewType

from headrace.kafka_wire.topic_partition import TopicPartition

SourceKey = NewType("SourceKey", bytes)
"""Hash of a topic and the id of a source in it."""

KEY_BYTES: Final = 16
SOURCE_HEADER: Final = "hr.s"
"""Record header with the id of the source."""
SEQNO_HEADER: Final = "hr.q"
"""Record header with the sequence number, 8 bytes big endian."""
UNKNOWN_CHECKSUM: Final = -1

StateRecord = tuple[bytes, bytes]
"""Key and value of a record of the state topic."""


def source_key(topic: str, source_id: str) -> SourceKey:
    return SourceKey(blake2b(f"{topic}\0{source_id}".encode(), digest_size=KEY_BYTES).digest())


def partition_of(key: SourceKey, partition_count: int) -> int:
    """Returns the partition of a new source. Uses other bits than `lanes.lane_of`, so that a lane's sources spread."""
    return int.from_bytes(key[8:], "big") % partition_count


@dataclass(slots=True)
class SourceState:
    """The stored state of a source.

    Attributes:
        last_seqno: the highest sequence number of a stored record; 0 without one.
        offset: the offset of that record.
        checksum: CRC-32 of the content that the client sent for that record; `UNKNOWN_CHECKSUM` after a scan.
        session: the number of the newest session; a session with a lower number has ended.
        opened_ms: when that session began.
        host: host of the client that opened it.
    """

    topic: str
    source_id: str
    partition: int
    last_seqno: int = 0
    offset: int = -1
    checksum: int = UNKNOWN_CHECKSUM
    session: int = 0
    opened_ms: int = 0
    host: str = ""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def record(self) -> StateRecord:
        value = {
            "partition": self.partition,
            "seqno": self.last_seqno,
            "offset": self.offset,
            "crc": self.checksum,
            "session": self.session,
            "opened": self.opened_ms,
            "host": self.host,
        }
        return _json(["source", self.topic, self.source_id]), _json(value)


def partition_record(topic_partition: TopicPartition, offset: int) -> StateRecord:
    return _json(["partition", topic_partition.topic, topic_partition.partition]), _json({"offset": offset})


def producer_record(producer_id: int, epoch: int) -> StateRecord:
    return _json(["producer", producer_id]), _json({"epoch": epoch})


def owner_record(producer_id: int) -> StateRecord:
    return _json(["owner"]), _json({"producer": producer_id})


@dataclass(slots=True)
class LaneState:
    """The state of one lane in memory.

    Attributes:
        sources: by their keys.
        reflected: by partition that the lane uses, the offset before which all records of the lane are reflected.
        epochs: the newest epoch by producer id, of all producer ids that the lane ever had.
        owner: the producer id of the last gateway that served the lane; None for a new lane.
    """

    sources: dict[SourceKey, SourceState] = field(default_factory=dict)
    reflected: dict[TopicPartition, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    owner: int | None = None

    def load(self, key: bytes | None, value: bytes | None) -> None:
        """Adds a record of the state topic.

        Raises:
            ValueError: the record is not one of the state topic.
        """
        if key is None or value is None:
            raise ValueError("a record has no key or no value")
        name, content = json.loads(key), json.loads(value)
        try:
            match name:
                case ["source", str(topic), str(source_id)]:
                    self.sources[source_key(topic, source_id)] = _source(topic, source_id, content)
                case ["partition", str(topic), int(partition)]:
                    self.reflected[TopicPartition(topic, partition)] = int(content["offset"])
                case ["producer", int(producer_id)]:
                    self.epochs[producer_id] = max(int(content["epoch"]), self.epochs.get(producer_id, -1))
                case ["owner"]:
                    self.owner = int(content["producer"])
                case _:
                    raise ValueError(f"a record has the unknown key {name!r:.200}")
        except (KeyError, TypeError) as error:
            raise ValueError(f"the record with the key {name!r:.200} is malformed: {error!r}") from error

    def found(self, topic_partition: TopicPartition, offset: int, source_id: str, seqno: int) -> SourceKey:
        """Reflects a record that was found in a log after the checkpoint. Returns the key of its source."""
        key = source_key(topic_partition.topic, source_id)
        state = self.sources.get(key)
        if state is None:
            state = self.sources[key] = SourceState(topic_partition.topic, source_id, topic_partition.partition)
        if seqno > state.last_seqno:
            state.last_seqno, state.offset, state.checksum = seqno, offset, UNKNOWN_CHECKSUM
        return key


def _source(topic: str, source_id: str, content: dict[str, Any]) -> SourceState:
    return SourceState(
        topic,
        source_id,
        content["partition"],
        content["seqno"],
        content["offset"],
        content["crc"],
        content["session"],
        content["opened"],
        content["host"],
    )


def checkpoint_records(
    sources: Iterable[SourceState], reflected: Iterable[tuple[TopicPartition, int]]
) -> list[StateRecord]:
    """Returns the records of a checkpoint, in the order in which they must be written."""
    return [
        *(source.record() for source in sources),
        *(partition_record(topic_partition, offset) for topic_partition, offset in reflected),
    ]


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
