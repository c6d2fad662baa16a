"""The group coordinator: processes the requests of group members. The response to a request that must wait for other
members is sent later.

A change that must be stored is in the log before its response is sent, but perhaps not yet on disk: `delete_group`
waits for the disk unless fsync is `none`, the requests of members do not.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from headrace.broker.config import FsyncMode
from headrace.broker.coordinator.commits import OffsetCommits
from headrace.broker.coordinator.consumer_group import ConsumerGroup, ConsumerGroupState, TopicCatalog
from headrace.broker.coordinator.consumer_members import JOIN_EPOCH
from headrace.broker.coordinator.consumer_messages import HeartbeatRequest, HeartbeatResult
from headrace.broker.coordinator.group import SESSION_TIMEOUT_MS_MIN, Group, GroupState
from headrace.broker.coordinator.group_store import GroupStore, tombstones
from headrace.broker.coordinator.members import Ticket
from headrace.broker.coordinator.messages import GroupActions, JoinRequest, JoinResult, SyncRequest, SyncResult
from headrace.broker.coordinator.records import OffsetKey
from headrace.broker.coordinator.table import LogTable, TableEntry
from headrace.broker.errors import RequestRefused
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.loop_yielder import LoopYielder
from headrace.broker.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

COMPACT_BYTES = 4 * 1024 * 1024
"""The log of `__consumer_offsets` is compacted when it has grown by this much since its last compaction, about 50,000
commits, or if it is larger than this after a start. A start reads that many in under a second."""
EMPTY_GROUP_MS = 600_000
"""A group without members and offsets is deleted after this time: short-lived consumers generate group ids. A classic
group in which no rebalance was completed is deleted by the next housekeeping."""
MEMBER_PREFIX_CHARS = 200
"""A member id that the broker assigns in a classic group begins with at most this many characters of the client id or
instance id."""
CONSUMER_SESSION_TIMEOUT_MS, CONSUMER_HEARTBEAT_INTERVAL_MS = 45_000, 5000
"""Kafka's defaults for groups of the consumer protocol (KIP-848): members must send heartbeats at the interval, and are
removed after the session timeout without one."""
TICK_MS_MAX = 60_000
"""The coordinator checks deadlines at least this often, and earlier if a deadline is due."""


UNUSED_STATES = (GroupState.EMPTY, ConsumerGroupState.EMPTY)


class GroupCoordinator:
    """Coordinates all groups of the broker. Not thread-safe.

    Args:
        log: the log of `__consumer_offsets`.
        fsync: when appended batches are fsynced.
        now_ms: wall clock, for times in the log and for the expiry of offsets and groups.
        topics: the existing topics.
        unlink: deletes files in the background.
        rebalance_delay_ms: how long an empty classic group waits for more members after the latest one has joined, in
            total at most the longest rebalance timeout of its members.
        session_timeout_ms_min: shortest session timeout that a member of a classic group may request.
        consumer_session_timeout_ms: session timeout of the members of all groups of the consumer protocol.
        monotonic_ms: clock of deadlines.
    """

    def __init__(
        self,
        log: PartitionLog,
        flusher: Flusher,
        fsync: FsyncMode,
        now_ms: Callable[[], int],
        *,
        topics: TopicCatalog,
        unlink: Callable[[list[Path]], object],
        rebalance_delay_ms: int = 0,
        session_timeout_ms_min: int = SESSION_TIMEOUT_MS_MIN,
        consumer_session_timeout_ms: int = CONSUMER_SESSION_TIMEOUT_MS,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._table = LogTable(log, flusher, fsync, now_ms, unlink=unlink, growth_bytes=COMPACT_BYTES)
        self._now_ms, self._monotonic_ms = now_ms, monotonic_ms
        self._topics, self._consumer_session_timeout_ms = topics, consumer_session_timeout_ms
        self._tickets = itertools.count(1)
        self._waiting: dict[Ticket, asyncio.Future[JoinResult | SyncResult]] = {}
        self._changed = asyncio.Event()
        self._deadlines_ms: dict[str, int] = {}  # group id -> next deadline, or an earlier time
        self._stopped = False
        self.store = GroupStore(
            self._table,
            now_ms,
            monotonic_ms,
            on_compaction_due=self._changed.set,
            create_classic=lambda group_id: Group(group_id, _new_member_id, rebalance_delay_ms, session_timeout_ms_min),
            create_consumer=lambda group_id: ConsumerGroup(group_id, consumer_session_timeout_ms),
        )
        self.commits = OffsetCommits(self.store, topics, monotonic_ms)
        self.groups, self.offsets = self.store.groups, self.store.offsets
        for group in self.groups.values():
            self._update_deadline(group)

    # Members

    async def join(self, group_id: str, request: JoinRequest) -> JoinResult:
        if not group_id:
            return JoinResult(ErrorCode.INVALID_GROUP_ID, request.member_id)
        group = self.groups.get(group_id)
        if not isinstance(group, Group):
            if group is None and request.member_id:
                return JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            try:
                group = self.store.add_group(group_id) if group is None else self._become_classic(group)
            except RequestRefused as refused:
                return JoinResult(refused.code, request.member_id)
        ticket, pending_result = self._ticket()
        self._apply(group, group.join(request, ticket, self._monotonic_ms()))
        result = await self._wait_for_result(group, ticket, pending_result)
        assert isinstance(result, JoinResult)
        return result

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResult:
        group = self.groups.get(group_id)
        if not isinstance(group, Group):
            return SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)
        ticket, pending_result = self._ticket()
        self._apply(group, group.sync(request, ticket, self._monotonic_ms()))
        result = await self._wait_for_result(group, ticket, pending_result)
        assert isinstance(result, SyncResult)
        return result

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        group = self.groups.get(group_id)
        if not isinstance(group, Group):
            return ErrorCode.UNKNOWN_MEMBER_ID
        return group.heartbeat(member_id, instance_id, generation, self._monotonic_ms())

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        group = self.groups.get(group_id)
        if not isinstance(group, Group):
            return ErrorCode.UNKNOWN_MEMBER_ID
        code, actions = group.leave(member_id, instance_id, self._monotonic_ms())
        self._apply(group, actions)
        return code

    # Members of consumer groups (KIP-848)

    def consumer_heartbeat(self, group_id: str, request: HeartbeatRequest) -> HeartbeatResult:
        """Processes a heartbeat of a group's member in the consumer protocol (KIP-848). Returns the member's epoch, and
        its assignment if that must be sent. A group that does not exist is created if the member joins; an empty
        classic group is replaced.

        Raises:
            RequestRefused: the request is invalid, the member must rejoin or may not join, or the change could not be
                stored.
        """
        if not group_id:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "the group id is empty")
        current = self.groups.get(group_id)
        if isinstance(current, ConsumerGroup):
            group = current
        elif current is not None and current.state is not GroupState.EMPTY:
            raise RequestRefused(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"group {group_id!r} uses the classic protocol; stop its members, or use group.protocol=classic",
            )
        elif request.epoch != JOIN_EPOCH:
            # A power failure may have lost the group. After this error its members join again.
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"consumer group {group_id!r} does not exist")
        else:
            self.store.check_can_create(group_id, current)
            group = ConsumerGroup(group_id, self._consumer_session_timeout_ms)
        result = group.heartbeat(request, self._topics, self._monotonic_ms())
        if group.unstored:
            # The group is stored in one batch with the deletion of the empty classic group that it replaces.
            self._store_changes(group, tombstones(current) if isinstance(current, Group) else ())
            self.groups[group_id] = group
            self._update_deadline(group)
        return result

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Checks that a member of a group may fetch the group's committed offsets. Only groups of the consumer protocol
        are checked.

        Args:
            member_id: None if the client names no member.
            epoch: the member epoch in the request.

        Raises:
            RequestRefused: the member does not exist, or its epoch is stale.
        """
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.check_fetch(member_id, epoch)

    def _become_classic(self, group: ConsumerGroup) -> Group:
        """Replaces an empty group of the consumer protocol by one of the classic protocol, and returns the new one.

        Raises:
            RequestRefused: the group has members, or the change could not be stored.
        """
        if group.members:
            raise RequestRefused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {group.group_id!r} uses the consumer protocol; stop its members, or use "
                "group.protocol=consumer",
            )
        self.store.append(tombstones(group))
        return self.store.add_classic(group.group_id)

    def _store_changes(self, group: ConsumerGroup, deleted_entries: Sequence[TableEntry] = ()) -> None:
        """Stores the unstored changes of a group. If that fails, they are stored with the group's next change.

        Args:
            deleted_entries: records that delete a classic group which this one replaces; stored in the same batch.

        Raises:
            RequestRefused: the log could not be written.
        """
        if not group.members:
            self.store.mark_unused(group.group_id)
        self.store.append([*deleted_entries, *self.store.changed_entries(group)])
        if group.unstored.epochs:
            logger.info(
                "group changed group=%s state=%s epoch=%d members=%d",
                group.group_id,
                group.state,
                group.epoch,
                len(group.members),
            )
        group.unstored.clear()

    # Deleting groups

    async def delete_group(self, group_id: str) -> None:
        """Deletes a group that has no members, and its offsets.

        Raises:
            RequestRefused: the group does not exist, has members or was used meanwhile, an open transaction will commit
                its offsets, or the log could not be written. Some of its offsets may then be deleted.
        """
        group = self.groups.get(group_id)
        if group is None:
            raise RequestRefused(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} does not exist")
        group.check_empty()
        if self.offsets.pending_partitions(group_id):
            raise RequestRefused(
                ErrorCode.NON_EMPTY_GROUP, f"an open transaction will commit offsets of group {group_id!r}; retry later"
            )
        # Between two batches of deletions a member may join or commit, or another client may delete the group.
        keys_to_delete = [OffsetKey(group_id, *topic_partition) for topic_partition in self.offsets.of_group(group_id)]
        await self.commits.delete_in_batches(keys_to_delete, lambda key: self._is_unused(group))
        if not self._is_unused(group) or self.offsets.of_group(group_id):
            raise RequestRefused(
                ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} was used while it was deleted; delete it again"
            )
        self.store.append(tombstones(group))
        group.delete()
        self.store.remove(group_id)
        await self.store.wait_until_durable()
        logger.info("group deleted group=%s", group_id)

    def _is_unused(self, group: Group | ConsumerGroup) -> bool:
        """True if this group still exists, has no members, and no open transaction will commit offsets for it."""
        is_pending = self.offsets.pending_partitions(group.group_id)
        return self.groups.get(group.group_id) is group and group.state in UNUSED_STATES and not is_pending

    async def run_housekeeping(self) -> None:
        """Deletes expired offsets and unused groups, and retries failed deletions of topic offsets.

        Raises:
            RequestRefused: the log could not be written.
        """
        yielder = LoopYielder()
        for group_id in list(self.groups):
            await yielder.yield_if_due()
            now_ms, group = self._now_ms(), self.groups.get(group_id)
            if group is not None and group.state in UNUSED_STATES:
                expired = self.offsets.expired(group_id, self.store.unused_since_ms(group_id), now_ms)
                # Between two batches of deletions the group may be used again.
                await self.commits.delete_in_batches(expired, partial(self._is_expired, now_ms=now_ms))
                if self._is_unused(group) and not self.offsets.of_group(group_id):
                    self._remove_if_unused(group_id, self.store.unused_since_ms(group_id), now_ms)
        await self.commits.retry_deletions()

    def _is_expired(self, key: OffsetKey, now_ms: int) -> bool:
        group, committed = self.groups.get(key.group_id), self.offsets.get(key)
        return (
            group is not None
            and group.state in UNUSED_STATES
            and committed is not None
            and self.offsets.is_expired(committed.committed_at_ms, now_ms)
            # An offset stays while an open transaction is going to commit it again.
            and (key.topic, key.partition) not in self.offsets.pending_partitions(key.group_id)
        )

    def _remove_if_unused(self, group_id: str, unused_since_ms: int, now_ms: int) -> None:
        group = self.groups[group_id]
        # A group without a generation never had members, so nothing is stored for it.
        is_old = now_ms - unused_since_ms > EMPTY_GROUP_MS
        if isinstance(group, ConsumerGroup):
            is_stored, is_removable = True, is_old
        else:
            is_stored = bool(group.generation)
            is_removable = (is_old or not is_stored) and not group.has_pending_members
        if is_removable:
            if is_stored:
                self.store.append(tombstones(group))
            self.store.remove(group_id)

    # Time

    async def run(self) -> None:
        """Processes the deadlines of the groups until `stop` is called."""
        while not self._stopped:
            now_ms = self._monotonic_ms()
            await self.run_due(now_ms)
            if not self._stopped:
                self._changed.clear()
            wait_ms = min(max(min(self._deadlines_ms.values(), default=now_ms + TICK_MS_MAX) - now_ms, 1), TICK_MS_MAX)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def run_due(self, now_ms: int) -> None:
        """Processes the deadlines of groups up to `now_ms` (monotonic clock), and compacts the log of
        `__consumer_offsets` when it is due."""
        for group_id in [group_id for group_id, due_ms in self._deadlines_ms.items() if due_ms <= now_ms]:
            try:
                self._tick(group_id, now_ms)
            except Exception:
                # Other groups continue. The members of this group notice by their own timeouts.
                logger.exception("deadline of a group not processed group=%s", group_id)
                self._deadlines_ms[group_id] = now_ms + TICK_MS_MAX
        if self._table.is_compaction_due:
            try:
                await self.store.compact()
            except (OSError, RequestRefused) as error:
                logger.error(
                    "log of groups and offsets not compacted; check the disk of the data directory bytes=%d reason=%s",
                    self._table.log.size,
                    error,
                )
            except Exception:
                # A failed compaction must not stop the processing of deadlines.
                logger.exception("log of groups and offsets not compacted bytes=%d", self._table.log.size)

    def _tick(self, group_id: str, now_ms: int) -> None:
        group = self.groups.get(group_id)
        due_ms = group.next_deadline_ms() if group is not None else None
        if group is None or due_ms is None:
            del self._deadlines_ms[group_id]
        elif due_ms <= now_ms:
            actions = group.tick(now_ms)
            if isinstance(group, Group):
                self._apply(group, actions)
                return
            self._update_deadline(group)
            try:
                self._store_changes(group)
            except RequestRefused as refused:
                logger.error(
                    "group change not stored; will be retried with the next change of the group group=%s reason=%s",
                    group_id,
                    refused,
                )
        else:
            self._deadlines_ms[group_id] = due_ms

    def stop(self) -> None:
        self._stopped = True
        self._changed.set()

    def _ticket(self) -> tuple[Ticket, asyncio.Future[JoinResult | SyncResult]]:
        ticket = next(self._tickets)
        self._waiting[ticket] = asyncio.get_running_loop().create_future()
        return ticket, self._waiting[ticket]

    async def _wait_for_result(
        self, group: Group, ticket: Ticket, pending_result: asyncio.Future[JoinResult | SyncResult]
    ) -> JoinResult | SyncResult:
        try:
            return await pending_result
        except asyncio.CancelledError:
            # The connection was closed, so the session of its member may time out from now on.
            self._waiting.pop(ticket, None)
            self._apply(group, group.disconnect(ticket, self._monotonic_ms()))
            raise

    def _apply(self, group: Group, actions: GroupActions) -> None:
        """Performs the actions that a group returned: stores the group if necessary, then sends the responses."""
        error = ErrorCode.NONE
        if actions.must_store:
            if group.state is GroupState.EMPTY:
                self.store.mark_unused(group.group_id)
            try:
                self.store.append([self.store.entry_for(group)])
            except RequestRefused as refused:
                logger.error(
                    "group change not stored; the members get an error and join again group=%s reason=%s",
                    group.group_id,
                    refused,
                )
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            logger.info(
                "group changed group=%s state=%s generation=%d members=%d",
                group.group_id,
                group.state,
                group.generation,
                len(group.members),
            )
        for reply in actions.replies:
            waiting = self._waiting.pop(reply.ticket, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(_storage_failure(reply.result, error) if error else reply.result)
        self._update_deadline(group)

    def _update_deadline(self, group: Group | ConsumerGroup) -> None:
        due_ms = group.next_deadline_ms()
        if due_ms is None:
            self._deadlines_ms.pop(group.group_id, None)
        else:
            self._deadlines_ms[group.group_id] = due_ms
            self._changed.set()


def _storage_failure(result: JoinResult | SyncResult, error: ErrorCode) -> JoinResult | SyncResult:
    """Returns the response that a member gets instead of `result` because its group could not be stored: the error code
    `error` without an assignment. A restart would forget the assignment, or the new id of a static member, so the
    member must not use it. A `result` that has an error already is returned unchanged."""
    if result.error is not ErrorCode.NONE:
        return result
    return SyncResult(error) if isinstance(result, SyncResult) else JoinResult(error, result.member_id)


def _new_member_id(prefix: str) -> str:
    return f"{prefix[:MEMBER_PREFIX_CHARS]}-{uuid.uuid4()}"
