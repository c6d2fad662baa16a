"""Offset commits: checks whether a member may commit, and stores the offsets in the log of `__consumer_offsets`.

A response is sent when the commit is in the log and, unless fsync is `none`, on disk.

Offsets that belong to an open transaction are pending: they are stored as a batch of its producer, and clients do not
see them. When the transaction commits, they are stored again as an ordinary commit, before the marker that ends the
transaction in `__consumer_offsets`. So a crash at any point never resets an offset to an older commit.

For each partition of a group, the change that was stored last takes precedence. A pending offset has no effect if the
partition's offset was committed or deleted after it was stored. If two transactions store an offset for the same
partition, the one stored last stays, even if its transaction ends first.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from headrace.broker.coordinator.consumer_group import ConsumerGroup, TopicCatalog
from headrace.broker.coordinator.group_store import GroupStore, entries_of
from headrace.broker.coordinator.offsets import METADATA_CHARS_MAX, TopicPartition
from headrace.broker.coordinator.records import CommittedOffset, OffsetKey, encode_key
from headrace.broker.coordinator.table import in_batches
from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode


class OffsetCommits:
    """Stores and deletes committed offsets. Not thread-safe. The first commit of an unknown group creates the group.

    Args:
        store: all groups and their offsets.
        topics: the existing topics.
        monotonic_ms: clock of the deadlines of group members.
    """

    def __init__(self, store: GroupStore, topics: TopicCatalog, monotonic_ms: Callable[[], int]) -> None:
        self._store, self._topics, self._monotonic_ms = store, topics, monotonic_ms
        self._offsets = store.offsets
        self._unstored_deletions: dict[str, _UnstoredDeletions] = {}  # by deleted topic

    def check(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        partitions: Collection[TopicPartition],
        *,
        supports_member_epochs: bool = True,
    ) -> None:
        """Checks that a member of a group may commit offsets of these partitions.

        Args:
            instance_id: the instance id of a static member, else None.
            generation: the member's generation, or its epoch in a group of the consumer protocol; negative for a client
                that is not a member.
            supports_member_epochs: whether the response in the client's version can have the error STALE_MEMBER_EPOCH.

        Raises:
            RequestRefused: the member or its generation is not current, the group does not exist, a classic group waits
                for the leader's assignment, or a member of a consumer group uses a version without member epochs.
        """
        group = self._store.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.check_commit(member_id, generation, partitions, self._topics)
            if generation >= 0 and not supports_member_epochs:
                # The response to this request version cannot have STALE_MEMBER_EPOCH.
                raise RequestRefused(
                    ErrorCode.UNSUPPORTED_VERSION,
                    "a member of a group of the consumer protocol must commit with OffsetCommit version 9 or later",
                )
        elif group is not None:
            group.check_commit(member_id, instance_id, generation, self._monotonic_ms())
        elif generation >= 0:
            raise RequestRefused(ErrorCode.ILLEGAL_GENERATION, f"group {group_id!r} does not exist")

    def check_transaction(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        partitions: Collection[TopicPartition],
    ) -> None:
        """Checks that a member of a group may commit offsets of these partitions in a transaction. A client that names
        no member, such as one of an old version, is not checked.

        Args:
            instance_id: the instance id of a static member, else None.
            generation: the member's generation, or its epoch in a group of the consumer protocol; negative for a client
                that is not a member.

        Raises:
            RequestRefused: the member or its generation is not current, the group does not exist, or a classic group
                waits for the leader's assignment.
        """
        # Clients older than TxnOffsetCommit version 3 do not name the member.
        if generation >= 0 or member_id or instance_id is not None:
            try:
                self.check(group_id, member_id, instance_id, generation, partitions)
            except RequestRefused as refused:
                # OffsetCommit has a version with STALE_MEMBER_EPOCH, TxnOffsetCommit has none.
                is_stale = refused.code is ErrorCode.STALE_MEMBER_EPOCH
                raise RequestRefused(ErrorCode.ILLEGAL_GENERATION, refused.message) if is_stale else refused from None

    async def store(self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Stores committed offsets of a group, all or none; returns when they are on disk, unless fsync is `none`.

        Args:
            offsets: the offset to commit for each topic partition.

        Raises:
            RequestRefused: the offsets could not be stored, or exceed the memory limit, or the group cannot be created.
        """
        if not offsets:
            return
        keyed = {OffsetKey(group_id, topic, index): committed for (topic, index), committed in offsets.items()}
        self._offsets.check_capacity(keyed)
        if group_id not in self._store.groups:
            self._store.add_group(group_id)
        self._store.append(entries_of(keyed))
        # Changed in memory at once, so that memory and log have commits in the same order. Until the fsync, a client
        # may fetch an offset that a power failure undoes.
        for key, committed in keyed.items():
            self._offsets.apply(key, committed)
        await self._store.wait_until_durable()

    async def store_pending(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], producer_id: int, epoch: int
    ) -> None:
        """Stores offsets of a group as pending: they take effect when the producer's transaction commits. Returns when
        they are on disk, unless fsync is `none`.

        Args:
            offsets: the offset to commit for each topic partition.
            epoch: the producer's epoch.

        Raises:
            RequestRefused: the offsets could not be stored, or exceed the memory limit, or the group cannot be created.
        """
        if not offsets:
            return
        keyed = {OffsetKey(group_id, topic, index): committed for (topic, index), committed in offsets.items()}
        self._offsets.check_capacity(keyed, is_pending=True)
        if group_id not in self._store.groups:
            self._store.add_group(group_id)
        self._store.append(entries_of(keyed), producer_id=producer_id, producer_epoch=epoch)
        self._offsets.add_pending(producer_id, epoch, keyed)
        await self._store.wait_until_durable()

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Makes the pending offsets of the open transaction of a producer effective if `is_commit` is True, else
        discards them. `producer_id` identifies the producer. The caller writes the transaction's marker afterwards.

        Raises:
            RequestRefused: the offsets could not be stored.
        """
        pending = self._offsets.pending(producer_id)
        if is_commit and pending:
            self._store.append(entries_of(pending))
            for key, committed in pending.items():
                self._offsets.apply(key, committed, producer_id)
        self._offsets.drop_pending(producer_id)

    async def delete(self, keys: Iterable[OffsetKey]) -> None:
        """Deletes committed offsets; returns when the deletion is on disk, unless fsync is `none`.

        Args:
            keys: group, topic and partition of each offset.

        Raises:
            RequestRefused: the deletion could not be stored, or only for some of the offsets.
        """
        keys_to_delete = list(keys)
        if keys_to_delete:
            await self.delete_in_batches(keys_to_delete)
            await self._store.wait_until_durable()

    async def delete_in_batches(
        self, keys: Collection[OffsetKey], is_deletable: Callable[[OffsetKey], object] = lambda key: True
    ) -> None:
        """Deletes offsets in batches, between which other requests are served. An offset that is committed again
        meanwhile stays.

        Args:
            keys: group, topic and partition of each offset.
            is_deletable: called for each offset just before it is deleted; if the result is false, the offset stays.

        Raises:
            RequestRefused: a batch could not be stored; the batches before it are deleted.
        """
        found = [(key, self._offsets.get(key)) for key in keys]
        due = (key for key, committed in found if self._offsets.get(key) is committed and is_deletable(key))
        for batch in in_batches(due):
            self._store.append([(encode_key(key), None) for key in batch])
            for key in batch:
                self._offsets.apply(key, None)
            await asyncio.sleep(0)

    async def delete_topic_offsets(self, topic: str) -> None:
        """Deletes all offsets of a deleted topic, so that a new topic of this name does not inherit them. They
        disappear from memory at once, and, unless fsync is `none`, their deletion is on disk before this returns.

        Raises:
            RequestRefused: the deletion could not be stored; `retry_deletions` will store it.
        """
        self._unstored_deletions.setdefault(topic, _UnstoredDeletions()).add(self._offsets.remove_topic(topic))
        await self._store_deletions(topic)

    async def retry_deletions(self) -> None:
        """Stores the deletions that earlier calls of `delete_topic_offsets` could not store.

        Raises:
            RequestRefused: a deletion still cannot be stored.
        """
        for topic in tuple(self._unstored_deletions):
            await self._store_deletions(topic)

    def delete_before_create(self, topic: str) -> Iterator[None]:
        """Deletes the offsets of an earlier topic of this name, before the topic is created. A generator: each step
        deletes one batch, and the caller may let other tasks run before the next.

        Such offsets remain if the deletion of the earlier topic is not finished, could not be stored, or was lost or
        interrupted when the broker stopped.

        Raises:
            RequestRefused: the deletion could not be stored.
        """
        while self._store_deletion_batch(topic):
            yield
        for batch in in_batches(self._offsets.of_topic(topic)):
            self._store.append([(encode_key(key), None) for key in batch])
            for key in batch:
                self._offsets.apply(key, None)
            yield

    async def delete_before_create_durably(self, topic: str) -> None:
        """Deletes the offsets of an earlier topic of this name, before the topic is created, and waits until the
        deletion is on disk, unless fsync is `none`. Otherwise a power failure would give the new topic the old offsets.

        Raises:
            RequestRefused: the deletion could not be stored.
        """
        has_deletions = False
        for _ in self.delete_before_create(topic):
            has_deletions = True
            await asyncio.sleep(0)
        if has_deletions:
            await self._store.wait_until_durable()

    async def _store_deletions(self, topic: str) -> None:
        has_deletions = False
        while self._store_deletion_batch(topic):
            has_deletions = True
            await asyncio.sleep(0)
        if has_deletions:
            await self._store.wait_until_durable()

    def _store_deletion_batch(self, topic: str) -> bool:
        """Stores the deletion of the next batch of a deleted topic's offsets; returns False if no offset is left to
        delete. No topic of this name is created until all batches are stored.

        Raises:
            RequestRefused: the batch could not be written; the next call tries it again.
        """
        deletions = self._unstored_deletions.get(topic)
        batch = deletions.next_batch() if deletions is not None else ()
        if deletions is None or not batch:
            self._unstored_deletions.pop(topic, None)
            return False
        self._store.append([(encode_key(key), None) for key in batch])
        deletions.note_stored()
        return True


class _UnstoredDeletions:
    """The offsets of one deleted topic that are still to be deleted from the log."""

    __slots__ = ("_batch", "_remaining")

    def __init__(self) -> None:
        self._remaining: Iterator[OffsetKey] = iter(())
        self._batch: Sequence[OffsetKey] = ()

    def add(self, keys: Iterator[OffsetKey]) -> None:
        self._remaining = itertools.chain(self._remaining, keys)

    def next_batch(self) -> Sequence[OffsetKey]:
        """Returns the next batch of offsets to delete; empty if none is left. Until `note_stored` is called, each call
        returns the same batch."""
        if not self._batch:
            self._batch = next(in_batches(self._remaining), ())
        return self._batch

    def note_stored(self) -> None:
        self._batch = ()


def check_metadata(metadata: str | None) -> str:
    """Returns the metadata text of an offset to commit, "" for None.

    Raises:
        RequestRefused: the text is too long.
    """
    if metadata is not None and len(metadata) > METADATA_CHARS_MAX:
        raise RequestRefused(
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            f"the metadata of an offset has {len(metadata)} characters; at most {METADATA_CHARS_MAX} are allowed",
        )
    return metadata or ""
