"""Committed offsets of all groups, in memory. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headrace.broker.coordinator.records import CommittedOffset, OffsetKey
from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode

TopicPartition = tuple[str, int]
Value = TypeVar("Value")

RETENTION_MS = 7 * 86_400_000
"""An offset that was committed longer ago than this is deleted if its group has had no members for this long either:
Kafka's `offsets.retention.minutes`."""
METADATA_CHARS_MAX = 4096
"""Longest metadata text of a committed offset."""
OFFSET_BYTES, METADATA_CHAR_BYTES = 300, 4
"""Estimated memory of an offset with its key, and of a character of its metadata."""
OFFSETS_MEMORY_BYTES_MAX = 512 * 1024 * 1024
"""Memory limit for the offsets of all groups: about 1.8 million offsets without metadata, or 89 groups on 20,000
partitions. With pending offsets, twice as much."""


@dataclass(frozen=True, slots=True)
class _Pending:
    epoch: int
    offsets: dict[OffsetKey, CommittedOffset] = field(default_factory=dict)


class _PartitionMap(Generic[Value]):
    """Map from group, topic and partition to values, which can also be searched by topic."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, Value]]] = {}
        self._groups_of: dict[str, dict[str, None]] = {}  # topic -> group ids

    def groups(self) -> Set[str]:
        return self._groups.keys()

    def get(self, key: OffsetKey) -> Value | None:
        return self._groups.get(key.group_id, {}).get(key.topic, {}).get(key.partition)

    def of_group(self, group_id: str) -> Mapping[TopicPartition, Value]:
        return _GroupView(self._groups.get(group_id, {}))

    def of_topic(self, topic: str) -> Iterator[OffsetKey]:
        for group_id in self._groups_of.get(topic, ()):
            for partition in self._groups[group_id][topic]:
                yield OffsetKey(group_id, topic, partition)

    def put(self, key: OffsetKey, value: Value) -> None:
        topics = self._groups.setdefault(key.group_id, {})
        if key.topic not in topics:
            topics[key.topic] = {}
            self._groups_of.setdefault(key.topic, {})[key.group_id] = None
        topics[key.topic][key.partition] = value

    def pop(self, key: OffsetKey) -> Value | None:
        partitions = self._groups.get(key.group_id, {}).get(key.topic)
        if partitions is None:
            return None
        value = partitions.pop(key.partition, None)
        if not partitions:
            self._drop(key.group_id, key.topic)
        return value

    def pop_topic(self, topic: str) -> dict[str, dict[int, Value]]:
        """Removes the values of a topic from the map and returns them by group id and partition."""
        return {group_id: self._drop(group_id, topic) for group_id in tuple(self._groups_of.get(topic, ()))}

    def _drop(self, group_id: str, topic: str) -> dict[int, Value]:
        topics, groups = self._groups[group_id], self._groups_of[topic]
        partitions = topics.pop(topic)
        del groups[group_id]
        if not topics:
            del self._groups[group_id]
        if not groups:
            del self._groups_of[topic]
        return partitions


class _GroupView(Mapping[TopicPartition, Value]):
    """View of the values of one group in a `_PartitionMap`; it changes with the map as long as the group has values."""

    __slots__ = ("_topics",)

    def __init__(self, topics: Mapping[str, Mapping[int, Value]]) -> None:
        self._topics = topics

    def __getitem__(self, topic_partition: TopicPartition) -> Value:
        topic, partition = topic_partition
        return self._topics[topic][partition]

    def __iter__(self) -> Iterator[TopicPartition]:
        return ((topic, partition) for topic, partitions in self._topics.items() for partition in partitions)

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))


class OffsetTable:
    """Committed offsets by group and partition, and the pending offsets of open transactions by producer id. A pending
    offset takes effect when its transaction commits."""

    def __init__(self) -> None:
        self._committed: _PartitionMap[CommittedOffset] = _PartitionMap()
        self._pending: dict[int, _Pending] = {}
        # Producer ids with a pending offset for a key, in the order in which they stored it. A commit finds the pending
        # offsets of its partitions without scanning all transactions.
        self._producers: _PartitionMap[dict[int, None]] = _PartitionMap()
        self._bytes_by_topic: Counter[str] = Counter()
        self._memory_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of all offsets, including pending ones."""
        return self._memory_bytes

    def check_capacity(self, offsets: Mapping[OffsetKey, CommittedOffset], *, is_pending: bool = False) -> None:
        """Checks that these offsets fit into the memory limit for the offsets of all groups. Commits outside of
        transactions that replace offsets of at least the same size always fit.

        Args:
            is_pending: the offsets belong to an open transaction. Until it ends, they count in addition to the
                committed offsets that they will replace, so their limit is twice as high.

        Raises:
            RequestRefused: the offsets exceed the limit.
        """
        size = sum(map(_bytes_of, offsets.values()))
        if self._memory_bytes + size <= OFFSETS_MEMORY_BYTES_MAX * (2 if is_pending else 1):
            return
        if is_pending or size > sum(_bytes_of(self.get(key)) for key in offsets):
            raise RequestRefused(
                ErrorCode.POLICY_VIOLATION,
                f"the offsets of all groups use the maximum memory, {self._memory_bytes:,} bytes; delete unused groups",
            )

    def _add_bytes(self, topic: str, added_bytes: int) -> None:
        self._bytes_by_topic[topic] += added_bytes
        self._memory_bytes += added_bytes
        if not self._bytes_by_topic[topic]:
            del self._bytes_by_topic[topic]

    def apply(self, key: OffsetKey, committed: CommittedOffset | None, producer_id: int | None = None) -> None:
        """Stores `committed` as the committed offset of `key` (group, topic, partition); None deletes the offset.

        Also drops pending offsets of `key` that were stored earlier, so that they do not overwrite this newer one: all
        of them if `producer_id` is None. If the commit ends the transaction of `producer_id`, drops only the pending
        offset of this producer and those stored before it.
        """
        for each in tuple(self._producers.get(key) or ()):
            self._add_bytes(key.topic, -_bytes_of(self._pending[each].offsets.pop(key)))
            self._remove_pending_producer(key, each)
            if each == producer_id:
                break
        self._add_bytes(key.topic, _bytes_of(committed) - _bytes_of(self._committed.get(key)))
        if committed is not None:
            self._committed.put(key, committed)
        else:
            self._committed.pop(key)

    def get(self, key: OffsetKey) -> CommittedOffset | None:
        return self._committed.get(key)

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._committed.of_group(group_id)

    def groups(self) -> Iterator[str]:
        return iter(self._committed.groups())

    def of_topic(self, topic: str) -> list[OffsetKey]:
        """Returns the keys (group, topic, partition) of all committed and pending offsets of a topic."""
        return list(dict.fromkeys([*self._committed.of_topic(topic), *self._producers.of_topic(topic)]))

    def remove_topic(self, topic: str) -> Iterator[OffsetKey]:
        """Removes all offsets of a topic at once, committed and pending. Returns their keys as an iterator, because
        there may be hundreds of thousands."""
        pending, committed = self._producers.pop_topic(topic), self._committed.pop_topic(topic)
        self._memory_bytes -= self._bytes_by_topic.pop(topic, 0)
        for group_id, partitions in pending.items():
            for partition, producer_ids in partitions.items():
                for producer_id in producer_ids:
                    del self._pending[producer_id].offsets[OffsetKey(group_id, topic, partition)]
        return (
            OffsetKey(group_id, topic, partition)
            for group_id in tuple({**committed, **pending})
            for partition in {**committed.pop(group_id, {}), **pending.pop(group_id, {})}
        )

    # Pending offsets of transactions

    def add_pending(self, producer_id: int, epoch: int, offsets: Mapping[OffsetKey, CommittedOffset]) -> None:
        pending = self._pending.setdefault(producer_id, _Pending(epoch)).offsets
        for key, committed in offsets.items():
            self._add_bytes(key.topic, _bytes_of(committed) - _bytes_of(pending.get(key)))
            pending[key] = committed
            producers = self._producers.get(key)
            if producers is None:
                self._producers.put(key, {producer_id: None})
            else:
                producers.pop(producer_id, None)
                producers[producer_id] = None

    def drop_pending(self, producer_id: int) -> None:
        pending = self._pending.pop(producer_id, None)
        for key, committed in pending.offsets.items() if pending is not None else ():
            self._add_bytes(key.topic, -_bytes_of(committed))
            self._remove_pending_producer(key, producer_id)

    def _remove_pending_producer(self, key: OffsetKey, producer_id: int) -> None:
        producers = self._producers.get(key)
        assert producers is not None
        del producers[producer_id]
        if not producers:
            self._producers.pop(key)

    def pending_producer(self, key: OffsetKey, committed: CommittedOffset | None) -> int | None:
        """Returns the id of the producer whose open transaction has a pending offset equal to `committed` for `key`
        (group, topic, partition); None if no transaction has one.

        Used when the log is loaded at start: a transaction that commits stores its offsets like any other offsets, and
        only this comparison shows which transaction they belong to.
        """
        producers = self._producers.get(key) or ()
        return next((each for each in producers if self._pending[each].offsets[key] == committed), None)

    def pending(self, producer_id: int) -> Mapping[OffsetKey, CommittedOffset]:
        pending = self._pending.get(producer_id)
        return dict(pending.offsets) if pending is not None else {}

    def all_pending(self) -> list[tuple[int, int, Mapping[OffsetKey, CommittedOffset]]]:
        """Returns the pending offsets of all open transactions as (producer id, producer epoch, offsets by group, topic
        and partition). A transaction may have several entries: if several transactions have a pending offset for the
        same group and partition, each of these offsets is an entry of its own, in the order in which they were stored.
        """
        found: list[tuple[int, int, Mapping[OffsetKey, CommittedOffset]]] = []
        shared: dict[OffsetKey, dict[int, None]] = {}
        for producer_id, each in self._pending.items():
            own = {}
            for key, committed in each.offsets.items():
                producers = self._producers.get(key) or {}
                if len(producers) > 1:
                    shared[key] = producers
                else:
                    own[key] = committed
            if own:
                found.append((producer_id, each.epoch, own))
        for key, producers in shared.items():
            for producer_id in producers:
                pending = self._pending[producer_id]
                found.append((producer_id, pending.epoch, {key: pending.offsets[key]}))
        return found

    def pending_groups(self) -> Set[str]:
        return self._producers.groups()

    def pending_partitions(self, group_id: str) -> Set[TopicPartition]:
        """Returns the partitions for which open transactions have pending offsets of a group."""
        return self._producers.of_group(group_id).keys()

    @staticmethod
    def is_expired(last_used_ms: int, now_ms: int) -> bool:
        return now_ms - last_used_ms > RETENTION_MS

    def expired(self, group_id: str, unused_since_ms: int, now_ms: int) -> list[OffsetKey]:
        """Returns the keys (group, topic, partition) of the offsets of a group without members that were committed more
        than RETENTION_MS before `now_ms`; no keys if the group has had members within that time.

        Args:
            unused_since_ms: time at which the group lost its last member.
            now_ms: wall clock.
        """
        if not self.is_expired(unused_since_ms, now_ms):
            return []
        return [
            OffsetKey(group_id, topic, partition)
            for (topic, partition), committed in self.of_group(group_id).items()
            if self.is_expired(committed.committed_at_ms, now_ms)
        ]


def _bytes_of(committed: CommittedOffset | None) -> int:
    return OFFSET_BYTES + METADATA_CHAR_BYTES * len(committed.metadata) if committed is not None else 0
