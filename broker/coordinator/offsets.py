"""Committed offsets of all groups, in memory: what the internal topic says, folded. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from headrace.broker.coordinator.records import CommittedOffset, OffsetKey

TopicPartition = tuple[str, int]

RETENTION_MS = 7 * 86_400_000
"""A group's offsets go this long after it was last used: Kafka's `offsets.retention.minutes`."""
METADATA_CHARS_MAX = 4096
"""Of the text a consumer may keep beside an offset."""


@dataclass(frozen=True, slots=True)
class _Pending:
    epoch: int
    offsets: dict[OffsetKey, CommittedOffset] = field(default_factory=dict)


class OffsetTable:
    """Group -> partition -> committed offset; and by producers, what their open transactions are to commit."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._of_topics: Counter[str] = Counter()
        self._pending: dict[int, _Pending] = {}

    def apply(self, key: OffsetKey, committed: CommittedOffset | None) -> None:
        """Folds one record; None deletes. Whatever transactions are to commit for the same place is outdated."""
        for pending in self._pending.values():
            pending.offsets.pop(key, None)
        place = (key.topic, key.partition)
        if committed is not None:
            offsets = self._groups.setdefault(key.group_id, {})
            self._of_topics[key.topic] += place not in offsets
            offsets[place] = committed
            return
        offsets = self._groups.get(key.group_id, {})
        if offsets.pop(place, None) is not None:
            self._of_topics[key.topic] -= 1
            if not self._of_topics[key.topic]:
                del self._of_topics[key.topic]
        if not offsets:
            self._groups.pop(key.group_id, None)

    def get(self, key: OffsetKey) -> CommittedOffset | None:
        return self._groups.get(key.group_id, {}).get((key.topic, key.partition))

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return MappingProxyType(self._groups.get(group_id, {}))

    def groups(self) -> Iterator[str]:
        return iter(self._groups)

    def entries(self) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        for group_id, offsets in self._groups.items():
            for (topic, partition), committed in offsets.items():
                yield OffsetKey(group_id, topic, partition), committed

    def of_topic(self, topic: str) -> list[OffsetKey]:
        """Also of what is not committed yet."""
        pending = {key for each in self._pending.values() for key in each.offsets if key.topic == topic}
        if topic not in self._of_topics:
            return list(pending)
        committed = [
            OffsetKey(group_id, topic, partition)
            for group_id, offsets in self._groups.items()
            for name, partition in offsets
            if name == topic
        ]
        return committed + list(pending.difference(committed))

    # What is not committed yet

    def add_pending(self, producer_id: int, epoch: int, offsets: Mapping[OffsetKey, CommittedOffset]) -> None:
        self._pending.setdefault(producer_id, _Pending(epoch)).offsets.update(offsets)

    def drop_pending(self, producer_id: int) -> None:
        self._pending.pop(producer_id, None)

    def pending(self, producer_id: int) -> Mapping[OffsetKey, CommittedOffset]:
        pending = self._pending.get(producer_id)
        return dict(pending.offsets) if pending is not None else {}

    def all_pending(self) -> list[tuple[int, int, Mapping[OffsetKey, CommittedOffset]]]:
        """(producer id, epoch, offsets) of every transaction that is to commit any."""
        return [(producer_id, each.epoch, each.offsets) for producer_id, each in self._pending.items() if each.offsets]

    def pending_groups(self) -> set[str]:
        return {key.group_id for each in self._pending.values() for key in each.offsets}

    def pending_of(self, group_id: str) -> set[TopicPartition]:
        """Of which partitions open transactions are to commit offsets for a group."""
        keys = (key for each in self._pending.values() for key in each.offsets)
        return {(key.topic, key.partition) for key in keys if key.group_id == group_id}

    @staticmethod
    def is_expired(last_used_ms: int, now_ms: int) -> bool:
        return now_ms - last_used_ms > RETENTION_MS

    def expired(self, group_id: str, unused_since_ms: int, now_ms: int) -> list[OffsetKey]:
        """The offsets of a group without members that nobody used for RETENTION_MS."""
        return [
            OffsetKey(group_id, topic, partition)
            for (topic, partition), committed in self._groups.get(group_id, {}).items()
            if self.is_expired(max(committed.committed_at_ms, unused_since_ms), now_ms)
        ]
