"""Offsets that consumers commit: who may, and what is stored of them.

An answer goes out when what it tells is in the log and, unless fsync is `none`, on disk.

Offsets that a transaction commits are stored as a batch of its producer, and nobody sees them. When it is committed
they are stored once more as a commit like any other, before the marker that ends the transaction in this log: so
nothing that was committed since is set back, whenever a crash comes. Whatever is committed or deleted later than they
were counts, and they do not any more; of two transactions that which stored an offset last, in whatever order they end.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from headrace.broker.coordinator.consumer_group import ConsumerGroup, Topics
from headrace.broker.coordinator.group_store import GroupStore, entries_of
from headrace.broker.coordinator.offsets import METADATA_CHARS_MAX, TopicPartition
from headrace.broker.coordinator.records import CommittedOffset, OffsetKey, encode_key
from headrace.broker.coordinator.table import in_batches
from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode


class Commits:
    """Not for use by threads. A group that nobody has joined is there as soon as something is committed for it."""

    def __init__(self, store: GroupStore, topics: Topics, monotonic_ms: Callable[[], int]) -> None:
        self._store, self._topics, self._monotonic_ms = store, topics, monotonic_ms
        self._offsets = store.offsets
        self._forgotten: dict[str, _Forgotten] = {}  # by the topic that was deleted

    def check(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        places: Collection[TopicPartition],
        *,
        knows_member_epochs: bool = True,
    ) -> None:
        """Raises:
        RequestRefused: this member of this generation may not commit offsets of these partitions.
        """
        group = self._store.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.check_commit(member_id, generation, places, self._topics)
            if generation >= 0 and not knows_member_epochs:
                # It would not know what to make of STALE_MEMBER_EPOCH.
                raise RequestRefused(ErrorCode.UNSUPPORTED_VERSION, "members of this group commit with newer versions")
        elif group is not None:
            group.check_commit(member_id, instance_id, generation, self._monotonic_ms())
        elif generation >= 0:
            raise RequestRefused(ErrorCode.ILLEGAL_GENERATION, f"there is no group {group_id!r}")

    def check_transaction(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        places: Collection[TopicPartition],
    ) -> None:
        """Raises:
        RequestRefused: this member of this generation may not have its offsets committed by a transaction.
        """
        # Clients that do not say for which member they ask are as old as exactly-once itself.
        if generation >= 0 or member_id or instance_id is not None:
            try:
                self.check(group_id, member_id, instance_id, generation, places)
            except RequestRefused as refused:
                # The newer code came with a version of OffsetCommit, and with none of TxnOffsetCommit.
                is_stale = refused.code is ErrorCode.STALE_MEMBER_EPOCH
                raise RequestRefused(ErrorCode.ILLEGAL_GENERATION, refused.message) if is_stale else refused from None

    async def store(self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Stores the offsets, all or none.

        Raises:
            RequestRefused: they could not be stored.
        """
        if not offsets:
            return
        keyed = {OffsetKey(group_id, topic, index): committed for (topic, index), committed in offsets.items()}
        self._offsets.check_room(keyed)
        if group_id not in self._store.groups:
            self._store.add_group(group_id)
        self._store.append(entries_of(keyed))
        # In memory at once, so that memory and log agree on the order of two commits. Whoever reads it before it is
        # forced may at worst see an offset that a power failure takes back.
        for key, committed in keyed.items():
            self._offsets.apply(key, committed)
        await self._store.forced()

    async def store_later(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], producer_id: int, epoch: int
    ) -> None:
        """Stores offsets that count as soon as the transaction of a producer is committed.

        Raises:
            RequestRefused: they could not be stored.
        """
        if not offsets:
            return
        keyed = {OffsetKey(group_id, topic, index): committed for (topic, index), committed in offsets.items()}
        self._offsets.check_room(keyed, is_pending=True)
        if group_id not in self._store.groups:
            self._store.add_group(group_id)
        self._store.append(entries_of(keyed), producer_id=producer_id, producer_epoch=epoch)
        self._offsets.add_pending(producer_id, epoch, keyed)
        await self._store.forced()

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Lets what a transaction had stored count, or forgets it; the marker is written next, and not here.

        Raises:
            RequestRefused: that could not be stored.
        """
        pending = self._offsets.pending(producer_id)
        if is_commit and pending:
            self._store.append(entries_of(pending))
            for key, committed in pending.items():
                self._offsets.apply(key, committed, producer_id)
        self._offsets.drop_pending(producer_id)

    async def delete(self, keys: Iterable[OffsetKey]) -> None:
        """Raises:
        RequestRefused: the deletion could not be stored.
        """
        doomed = list(keys)
        if doomed:
            await self.forget(doomed)
            await self._store.forced()

    async def forget(
        self, keys: Collection[OffsetKey], is_due: Callable[[OffsetKey], object] = lambda key: True
    ) -> None:
        """Stores that the offsets are gone, some at a time: there may be many, and all others wait meanwhile.

        Args:
            is_due: asked about each when its turn has come. What was committed since stays in any case.
        """
        found = [(key, self._offsets.get(key)) for key in keys]
        due = (key for key, committed in found if self._offsets.get(key) is committed and is_due(key))
        for some in in_batches(due):
            self._store.append([(encode_key(key), None) for key in some])
            for key in some:
                self._offsets.apply(key, None)
            await asyncio.sleep(0)

    async def forget_topic(self, topic: str) -> None:
        """Offsets in a deleted topic mean nothing in a new one of its name: nobody sees them from now on.

        Raises:
            RequestRefused: that could not be stored, which will be tried again.
        """
        self._forgotten.setdefault(topic, _Forgotten()).add(self._offsets.forget_topic(topic))
        await self._store_forgotten(topic)

    async def forget_rest(self) -> None:
        """Stores what could not be stored of `forget_topic`.

        Raises:
            RequestRefused: nor can it now.
        """
        for topic in tuple(self._forgotten):
            await self._store_forgotten(topic)

    def forget_before(self, topic: str) -> Iterator[None]:
        """Stores before a topic is created that what was committed in one of its name is gone, in turns.

        That is only left to do where the broker ended while that one was deleted, or just now deletes it, or where the
        disk refused it then.

        Raises:
            RequestRefused: it could not be stored.
        """
        while self._store_some_forgotten(topic):
            yield
        for some in in_batches(self._offsets.of_topic(topic)):
            self._store.append([(encode_key(key), None) for key in some])
            for key in some:
                self._offsets.apply(key, None)
            yield

    async def forgotten_before(self, topic: str) -> None:
        """`forget_before`, and waits until it is on disk: after a loss of power the new topic would have the offsets.

        Raises:
            RequestRefused: it could not be stored.
        """
        is_any = False
        for _ in self.forget_before(topic):
            is_any = True
            await asyncio.sleep(0)
        if is_any:
            await self._store.forced()

    async def _store_forgotten(self, topic: str) -> None:
        is_any = False
        while self._store_some_forgotten(topic):
            is_any = True
            await asyncio.sleep(0)
        if is_any:
            await self._store.forced()

    def _store_some_forgotten(self, topic: str) -> bool:
        """Stores of the next offsets in a deleted topic that they are gone; returns whether there were any left.

        There is no new topic of the name until there are none.

        Raises:
            RequestRefused: the disk refused it; they are left.
        """
        forgotten = self._forgotten.get(topic)
        some = forgotten.some() if forgotten is not None else ()
        if forgotten is None or not some:
            self._forgotten.pop(topic, None)
            return False
        self._store.append([(encode_key(key), None) for key in some])
        forgotten.note_stored()
        return True


class _Forgotten:
    """Offsets in a deleted topic of which the log does not say yet that they are gone."""

    __slots__ = ("_rest", "_some")

    def __init__(self) -> None:
        self._rest: Iterator[OffsetKey] = iter(())
        self._some: Sequence[OffsetKey] = ()

    def add(self, keys: Iterator[OffsetKey]) -> None:
        self._rest = itertools.chain(self._rest, keys)

    def some(self) -> Sequence[OffsetKey]:
        """The next to be stored, until they are; none behind the last."""
        if not self._some:
            self._some = next(in_batches(self._rest), ())
        return self._some

    def note_stored(self) -> None:
        self._some = ()


def check_metadata(metadata: str | None) -> str:
    """Raises:
    RequestRefused: the text beside an offset is too long.
    """
    if metadata is not None and len(metadata) > METADATA_CHARS_MAX:
        raise RequestRefused(
            ErrorCode.OFFSET_METADATA_TOO_LARGE, f"{len(metadata)} characters; at most {METADATA_CHARS_MAX}"
        )
    return metadata or ""
