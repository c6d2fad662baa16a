"""The groups of this node and their committed offsets: in memory, and in the log that they are folded from.

They are stored in one partition of `__consumer_offsets`. One OffsetCommit is one record batch, so by the batch's CRC it
is in the log as a whole or not at all, for all its partitions.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from headrace.broker.coordinator.consumer_group import ConsumerGroup
from headrace.broker.coordinator.consumer_records import (
    ConsumerKey,
    RecordKind,
    StoredGroup,
    consumer_entry,
    encode_consumer_key,
    keys_of,
    unstored_entries,
)
from headrace.broker.coordinator.group import NAME_CHARS_MAX, Group
from headrace.broker.coordinator.offsets import OffsetTable
from headrace.broker.coordinator.records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_key,
    encode_offset,
)
from headrace.broker.coordinator.table import Entry, LogTable
from headrace.broker.errors import RequestRefused
from headrace.broker.log.opened import opened
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.errors import CorruptBatch, MalformedMessage
from headrace.kafka_wire.record_batch import CONTROL, TRANSACTIONAL

logger = logging.getLogger(__name__)

GROUPS_MAX = 50_000
"""They are all in memory."""

Key = GroupKey | OffsetKey | ConsumerKey


class GroupStore:
    """`groups` by id, and `offsets`; what changes in them is appended by whoever changes it. Not for use by threads.

    `now_ms` is the wall clock, for what is stored; `monotonic_ms` that of deadlines. `on_due` is called when the log
    has grown so much that it should be compacted. The other two make a group of the one protocol or of the other, by
    its id.
    """

    def __init__(
        self,
        table: LogTable,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        *,
        on_due: Callable[[], None],
        make_classic: Callable[[str], Group],
        make_consumer: Callable[[str], ConsumerGroup],
    ) -> None:
        self.groups: dict[str, Group | ConsumerGroup] = {}
        self.offsets = OffsetTable()
        self.table = table
        self._now_ms, self._on_due = now_ms, on_due
        self._make_classic, self._make_consumer = make_classic, make_consumer
        self._unused_since_ms: dict[str, int] = {}
        self._load(monotonic_ms)

    def append(self, entries: Sequence[Entry], *, producer_id: int = -1, producer_epoch: int = -1) -> None:
        """Appends one batch; with a producer, as a part of its transaction.

        Raises:
            RequestRefused: the disk refused it.
        """
        self.table.append(entries, producer_id=producer_id, producer_epoch=producer_epoch)
        if self.table.is_due:
            self._on_due()

    async def forced(self) -> None:
        """Waits until all that was appended is on disk, unless fsync is `none`."""
        await self.table.forced()

    def check_new(self, group_id: str, present: Group | None = None) -> None:
        """
        Args:
            present: the group that it takes the place of.

        Raises:
            RequestRefused: a group of this id, or one more group, cannot be kept.
        """
        if len(group_id) > NAME_CHARS_MAX:
            raise RequestRefused(ErrorCode.INVALID_GROUP_ID, f"a group id of {len(group_id)} characters")
        if present is None and len(self.groups) >= GROUPS_MAX:
            raise RequestRefused(ErrorCode.POLICY_VIOLATION, f"there are {GROUPS_MAX} groups already")

    def add_group(self, group_id: str) -> Group:
        """`add_classic` where there may be one more.

        Raises:
            RequestRefused: a group of this id, or one more group, cannot be kept.
        """
        self.check_new(group_id)
        return self.add_classic(group_id)

    def add_classic(self, group_id: str) -> Group:
        """A group that nobody has joined, of which nothing is stored."""
        self.note_unused(group_id)
        group = self.groups[group_id] = self._make_classic(group_id)
        return group

    def note_unused(self, group_id: str) -> None:
        """Nobody uses the group from now on."""
        self._unused_since_ms[group_id] = self._now_ms()

    def unused_since_ms(self, group_id: str) -> int:
        return self._unused_since_ms.get(group_id, 0)

    def forget(self, group_id: str) -> None:
        """Takes the group from memory."""
        del self.groups[group_id]
        self._unused_since_ms.pop(group_id, None)

    # What is stored of them

    def entry_of(self, group: Group) -> Entry:
        if group.is_rebalancing:
            # After a start it is one without members (see `encode_group`), which somebody used until now.
            self.note_unused(group.group_id)
        changed_at_ms = self.unused_since_ms(group.group_id)
        return encode_key(GroupKey(group.group_id)), encode_group(group, changed_at_ms)

    def unstored_of(self, group: ConsumerGroup) -> list[Entry]:
        """What changed in it since it was stored."""
        return unstored_entries(group, self.unused_since_ms(group.group_id))

    async def compact(self) -> None:
        """
        Raises:
            OSError, RequestRefused: the disk refused it.
        """
        before, after = await self.table.compact(self._alive(), self._row_of, self._append_pending)
        logger.info("offsets compacted bytes_before=%d bytes_after=%d", before, after)

    def _alive(self) -> Iterator[Key]:
        for group_id in {**self.groups, **dict.fromkeys(self.offsets.groups())}:
            group = self.groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                yield from keys_of(group)
            else:
                yield GroupKey(group_id)
            yield from [OffsetKey(group_id, *place) for place in self.offsets.of_group(group_id)]

    def _row_of(self, key: Key) -> Entry | None:
        if isinstance(key, OffsetKey):
            committed = self.offsets.get(key)
            return (encode_key(key), encode_offset(committed)) if committed is not None else None
        group = self.groups.get(key.group_id)
        if isinstance(key, ConsumerKey):
            if not isinstance(group, ConsumerGroup) or (key.member_id and key.member_id not in group.members):
                return None
            return consumer_entry(group, key, self.unused_since_ms(key.group_id))
        # Of one that nobody joined nothing is stored: it would come back with each start after it was forgotten.
        return self.entry_of(group) if isinstance(group, Group) and group.generation else None

    def _append_pending(self) -> None:
        for producer_id, epoch, offsets in self.offsets.all_pending():
            self.table.append(entries_of(offsets), producer_id=producer_id, producer_epoch=epoch)

    # After a start

    def _load(self, monotonic_ms: Callable[[], int]) -> None:
        """Folds the log into groups and offsets."""
        metadata: dict[str, GroupMetadata] = {}
        consumers: dict[str, StoredGroup] = {}
        unknown: Counter[int] = Counter()
        for placed, batch in self.table.batches():
            if placed.header.attributes & CONTROL:
                self.offsets.drop_pending(placed.header.producer_id)
                continue
            try:
                if placed.header.attributes & TRANSACTIONAL:
                    self._load_pending(placed.header.producer_id, placed.header.producer_epoch, batch)
                    continue
                for _, _, raw_key, value, _ in opened(batch, is_our_own=True):
                    key = decode_key(raw_key or b"")
                    if isinstance(key, OffsetKey):
                        committed = decode_offset(value) if value is not None else None
                        # What a compaction wrote anew is no commit: whatever transactions are to commit still counts.
                        if committed is None or committed != self.offsets.get(key):
                            self.offsets.apply(key, committed, self.offsets.whose(key, committed))
                    elif isinstance(key, ConsumerKey):
                        consumers.setdefault(key.group_id, StoredGroup()).apply(key, value)
                        if key.kind is RecordKind.GROUP and value is None:
                            del consumers[key.group_id]
                    elif isinstance(key, int):
                        unknown[key] += 1
                    elif value is None:
                        metadata.pop(key.group_id, None)
                    else:
                        metadata[key.group_id] = decode_group(value)
            except (MalformedMessage, CorruptBatch) as error:
                logger.error("offsets of groups skipped offset=%d reason=%s", placed.header.base_offset, error)
        for kind, count in unknown.items():
            logger.error("records of groups skipped kind=%d count=%d reason=no kind that is known", kind, count)
        now_ms = monotonic_ms()  # sessions begin when the groups can be asked for
        for group_id, kept in consumers.items():
            self._restore_consumers(group_id, kept, now_ms)
        for group_id in {*metadata, *self.offsets.groups(), *self.offsets.pending_groups()} - consumers.keys():
            group = self.groups[group_id] = self._make_classic(group_id)
            # Of one that never had members offsets alone are stored, each with its time: a start is no use of them.
            self._unused_since_ms[group_id] = 0
            stored = metadata.get(group_id)
            if stored is not None:
                self._unused_since_ms[group_id] = stored.changed_at_ms
                group.protocol_type = stored.protocol_type or None
                group.generation, group.protocol, group.leader = stored.generation, stored.protocol, stored.leader
                group.restore(stored.members, now_ms)

    def _restore_consumers(self, group_id: str, stored: StoredGroup, now_ms: int) -> None:
        group = self.groups[group_id] = self._make_consumer(group_id)
        self._unused_since_ms[group_id] = stored.changed_at_ms
        group.epoch, group.target_epoch, group.target = stored.epoch, stored.target_epoch, stored.target
        group.restore(stored.whole_members(), now_ms)

    def _load_pending(self, producer_id: int, epoch: int, batch: bytes) -> None:
        found: dict[OffsetKey, CommittedOffset] = {}
        for _, _, raw_key, value, _ in opened(batch, is_our_own=True):
            key = decode_key(raw_key or b"")
            if isinstance(key, OffsetKey) and value is not None:
                found[key] = decode_offset(value)
        self.offsets.add_pending(producer_id, epoch, found)


def tombstones(group: Group | ConsumerGroup) -> list[Entry]:
    if isinstance(group, Group):
        return [(encode_key(GroupKey(group.group_id)), None)]
    # The group's own last: after it nothing is known of the group.
    return [(encode_consumer_key(key), None) for key in reversed(list(keys_of(group)))]


def entries_of(offsets: Mapping[OffsetKey, CommittedOffset]) -> list[Entry]:
    return [(encode_key(key), encode_offset(committed)) for key, committed in offsets.items()]
