"""Groups and committed offsets: in memory, and in the log from which they are loaded.

They are stored in one partition of `__consumer_offsets`. One OffsetCommit is one record batch, so its CRC makes it
atomic for all its partitions.
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
from headrace.broker.coordinator.table import LogTable, TableEntry
from headrace.broker.errors import RequestRefused
from headrace.broker.log.decoding import decode_records
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.errors import CorruptBatch, MalformedMessage
from headrace.kafka_wire.record_batch import CONTROL, TRANSACTIONAL

logger = logging.getLogger(__name__)

GROUPS_MAX = 50_000
"""Maximum number of groups; all of them are in memory."""

Key = GroupKey | OffsetKey | ConsumerKey


class GroupStore:
    """All groups by id, `groups`, and all committed offsets, `offsets`. Callers change these and append the changes to
    the log. Not thread-safe.

    Args:
        now_ms: wall clock, for times in the log.
        monotonic_ms: clock of deadlines.
        on_compaction_due: called after each append while a compaction of the log is due.
        create_classic: creates a group of the classic protocol from its id.
        create_consumer: creates a group of the consumer protocol from its id.
    """

    def __init__(
        self,
        table: LogTable,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        *,
        on_compaction_due: Callable[[], None],
        create_classic: Callable[[str], Group],
        create_consumer: Callable[[str], ConsumerGroup],
    ) -> None:
        self.groups: dict[str, Group | ConsumerGroup] = {}
        self.offsets = OffsetTable()
        self.table = table
        self._now_ms, self._on_compaction_due = now_ms, on_compaction_due
        self._create_classic, self._create_consumer = create_classic, create_consumer
        self._unused_since_ms: dict[str, int] = {}
        self._load(monotonic_ms)

    def append(self, entries: Sequence[TableEntry], *, producer_id: int = -1, producer_epoch: int = -1) -> None:
        """Appends records of groups or offsets to the log of `__consumer_offsets` in one batch; in the transaction of a
        producer if its id and epoch are given.

        Args:
            entries: encoded key and value of each record; a value of None deletes the key.

        Raises:
            RequestRefused: the log could not be written.
        """
        self.table.append(entries, producer_id=producer_id, producer_epoch=producer_epoch)
        if self.table.is_compaction_due:
            self._on_compaction_due()

    async def wait_until_durable(self) -> None:
        """Waits until everything appended to the log of `__consumer_offsets` is on disk, unless fsync is `none`."""
        await self.table.wait_until_durable()

    def check_can_create(self, group_id: str, replaced: Group | None = None) -> None:
        """Checks that a group may be created.

        Args:
            replaced: existing group of this id that the new one replaces.

        Raises:
            RequestRefused: the group id is too long, or there are too many groups.
        """
        if len(group_id) > NAME_CHARS_MAX:
            raise RequestRefused(
                ErrorCode.INVALID_GROUP_ID,
                f"the group id has {len(group_id)} characters; at most {NAME_CHARS_MAX} are allowed",
            )
        if replaced is None and len(self.groups) >= GROUPS_MAX:
            raise RequestRefused(
                ErrorCode.POLICY_VIOLATION, f"the limit of {GROUPS_MAX} groups is reached; delete unused groups"
            )

    def add_group(self, group_id: str) -> Group:
        """Creates and returns a group of the classic protocol, after checking the limits.

        Raises:
            RequestRefused: the group id is too long, or there are too many groups.
        """
        self.check_can_create(group_id)
        return self.add_classic(group_id)

    def add_classic(self, group_id: str) -> Group:
        """Creates and returns a group of the classic protocol without checking limits. Nothing is stored until it has
        members."""
        self.mark_unused(group_id)
        group = self.groups[group_id] = self._create_classic(group_id)
        return group

    def mark_unused(self, group_id: str) -> None:
        """Records the current time as the one since when the group has no members, from which the expiry of its offsets
        and of the group is counted."""
        self._unused_since_ms[group_id] = self._now_ms()

    def unused_since_ms(self, group_id: str) -> int:
        return self._unused_since_ms.get(group_id, 0)

    def remove(self, group_id: str) -> None:
        """Removes the group from memory, not from the log."""
        del self.groups[group_id]
        self._unused_since_ms.pop(group_id, None)

    # Stored records

    def entry_for(self, group: Group) -> TableEntry:
        if group.is_rebalancing:
            # After a restart this group has no members (see `encode_group`), although it was in use until now.
            self.mark_unused(group.group_id)
        changed_at_ms = self.unused_since_ms(group.group_id)
        return encode_key(GroupKey(group.group_id)), encode_group(group, changed_at_ms)

    def changed_entries(self, group: ConsumerGroup) -> list[TableEntry]:
        """Returns the records for the changes of a group that are not in the log yet."""
        return unstored_entries(group, self.unused_since_ms(group.group_id))

    async def compact(self) -> None:
        """Compacts the log of `__consumer_offsets`: appends the current records of all groups and offsets, and drops
        the older segments.

        Raises:
            OSError, RequestRefused: the log could not be written.
        """
        before, after = await self.table.compact(self._live_keys(), self._row_for, self._append_pending)
        logger.info("log of groups and offsets compacted bytes_before=%d bytes_after=%d", before, after)

    def _live_keys(self) -> Iterator[Key]:
        for group_id in {**self.groups, **dict.fromkeys(self.offsets.groups())}:
            group = self.groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                yield from keys_of(group)
            else:
                yield GroupKey(group_id)
            yield from [OffsetKey(group_id, *topic_partition) for topic_partition in self.offsets.of_group(group_id)]

    def _row_for(self, key: Key) -> TableEntry | None:
        if isinstance(key, OffsetKey):
            committed = self.offsets.get(key)
            return (encode_key(key), encode_offset(committed)) if committed is not None else None
        group = self.groups.get(key.group_id)
        if isinstance(key, ConsumerKey):
            if not isinstance(group, ConsumerGroup) or (key.member_id and key.member_id not in group.members):
                return None
            return consumer_entry(group, key, self.unused_since_ms(key.group_id))
        # A classic group without a generation never had members and is not stored; otherwise it would reappear at every
        # start after its deletion.
        return self.entry_for(group) if isinstance(group, Group) and group.generation else None

    def _append_pending(self) -> None:
        for producer_id, epoch, offsets in self.offsets.all_pending():
            self.table.append(entries_of(offsets), producer_id=producer_id, producer_epoch=epoch)

    # Loading at start

    def _load(self, monotonic_ms: Callable[[], int]) -> None:
        """Reads the log of `__consumer_offsets` at start, and builds the groups and the committed offsets from it. The
        session timeouts of the loaded members start at the time that `monotonic_ms` returns."""
        metadata: dict[str, GroupMetadata] = {}
        consumers: dict[str, StoredGroup] = {}
        unknown: Counter[int] = Counter()
        for located, batch in self.table.batches():
            if located.header.attributes & CONTROL:
                self.offsets.drop_pending(located.header.producer_id)
                continue
            try:
                if located.header.attributes & TRANSACTIONAL:
                    self._load_pending(located.header.producer_id, located.header.producer_epoch, batch)
                    continue
                for _, _, raw_key, value, _ in decode_records(batch, is_own_batch=True):
                    key = decode_key(raw_key or b"")
                    if isinstance(key, OffsetKey):
                        committed = decode_offset(value) if value is not None else None
                        # A record rewritten by compaction is not a new commit: pending offsets of transactions still
                        # take effect later.
                        if committed is None or committed != self.offsets.get(key):
                            self.offsets.apply(key, committed, self.offsets.pending_producer(key, committed))
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
                logger.error(
                    "batch of group and offset records skipped, changes may be lost offset=%d reason=%s",
                    located.header.base_offset,
                    error,
                )
        for kind, count in unknown.items():
            logger.error(
                "records of groups skipped kind=%d count=%d reason=unknown record kind, written by a newer version",
                kind,
                count,
            )
        now_ms = monotonic_ms()  # sessions start when the broker can serve members
        for group_id, stored_group in consumers.items():
            self._restore_consumer_group(group_id, stored_group, now_ms)
        for group_id in {*metadata, *self.offsets.groups(), *self.offsets.pending_groups()} - consumers.keys():
            group = self.groups[group_id] = self._create_classic(group_id)
            # Groups that never had members are stored only through their offsets, which have commit times. The restart
            # does not count as use.
            self._unused_since_ms[group_id] = 0
            stored = metadata.get(group_id)
            if stored is not None:
                self._unused_since_ms[group_id] = stored.changed_at_ms
                group.protocol_type = stored.protocol_type or None
                group.generation, group.protocol, group.leader = stored.generation, stored.protocol, stored.leader
                group.restore(stored.members, now_ms)

    def _restore_consumer_group(self, group_id: str, stored: StoredGroup, now_ms: int) -> None:
        group = self.groups[group_id] = self._create_consumer(group_id)
        self._unused_since_ms[group_id] = stored.changed_at_ms
        group.epoch, group.target_epoch, group.target = stored.epoch, stored.target_epoch, stored.target
        group.restore(stored.merged_members(), now_ms)

    def _load_pending(self, producer_id: int, epoch: int, batch: bytes) -> None:
        found: dict[OffsetKey, CommittedOffset] = {}
        for _, _, raw_key, value, _ in decode_records(batch, is_own_batch=True):
            key = decode_key(raw_key or b"")
            if isinstance(key, OffsetKey) and value is not None:
                found[key] = decode_offset(value)
        self.offsets.add_pending(producer_id, epoch, found)


def tombstones(group: Group | ConsumerGroup) -> list[TableEntry]:
    if isinstance(group, Group):
        return [(encode_key(GroupKey(group.group_id)), None)]
    # The record of the group epoch is deleted last: until then the group exists.
    return [(encode_consumer_key(key), None) for key in reversed(list(keys_of(group)))]


def entries_of(offsets: Mapping[OffsetKey, CommittedOffset]) -> list[TableEntry]:
    return [(encode_key(key), encode_offset(committed)) for key, committed in offsets.items()]
